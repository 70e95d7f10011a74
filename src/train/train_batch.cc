#include "train/train_batch.h"

#include <algorithm>

namespace pith::train {

int64_t TrainBatch::PrefixTokens() const {
  int64_t tokens = 0;
  for (const auto& prefix : prefixes) tokens += static_cast<int64_t>(prefix.size());
  return tokens;
}

int64_t TrainBatch::LiveTokens() const {
  int64_t tokens = 0;
  for (const Segment& segment : segments) tokens += static_cast<int64_t>(segment.tokens.size());
  return tokens;
}

int64_t TrainBatch::Labels() const {
  int64_t labels = 0;
  for (const Segment& segment : segments) {
    labels += std::count_if(segment.labels.begin(), segment.labels.end(), [](int32_t l) { return l != kNoLabel; });
  }
  return labels;
}

void AddSample(const Sample& sample, bool masked, TrainBatch* batch) {
  const int64_t cut = masked ? sample.response : 0;
  Segment segment;
  if (cut > 0) {
    const std::vector<int32_t> prompt(sample.tokens.begin(), sample.tokens.begin() + cut);
    if (batch->prefixes.empty() || batch->prefixes.back() != prompt) batch->prefixes.push_back(prompt);
    segment.prefix = static_cast<int32_t>(batch->prefixes.size()) - 1;
  }
  segment.tokens.assign(sample.tokens.begin() + cut, sample.tokens.end());
  segment.labels.assign(sample.labels.begin() + cut, sample.labels.end());
  batch->segments.push_back(std::move(segment));
}

}  // namespace pith::train
