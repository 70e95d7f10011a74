#include "model/key_equalizer.h"

#include <algorithm>
#include <cmath>

namespace pith {

namespace {

// How large |k[d]| gets: the bias, and three deviations of the product of a weight row with a normalised input; with a
// norm on the heads, its weight.
std::vector<float> Magnitudes(const ModelConfig& config, const KeyProjection& keys) {
  const int64_t d = config.head_dim;
  std::vector<float> magnitude(static_cast<size_t>(config.kv_heads * d));
  std::vector<float> row(static_cast<size_t>(config.hidden));
  for (int64_t r = 0; r < config.kv_heads * d; ++r) {
    const auto i = static_cast<size_t>(r);
    if (config.qk_norm) {
      magnitude[i] = 3.0F * std::fabs(keys.norm[static_cast<size_t>(r % d)]);
      continue;
    }
    keys.read_row(r, row.data());
    double squares = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      const double w = static_cast<double>(row[c]) * keys.input_norm[c];
      squares += w * w;
    }
    magnitude[i] = 3.0F * static_cast<float>(std::sqrt(squares)) + (keys.bias.empty() ? 0.0F : std::fabs(keys.bias[i]));
  }
  return magnitude;
}

}  // namespace

std::vector<float> EqualizeKeys(const ModelConfig& config, const KeyProjection& keys) {
  const int64_t d = config.head_dim, half = d / 2;
  const std::vector<float> magnitude = Magnitudes(config, keys);
  std::vector<float> scales(magnitude.size(), 1.0F);
  for (int64_t h = 0; h < config.kv_heads; ++h) {
    for (int64_t j = 0; j < half; ++j) {
      const auto low = static_cast<size_t>(h * d + j);
      const auto high = low + static_cast<size_t>(half);
      const float most = std::max(magnitude[low], magnitude[high]);
      if (!(most > 0x1p-20F && most < 0x1p20F)) continue;
      scales[low] = scales[high] = std::exp2(-std::round(std::log2(most)));
    }
  }
  return scales;
}

}  // namespace pith
