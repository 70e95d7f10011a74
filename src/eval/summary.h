// What an evaluation found, as numbers.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "eval/generations.h"

namespace pith {

inline constexpr int64_t kVoteCurveMost = 16;
inline constexpr int64_t kVoteCurveDraws = 20;
inline constexpr uint64_t kResamplingSeed = 20;

// What the summary and the report are made from.
struct EvalRecord {
  std::string settings_json;
  std::vector<Problem> problems;
  std::vector<Generation> generations;  // whole questions; in any order
  std::vector<PhaseTiming> timings;
  // Of the switcher, shown in the sweep beside those where the route of some question changes.
  std::vector<double> thresholds;
};
EvalRecord RecordOf(const EvalFolder& folder, std::vector<double> thresholds);

// summary.json; its fields are described in docs/evaluation.md. Everything but "timing" depends on the generations
// only, not on their order, on interruptions or on what ran together. kMalformed when the settings are not those of
// this program.
Result<std::string> SummaryJson(const EvalRecord& record);

}  // namespace pith
