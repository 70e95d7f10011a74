#include "engine/static_activations.h"

namespace pith {

StaticActivations::StaticActivations(const ActivationRanges& ranges, const ModelConfig& config)
    : quantizers_(static_cast<size_t>(config.layers * kActivationSites)),
      rope_(StaticQuantizer::Activation(RopeRange(config))) {
  for (const ActivationSite site : ActivationSitesOf(config)) {
    const int64_t layers = static_cast<int>(site) < kLayerSites ? config.layers : 1;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const ValueRange range = ranges.values.at(ActivationName(site, layer));
      quantizers_[static_cast<size_t>(layer * kActivationSites + static_cast<int>(site))] =
          IsCacheSite(site) ? StaticQuantizer::Cache(range) : StaticQuantizer::Activation(range);
    }
  }
}

}  // namespace pith
