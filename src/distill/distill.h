// Reasoning data by rejection sampling: the samples of an evaluation (eval/run_eval.h, k streams a problem) become
// chats for supervised fine-tuning.
//
//   {"messages":[{"role":"user","content":"..."},
//                {"role":"assistant","content":"<think>\n...\n</think>\n\nThe final answer is \\boxed{42}"}],
//    "id":"...","style":"plain","answer":"42","tokens":57}
//
// The response has the very form that the runtime forces (reason/budget.h): thoughts between the tags, then the answer
// prefix of the reasoning texts, the answer and the brace that closes the box.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "distill/select.h"
#include "eval/generations.h"
#include "eval/settings.h"
#include "model/tokenizer.h"
#include "reason/reason_model.h"

namespace pith {

enum class TraceStyle { kPlain, kRecheck };
const char* TraceStyleName(TraceStyle style);  // "plain", "recheck"

struct DistillOptions {
  bool plain = true;  // styles; with both, the kept derivations of a problem take turns, and problems begin with either
  bool recheck = false;
  int64_t keep = 2;        // derivations of a problem, 1..256
  int64_t max_tokens = 0;  // of a response; longer ones are left out. 0 = no limit
  uint64_t seed = 0;       // of sentences, styles and prompts
  // How problems are put in the rows; each problem has one of these. The system prompt, where one has it, is a message.
  std::vector<PromptFormat> prompts = {PromptFormat()};
  // Its budget template, where it has one, is put at the end of the user's message, with the smallest of `budgets` that
  // the response fits in; responses that fit in none get no such text. Its answer prefix begins the answer.
  ReasoningTexts texts;
  std::vector<int64_t> budgets;  // ascending; empty = the prompt states no budget
};

struct StyleCounts {
  int64_t rows = 0;
  int64_t tokens = 0;  // of the responses
};

struct DistillReport {
  int64_t problems = 0;  // that have samples
  int64_t solved = 0;    // of them, with a right sample
  int64_t used = 0;      // with a row
  SampleCounts samples;
  int64_t sample_tokens = 0;
  int64_t too_long = 0;  // rows that were left out for it
  StyleCounts plain, recheck;
  int64_t wrong_attempts = 0;  // rechecks that begin with one
  int64_t false_starts = 0;    // with a derivation that breaks off
  int64_t doubts = 0;          // with a doubt
  int64_t without_budget = 0;  // rows whose response is longer than all budgets
};

// The assistant's message.
std::string TraceText(std::string_view thoughts, std::string_view answer, const ReasoningTexts& texts);

// Writes the rows of all problems that have samples, in the order of `problems`; the file appears complete or not at
// all, and is a function of the arguments (not of the order of the generations). kInvalidArgument for options out of
// range; kIo.
Result<DistillReport> WriteTraces(const std::vector<Problem>& problems, const std::vector<Generation>& generations,
                                  const DistillOptions& options, const Tokenizer& tokenizer, const std::string& path);

// As one JSON object.
std::string DistillReportJson(const DistillReport& report);

}  // namespace pith
