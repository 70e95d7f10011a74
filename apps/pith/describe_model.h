// What identifies a model and its parts, for refusing to mix the results of different ones.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine_options.h"
#include "reason/reason_model.h"

namespace pith {

// Names and values, for EvalSettings::model.
std::vector<std::pair<std::string, std::string>> DescribeModel(const EngineFlags& flags, TextModel& text_model,
                                                               const ReasonModel& model);

}  // namespace pith
