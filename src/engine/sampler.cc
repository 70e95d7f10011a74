#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/random.h"

namespace pith {

namespace {

Status CheckRange(const char* name, double value, double low, double high, const char* range) {
  if (value >= low && value <= high) return {};  // false for NaN
  return Error{ErrorCode::kInvalidArgument, std::string(name) + " is " + std::to_string(value) + ", not in " + range};
}

float InverseTemperature(const SamplingParams& params) { return static_cast<float>(1.0 / params.temperature); }

double Weight(float logit, float largest, double inverse_temperature) {
  return std::exp((static_cast<double>(logit) - largest) * inverse_temperature);
}

// Tokens per step when a draw walks the whole vocabulary.
constexpr int64_t kStride = 1024;

}  // namespace

Status ValidateSampling(const SamplingParams& params) {
  if (params.temperature != 0.0) {
    PITH_RETURN_IF_ERROR(CheckRange("temperature", params.temperature, 1e-5, 100.0, "{0} or 0.00001..100"));
  }
  if (params.top_k < 0 || params.top_k > (int64_t{1} << 30)) {
    return Error{ErrorCode::kInvalidArgument, "top_k is " + std::to_string(params.top_k) + ", not in 0..1073741824"};
  }
  PITH_RETURN_IF_ERROR(CheckRange("top_p", params.top_p, 0.0, 1.0, "0..1"));
  PITH_RETURN_IF_ERROR(CheckRange("min_p", params.min_p, 0.0, 1.0, "0..1"));
  return CheckRange("repetition_penalty", params.repetition_penalty, 0.01, 100.0, "0.01..100");
}

Result<Sampler> Sampler::Create(const SamplingParams& params) {
  PITH_RETURN_IF_ERROR(ValidateSampling(params));
  return Sampler(params);
}

Result<std::span<const float>> Sampler::Penalize(std::span<const float> logits, std::span<const int32_t> seen) {
  const int64_t n = static_cast<int64_t>(logits.size());
  if (n == 0 || n > std::numeric_limits<int32_t>::max()) {
    return Error{ErrorCode::kInvalidArgument, "logits have " + std::to_string(n) + " entries"};
  }
  if (!LogitsValid(logits.data(), n)) return Error{ErrorCode::kNumeric, "NaN or infinity among the logits"};
  if (params_.repetition_penalty == 1.0 || seen.empty()) return logits;
  penalized_.assign(logits.begin(), logits.end());
  const float penalty = static_cast<float>(params_.repetition_penalty);
  for (const int32_t token : seen) {
    if (token < 0 || token >= n) {
      return Error{ErrorCode::kInvalidArgument,
                   "seen token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(n)};
    }
    const size_t at = static_cast<size_t>(token);
    // From the original logit, so that a repeated id counts once.
    penalized_[at] = logits[at] < 0.0f ? logits[at] * penalty : logits[at] / penalty;
  }
  // A large logit may have overflowed.
  if (!LogitsValid(penalized_.data(), n)) return Error{ErrorCode::kNumeric, "infinity among the penalized logits"};
  return std::span<const float>(penalized_);
}

void Sampler::Filter(std::span<const float> logits, float largest) {
  const int64_t n = static_cast<int64_t>(logits.size());
  const float inverse = InverseTemperature(params_);
  constexpr float kLowest = std::numeric_limits<float>::lowest();  // excludes -inf
  double total;  // probability mass, in weights, that top-p takes its share of
  if (params_.top_k > 0 && params_.top_k < n) {
    TopK(logits.data(), n, params_.top_k, &kept_);
    // Everything equal to the k-th value stays, as in transformers.
    CollectAtLeast(logits.data(), n, std::max(kept_.back().value, kLowest), &kept_);
    total = 0.0;
    for (const Candidate& c : kept_) total += Weight(c.value, largest, inverse);
  } else {
    total = SumExp(logits.data(), n, largest, inverse);
    // What neither top-p nor min-p can keep is left out at once. Tokens below a probability of (1 - top_p) / n have
    // less than 1 - top_p together, so top-p drops them all. The margin of 1% covers rounding here; the exact tests
    // follow.
    double least = params_.min_p;
    if (params_.top_p < 1.0) least = std::max(least, (1.0 - params_.top_p) / static_cast<double>(n) * total);
    const double cut = least > 0.0 ? largest + (std::log(least) - 0.01) * params_.temperature : kLowest;
    CollectAtLeast(logits.data(), n, std::max(static_cast<float>(std::max(cut, static_cast<double>(kLowest))), kLowest),
                   &kept_);
  }
  if (params_.top_p < 1.0) KeepTopP(total, largest);
  if (params_.min_p > 0.0) {
    ComputeWeights(largest);
    size_t count = 0;
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (static_cast<double>(weights_[i]) >= params_.min_p) kept_[count++] = kept_[i];
    }
    kept_.resize(count);
  }
  ComputeWeights(largest);
}

void Sampler::ComputeWeights(float largest) {
  weights_.resize(kept_.size());
  for (size_t i = 0; i < kept_.size(); ++i) weights_[i] = kept_[i].value;
  const int64_t n = static_cast<int64_t>(kept_.size());
  ExpRow(weights_.data(), n, largest, InverseTemperature(params_), weights_.data());
}

// Reduces kept_ (index order, largest included) to the shortest prefix, in the order `Before`, that has at least top_p
// of `total`, at least one token. A histogram over the values finds the bucket of the cut, halving the place in it, so
// that only a few tokens around the cut are ever sorted.
void Sampler::KeepTopP(double total, float largest) {
  constexpr size_t kBuckets = 1024;
  const double target = params_.top_p * total;
  ComputeWeights(largest);
  float smallest = largest;
  for (const Candidate& c : kept_) smallest = std::min(smallest, c.value);
  const float scale = largest > smallest ? std::min(static_cast<float>(kBuckets) / (largest - smallest), 1e30f) : 0.0f;
  const auto bucket_of =
      [&](float value) {  // never falls as value falls; differences beyond float go to the last bucket
        const float place = (largest - value) * scale;
        return place < static_cast<float>(kBuckets - 1) ? static_cast<size_t>(place) : kBuckets - 1;
      };
  std::array<double, kBuckets> masses = {};
  for (size_t i = 0; i < kept_.size(); ++i) masses[bucket_of(kept_[i].value)] += static_cast<double>(weights_[i]);
  size_t cut_bucket = 0;
  double mass = 0.0;  // of the buckets before
  while (cut_bucket + 1 < kBuckets && mass + masses[cut_bucket] < target) mass += masses[cut_bucket++];

  bucket_.clear();
  for (const Candidate& c : kept_) {
    if (bucket_of(c.value) == cut_bucket) bucket_.push_back(c);
  }
  const double inverse = InverseTemperature(params_);
  auto low = bucket_.begin(), high = bucket_.end();
  while (high - low > 32) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, Before);
    double part = 0.0;
    for (auto it = low; it != middle; ++it) part += Weight(it->value, largest, inverse);
    if (mass + part >= target) {
      high = middle;
    } else {
      mass += part;
      low = middle;
    }
  }
  std::sort(low, high, Before);
  while (low != high && mass < target) mass += Weight((low++)->value, largest, inverse);
  if (low == bucket_.begin()) {
    // Nothing of this bucket: its first token only when there is no bucket before (top_p of 0).
    std::erase_if(kept_, [&](const Candidate& c) { return bucket_of(c.value) >= std::max<size_t>(cut_bucket, 1); });
    if (cut_bucket == 0) kept_.assign(1, *std::min_element(bucket_.begin(), bucket_.end(), Before));
    return;
  }
  const Candidate last = *(low - 1);
  std::erase_if(kept_, [&](const Candidate& c) { return Before(last, c); });
}

