#include "model/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "model/quantize_search.h"

namespace pith {

namespace {

constexpr float kMaxF16 = 65504.0f;
constexpr float kMagic =
    12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to the nearest integer, ties to even

float RoundToInteger(float value) { return (value + kMagic) - kMagic; }

// Rounds to half precision without the bit fiddling of F32ToF16, so that loops over it vectorize: to 11 significant
// bits by Veltkamp's splitting, or to a multiple of 2^-24 below 2^-14. Finite beyond the range: clamped to it.
float RoundToHalf(float value) {
  const float clamped = std::min(std::max(value, -kMaxF16), kMaxF16);
  const float split = clamped * 8193.0f;  // 2^13 + 1
  const float normal = split - (split - clamped);
  const float subnormal = (clamped + 0.75f) - 0.75f;
  return std::fabs(clamped) < 0x1p-14f ? subnormal : normal;
}

float RoundToStorage(float value, DType type) { return type == DType::kF16 ? RoundToHalf(value) : value; }

// The quantizer of one group.
struct GroupScale {
  float scale = 0.0f;
  int zero = 0;
  float minimum = 0.0f;
};

struct Range {
  float min = 0.0f;
  float max = 0.0f;
  float mean = 0.0f;
};

Range RangeOf(const float* x, int64_t n) {
  Range range{x[0], x[0], 0.0f};
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    range.min = std::min(range.min, x[i]);
    range.max = std::max(range.max, x[i]);
    sum += static_cast<double>(x[i]);
  }
  range.mean = static_cast<float>(sum / static_cast<double>(n));
  return range;
}

// `Size` values from `first` to `last`, in equal ratios or in equal steps.
template <size_t Size>
std::array<float, Size> Geometric(float first, float last) {
  std::array<float, Size> values;
  for (size_t i = 0; i < Size; ++i) {
    values[i] = first * std::pow(last / first, static_cast<float>(i) / static_cast<float>(Size - 1));
  }
  return values;
}
template <size_t Size>
std::array<float, Size> Linear(float first, float last) {
  std::array<float, Size> values;
  for (size_t i = 0; i < Size; ++i) {
    values[i] = first + (last - first) * static_cast<float>(i) / static_cast<float>(Size - 1);
  }
  return values;
}

// Long rows have tails that are best cut far inside; groups do not.
bool IsLong(int64_t n) { return n > 256; }

// The search over the quantizers of one group. The weights are multiplied by a power of two that brings them near 1, so
// that powers of errors neither overflow nor vanish; every choice is the same as without.
class GroupSearch {
 public:
  explicit GroupSearch(const Quantizer& quantizer) : quantizer_(quantizer), format_(quantizer.format) {
    half_ = static_cast<float>(1 << (format_.bits - 1));
    levels_ = static_cast<float>((1 << format_.bits) - 1);
    const float zero = format_.zero == ZeroForm::kMinimum ? 0.0f : half_;
    for (int i = 0; i < ScaleCandidates::kCapacity; ++i) {
      candidates_.scale[i] = candidates_.minimum[i] = 0.0f;
      candidates_.low[i] = -zero;
      candidates_.high[i] = levels_ - zero;
    }
  }

  // The quantizer that the integers are computed with.
  GroupScale Find(const float* x, const float* importance, int64_t n) {
    const Range range = RangeOf(x, n);
    const float largest = std::max(std::fabs(range.min), std::fabs(range.max));
    if (largest == 0.0f) {
      GroupScale nothing;
      nothing.zero = format_.zero == ZeroForm::kZeroPoint ? static_cast<int>(half_) : 0;
      return nothing;
    }
    best_ = MinMax(range);
    // A scale of zero: all weights are the minimum, or too small for the type of the scales.
    if (quantizer_.method == QuantMethod::kMinMax || best_.scale == 0.0f) return best_;

    importance_ = importance;
    n_ = n;
    int exponent = 0;
    std::frexp(largest, &exponent);
    unit_ = std::ldexp(1.0f, std::clamp(-exponent, -120, 120));
    scaled_.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) scaled_[static_cast<size_t>(i)] = x[i] * unit_;
    range_ = range;
    best_error_ = std::numeric_limits<float>::infinity();
    candidates_.count = 0;
    if (quantizer_.method == QuantMethod::kLp) {
      SearchGrid();
    } else {
      Try(best_);
      SearchBest();
    }
    return best_;
  }

 private:
  float Round(float value) const { return RoundToStorage(value, format_.scale_type); }

