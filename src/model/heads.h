// The two small heads on a model's last-layer states: the switcher (does this question need reasoning?) and the
// verifier (is this solution right?). A head is a safetensors file whose metadata entry "pith_head" is a JSON object
// (docs/formats.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace pith {

// File names under which heads are found in an adapter directory.
inline constexpr const char* kSwitcherFile = "switcher.safetensors";
inline constexpr const char* kVerifierFile = "verifier.safetensors";

// How the states of a prompt become one vector: means of chunks of so many tokens, then an exponential moving average
// over the chunks, the first chunk starting it: h = mean_1; h = alpha * mean_c + (1 - alpha) * h. The last chunk may be
// shorter; its mean is over the tokens that it has.
struct StatePooling {
  int64_t chunk = 128;  // tokens, 1..65536
  double alpha = 0.5;   // (0, 1]

  bool operator==(const StatePooling&) const = default;
};

// score = sigmoid(w2 . relu(W1 h + b1) + b2), h the pooled state of the prompt.
struct SwitcherHead {
  int64_t hidden = 0;  // width of the states
  int64_t inner = 8;   // width of the hidden layer, 1..1024
  StatePooling pooling;
  double threshold = 0.5;  // the one it was tuned for, 0..1: reasoning when score >= threshold
  std::vector<float> w1;   // [inner, hidden]
  std::vector<float> b1;   // [inner]
  std::vector<float> w2;   // [inner]
  float b2 = 0;

  // `state` has `hidden` values. The same bits on every machine: sums in double, in order of index.
  double Score(std::span<const float> state) const;
};

// score = sigmoid(w . h + b), h the state of the verification prompt's last token on top of a finished response.
struct VerifierHead {
  int64_t hidden = 0;
  std::string prompt;    // the question that it was trained with: content of the user turn after the response
  bool adapter = false;  // whether the reasoning adapter is on for that turn; else the base reads it
  std::vector<float> w;  // [hidden]
  float b = 0;

  double Score(std::span<const float> state) const;
};

// Reading checks everything: kind and version of the header, unknown fields, exactly the expected tensors (F32, F16 or
// BF16) and shapes: kMalformed or kUnsupported; NaN or infinite values: kNumeric; a width other than `hidden` (the
// model's): kMismatch, with both. Errors name the file.
Result<SwitcherHead> ReadSwitcher(const std::string& path, int64_t hidden);
Result<VerifierHead> ReadVerifier(const std::string& path, int64_t hidden);

// Writes F32. kInvalidArgument for sizes that do not agree, values that are not finite, or what reading would refuse;
// kIo. The file appears complete or not at all. `training`: how it was trained and how well it did, for people; goes to
// the metadata entry kHeadTrainingKey, which reading ignores.
inline constexpr const char* kHeadTrainingKey = "pith_training";
Status WriteSwitcher(const std::string& path, const SwitcherHead& head, const std::string& training = {});
Status WriteVerifier(const std::string& path, const VerifierHead& head, const std::string& training = {});

}  // namespace pith
