// Support for the tests of src/quant.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace pith::quant {

// Logits [40, vocab] of some tokens by the engine, all in float32.
inline std::vector<float> Logits(const std::string& dir) {
  auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EngineOptions options;
  options.weights = WeightFormat::kF32;
  options.kv = KvType::kF32;
  options.threads = 1;
  auto engine = Engine::Load(*checkpoint, options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back((i * 37 + 11) % static_cast<int32_t>((*engine)->config().vocab));
  Sequence sequence = (*engine)->NewSequence();
  const StepItem item{&sequence, tokens, nullptr, Rows::kAll, Rows::kNone};
  const auto output = (*engine)->Step(std::span(&item, 1));
  EXPECT_TRUE(output.ok()) << output.error().message;
  return {output->logits.begin(), output->logits.end()};
}

}  // namespace pith::quant
