// The states that `pith features` wrote (reason/features.h, docs/formats.md), read back for training a head.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/heads.h"
#include "reason/features.h"

namespace pith::heads {

struct FeatureSet {
  FeatureKind kind = FeatureKind::kSwitcher;
  int64_t hidden = 0;      // width of a state
  std::string provenance;  // of the model, its formats and the adapter
  StatePooling pooling;    // switcher
  std::string prompt;      // verifier: what was asked after the responses; empty when the shards do not say
  bool adapter = false;    // verifier: the adapter was on for that

  std::vector<std::string> questions;  // ids, each once, in the order of the shards
  std::vector<float> states;           // [rows, hidden]
  std::vector<float> labels;           // [rows], 0 or 1
  std::vector<int32_t> question;       // [rows], index in `questions`

  int64_t rows() const { return static_cast<int64_t>(labels.size()); }
  std::span<const float> State(int64_t row) const {
    return std::span(states).subspan(static_cast<size_t>(row * hidden), static_cast<size_t>(hidden));
  }
};

// All shards of these folders as one set. Questions of the same id are one question, also across folders (they may have
// other rows). kNotFound: a folder without shards. kMalformed names file and tensor or field. kMismatch names the two
// files that differ in kind, width, model, pooling or verification. kNumeric: a state that is not finite, with file,
// row and question.
Result<FeatureSet> ReadFeatures(const std::vector<std::string>& folders);

}  // namespace pith::heads
