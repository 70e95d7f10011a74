// Samples of a problem as an evaluation records them.
#pragma once

#include <string>

#include "eval/generations.h"

namespace pith {

inline Generation Sample(const std::string& id, const std::string& text, const std::string& answer, bool right,
                         int64_t tokens) {
  Generation generation;
  generation.key = {.id = id, .repeat = 0, .cap = 512, .mode = ReasonMode::kOff};
  generation.text = text;
  generation.tokens = tokens;
  generation.answer = ExtractedAnswer{answer, AnswerSource::kBox};
  generation.verdict = right ? Verdict::kEqual : Verdict::kDifferent;
  return generation;
}

}  // namespace pith
