#include "reason/state_pool.h"

namespace pith {

StatePool::StatePool(int64_t hidden, const StatePooling& pooling)
    : hidden_(hidden), pooling_(pooling), sum_(static_cast<size_t>(hidden), 0.0) {}

void StatePool::Push(std::span<const float> states) {
  const auto width = static_cast<size_t>(hidden_);
  for (size_t row = 0; row + width <= states.size(); row += width) {
    for (size_t i = 0; i < width; ++i) sum_[i] += static_cast<double>(states[row + i]);
    ++tokens_;
    if (++in_chunk_ < pooling_.chunk) continue;
    average_ = Average();
    sum_.assign(width, 0.0);
    in_chunk_ = 0;
  }
}

std::vector<float> StatePool::Pooled() const {
  const std::vector<double> average = Average();
  return {average.begin(), average.end()};
}

std::vector<double> StatePool::Average() const {
  if (tokens_ == 0) return sum_;
  if (in_chunk_ == 0) return average_;
  std::vector<double> average(sum_.size());
  for (size_t i = 0; i < average.size(); ++i) {
    const double mean = sum_[i] / static_cast<double>(in_chunk_);
    average[i] = average_.empty() ? mean : pooling_.alpha * mean + (1.0 - pooling_.alpha) * average_[i];
  }
  return average;
}

}  // namespace pith