  // A range that includes zero gives a zero point that is an integer of the code.
  GroupScale WithZeroPoint(float low, float high) const {
    GroupScale group;
    group.scale = Round((high - low) / levels_);
    const float offset = group.scale == 0.0f ? 0.0f : RoundToInteger(low / group.scale + half_);
    group.zero = static_cast<int>(std::clamp(half_ - offset, 0.0f, levels_));
    return group;
  }

  GroupScale WithMinimum(float low, float high) const {
    GroupScale group;
    group.minimum = Round(low);
    group.scale = Round((high - group.minimum) / levels_);
    return group;
  }

  GroupScale MinMax(const Range& range) const {
    switch (format_.zero) {
      case ZeroForm::kSymmetric: {
        GroupScale group;
        group.scale = Round(std::max(std::fabs(range.min) / half_, std::fabs(range.max) / (half_ - 1.0f)));
        return group;
      }
      case ZeroForm::kZeroPoint: return WithZeroPoint(std::min(range.min, 0.0f), std::max(range.max, 0.0f));
      case ZeroForm::kMinimum: return WithMinimum(range.min, range.max);
    }
    return {};
  }

  // --- candidates ---

  void TryScale(float scale) { candidates_.scale[candidates_.count++] = Round(scale) * unit_; }

  // unit * scales[i] * factor for all i, rounded.
  template <size_t Size>
  void TryScales(const std::array<float, Size>& scales, float factor) {
    float* out = candidates_.scale + candidates_.count;
    if (format_.scale_type == DType::kF16) {
      for (size_t i = 0; i < Size; ++i) out[i] = RoundToHalf(scales[i] * factor) * unit_;
    } else {
      for (size_t i = 0; i < Size; ++i) out[i] = scales[i] * factor * unit_;
    }
    candidates_.count += static_cast<int>(Size);
  }

  void Try(const GroupScale& group) {
    const int i = candidates_.count++;
    candidates_.scale[i] = group.scale * unit_;
    if (format_.zero == ZeroForm::kMinimum) candidates_.minimum[i] = group.minimum * unit_;
    if (format_.zero == ZeroForm::kZeroPoint) {
      candidates_.low[i] = -static_cast<float>(group.zero);
      candidates_.high[i] = levels_ - static_cast<float>(group.zero);
    }
  }

  // Candidate `i`; exact, because the unit is a power of two.
  GroupScale Candidate(int i) const {
    GroupScale group;
    group.scale = candidates_.scale[i] / unit_;
    group.minimum = candidates_.minimum[i] / unit_;
    if (format_.zero == ZeroForm::kZeroPoint) group.zero = static_cast<int>(-candidates_.low[i]);
    return group;
  }

  // Evaluates what was tried and forgets it; the first of equals wins. True when it found something better.
  bool Decide() {
    EvaluateCandidates(scaled_.data(), importance_, n_, quantizer_.p, format_.zero == ZeroForm::kMinimum, &candidates_);
    int winner = -1;
    for (int i = 0; i < candidates_.count; ++i) {
      if (candidates_.error[i] < best_error_) {
        best_error_ = candidates_.error[i];
        winner = i;
      }
    }
    if (winner >= 0) best_ = Candidate(winner);
    candidates_.count = 0;
    return winner >= 0;
  }

  // --- searches ---

  // The range of fractions `low` and `high` of its ends: of their distances from zero or, with a minimum, from the
  // mean.
  GroupScale Shrunk(float low, float high) const {
    if (format_.zero == ZeroForm::kMinimum) {
      return WithMinimum(range_.mean + low * (range_.min - range_.mean),
                         range_.mean + high * (range_.max - range_.mean));
    }
    return WithZeroPoint(low * std::min(range_.min, 0.0f), high * std::max(range_.max, 0.0f));
  }

  float Largest() const { return std::max(std::fabs(range_.min), std::fabs(range_.max)); }

  template <size_t Side>
  void TryShrunk(const std::array<float, Side>& fractions) {
    for (const float low : fractions) {
      for (const float high : fractions) Try(Shrunk(low, high));
    }
  }

  // kLp: the plain grid, and nothing but the grid.
  void SearchGrid() {
    if (format_.zero == ZeroForm::kSymmetric) {
      static const auto kGrid = Linear<100>(1.0f, 0.01f);
      TryScales(kGrid, Largest() / (half_ - 1.0f));
    } else {
      static const auto kFractions = Linear<10>(1.0f, 0.6f);
      TryShrunk(kFractions);
    }
    Decide();
  }

  // Groups are not clipped: what is cut off an extreme weight is an error in its own direction, on an input that the
  // model relies on, and costs more than the rounding it saves. Long rows have no choice: their tails are far out.
  void SearchBest() {
    if (format_.zero == ZeroForm::kSymmetric) {
      SearchSymmetric();
    } else {
      SearchRange();
    }
  }

