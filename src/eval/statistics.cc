#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/random.h"

namespace pith {

double Mean(std::span<const double> values) {
  if (values.empty()) return 0;
  // From the first value on, so that the mean of equal values is that value.
  double sum = 0;
  for (const double value : values) sum += value - values[0];
  return values[0] + sum / static_cast<double>(values.size());
}

double StandardDeviation(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = Mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double Quantile(std::vector<double>& values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = std::clamp(p, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double part = at - static_cast<double>(below);
  return values[below] + part * (values[above] - values[below]);
}

Interval WilsonInterval(int64_t successes, int64_t trials) {
  if (trials <= 0) return {0, 1};
  constexpr double kZ = 1.959963984540054;  // of the normal distribution at 97.5 %
  const auto n = static_cast<double>(trials);
  const double share = static_cast<double>(successes) / n;
  const double scale = 1 + kZ * kZ / n;
  const double center = (share + kZ * kZ / (2 * n)) / scale;
  const double half = kZ / scale * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n));
  return {std::max(0.0, center - half), std::min(1.0, center + half)};
}

Interval BootstrapInterval(std::span<const double> values, uint64_t seed, int64_t draws) {
  if (values.empty() || draws < 1) return {};
  std::vector<double> means;
  means.reserve(static_cast<size_t>(draws));
  const auto n = static_cast<double>(values.size());
  for (int64_t draw = 0; draw < draws; ++draw) {
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      sum += values[static_cast<size_t>(RandomUniform(seed, static_cast<uint64_t>(draw), i) * n)];
    }
    means.push_back(sum / n);
  }
  const double low = Quantile(means, 0.025);
  return {low, Quantile(means, 0.975)};
}

double PassAtK(int64_t n, int64_t c, int64_t k) {
  double none = 1;  // C(n - c, k) / C(n, k) as a product
  for (int64_t i = 0; i < k; ++i) {
    none *= static_cast<double>(std::max<int64_t>(n - c - i, 0)) / static_cast<double>(n - i);
  }
  return 1 - none;
}

std::vector<int> RandomOrder(int n, uint64_t seed, uint64_t stream) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) {
    const auto j = static_cast<size_t>(RandomUniform(seed, stream, i) * static_cast<double>(i));
    std::swap(order[i - 1], order[j]);
  }
  return order;
}

}  // namespace pith
