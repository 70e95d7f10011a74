// Activations to 16 or 8 bits, in the order in which the products read them.
#include <cassert>
#include <cmath>
#include <cstring>

#include "base/thread_pool.h"
#include "kernels/qmatmul_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize_activations.cc"
#include <hwy/foreach_target.h>

#include "kernels/qmatmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith::kernels {
namespace HWY_NAMESPACE {

// Quantizes one token; see QuantActivations::Quantize. Outputs: lines, one sum per block, digit sums of the row.
void QuantizeToken(const float* HWY_RESTRICT x, int64_t cols, bool two_planes, bool block_scale, bool nibble_order,
                   ActivationDigits digits, int8_t* HWY_RESTRICT lines, int32_t* HWY_RESTRICT sums,
                   float* HWY_RESTRICT block_scales, float* HWY_RESTRICT token_scale, int64_t* HWY_RESTRICT row_sum) {
  const hn::Rebind<int8_t, DI32> d8;
  const hn::Rebind<int16_t, DI32> d16;
  constexpr int64_t n = kLanes;
  const float limit = two_planes ? 32639.0F : 127.0F;
  const VI32 max_q = hn::Set(di32, two_planes ? 32639 : 127);
  const VI32 min_q = hn::Neg(max_q);
  const auto largest = [&](const float* from, int64_t count) {
    // Max() may drop a NaN, so its presence is tracked by a sum: 0 * x is NaN exactly for non-finite x.
    VF32 most = hn::Zero(df32);
    VF32 poison = hn::Zero(df32);
    for (int64_t k = 0; k < count; k += n) {
      const VF32 v = hn::LoadU(df32, from + k);
      most = hn::Max(most, hn::Abs(v));
      poison = hn::MulAdd(v, hn::Zero(df32), poison);
    }
    const float bad = hn::GetLane(hn::SumOfLanes(df32, poison));
    return hn::GetLane(hn::MaxOfLanes(df32, most)) + bad;
  };
  float scale = 1.0F;
  float inverse = 0.0F;
  const auto set_scale = [&](float most) {
    scale = most / limit;
    inverse = most > 0.0F ? limit / most : (most == 0.0F ? 0.0F : most);
    if (!std::isfinite(inverse) && most > 0.0F) {  // subnormal maximum: treat as zero
      scale = std::isfinite(most) ? 0.0F : most;
      inverse = 0.0F;
    }
  };
  if (!block_scale) set_scale(largest(x, cols));
  *token_scale = block_scale ? 1.0F : scale;
  const int64_t line_bytes = kBlock * (two_planes ? 2 : 1);
  int64_t total = 0;
  const hn::Rebind<uint8_t, DI32> d_u8;
  const VF32 factor_limit = hn::Set(df32, limit);
  for (int64_t block = 0; block < cols / kBlock; ++block) {
    const float* from = x + block * kBlock;
    if (block_scale) {
      set_scale(largest(from, kBlock));
      block_scales[block] = scale;
    }
    int8_t* line = lines + block * line_bytes;
    int8_t* low_plane = line + (two_planes ? kBlock : 0);
    const VF32 factor = hn::Set(df32, inverse);
    VI32 sum = hn::Zero(di32);
    const auto emit = [&](VF32 v, int64_t at) {
      // Clamped as floats first: an integer conversion of a huge value (the scale is NaN then anyway) is not defined.
      VF32 scaled = hn::Mul(v, factor);
      scaled = hn::Max(hn::Min(scaled, factor_limit), hn::Neg(factor_limit));
      const VI32 q = hn::Min(hn::Max(hn::NearestInt(scaled), min_q), max_q);
      sum = hn::Add(sum, q);
      if (digits == ActivationDigits::kWords) {
        hn::StoreU(hn::DemoteTo(d16, q), d16, reinterpret_cast<int16_t*>(line) + at);
        return;
      }
      if (digits == ActivationDigits::kOffset) {
        const VI32 offset = hn::Add(q, hn::Set(di32, two_planes ? 32768 : 128));
        if (two_planes) {
          hn::StoreU(hn::DemoteTo(d_u8, hn::ShiftRight<8>(offset)), d_u8, reinterpret_cast<uint8_t*>(line + at));
        }
        hn::StoreU(hn::DemoteTo(d_u8, hn::And(offset, hn::Set(di32, 255))), d_u8,
                   reinterpret_cast<uint8_t*>(low_plane + at));
        return;
      }
      VI32 low = q;
      if (two_planes) {
        const VI32 high = hn::ShiftRight<8>(hn::Add(q, hn::Set(di32, 128)));
        low = hn::Sub(q, hn::ShiftLeft<8>(high));
        hn::StoreU(hn::DemoteTo(d8, high), d8, line + at);
      }
      hn::StoreU(hn::DemoteTo(d8, low), d8, low_plane + at);
    };
    if (nibble_order) {
      for (int64_t k = 0; k < kBlock; k += 2 * n) {
        VF32 even;
        VF32 odd;
        hn::LoadInterleaved2(df32, from + k, even, odd);
        emit(even, k / 2);
        emit(odd, k / 2 + kBlock / 2);
      }
    } else {
      for (int64_t k = 0; k < kBlock; k += n) emit(hn::LoadU(df32, from + k), k);
    }
    sums[block] = hn::GetLane(hn::SumOfLanes(di32, sum));
    total += sums[block];
  }
  *row_sum = total;
}

}  // namespace HWY_NAMESPACE
}  // namespace pith::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith::kernels {