Result<SampledToken> Sampler::Sample(std::span<const float> logits, std::span<const int32_t> seen, uint64_t stream,
                                     uint64_t position) {
  PITH_ASSIGN(const std::span<const float> scores, Penalize(logits, seen));
  const int64_t n = static_cast<int64_t>(logits.size());
  const float raw_largest = MaxValue(logits.data(), n);
  const float largest = scores.data() == logits.data() ? raw_largest : MaxValue(scores.data(), n);
  if (largest == -std::numeric_limits<float>::infinity()) return Error{ErrorCode::kNumeric, "every logit is -infinity"};

  int64_t token = -1;
  if (params_.temperature == 0.0) {
    token = ArgMax(scores.data(), n);
  } else {
    const float inverse = InverseTemperature(params_);
    const double u = RandomUniform(params_.seed, stream, position);
    if (filtered()) {
      Filter(scores, largest);
      double rest = 0.0;
      for (const float w : weights_) rest += w;
      rest *= u;
      // The last token with weight takes what rounding leaves over.
      for (size_t i = 0; i < kept_.size(); ++i) {
        const double w = weights_[i];
        if (w > 0.0) token = kept_[i].index;
        if (rest < w) break;
        rest -= w;
      }
    } else {
      double rest = u * SumExp(scores.data(), n, largest, inverse);
      int64_t begin = 0;
      for (; begin + kStride < n; begin += kStride) {
        const double part = SumExp(scores.data() + begin, kStride, largest, inverse);
        if (rest < part) break;
        rest -= part;
      }
      for (int64_t i = begin; i < std::min(n, begin + kStride); ++i) {
        const double w = Weight(scores[static_cast<size_t>(i)], largest, inverse);
        if (w > 0.0) token = i;
        if (rest < w) break;
        rest -= w;
      }
      if (token < 0) token = ArgMax(scores.data(), n);  // a last stride without any weight
    }
  }
  const double log_total = std::log(SumExp(logits.data(), n, raw_largest));
  const double log_prob = static_cast<double>(logits[static_cast<size_t>(token)]) - raw_largest - log_total;
  return SampledToken{static_cast<int32_t>(token), static_cast<float>(log_prob)};
}

float LogProbability(std::span<const float> logits, int32_t token, double temperature) {
  const auto n = static_cast<int64_t>(logits.size());
  const float factor = temperature == 0 ? 1.0F : static_cast<float>(1.0 / temperature);
  const float largest = MaxValue(logits.data(), n);
  const double sum = SumExp(logits.data(), n, largest, factor);
  const double logit = (static_cast<double>(logits[static_cast<size_t>(token)]) - largest) * factor;
  return static_cast<float>(logit - std::log(sum));
}

Result<std::vector<TokenProbability>> Sampler::Distribution(std::span<const float> logits,
                                                            std::span<const int32_t> seen) {
  PITH_ASSIGN(const std::span<const float> scores, Penalize(logits, seen));
  const int64_t n = static_cast<int64_t>(logits.size());
  const float largest = MaxValue(scores.data(), n);
  if (largest == -std::numeric_limits<float>::infinity()) return Error{ErrorCode::kNumeric, "every logit is -infinity"};
  if (params_.temperature == 0.0) {
    return std::vector<TokenProbability>{{static_cast<int32_t>(ArgMax(scores.data(), n)), 1.0}};
  }
  Filter(scores, largest);
  double total = 0.0;
  for (const float w : weights_) total += w;
  std::vector<TokenProbability> result;
  for (size_t i = 0; i < kept_.size(); ++i) result.push_back({kept_[i].index, weights_[i] / total});
  return result;
}

}  // namespace pith
