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

// The embedded script that draws it.
std::string_view ReportScript();

}  // namespace pith