  // Scales of both signs, from the least that clips nothing upwards, for rows also downwards.
  void SearchSymmetric() {
    static const auto kRowGrid = Geometric<56>(1.15f, 0.15f);
    static const auto kGroupGrid = Linear<24>(1.0f, 1.15f);
    const float up = std::max(range_.max, 0.0f);
    const float down = std::max(-range_.min, 0.0f);
    const float positive = std::max(down / half_, up / (half_ - 1.0f));
    const float negative = -std::max(up / half_, down / (half_ - 1.0f));
    for (const float unit : {positive, negative}) {
      if (IsLong(n_)) {
        TryScales(kRowGrid, unit);
      } else {
        TryScales(kGroupGrid, unit);
      }
    }
    Decide();
    if (!IsLong(n_)) return;
    static const auto kFine = Linear<16>(0.97f, 1.03f);
    TryScales(kFine, best_.scale);
    Decide();
  }

  // Both ends of the range moved: a little outwards, for rows also inwards; then finer steps around the best.
  void SearchRange() {
    static const auto kRowGrid = Geometric<10>(1.05f, 0.25f);
    static const auto kGroupGrid = Linear<6>(1.0f, 1.1f);
    if (IsLong(n_)) {
      TryShrunk(kRowGrid);
    } else {
      TryShrunk(kGroupGrid);
    }
    Decide();
    if (!IsLong(n_)) return;
    const GroupScale center = best_;
    static const auto kScaleSteps = Linear<7>(0.9f, 1.1f);
    for (const float scale_step : kScaleSteps) {
      for (int zero_step = -3; zero_step <= 3; ++zero_step) {
        GroupScale group = center;
        group.scale = Round(center.scale * scale_step);
        if (format_.zero == ZeroForm::kMinimum) {
          group.minimum = Round(center.minimum + 0.15f * static_cast<float>(zero_step) * center.scale);
        } else if (std::abs(zero_step) <= 1) {
          group.zero = std::clamp(center.zero + zero_step, 0, static_cast<int>(levels_));
        } else {
          continue;
        }
        Try(group);
      }
    }
    Decide();
  }

  const Quantizer& quantizer_;
  const QuantFormat& format_;
  float half_ = 8.0f;
  float levels_ = 15.0f;
  // The group being searched.
  const float* importance_ = nullptr;
  int64_t n_ = 0;
  float unit_ = 1.0f;
  Range range_;
  std::vector<float> scaled_;
  ScaleCandidates candidates_;
  GroupScale best_;
  float best_error_ = 0.0f;
};

// FastForward's order of operations: q = clamp(round(x / s - o)) with the signed offset o = 2^(b-1) - z. Division by
// zero is kept out by taking 1 for a zero scale, whose integers are the zero.
void Encode(const QuantFormat& format, const GroupScale& group, const float* x, int64_t n, uint8_t* codes) {
  const float half = static_cast<float>(1 << (format.bits - 1));
  const float levels = static_cast<float>((1 << format.bits) - 1);
  const bool degenerate = group.scale == 0.0f;
  const float scale = degenerate ? 1.0f : group.scale;
  const float used = degenerate ? 0.0f : 1.0f;
  if (format.zero == ZeroForm::kMinimum) {
    for (int64_t i = 0; i < n; ++i) {
      const float clamped = std::min(std::max((x[i] - group.minimum) / scale, 0.0f), levels);
      codes[i] = static_cast<uint8_t>(static_cast<int>(RoundToInteger(clamped * used)));
    }
    return;
  }
  const float offset = format.zero == ZeroForm::kSymmetric ? 0.0f : half - static_cast<float>(group.zero);
  for (int64_t i = 0; i < n; ++i) {
    const float ratio = x[i] / scale * used - offset;
    const float clamped = std::min(std::max(ratio, -half), half - 1.0f);
    codes[i] = static_cast<uint8_t>(static_cast<int>(RoundToInteger(clamped) + half));
  }
}

