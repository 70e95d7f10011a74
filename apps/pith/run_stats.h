// What a generation cost, as text and JSON.
#pragma once

#include <string>

#include "json_output.h"
#include "reason/answer.h"

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
  const AnswerResult& result;
  double ready_seconds;  // program start to model loaded

  // prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, answer_tokens (sums over the responses), and
  // what sharing and early stop saved
  OrderedJson Usage() const;
  OrderedJson Timings() const;  // seconds and rates
  std::string Line() const;     // one line for people
};

// What a question gave, as every subcommand writes it: docs/cli.md, "The JSON of an answer".
OrderedJson AnswerJson(const AnswerResult& result, const RunStats& stats);

}  // namespace pith
