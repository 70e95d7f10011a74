// The report of a training run: curves of metrics.jsonl and, of GRPO, the last samples, as one HTML page.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace pith {

// The page for `metrics` (JSON lines, each an object with "step") and `samples` (JSON lines as GRPO writes them, may be
// empty). Every number of the metrics has a curve. A line that was cut at the end of the text, by a run that was killed
// or is under way, is left out; any other that is not an object is kMalformed with its number.
Result<std::string> RenderTrainingReport(std::string_view title, std::string_view metrics, std::string_view samples);

// Reads metrics.jsonl and samples.jsonl of the output folder of a training and writes report.html there; returns its
// path. kNotFound without metrics.jsonl.
Result<std::string> WriteTrainingReport(const std::string& output_dir);

// The embedded script that draws it.
std::string_view TrainingReportScript();

}  // namespace pith