// Least-squares quantizers shrink: rounding towards the dense middle of the weights and clipping both make the
// approximation shorter than the weights, by the same few parts in a thousand in every matrix, and these errors add up
// through the layers where independent ones do not. This puts the length back: the scale for which the projection of
// the approximation on the weights is the weights (with a minimum: about their means). The integers stay.
GroupScale WithoutShrinkage(const QuantFormat& format, GroupScale group, const float* x, const float* importance,
                            int64_t n, const uint8_t* codes) {
  const int zero = format.zero == ZeroForm::kSymmetric ? 1 << (format.bits - 1) : group.zero;
  double w = 0.0, wx = 0.0, wq = 0.0, wxx = 0.0, wxq = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double weight = importance == nullptr ? 1.0 : static_cast<double>(importance[i]);
    const auto value = static_cast<double>(x[i]);
    const auto q = static_cast<double>(codes[i] - zero);
    w += weight;
    wx += weight * value;
    wq += weight * q;
    wxx += weight * value * value;
    wxq += weight * value * q;
  }
  const bool centered = format.zero == ZeroForm::kMinimum;
  if (centered && w > 0.0) {
    wxx -= wx * wx / w;
    wxq -= wx * wq / w;
  }
  const double projection = static_cast<double>(group.scale) * wxq;
  if (!(projection > 0.0)) return group;
  // A correction beyond this is no shrinkage but an accident of few weights with large importance.
  const double gain = std::clamp(wxx / projection, 0.7, 1.5);
  group.scale = RoundToStorage(static_cast<float>(static_cast<double>(group.scale) * gain), format.scale_type);
  if (centered) {
    const double minimum = (wx - static_cast<double>(group.scale) * wq) / w;
    group.minimum = RoundToStorage(static_cast<float>(minimum), format.scale_type);
  }
  return group;
}

}  // namespace

double QuantFormat::BitsPerWeight(int64_t cols) const {
  const auto per_scale = static_cast<double>(group == 0 ? cols : group);
  const double scale_bits = scale_type == DType::kF16 ? 16.0 : 32.0;
  double extra = scale_bits;
  if (zero == ZeroForm::kZeroPoint) extra += bits;
  if (zero == ZeroForm::kMinimum) extra += scale_bits;
  return bits + extra / per_scale;
}

const char* QuantMethodName(QuantMethod method) {
  switch (method) {
    case QuantMethod::kMinMax: return "minmax";
    case QuantMethod::kLp: return "lp";
    case QuantMethod::kBest: return "best";
  }
  return "?";
}

void QuantizeRow(const Quantizer& quantizer, const float* row, int64_t cols, const float* importance,
                 const QuantizedRow& out) {
  GroupSearch search(quantizer);
  const int64_t size = quantizer.format.group == 0 ? cols : quantizer.format.group;
  for (int64_t g = 0; g < cols / size; ++g) {
    const float* x = row + g * size;
    const float* weights = importance == nullptr ? nullptr : importance + g * size;
    uint8_t* codes = out.codes + g * size;
    GroupScale group = search.Find(x, weights, size);
    Encode(quantizer.format, group, x, size, codes);
    if (quantizer.method == QuantMethod::kBest) {
      group = WithoutShrinkage(quantizer.format, group, x, weights, size, codes);
    }
    out.scales[g] = group.scale;
    if (out.zeros != nullptr) out.zeros[g] = static_cast<uint8_t>(group.zero);
    if (out.minimums != nullptr) out.minimums[g] = group.minimum;
  }
}

void DequantizeRow(const QuantFormat& format, int64_t cols, const QuantizedRow& row, float* out) {
  const int64_t size = format.group == 0 ? cols : format.group;
  for (int64_t g = 0; g < cols / size; ++g) {
    const float scale = row.scales[g];
    const int zero = format.zero == ZeroForm::kSymmetric ? 1 << (format.bits - 1)
                     : format.zero == ZeroForm::kMinimum ? 0
                                                         : row.zeros[g];
    const float minimum = format.zero == ZeroForm::kMinimum ? row.minimums[g] : 0.0f;
    const uint8_t* codes = row.codes + g * size;
    float* values = out + g * size;
    if (format.zero == ZeroForm::kMinimum) {
      for (int64_t i = 0; i < size; ++i) values[i] = scale * static_cast<float>(codes[i]) + minimum;
    } else {
      for (int64_t i = 0; i < size; ++i) values[i] = scale * static_cast<float>(codes[i] - zero);
    }
  }
}

void PackCodes(const uint8_t* codes, int64_t cols, int bits, uint8_t* out) {
  if (bits == 8) {
    std::copy(codes, codes + cols, out);
    return;
  }
  for (int64_t i = 0; i < cols / 2; ++i) {
    out[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
}

double WeightedError(const float* row, const float* approximation, int64_t cols, const float* importance, double p) {
  double sum = 0.0;
  for (int64_t i = 0; i < cols; ++i) {
    const double error = std::fabs(static_cast<double>(approximation[i]) - static_cast<double>(row[i]));
    const double power = p == 2.0 ? error * error : std::pow(error, p);
    sum += importance == nullptr ? power : static_cast<double>(importance[i]) * power;
  }
  return sum;
}

}  // namespace pith