HWY_EXPORT(QuantizeToken);

void QuantActivations::Quantize(const float* x, int64_t rows, int64_t cols, int64_t ldx, ActivationBits bits,
                                ActivationScale scale, int weight_bits, ThreadPool* pool) {
  assert(cols % kBlock == 0 && cols <= kMaxCols);
  rows_ = rows;
  cols_ = cols;
  bits_ = bits;
  scale_kind_ = scale;
  weight_bits_ = weight_bits;
  digits_ = ActivationDigits::kSigned;
  if (rows > FewTokens(planes(), weight_bits)) {
    digits_ = rows >= WordTokens(planes(), weight_bits) ? ActivationDigits::kWords : ActivationDigits::kOffset;
  }
  // A vector load of the one-token product covers up to 4 lines; those past the end are read and must be zero.
  line_stride_ = (blocks() + 3) / 4 * 4 * kBlock * planes();
  const auto n = static_cast<size_t>(rows);
  lines_.resize(n * static_cast<size_t>(line_stride_));
  sums_.resize(n * static_cast<size_t>(blocks()));
  row_sums_.resize(n);
  token_scales_.resize(n);
  block_scales_.resize(scale == ActivationScale::kPerBlock ? n * static_cast<size_t>(blocks()) : 0);
  const auto one = [&](int64_t row, int) {
    int8_t* lines = lines_.data() + row * line_stride_;
    const int64_t used = blocks() * kBlock * planes();
    std::memset(lines + used, 0, static_cast<size_t>(line_stride_ - used));
    HWY_DYNAMIC_DISPATCH(QuantizeToken)
    (x + row * ldx, cols, bits == ActivationBits::k16, scale == ActivationScale::kPerBlock,
     weight_bits == 4 && digits_ != ActivationDigits::kWords, digits_, lines, sums_.data() + row * blocks(),
     block_scales_.empty() ? nullptr : block_scales_.data() + row * blocks(), token_scales_.data() + row,
     row_sums_.data() + row);
  };
  if (pool != nullptr && rows > 1) {
    pool->Run(rows, one);
  } else {
    for (int64_t row = 0; row < rows; ++row) one(row, 0);
  }
  if (rows == 1 || digits_ != ActivationDigits::kSigned) return;
  const int64_t line_bytes = blocks() * kBlock * planes();
  interleaved_.resize(n * static_cast<size_t>(line_bytes));
  int8_t* to = interleaved_.data();
  for (int64_t at = 0; at < line_bytes; at += 4) {
    for (int64_t row = 0; row < rows; ++row, to += 4) std::memcpy(to, Lines(row) + at, 4);
  }
}

}  // namespace pith::kernels
#endif  // HWY_ONCE
