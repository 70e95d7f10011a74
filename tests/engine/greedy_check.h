// A real model against transformers on the same GGUF file (tests/golden/real, made by make_real.py).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/text_model.h"
#include "support/data.h"

namespace pith::testing {

// The text must be equal for all steps, or the first step that differs must be a near tie. The golden file is of bf16
// weights with float arithmetic, which is what `bf16` weights are here.
inline void CompareGreedy(const std::string& name, const std::string& path, KvType kv) {
  const auto golden = ParseJson(ReadFile(GoldenPath("real/" + name + ".json")), name);
  ASSERT_TRUE(golden.ok());
  TextModelOptions options;
  options.weights = "bf16";
  options.engine.kv = kv;
  auto model = TextModel::Load(path, options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  int equal = 0;
  for (const Json& prompt : (*golden)["prompts"]) {
    std::vector<ChatMessage> messages;
    for (const Json& m : prompt["messages"]) messages.push_back({m["role"], m["content"]});
    const auto ids = (*model)->Render(messages);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, prompt["prompt_ids"].get<std::vector<int32_t>>());
    const auto want = prompt["bf16"]["ids"].get<std::vector<int32_t>>();
    const auto gaps = prompt["bf16"]["gaps"].get<std::vector<double>>();
    Sequence sequence = (*model)->engine().NewSequence();
    auto output = (*model)->engine().Prefill(sequence, *ids, nullptr, {});
    std::vector<int32_t> tokens;
    while (true) {
      ASSERT_TRUE(output.ok()) << output.error().message;
      const auto logits = output->LogitsRow(0);
      tokens.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      if (tokens.size() == want.size()) break;
      const StepItem item{&sequence, {&tokens.back(), 1}, nullptr, Rows::kLast, Rows::kNone};
      output = (*model)->engine().Step({&item, 1});
    }
    size_t step = 0;
    while (step < want.size() && tokens[step] == want[step]) ++step;
    if (step == want.size()) {
      ++equal;
    } else {
      EXPECT_LT(gaps[step], 1e-2) << name << ": token " << step << " is " << tokens[step] << ", not " << want[step];
    }
  }
  std::printf("%s: %d of %zu prompts equal for all steps\n", name.c_str(), equal, (*golden)["prompts"].size());
}

}  // namespace pith::testing
