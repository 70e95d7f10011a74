// What one forward and backward pass of training runs on: token sequences without padding.
#pragma once

#include <cstdint>
#include <vector>

namespace pith::train {

// The label of a position whose next token is not learned.
inline constexpr int32_t kNoLabel = -1;

// A run of tokens that attends to itself (causally) and to its prefix, if it has one, and to nothing else. Positions
// count on from the prefix.
struct Segment {
  int32_t prefix = -1;          // index into TrainBatch::prefixes; -1 = none
  std::vector<int32_t> tokens;  // not empty
  std::vector<int32_t> labels;  // as many as tokens: the token to be predicted at each position, or kNoLabel
  // The adapter is on from this index in `tokens` on; its size = off everywhere.
  int64_t adapter_from = 0;
};

// Prefixes run with the adapter off and carry no gradient. Where the adapter is off on prompts and only adapters are
// trained, what a prompt computes does not depend on a parameter: its keys and values are constants. So a prompt is a
// prefix, computed once for all of its continuations (the rollouts of GRPO) and without a backward pass. The label of
// the prompt's last position (the first token of the response) then has no gradient; it is the one that reasoning mode
// forces (`<think>`).
struct TrainBatch {
  std::vector<std::vector<int32_t>> prefixes;  // not empty each
  std::vector<Segment> segments;
  float temperature = 1;  // > 0: probabilities are softmax(logits / temperature), as rollouts are sampled

  int64_t PrefixTokens() const;  // all together
  int64_t LiveTokens() const;    // of the segments
  int64_t Labels() const;        // positions that have one
};

// One training sample as token ids. Positions before `response` are context; tokens from there on are learned.
struct Sample {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;  // labels[t]: what tokens[t] is to be followed by, or kNoLabel; as many as tokens
  int64_t response = 0;         // index of the first response token: where the adapter is on under the mask
};

// Appends a sample. `masked`: tokens before `response` become a prefix (the label that predicts tokens[response] is
// dropped with it); else one segment with the adapter on everywhere. A prompt equal to the last sample's shares its
// prefix.
void AddSample(const Sample& sample, bool masked, TrainBatch* batch);

}  // namespace pith::train
