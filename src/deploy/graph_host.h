// What the host does around static graphs: places of the cache, masks, RoPE tables.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "deploy/graph_evaluator.h"
#include "model/config.h"

namespace pith {

// Runs the parts of a model, all for the same number of new tokens and context, on one sequence.
class GraphHost {
 public:
  // `parts` in order; borrowed. `mask_floor` stands in the mask where a token may not look.
  GraphHost(const ModelConfig& config, std::vector<const GraphEvaluator*> parts, int64_t tokens, int64_t context,
            float mask_floor = -1000.0F);

  int64_t length() const { return length_; }

  // Feeds 1 to `tokens` new ids (padded in front) and keeps their keys and values. Returns all outputs of all parts;
  // rows of padding come first. `extra`: further inputs.
  Result<std::map<std::string, GraphArray>> Feed(
      std::span<const int32_t> ids, float lora_alpha, const std::map<std::string, GraphArray>& extra = {},
      const std::function<void(const std::string& name, std::span<const float> values)>& on_value = {});

 private:
  void Keep(const std::map<std::string, GraphArray>& outputs, int64_t count);
  const ModelConfig& config_;
  std::vector<const GraphEvaluator*> parts_;
  int64_t tokens_, context_;
  float mask_floor_;
  RopeFrequencies rope_;
  int64_t length_ = 0;
  std::vector<std::vector<float>> keys_, values_;  // by layer, [K, head_dim, C - S] and [K, C - S, head_dim]
};

}  // namespace pith
