// The report of an evaluation: one HTML file that opens without a network. Charts are drawn by Chart.js (MIT), which is
// embedded in the page; numbers, problems and generations are embedded as JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "eval/summary.h"

namespace pith {

// `summary_json` is SummaryJson(record). Texts of more than 24 KB are shortened in their middle, and beyond 32 MB in
// all they are left out (the page says so); generations.jsonl has them all. No text of a model or a suite can become
// markup or script.
Result<std::string> RenderReport(const EvalRecord& record, const std::string& summary_json);

// Writes summary.json and report.html into the folder; returns the summary.
Result<std::string> WriteReport(const EvalFolder& folder, const std::vector<double>& thresholds);

// JSON text that can stand inside a script element: no "<" is left in it, and no line separator of JavaScript.
std::string ScriptSafeJson(std::string_view json);
// Text for an HTML element or an attribute in quotes.
std::string HtmlText(std::string_view text);

// The embedded files.
std::string_view ReportChartLibrary();
std::string_view ReportScript();
std::string_view ReportStyle();

}  // namespace pith
