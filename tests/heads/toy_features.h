// Features that are written down: points on two sides of a plane.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "heads/feature_set.h"
#include "model/safetensors.h"

namespace pith::heads {

inline double Normal(uint64_t seed, uint64_t i) {
  return std::sqrt(-2 * std::log(1 - RandomUniform(seed, 1, i))) *
         std::cos(2 * std::numbers::pi * RandomUniform(seed, 2, i));
}

// `questions` questions of `streams` rows. Input 0 is label +-`gap` plus noise, on an offset and scale of its own; the
// others are noise; the last one is constant.
inline FeatureSet ToySet(FeatureKind kind, int64_t questions, int64_t streams, double gap, uint64_t seed = 1,
                         int64_t hidden = 6) {
  FeatureSet set;
  set.kind = kind;
  set.hidden = hidden;
  set.provenance = "toy";
  set.prompt = "Right?";
  set.pooling = {.chunk = 32, .alpha = 0.25};
  uint64_t draw = 0;
  for (int64_t q = 0; q < questions; ++q) {
    set.questions.push_back("q" + std::to_string(q));
    for (int64_t s = 0; s < streams; ++s) {
      const bool label = RandomUniform(seed, 3, static_cast<uint64_t>(q * streams + s)) < 0.5;
      set.question.push_back(static_cast<int32_t>(q));
      set.labels.push_back(label ? 1.0F : 0.0F);
      for (int64_t i = 0; i < hidden; ++i) {
        double value = Normal(seed, draw++);
        if (i == 0) value = 40 + 3 * (value + (label ? gap : -gap));
        if (i + 1 == hidden) value = 7;
        set.states.push_back(static_cast<float>(value));
      }
    }
  }
  return set;
}

// As `pith features` writes it; `change` edits the metadata.
inline void WriteShard(const std::string& path, const FeatureSet& set,
                       const std::function<void(OrderedJson&)>& change = {}, int64_t first_question = 0) {
  OrderedJson json{{"version", 1},
                   {"kind", FeatureKindName(set.kind)},
                   {"hidden_size", set.hidden},
                   {"provenance", set.provenance},
                   {"prompts", "plain"},
                   {"first_question", first_question},
                   {"ids", set.questions},
                   {"rows_sha256", "0"}};
  if (set.kind == FeatureKind::kSwitcher) {
    json["chunk"] = set.pooling.chunk;
    json["alpha"] = set.pooling.alpha;
  } else {
    json["verification_prompt"] = set.prompt;
    json["verification_tokens"] = {1, 2, 3};
    json["verification_adapter"] = set.adapter;
  }
  if (change) change(json);
  std::vector<int32_t> questions;
  for (const int32_t q : set.question) questions.push_back(q + static_cast<int32_t>(first_question));
  const int64_t n = set.rows();
  auto writer = SafetensorsWriter::Create(
      path, {{"states", DType::kF32, {n, set.hidden}}, {"labels", DType::kF32, {n}}, {"questions", DType::kI32, {n}}},
      {{kFeaturesMetadata, json.dump()}});
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ASSERT_TRUE((*writer)->Write("states", std::as_bytes(std::span(set.states))).ok());
  ASSERT_TRUE((*writer)->Write("labels", std::as_bytes(std::span(set.labels))).ok());
  ASSERT_TRUE((*writer)->Write("questions", std::as_bytes(std::span(questions))).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
}

}  // namespace pith::heads
