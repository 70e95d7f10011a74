// The quantizers of a model's static activations, from its stored ranges. Internal to the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "model/activation_ranges.h"

namespace pith {

class StaticActivations {
 public:
  // `ranges` passed CheckActivationRanges.
  StaticActivations(const ActivationRanges& ranges, const ModelConfig& config);

  const StaticQuantizer& At(int64_t layer, ActivationSite site) const {
    const int64_t row = static_cast<int>(site) < kLayerSites ? layer : 0;
    return quantizers_[static_cast<size_t>(row * kActivationSites + static_cast<int>(site))];
  }
  const StaticQuantizer& softmax() const { return softmax_; }
  const StaticQuantizer& rope() const { return rope_; }

 private:
  std::vector<StaticQuantizer> quantizers_;  // [layers, sites]
  StaticQuantizer softmax_ = StaticQuantizer::Activation({0, 1});
  StaticQuantizer rope_;
};

}  // namespace pith
