// Pages of the reports: one HTML file each that opens without a network. Charts are drawn by Chart.js (MIT), which is
// embedded in the page; what they show is embedded as JSON.
#pragma once

#include <string>
#include <string_view>

namespace pith {

// A page that holds `json` in an element named "data" and runs `script` on it, after the chart library.
// `without_script` is what is said where scripts do not run. Nothing is loaded from anywhere, whatever the texts in
// `json` say.
std::string HtmlPage(std::string_view title, std::string_view without_script, std::string_view json,
                     std::string_view script);

// JSON text that can stand inside a script element: no "<" is left in it, and no line separator of JavaScript.
std::string ScriptSafeJson(std::string_view json);
// Text for an HTML element or an attribute in quotes.
std::string HtmlText(std::string_view text);

// The embedded files.
std::string_view ReportChartLibrary();
std::string_view ReportStyle();

}  // namespace pith
