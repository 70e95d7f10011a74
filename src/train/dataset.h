// Training data: JSONL chats to token ids, and rows packed of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include "train/train_batch.h"

namespace pith::train {

struct DatasetOptions {
  int64_t max_length = 1024;  // tokens; longer samples are left out and counted (never cut: the answer is at the end)
  // Chats with several assistant turns: learn all of them, else only the last one. The mask on prompts wants the last.
  bool all_turns = false;
  std::optional<TemplateFamily> family;  // for chats; plain texts need none
  std::vector<int32_t> eos_ids;          // of the model; the first one ends a plain text
};

// What became of the lines of a file.
struct DatasetReport {
  int64_t lines = 0;
  int64_t samples = 0;
  int64_t too_long = 0;
  int64_t no_labels = 0;  // nothing to learn in it: no assistant turn, or an empty response
  int64_t tokens = 0;     // of the samples
  int64_t labels = 0;
};

struct Dataset {
  std::vector<Sample> samples;
  DatasetReport report;
};

// One JSON object per line, in any of these forms (other fields are ignored):
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
//   {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}   (ShareGPT)
//   {"prompt": "..." or [messages], "response" or "completion": "..." or [messages]}
//   {"text": "..."}   a plain text, all of it learned, with the end-of-text token
// The response is followed by the template's end-of-turn token, which has a label too. Labels are set by position: a
// token of the response that happens to be the padding or end token is learned. kMalformed names file and line;
// kInvalidArgument when not one sample is left, with the counts.
Result<Dataset> ReadDataset(const std::string& path, const Tokenizer& tokenizer, const DatasetOptions& options);

// A chat as one sample.
Result<Sample> ChatSample(const Tokenizer& tokenizer, TemplateFamily family, const std::vector<ChatMessage>& messages,
                          bool all_turns);

// The order of an epoch, a pure function of (samples, seed, epoch).
std::vector<int64_t> EpochOrder(int64_t samples, uint64_t seed, int64_t epoch);

// Rows of at most `row_length` tokens for one epoch: with `packing`, samples in epoch order are put into the first row
// with room among the last few open ones, so rows are nearly full; without it each sample is a row. Deterministic. Each
// row is a list of sample indices; no sample is split.
std::vector<std::vector<int64_t>> PackRows(const std::vector<Sample>& samples, const std::vector<int64_t>& order,
                                           int64_t row_length, bool packing);

}  // namespace pith::train
