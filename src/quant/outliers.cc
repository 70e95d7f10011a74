#include "quant/outliers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <tuple>

namespace pith::quant {

namespace {

// Linears whose input is that of another.
constexpr std::array<std::string_view, 3> kSharing = {"k_proj", "v_proj", "up_proj"};
// In the order of a layer.
constexpr std::array<std::string_view, 4> kOrder = {"q_proj", "o_proj", "gate_proj", "down_proj"};

// Layer and place in it; what has no layer (the LM head) comes last.
std::tuple<long, size_t, std::string> OrderOf(const std::string& module) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!module.starts_with(kLayers)) return {1L << 30, 0, module};
  const long layer = std::strtol(module.c_str() + kLayers.size(), nullptr, 10);
  size_t place = 0;
  while (place < kOrder.size() && !module.ends_with(kOrder[place])) ++place;
  return {layer, place, module};
}

}  // namespace

double OutlierRatio(std::span<const float> moments) {
  double sum = 0, largest = 0;
  for (const float moment : moments) {
    sum += static_cast<double>(moment);
    largest = std::max(largest, static_cast<double>(moment));
  }
  return sum > 0 ? std::sqrt(largest * static_cast<double>(moments.size()) / sum) : 1.0;
}

std::vector<InputOutliers> CompareOutliers(const InputMoments& before, const InputMoments& after) {
  std::vector<InputOutliers> all;
  for (const auto& [module, moments] : before) {
    const auto found = after.find(module);
    const bool shares = std::any_of(kSharing.begin(), kSharing.end(),
                                    [&name = module](std::string_view suffix) { return name.ends_with(suffix); });
    if (found == after.end() || shares) continue;
    all.push_back({module, OutlierRatio(moments), OutlierRatio(found->second)});
  }
  std::sort(all.begin(), all.end(),
            [](const InputOutliers& a, const InputOutliers& b) { return OrderOf(a.module) < OrderOf(b.module); });
  return all;
}

}  // namespace pith::quant
