// The statistics of reports. All are functions of their arguments only; random draws come from a given seed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pith {

struct Interval {
  double low = 0;
  double high = 0;
};

// Empty: 0.
double Mean(std::span<const double> values);
// With n - 1; fewer than two values: 0.
double StandardDeviation(std::span<const double> values);
// Between the order statistics, linearly: p of 0.5 is the median. Sorts its argument. Empty: 0.
double Quantile(std::vector<double>& values, double p);

// 95 % confidence interval of a share, for independent trials (E. B. Wilson, 1927). No trials: 0..1.
Interval WilsonInterval(int64_t successes, int64_t trials);

// 95 % percentile bootstrap interval of the mean: for values that are themselves means of trials that belong together
// (the streams of one problem). Empty: 0..0.
Interval BootstrapInterval(std::span<const double> values, uint64_t seed, int64_t draws = 2000);

// Unbiased estimate of the chance that at least one of k responses is right, from n of which c are (arXiv 2107.03374):
// 1 - C(n - c, k) / C(n, k). Requires 1 <= k <= n, 0 <= c <= n.
double PassAtK(int64_t n, int64_t c, int64_t k);

// A random order of 0..n-1, a function of (seed, stream).
std::vector<int> RandomOrder(int n, uint64_t seed, uint64_t stream);

}  // namespace pith
