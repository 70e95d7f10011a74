#include "engine/input_sums.h"

namespace pith {

void InputSums::Add(const std::string& module, const float* x, int64_t rows, int64_t cols) {
  if (observer_) return observer_(module, x, rows, cols);
  Sum& sum = sums_[module];
  sum.squares.resize(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; ++i) {
      const auto value = static_cast<double>(x[r * cols + i]);
      sum.squares[static_cast<size_t>(i)] += value * value;
    }
  }
  sum.rows += rows;
}

InputMoments InputSums::Moments() const {
  InputMoments moments;
  for (const auto& [module, sum] : sums_) {
    std::vector<float>& values = moments[module];
    for (const double squares : sum.squares)
      values.push_back(static_cast<float>(squares / static_cast<double>(sum.rows)));
  }
  return moments;
}

}  // namespace pith
