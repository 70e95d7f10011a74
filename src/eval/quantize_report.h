// The report of `pith quantize`: noise by layer, outliers before and after, what the stages did, as one HTML page.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace pith {

// The page for the text of a "pith-quantize.json". kMalformed when it is not an object.
Result<std::string> RenderQuantizeReport(std::string_view title, std::string_view record);

// Reads pith-quantize.json of a quantized directory and writes report.html there; returns its path. kNotFound without
// it.
Result<std::string> WriteQuantizeReport(const std::string& directory);

// The embedded script that draws it.
std::string_view QuantizeReportScript();

}  // namespace pith
