// What a generation cost, as text and JSON.
#pragma once

#include <string>

#include "engine/generate.h"
#include "json_output.h"

namespace pith {

// Time since the program started, not since main: loading the program counts too.
class RunClock {
 public:
  double SecondsSinceProgramStart() const;
};

// Largest resident set of this process so far, in bytes.
uint64_t PeakRss();

struct RunStats {
  TextModel& model;
  const GenerateResult& result;
  double ready_seconds;  // program start to model loaded

  OrderedJson Usage() const;    // prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, answer_tokens
  OrderedJson Timings() const;  // seconds and rates
  std::string Line() const;     // one line for people
};

}  // namespace pith
