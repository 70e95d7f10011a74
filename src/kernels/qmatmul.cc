// Vector code of the low-bit products; the definition that all of it reproduces bit for bit is in qmatmul.h.
//
// Two shapes of the same sum:
//  * one token (decode): weights are read row by row as they lie in memory. A vector of packed bytes of one row meets
//  the same
//    inputs of the token; four such rows are reduced together, so that the lanes become rows again.
//  * several tokens (prefill, parallel streams): a tile of 16 rows is unpacked once to signed bytes, four inputs of
//  every row
//    side by side, and each token's four inputs are broadcast to all rows.
// A "unit" below is 16 packed bytes of a row: 32 inputs of 4 bits (a block) or 16 of 8 bits (half a block).
#include "kernels/qmatmul.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/qmatmul.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

// Highway 1.0.3 names AVX-VNNI where it means AVX512-VNNI in the features of this target (its CPU check is right).
#if HWY_TARGET == HWY_AVX3_DL
#define PITH_AVX3_DL_FEATURES HWY_TARGET_STR_AVX3 ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512bitalg,"
#undef HWY_TARGET_STR
#define HWY_TARGET_STR PITH_AVX3_DL_FEATURES "avx512vpopcntdq,avx512vnni"
#endif

HWY_BEFORE_NAMESPACE();
namespace pith::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DI32 = hn::ScalableTag<int32_t>;
using DF32 = hn::ScalableTag<float>;
using DU8 = hn::ScalableTag<uint8_t>;
using DI8 = hn::ScalableTag<int8_t>;
using DI16 = hn::ScalableTag<int16_t>;
using DU32 = hn::ScalableTag<uint32_t>;
using VI32 = hn::Vec<DI32>;
using VF32 = hn::Vec<DF32>;
using VU8 = hn::Vec<DU8>;
using VI8 = hn::Vec<DI8>;

constexpr DI32 di32;
constexpr DF32 df32;
constexpr DU8 du8;
constexpr DI8 di8;
constexpr DU32 du32;

constexpr int64_t kVectorBytes = HWY_LANES(uint8_t);
constexpr int kUnits = static_cast<int>(kVectorBytes / 16);   // 128-bit parts of a vector
constexpr int kLanes = static_cast<int>(kVectorBytes / 4);    // rows in one vector of 32-bit lanes
constexpr int kParts = static_cast<int>(kTileRows) / kLanes;  // such vectors in a tile

// Multiply-add of unsigned and signed bytes. DotAcc holds partial sums of up to 8 steps when one side has 4 bits
// (unsigned 0..15 against any int8, or any uint8 against signed -8..7: 8 * 2 * 255 * 8 < 2^15); WidenAcc gives the
// four-input sums as int32 lanes.
#if HWY_TARGET == HWY_AVX3_DL
constexpr bool kDot8 = true;  // 8-bit weights fit the instruction
using DotAcc = VI32;
HWY_INLINE DotAcc DotZero() { return hn::Zero(di32); }
HWY_INLINE DotAcc DotStep(DotAcc acc, VU8 u, VI8 s) { return DotAcc{_mm512_dpbusd_epi32(acc.raw, u.raw, s.raw)}; }
HWY_INLINE VI32 WidenAcc(DotAcc acc) { return acc; }
#else
constexpr bool kDot8 = false;  // 8-bit weights are split in nibbles: 255 * 128 * 2 does not fit int16
constexpr DI16 di16;
using DotAcc = hn::Vec<DI16>;
HWY_INLINE DotAcc DotZero() { return hn::Zero(di16); }
#if HWY_TARGET == HWY_AVX2
HWY_INLINE DotAcc DotStep(DotAcc acc, VU8 u, VI8 s) { return hn::Add(acc, DotAcc{_mm256_maddubs_epi16(u.raw, s.raw)}); }
HWY_INLINE VI32 WidenAcc(DotAcc acc) { return VI32{_mm256_madd_epi16(acc.raw, _mm256_set1_epi16(1))}; }
#elif HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
HWY_INLINE DotAcc DotStep(DotAcc acc, VU8 u, VI8 s) { return hn::Add(acc, DotAcc{_mm_maddubs_epi16(u.raw, s.raw)}); }
HWY_INLINE VI32 WidenAcc(DotAcc acc) { return VI32{_mm_madd_epi16(acc.raw, _mm_set1_epi16(1))}; }
#elif HWY_TARGET == HWY_NEON
HWY_INLINE DotAcc DotStep(DotAcc acc, VU8 u, VI8 s) {
  // The unsigned side may use all 8 bits: widen both to 16.
  const int16x8_t low = vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(u.raw))), vmovl_s8(vget_low_s8(s.raw)));
  const int16x8_t high = vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(u.raw))), vmovl_s8(vget_high_s8(s.raw)));
  return hn::Add(acc, DotAcc{vpaddq_s16(low, high)});
}
HWY_INLINE VI32 WidenAcc(DotAcc acc) { return VI32{vpaddlq_s16(acc.raw)}; }
#else
#error "add the pairwise multiply-add of this target"
#endif
#endif

// Asks for a line that is needed soon, in the second-level cache: the first level can wait for only some 24 lines at a
// time, which is less than the memory delivers (one thread read 13.6 GB/s that way and 18.5 GB/s this way).
HWY_INLINE void PrefetchWeights(const void* from) { __builtin_prefetch(from, 0, 2); }

// kUnits loads of 16 bytes, `stride` bytes apart, side by side in one vector.
template <class D>
HWY_INLINE hn::Vec<D> LoadUnits(D d, const hn::TFromD<D>* from, int64_t stride) {
  const hn::CappedTag<hn::TFromD<D>, 16> d128;
  static_assert(sizeof(hn::TFromD<D>) == 1);
#if HWY_TARGET == HWY_AVX3_DL
  const hn::Half<D> half;
  return hn::Combine(d, hn::Combine(half, hn::LoadU(d128, from + 3 * stride), hn::LoadU(d128, from + 2 * stride)),
                     hn::Combine(half, hn::LoadU(d128, from + stride), hn::LoadU(d128, from)));
#elif HWY_TARGET == HWY_AVX2
  return hn::Combine(d, hn::LoadU(d128, from + stride), hn::LoadU(d128, from));
#else
  (void)d;
  (void)stride;
  return hn::LoadU(d128, from);
#endif
}

// In every 128-bit part: out lanes = sums of the four lanes of a, b, c, d.
HWY_INLINE VI32 SumOfFours(VI32 a, VI32 b, VI32 c, VI32 d) {
  const hn::RepartitionToWide<DI32> di64;
  const VI32 ab = hn::Add(hn::InterleaveLower(di32, a, b), hn::InterleaveUpper(di32, a, b));
  const VI32 cd = hn::Add(hn::InterleaveLower(di32, c, d), hn::InterleaveUpper(di32, c, d));
  const auto ab64 = hn::BitCast(di64, ab);
  const auto cd64 = hn::BitCast(di64, cd);
  return hn::Add(hn::BitCast(di32, hn::InterleaveLower(di64, ab64, cd64)),
                 hn::BitCast(di32, hn::InterleaveUpper(di64, ab64, cd64)));
}

// Transposes a kUnits x kUnits matrix of 128-bit parts in place: v[i] part j <-> v[j] part i.
HWY_INLINE void TransposeParts(VI32* HWY_RESTRICT v) {
#if HWY_TARGET == HWY_AVX3_DL
  const VI32 low02 = hn::ConcatLowerLower(di32, v[2], v[0]);
  const VI32 low13 = hn::ConcatLowerLower(di32, v[3], v[1]);
  const VI32 up02 = hn::ConcatUpperUpper(di32, v[2], v[0]);
  const VI32 up13 = hn::ConcatUpperUpper(di32, v[3], v[1]);
  v[0] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(low13), low02);
  v[1] = hn::OddEvenBlocks(low13, hn::SwapAdjacentBlocks(low02));
  v[2] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(up13), up02);
  v[3] = hn::OddEvenBlocks(up13, hn::SwapAdjacentBlocks(up02));
#elif HWY_TARGET == HWY_AVX2
  const VI32 low = hn::ConcatLowerLower(di32, v[1], v[0]);
  v[1] = hn::ConcatUpperUpper(di32, v[1], v[0]);
  v[0] = low;
#else
  (void)v;
#endif
}

// Scales (or minimums) of kLanes rows.
HWY_INLINE VF32 LoadScales(const uint16_t* HWY_RESTRICT f16, const float* HWY_RESTRICT f32, int64_t index) {
  if (f32 != nullptr) return hn::LoadU(df32, f32 + index);
  const hn::Rebind<hwy::float16_t, DF32> df16;
  return hn::PromoteTo(df32, hn::LoadU(df16, reinterpret_cast<const hwy::float16_t*>(f16 + index)));
}

// What closes the integer sum of a group: scales and zero of the tile.
struct TileScales {
  const uint16_t* scales_f16 = nullptr;
  const float* scales_f32 = nullptr;
  const uint16_t* mins_f16 = nullptr;
  const float* mins_f32 = nullptr;
  const uint8_t* zero_points = nullptr;
  ZeroKind zero = ZeroKind::kSymmetric;
  int32_t symmetric_zero = 8;
};

TileScales ScalesOf(const QuantMatrix& w, int64_t tile) {
  TileScales s;
  s.zero = w.zero();
  s.symmetric_zero = w.bits() == 4 ? 8 : 128;
  if (w.f32_scales()) {
    s.scales_f32 = w.TileScalesF32(tile);
    if (s.zero == ZeroKind::kMin) s.mins_f32 = w.TileMinsF32(tile);
  } else {
    s.scales_f16 = w.TileScalesF16(tile);
    if (s.zero == ZeroKind::kMin) s.mins_f16 = w.TileMinsF16(tile);
  }
  if (s.zero == ZeroKind::kZeroPoint) s.zero_points = w.TileZeroPoints(tile);
  return s;
}

HWY_INLINE VI32 LoadZeroPoints(const uint8_t* HWY_RESTRICT from) {
  const hn::Rebind<uint8_t, DI32> d8;
  return hn::PromoteTo(di32, hn::LoadU(d8, from));
}

// acc + the contribution of one group: `sum` holds sum of u * x of kLanes rows (exact), `ones` the sum of x.
HWY_INLINE VF32 CloseGroup(VF32 acc, VI32 sum, int32_t ones, float factor, bool use_factor, const TileScales& s,
                           int64_t index) {
  if (HWY_LIKELY(s.zero == ZeroKind::kSymmetric)) {
    sum = hn::Sub(sum, hn::Set(di32, s.symmetric_zero * ones));
  } else if (s.zero == ZeroKind::kZeroPoint) {
    sum = hn::Sub(sum, hn::Mul(LoadZeroPoints(s.zero_points + index), hn::Set(di32, ones)));
  }
  VF32 scale = LoadScales(s.scales_f16, s.scales_f32, index);
  if (use_factor) scale = hn::Mul(scale, hn::Set(df32, factor));
  acc = hn::MulAdd(hn::ConvertTo(df32, sum), scale, acc);
  if (s.zero == ZeroKind::kMin) {
    VF32 min = LoadScales(s.mins_f16, s.mins_f32, index);
    if (use_factor) min = hn::Mul(min, hn::Set(df32, factor));
    acc = hn::MulAdd(hn::Set(df32, static_cast<float>(ones)), min, acc);
  }
  return acc;
}

// float(256 * high + low), rounded once; exact in double.
HWY_INLINE VF32 RoundWide(VI32 high, VI32 low) {
  const hn::Repartition<double, DF32> df64;
  const hn::Half<DI32> half_i;
  const hn::Half<DF32> half_f;
  const auto k256 = hn::Set(df64, 256.0);
  const auto lower = hn::MulAdd(k256, hn::PromoteTo(df64, hn::LowerHalf(half_i, high)),
                                hn::PromoteTo(df64, hn::LowerHalf(half_i, low)));
  const auto upper = hn::MulAdd(k256, hn::PromoteTo(df64, hn::UpperHalf(half_i, high)),
                                hn::PromoteTo(df64, hn::UpperHalf(half_i, low)));
  return hn::Combine(df32, hn::DemoteTo(half_f, upper), hn::DemoteTo(half_f, lower));
}

// acc + the contribution of a whole row kept as two digit sums: sum of (u - base) * q = 256 * high + low,
// where `base` is the zero that the caller has already taken off. `ones` is the sum of q.
HWY_INLINE VF32 CloseLong(VF32 acc, VI32 high, VI32 low, int64_t ones, int32_t base, const TileScales& s,
                          int64_t index) {
  const int64_t ones_high = ones >> 8;
  const auto ones_low = static_cast<int32_t>(ones - ones_high * 256);
  const VI32 zero = s.zero == ZeroKind::kZeroPoint ? LoadZeroPoints(s.zero_points + index)
                                                   : hn::Set(di32, s.zero == ZeroKind::kMin ? 0 : s.symmetric_zero);
  const VI32 off = hn::Sub(zero, hn::Set(di32, base));
  high = hn::Sub(high, hn::Mul(off, hn::Set(di32, static_cast<int32_t>(ones_high))));
  low = hn::Sub(low, hn::Mul(off, hn::Set(di32, ones_low)));
  acc = hn::MulAdd(RoundWide(high, low), LoadScales(s.scales_f16, s.scales_f32, index), acc);
  if (s.zero == ZeroKind::kMin) {
    acc = hn::MulAdd(hn::Set(df32, static_cast<float>(ones)), LoadScales(s.mins_f16, s.mins_f32, index), acc);
  }
  return acc;
}

// ---------------------------------------------------------------------------------------------------------- one token

// The inputs of one chunk (one vector of packed bytes): even and odd elements for 4-bit weights, all in `even` for
// 8-bit.
struct ChunkInputs {
  VI8 high_even, high_odd, low_even, low_odd;
};

template <bool kW8, int kPlanes>
HWY_INLINE ChunkInputs LoadChunk(const int8_t* HWY_RESTRICT lines, int64_t unit) {
  constexpr int64_t kLine = kBlock * kPlanes;
  ChunkInputs in;
  if constexpr (kW8) {
    // Units 2i and 2i+1 share a line.
#if HWY_TARGET == HWY_AVX3_DL
    const hn::Half<DI8> half;
    const int8_t* line = lines + unit / 2 * kLine;
    in.low_even = hn::Combine(di8, hn::LoadU(half, line + kLine + (kPlanes - 1) * kBlock),
                              hn::LoadU(half, line + (kPlanes - 1) * kBlock));
    in.high_even = kPlanes == 2 ? hn::Combine(di8, hn::LoadU(half, line + kLine), hn::LoadU(half, line)) : in.low_even;
#else
    const int8_t* line = lines + unit / 2 * kLine + unit % 2 * 16;
    in.low_even = hn::LoadU(di8, line + (kPlanes - 1) * kBlock);
    in.high_even = kPlanes == 2 ? hn::LoadU(di8, line) : in.low_even;
#endif
    in.low_odd = in.low_even;
    in.high_odd = in.high_even;
  } else {
    const int8_t* line = lines + unit * kLine;
    const int8_t* low = line + (kPlanes - 1) * kBlock;
    in.low_even = LoadUnits(di8, low, kLine);
    in.low_odd = LoadUnits(di8, low + 16, kLine);
    in.high_even = kPlanes == 2 ? LoadUnits(di8, line, kLine) : in.low_even;
    in.high_odd = kPlanes == 2 ? LoadUnits(di8, line + 16, kLine) : in.low_odd;
  }
  return in;
}

// Digit sums of one row over one chunk: int32 lanes, each over 4 packed bytes.
template <bool kW8, int kPlanes>
HWY_INLINE void ChunkSums(const uint8_t* HWY_RESTRICT row, const ChunkInputs& in, VI32& high, VI32& low) {
  const VU8 packed = hn::LoadU(du8, row);
  if constexpr (kW8 && kDot8) {
    low = WidenAcc(DotStep(DotZero(), packed, in.low_even));
    if constexpr (kPlanes == 2) high = WidenAcc(DotStep(DotZero(), packed, in.high_even));
  } else {
    const VU8 mask = hn::Set(du8, uint8_t{15});
    const VU8 even = hn::And(packed, mask);
    const hn::Repartition<uint16_t, DU8> du16;
    const VU8 odd = hn::And(hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, packed))), mask);
    if constexpr (kW8) {  // value = 16 * odd + even, all against the same inputs
      low = hn::Add(hn::ShiftLeft<4>(WidenAcc(DotStep(DotZero(), odd, in.low_even))),
                    WidenAcc(DotStep(DotZero(), even, in.low_even)));
      if constexpr (kPlanes == 2) {
        high = hn::Add(hn::ShiftLeft<4>(WidenAcc(DotStep(DotZero(), odd, in.high_even))),
                       WidenAcc(DotStep(DotZero(), even, in.high_even)));
      }
    } else {
      low = WidenAcc(DotStep(DotStep(DotZero(), even, in.low_even), odd, in.low_odd));
      if constexpr (kPlanes == 2) {
        high = WidenAcc(DotStep(DotStep(DotZero(), even, in.high_even), odd, in.high_odd));
      }
    }
  }
}

// One tile of a matrix with groups of at most 128 inputs (digits can be joined as int32).
template <bool kW8, int kPlanes>
void GemvTileGroups(const QuantMatrix& w, const QuantActivations& x, int64_t tile, float* HWY_RESTRICT out) {
  const TileScales scales = ScalesOf(w, tile);
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t units = stride / 16;
  const int8_t* lines = x.Lines(0);
  const int32_t* block_sums = x.BlockSums(0);
  constexpr bool kFactor = kPlanes == 1;  // 8-bit activations: a scale per block
  const float* factors = kFactor ? x.BlockScales(0) : nullptr;
  constexpr int64_t kUnitsPerBlock = kW8 ? 2 : 1;
  const int64_t group_units = w.group() / kBlock * kUnitsPerBlock;
  const int64_t close_units = kFactor ? kUnitsPerBlock : group_units;  // units per exact sum
  const int64_t close_blocks = close_units / kUnitsPerBlock;

  VF32 acc[kParts];
  VI32 sum[kParts];
  for (int p = 0; p < kParts; ++p) {
    acc[p] = hn::Zero(df32);
    sum[p] = hn::Zero(di32);
  }
  // The next tile is fetched meanwhile, in the order of memory: 16 short rows are too many streams for the hardware to
  // follow, one long one is not.
  const uint8_t* ahead = rows + kTileRows * stride;
  for (int64_t unit = 0; unit < units; unit += kUnits) {
    const ChunkInputs in = LoadChunk<kW8, kPlanes>(lines, unit);
    const uint8_t* chunk = rows + unit * 16;
    const int valid = static_cast<int>(HWY_MIN(units - unit, int64_t{kUnits}));
    for (int p = 0; p < kParts; ++p) {
      VI32 parts[kUnits];
      for (int q = 0; q < kUnits; ++q) {
        VI32 four[4];
        for (int i = 0; i < 4; ++i) {
          const uint8_t* row = chunk + (p * kLanes + q * 4 + i) * stride;
          ahead += kVectorBytes;
          PrefetchWeights(ahead);
          VI32 high;
          VI32 low;
          ChunkSums<kW8, kPlanes>(row, in, high, low);
          if constexpr (kPlanes == 2) {
            four[i] = hn::Add(hn::ShiftLeft<8>(high), low);
          } else {
            four[i] = low;
          }
        }
        parts[q] = SumOfFours(four[0], four[1], four[2], four[3]);
      }
      TransposeParts(parts);  // parts[j]: rows of this part, unit j of the chunk
      for (int j = 0; j < kUnits; ++j) {
        if (j >= valid) break;
        sum[p] = hn::Add(sum[p], parts[j]);
        const int64_t next = unit + j + 1;
        if (close_units != 1 && next % close_units != 0) continue;
        const int64_t block = (next - close_units) / kUnitsPerBlock;
        int32_t ones = block_sums[block];
        for (int64_t b = 1; b < close_blocks; ++b) ones += block_sums[block + b];
        const int64_t group = kFactor ? (next - 1) / group_units : next / group_units - 1;
        acc[p] = CloseGroup(acc[p], sum[p], ones, kFactor ? factors[block] : 1.0F, kFactor, scales,
                            group * kTileRows + p * kLanes);
        sum[p] = hn::Zero(di32);
      }
    }
  }
  const VF32 token_scale = hn::Set(df32, x.TokenScale(0));
  for (int p = 0; p < kParts; ++p) {
    hn::StoreU(kFactor ? acc[p] : hn::Mul(acc[p], token_scale), df32, out + p * kLanes);
  }
}

#if HWY_TARGET == HWY_AVX3_DL
// The most common case of GemvTileGroups, kept tight: 4-bit weights in groups of one block against 16-bit activations.
// The digit sums of a block fit 16 bits (8 products of 15 * 128 a lane), so that pairs of rows are packed together and
// one multiply-add both halves their number and joins the digits.
template <bool kMinimum>
void GemvTileBlocks(const QuantMatrix& w, const QuantActivations& x, int64_t tile, float* HWY_RESTRICT out) {
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t blocks = stride / 16;
  const int8_t* lines = x.Lines(0);
  const int32_t* block_sums = x.BlockSums(0);
  const uint16_t* scales = w.TileScalesF16(tile);
  const uint16_t* mins = kMinimum ? w.TileMinsF16(tile) : nullptr;
  const __m512i ones = _mm512_set1_epi16(1);
  const __m512i k256 = _mm512_set1_epi16(256);
  const VU8 mask = hn::Set(du8, uint8_t{15});
  const hn::Repartition<uint16_t, DU8> du16;
  VF32 acc = hn::Zero(df32);
  const uint8_t* ahead = rows + kTileRows * stride;
  for (int64_t block = 0; block < blocks; block += kUnits) {
    const ChunkInputs in = LoadChunk<false, 2>(lines, block);
    const uint8_t* chunk = rows + block * 16;
    VI32 parts[kUnits];
    HWY_UNROLL(4)
    for (int q = 0; q < kUnits; ++q) {
      VI32 high[4];
      VI32 low[4];
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        PrefetchWeights(ahead + (q * 4 + i) * kVectorBytes);
        const VU8 packed = hn::LoadU(du8, chunk + (q * 4 + i) * stride);
        const VU8 even = hn::And(packed, mask);
        const VU8 odd = hn::And(hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, packed))), mask);
        high[i] = DotStep(DotStep(DotZero(), even, in.high_even), odd, in.high_odd);
        low[i] = DotStep(DotStep(DotZero(), even, in.low_even), odd, in.low_odd);
      }
      const auto pair = [&](int a, int b) HWY_ATTR {
        const __m512i halves =
            _mm512_dpwssd_epi32(_mm512_setzero_si512(), _mm512_packs_epi32(low[a].raw, low[b].raw), ones);
        return VI32{_mm512_dpwssd_epi32(halves, _mm512_packs_epi32(high[a].raw, high[b].raw), k256)};
      };
      const VF32 first = hn::BitCast(df32, pair(0, 1));
      const VF32 second = hn::BitCast(df32, pair(2, 3));
      parts[q] = hn::Add(VI32{_mm512_castps_si512(_mm512_shuffle_ps(first.raw, second.raw, 0x88))},
                         VI32{_mm512_castps_si512(_mm512_shuffle_ps(first.raw, second.raw, 0xDD))});
    }
    ahead += kTileRows * kVectorBytes;
    const int64_t next = (blocks + block) * kTileRows;  // scales of the next tile
    for (int64_t line = 0; line < kUnits * kTileRows; line += 32) {
      PrefetchWeights(scales + next + line);
      if constexpr (kMinimum) PrefetchWeights(mins + next + line);
    }
    TransposeParts(parts);
    const int valid = static_cast<int>(HWY_MIN(blocks - block, int64_t{kUnits}));
    HWY_UNROLL(4)
    for (int j = 0; j < kUnits; ++j) {
      if (j >= valid) break;
      const int32_t sum = block_sums[block + j];
      const int64_t at = (block + j) * kTileRows;
      VI32 exact = parts[j];
      if constexpr (!kMinimum) exact = hn::Sub(exact, hn::Set(di32, 8 * sum));
      acc = hn::MulAdd(hn::ConvertTo(df32, exact), LoadScales(scales, nullptr, at), acc);
      if constexpr (kMinimum) {
        acc = hn::MulAdd(hn::Set(df32, static_cast<float>(sum)), LoadScales(mins, nullptr, at), acc);
      }
    }
  }
  hn::StoreU(hn::Mul(acc, hn::Set(df32, x.TokenScale(0))), df32, out);
}
#endif

// One tile of a matrix with one scale per row.
template <bool kW8, int kPlanes>
void GemvTileChannel(const QuantMatrix& w, const QuantActivations& x, int64_t tile, float* HWY_RESTRICT out) {
  const TileScales scales = ScalesOf(w, tile);
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t units = stride / 16;
  const int8_t* lines = x.Lines(0);
  const uint8_t* ahead = rows + kTileRows * stride;
  HWY_ALIGN int32_t high_sums[kTileRows] = {};
  HWY_ALIGN int32_t low_sums[kTileRows];
  for (int quad = 0; quad < kTileRows / 4; ++quad) {
    const uint8_t* quad_rows = rows + quad * 4 * stride;
    VI32 high[4];
    VI32 low[4];
    for (int i = 0; i < 4; ++i) high[i] = low[i] = hn::Zero(di32);
    for (int64_t unit = 0; unit < units; unit += kUnits) {
      const ChunkInputs in = LoadChunk<kW8, kPlanes>(lines, unit);
      for (int i = 0; i < 4; ++i) {
        const uint8_t* row = quad_rows + i * stride + unit * 16;
        ahead += kVectorBytes;
        PrefetchWeights(ahead);
        VI32 h;
        VI32 l;
        ChunkSums<kW8, kPlanes>(row, in, h, l);
        low[i] = hn::Add(low[i], l);
        if constexpr (kPlanes == 2) high[i] = hn::Add(high[i], h);
      }
    }
    // SumOfFours leaves one partial sum per 128-bit part.
    HWY_ALIGN int32_t parts[kLanes];
    hn::Store(SumOfFours(low[0], low[1], low[2], low[3]), di32, parts);
    for (int i = 0; i < 4; ++i) {
      low_sums[quad * 4 + i] = 0;
      for (int part = 0; part < kUnits; ++part) low_sums[quad * 4 + i] += parts[part * 4 + i];
    }
    if constexpr (kPlanes == 2) {
      hn::Store(SumOfFours(high[0], high[1], high[2], high[3]), di32, parts);
      for (int i = 0; i < 4; ++i) {
        for (int part = 0; part < kUnits; ++part) high_sums[quad * 4 + i] += parts[part * 4 + i];
      }
    }
  }
  const VF32 token_scale = hn::Set(df32, x.TokenScale(0));
  for (int p = 0; p < kParts; ++p) {
    const VF32 acc = CloseLong(hn::Zero(df32), hn::Load(di32, high_sums + p * kLanes),
                               hn::Load(di32, low_sums + p * kLanes), x.RowSum(0), 0, scales, p * kLanes);
    hn::StoreU(hn::Mul(acc, token_scale), df32, out + p * kLanes);
  }
}

// ------------------------------------------------------------------------------------------------------ several tokens

// An unpacked tile: per block kPasses * 8 steps of 64 bytes, then 64 bytes of constants. Step s holds four signed
// weights of each of the 16 rows, and meets bytes 4 (s % 8) .. of a plane of the activation line. 4-bit weights are u
// - 8. 8-bit ones are u - 128; without an 8-bit instruction they take two passes, floor((u - 128) / 16) and u % 16 - 8,
// and w = 16 * first + second + 8. The constants undo the offset of the activation bytes: -128 * sum of the pass's
// weights.
template <bool kW8>
constexpr int kPasses = kW8 && !kDot8 ? 2 : 1;
constexpr int64_t kStepBytes = kTileRows * 4;
constexpr int64_t kPassBytes = 9 * kStepBytes;
template <bool kW8>
constexpr int64_t kTileBlockBytes = kPasses<kW8>* kPassBytes;

template <bool kW8>
void UnpackTile(const QuantMatrix& w, int64_t tile, uint8_t* HWY_RESTRICT out) {
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t blocks = w.cols() / kBlock;
  constexpr int kUnitsPerBlock = kW8 ? 2 : 1;
  const VU8 mask = hn::Set(du8, uint8_t{15});
  const VI8 eight = hn::Set(di8, int8_t{8});
  const VU8 ones = hn::Set(du8, uint8_t{1});
  const hn::RepartitionToWide<DU32> du64;
  const hn::Repartition<uint16_t, DU8> du16;
  for (int64_t block = 0; block < blocks; ++block) {
    uint8_t* to = out + block * kTileBlockBytes<kW8>;
    for (int p = 0; p < kParts; ++p) {
      DotAcc sums[kPasses<kW8>];
      for (DotAcc& sum : sums) sum = DotZero();
      const auto emit = [&](int pass, int step, VI8 weights) {
        hn::StoreU(hn::BitCast(du8, weights), du8, to + pass * kPassBytes + step * kStepBytes + p * kVectorBytes);
        sums[pass] = DotStep(sums[pass], ones, weights);
      };
      for (int unit = 0; unit < kUnitsPerBlock; ++unit) {
        const uint8_t* from = rows + p * kLanes * stride + (block * kUnitsPerBlock + unit) * 16;
        const auto r0 = hn::BitCast(du32, LoadUnits(du8, from, 4 * stride));
        const auto r1 = hn::BitCast(du32, LoadUnits(du8, from + stride, 4 * stride));
        const auto r2 = hn::BitCast(du32, LoadUnits(du8, from + 2 * stride, 4 * stride));
        const auto r3 = hn::BitCast(du32, LoadUnits(du8, from + 3 * stride, 4 * stride));
        const auto a = hn::BitCast(du64, hn::InterleaveLower(du32, r0, r1));
        const auto b = hn::BitCast(du64, hn::InterleaveLower(du32, r2, r3));
        const auto c = hn::BitCast(du64, hn::InterleaveUpper(du32, r0, r1));
        const auto d = hn::BitCast(du64, hn::InterleaveUpper(du32, r2, r3));
        const VU8 words[4] = {
            hn::BitCast(du8, hn::InterleaveLower(du64, a, b)), hn::BitCast(du8, hn::InterleaveUpper(du64, a, b)),
            hn::BitCast(du8, hn::InterleaveLower(du64, c, d)), hn::BitCast(du8, hn::InterleaveUpper(du64, c, d))};
        for (int i = 0; i < 4; ++i) {
          if constexpr (kW8 && kDot8) {
            emit(0, unit * 4 + i, hn::BitCast(di8, hn::Xor(words[i], hn::Set(du8, uint8_t{128}))));
            continue;
          }
          const VI8 low = hn::Sub(hn::BitCast(di8, hn::And(words[i], mask)), eight);
          const VU8 upper = hn::And(hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, words[i]))), mask);
          const VI8 high = hn::Sub(hn::BitCast(di8, upper), eight);
          if constexpr (kW8) {
            emit(0, unit * 4 + i, high);
            emit(kPasses<kW8> - 1, unit * 4 + i, low);
          } else {  // even elements (low nibbles) meet the first half of a line
            emit(0, i, low);
            emit(0, 4 + i, high);
          }
        }
      }
      for (int pass = 0; pass < kPasses<kW8>; ++pass) {
        const VI32 sum = WidenAcc(sums[pass]);
        hn::StoreU(hn::BitCast(du8, hn::Neg(hn::ShiftLeft<7>(sum))), du8,
                   to + pass * kPassBytes + 8 * kStepBytes + p * kVectorBytes);
      }
    }
  }
}

HWY_INLINE VU8 BroadcastFour(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return hn::BitCast(du8, hn::Set(di32, word));
}

// One plane of one pass of a block: sum[r][t] += sum over 32 inputs of weight * activation byte.
template <int kR, int kT>
HWY_INLINE void AddPlane(const uint8_t* const* HWY_RESTRICT tile, int64_t offset,
                         const int8_t* const* HWY_RESTRICT lines, int64_t line, VI32 (&sum)[kR][kT]) {
#if HWY_TARGET == HWY_AVX3_DL
  // The instruction adds to int32 lanes: no second accumulator.
  HWY_UNROLL(8)
  for (int step = 0; step < 8; ++step) {
    VI8 w[kR];
    HWY_UNROLL(2)
    for (int r = 0; r < kR; ++r) {
      w[r] = hn::BitCast(di8, hn::LoadU(du8, tile[r] + offset + step * kStepBytes));
    }
    HWY_UNROLL(6)
    for (int t = 0; t < kT; ++t) {
      const VU8 a = BroadcastFour(lines[t] + line + 4 * step);
      HWY_UNROLL(2)
      for (int r = 0; r < kR; ++r) sum[r][t] = DotStep(sum[r][t], a, w[r]);
    }
  }
#else
  DotAcc acc[kR][kT];
  HWY_UNROLL(2)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(6)
    for (int t = 0; t < kT; ++t) acc[r][t] = DotZero();
  }
  HWY_UNROLL(8)
  for (int step = 0; step < 8; ++step) {
    VI8 w[kR];
    HWY_UNROLL(2)
    for (int r = 0; r < kR; ++r) {
      w[r] = hn::BitCast(di8, hn::LoadU(du8, tile[r] + offset + step * kStepBytes));
    }
    HWY_UNROLL(6)
    for (int t = 0; t < kT; ++t) {
      const VU8 a = BroadcastFour(lines[t] + line + 4 * step);
      HWY_UNROLL(2)
      for (int r = 0; r < kR; ++r) acc[r][t] = DotStep(acc[r][t], a, w[r]);
    }
  }
  HWY_UNROLL(2)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(6)
    for (int t = 0; t < kT; ++t) sum[r][t] = hn::Add(sum[r][t], WidenAcc(acc[r][t]));
  }
#endif
}

template <int kR, int kT>
HWY_INLINE void ShiftAll(VI32 (&sum)[kR][kT]) {
  HWY_UNROLL(2)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(6)
    for (int t = 0; t < kT; ++t) sum[r][t] = hn::ShiftLeft<8>(sum[r][t]);
  }
}

// Sums of one block for kR vectors of rows and kT tokens: sum[r][t] += sum of (u - 8 or 128) * q. For 8-bit weights in
// two passes the last `+ 8 * sum of q` is left to the caller. The digits are joined on the way: |sum| < 2^31 for up to
// 128 inputs.
template <bool kW8, int kPlanes, int kR, int kT>
HWY_INLINE void AddBlock(const uint8_t* const* HWY_RESTRICT tile, int64_t block,
                         const int8_t* const* HWY_RESTRICT lines, VI32 (&total)[kR][kT], bool first) {
  constexpr int64_t kLine = kBlock * kPlanes;
  const int64_t line = block * kLine;
  HWY_UNROLL(2)
  for (int pass = 0; pass < kPasses<kW8>; ++pass) {
    const int64_t offset = block * kTileBlockBytes<kW8> + pass * kPassBytes;
    VI32 sum[kR][kT];
    HWY_UNROLL(2)
    for (int r = 0; r < kR; ++r) {
      const VI32 constant = hn::BitCast(di32, hn::LoadU(du8, tile[r] + offset + 8 * kStepBytes));
      HWY_UNROLL(6)
      for (int t = 0; t < kT; ++t) sum[r][t] = constant;
    }
    AddPlane<kR, kT>(tile, offset, lines, line, sum);
    if constexpr (kPlanes == 2) {
      ShiftAll<kR, kT>(sum);
      AddPlane<kR, kT>(tile, offset, lines, line + kBlock, sum);
    }
    HWY_UNROLL(2)
    for (int r = 0; r < kR; ++r) {
      HWY_UNROLL(6)
      for (int t = 0; t < kT; ++t) {
        if (kPasses<kW8> == 2 && pass == 0) sum[r][t] = hn::ShiftLeft<4>(sum[r][t]);
        total[r][t] = first && pass == 0 ? sum[r][t] : hn::Add(total[r][t], sum[r][t]);
      }
    }
  }
}

// The same with the digit sums kept apart, for whole rows. high counts -128 * weights per block, low nothing.
template <bool kW8, int kPlanes, int kR, int kT>
HWY_INLINE void AddBlockDigits(const uint8_t* const* HWY_RESTRICT tile, int64_t block,
                               const int8_t* const* HWY_RESTRICT lines, VI32 (&high)[kR][kT], VI32 (&low)[kR][kT]) {
  constexpr int64_t kLine = kBlock * kPlanes;
  const int64_t line = block * kLine;
  HWY_UNROLL(2)
  for (int pass = 0; pass < kPasses<kW8>; ++pass) {
    const int64_t offset = block * kTileBlockBytes<kW8> + pass * kPassBytes;
    VI32 part[kR][kT];
    const auto add = [&](VI32(&to)[kR][kT], int64_t at, bool with_constant) {
      HWY_UNROLL(2)
      for (int r = 0; r < kR; ++r) {
        const VI32 constant =
            with_constant ? hn::BitCast(di32, hn::LoadU(du8, tile[r] + offset + 8 * kStepBytes)) : hn::Zero(di32);
        HWY_UNROLL(6)
        for (int t = 0; t < kT; ++t) part[r][t] = constant;
      }
      AddPlane<kR, kT>(tile, offset, lines, at, part);
      HWY_UNROLL(2)
      for (int r = 0; r < kR; ++r) {
        HWY_UNROLL(6)
        for (int t = 0; t < kT; ++t) {
          if (kPasses<kW8> == 2 && pass == 0) part[r][t] = hn::ShiftLeft<4>(part[r][t]);
          to[r][t] = hn::Add(to[r][t], part[r][t]);
        }
      }
    };
    if constexpr (kPlanes == 2) {
      add(high, line, true);
      add(low, line + kBlock, false);
    } else {
      add(low, line, true);
    }
  }
}

// Packed weights that the next unpacking will read, fetched a little with every block that is computed meanwhile.
struct Ahead {
  const uint8_t* from = nullptr;  // null = nothing to fetch
  int64_t block_bytes = 0;
};

HWY_INLINE void Fetch(const Ahead& ahead, int64_t block) {
  if (ahead.from == nullptr) return;
  const uint8_t* from = ahead.from + block * ahead.block_bytes;
  for (int64_t line = 0; line < ahead.block_bytes; line += 64) PrefetchWeights(from + line);
}

// kR vectors of rows x kT tokens over the whole width. `tile[r]` points at the rows of vector r in its unpacked tile,
// and `index[r]` is the place of its first row among the 16 of scales[r].
template <bool kW8, int kPlanes, int kR, int kT>
void GemmCell(const QuantMatrix& w, const QuantActivations& x, const uint8_t* const* tile, const TileScales* scales,
              const int64_t* index, int64_t token, const Ahead& ahead, float* const* out, int64_t ldo) {
  constexpr bool kBlockScale = kPlanes == 1;
  constexpr int32_t kBase = kW8 ? 128 : 8;              // the zero taken off in the tile
  constexpr int32_t kRest = kPasses<kW8> == 2 ? 8 : 0;  // and what two passes leave to add per unit of q
  const int64_t blocks = w.cols() / kBlock;
  const int64_t group_blocks = w.group() / kBlock;
  const int8_t* lines[kT];
  for (int t = 0; t < kT; ++t) lines[t] = x.Lines(token + t);
  VF32 acc[kR][kT];
  HWY_UNROLL(2)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(6)
    for (int t = 0; t < kT; ++t) acc[r][t] = hn::Zero(df32);
  }
  if (w.per_channel()) {
    VI32 high[kR][kT];
    VI32 low[kR][kT];
    for (int r = 0; r < kR; ++r) {
      for (int t = 0; t < kT; ++t) high[r][t] = low[r][t] = hn::Zero(di32);
    }
    for (int64_t b = 0; b < blocks; ++b) {
      Fetch(ahead, b);
      AddBlockDigits<kW8, kPlanes, kR, kT>(tile, b, lines, high, low);
    }
    for (int r = 0; r < kR; ++r) {
      for (int t = 0; t < kT; ++t) {
        acc[r][t] =
            CloseLong(acc[r][t], high[r][t], low[r][t], x.RowSum(token + t), kBase + kRest, scales[r], index[r]);
      }
    }
  } else if (kRest == 0 && scales[0].zero != ZeroKind::kZeroPoint && (kBlockScale || group_blocks == 1)) {
    // The common cases, kept tight: one block per sum, symmetric weights or minimums.
    const auto one_block_per_sum = [&](auto with_minimum) HWY_ATTR {
      constexpr bool kMinimum = decltype(with_minimum)::value;
      for (int64_t block = 0; block < blocks; ++block) {
        Fetch(ahead, block);
        VI32 sum[kR][kT];
        AddBlock<kW8, kPlanes, kR, kT>(tile, block, lines, sum, true);
        const int64_t group = kBlockScale ? block / group_blocks : block;
        VF32 scale[kR];
        VF32 min[kR];
        for (int r = 0; r < kR; ++r) {
          scale[r] = LoadScales(scales[r].scales_f16, scales[r].scales_f32, group * kTileRows + index[r]);
          if constexpr (kMinimum) {
            min[r] = LoadScales(scales[r].mins_f16, scales[r].mins_f32, group * kTileRows + index[r]);
          }
        }
        HWY_UNROLL(6)
        for (int t = 0; t < kT; ++t) {
          const VF32 factor = hn::Set(df32, kBlockScale ? x.BlockScales(token + t)[block] : 1.0F);
          const int32_t ones = kMinimum ? x.BlockSums(token + t)[block] : 0;
          HWY_UNROLL(2)
          for (int r = 0; r < kR; ++r) {
            VI32 exact = sum[r][t];
            if constexpr (kMinimum) exact = hn::Add(exact, hn::Set(di32, kBase * ones));
            const VF32 weight = kBlockScale ? hn::Mul(scale[r], factor) : scale[r];
            acc[r][t] = hn::MulAdd(hn::ConvertTo(df32, exact), weight, acc[r][t]);
            if constexpr (kMinimum) {
              const VF32 minimum = kBlockScale ? hn::Mul(min[r], factor) : min[r];
              acc[r][t] = hn::MulAdd(hn::Set(df32, static_cast<float>(ones)), minimum, acc[r][t]);
            }
          }
        }
      }
    };
    if (scales[0].zero == ZeroKind::kMin) {
      one_block_per_sum(std::true_type());
    } else {
      one_block_per_sum(std::false_type());
    }
  } else {
    const int64_t close_blocks = kBlockScale ? 1 : group_blocks;
    for (int64_t first = 0; first < blocks; first += close_blocks) {
      VI32 sum[kR][kT];
      for (int64_t b = 0; b < close_blocks; ++b) Fetch(ahead, first + b);
      AddBlock<kW8, kPlanes, kR, kT>(tile, first, lines, sum, true);
      for (int64_t b = 1; b < close_blocks; ++b) AddBlock<kW8, kPlanes, kR, kT>(tile, first + b, lines, sum, false);
      for (int r = 0; r < kR; ++r) {
        const TileScales& s = scales[r];
        const int64_t at = first / group_blocks * kTileRows + index[r];
        const VI32 zero = s.zero == ZeroKind::kZeroPoint
                              ? LoadZeroPoints(s.zero_points + at)
                              : hn::Set(di32, s.zero == ZeroKind::kMin ? 0 : s.symmetric_zero);
        const VI32 off = hn::Sub(zero, hn::Set(di32, kBase + kRest));
        for (int t = 0; t < kT; ++t) {
          const int32_t* sums = x.BlockSums(token + t) + first;
          int32_t ones = sums[0];
          for (int64_t b = 1; b < close_blocks; ++b) ones += sums[b];
          const VI32 exact = hn::Sub(sum[r][t], hn::Mul(off, hn::Set(di32, ones)));
          const VF32 factor = hn::Set(df32, kBlockScale ? x.BlockScales(token + t)[first] : 1.0F);
          VF32 weight = LoadScales(s.scales_f16, s.scales_f32, at);
          if constexpr (kBlockScale) weight = hn::Mul(weight, factor);
          acc[r][t] = hn::MulAdd(hn::ConvertTo(df32, exact), weight, acc[r][t]);
          if (s.zero == ZeroKind::kMin) {
            VF32 min = LoadScales(s.mins_f16, s.mins_f32, at);
            if constexpr (kBlockScale) min = hn::Mul(min, factor);
            acc[r][t] = hn::MulAdd(hn::Set(df32, static_cast<float>(ones)), min, acc[r][t]);
          }
        }
      }
    }
  }
  const bool scaled = x.scale_kind() == ActivationScale::kPerToken;
  for (int t = 0; t < kT; ++t) {
    const VF32 token_scale = hn::Set(df32, x.TokenScale(token + t));
    for (int r = 0; r < kR; ++r) {
      hn::StoreU(scaled ? hn::Mul(acc[r][t], token_scale) : acc[r][t], df32, out[r] + t * ldo);
    }
  }
}

// ------------------------------------------------------------------------------------------------------------ dispatch

template <bool kW8, int kPlanes>
void GemvTiles(const QuantProduct& product, int64_t begin, int64_t end) {
  const QuantActivations& x = *product.x;
  const QuantMatrix& w = *product.weights;
  HWY_ALIGN float rows[kTileRows];
  for (int64_t tile = begin; tile < end; ++tile) {
    if (w.per_channel()) {
      GemvTileChannel<kW8, kPlanes>(w, x, tile, rows);
#if HWY_TARGET == HWY_AVX3_DL
    } else if (!kW8 && kPlanes == 2 && w.group() == kBlock && !w.f32_scales() && w.zero() != ZeroKind::kZeroPoint) {
      w.zero() == ZeroKind::kMin ? GemvTileBlocks<true>(w, x, tile, rows) : GemvTileBlocks<false>(w, x, tile, rows);
#endif
    } else {
      GemvTileGroups<kW8, kPlanes>(w, x, tile, rows);
    }
    const int64_t first = tile * kTileRows;
    const int64_t count = std::min(kTileRows, w.rows() - first);
    std::memcpy(product.out + first, rows, static_cast<size_t>(count) * sizeof(float));
  }
}

// Tiles are taken two at a time on 512-bit vectors, so that each broadcast input serves two multiply-adds.
constexpr int kGemmRows = kLanes == kTileRows ? 2 : 1;  // vectors of rows per cell
constexpr int kGemmTokens = kVectorBytes == 64 ? 6 : 4;

template <bool kW8, int kPlanes>
void GemmTiles(const QuantProduct& product, int64_t begin, int64_t end, uint8_t* scratch) {
  const QuantActivations& x = *product.x;
  const QuantMatrix& w = *product.weights;
  const int64_t tile_bytes = w.cols() / kBlock * kTileBlockBytes<kW8>;
  const int64_t tokens = x.rows();
  constexpr int64_t kTilesAtOnce = kGemmRows == 2 ? 2 : 1;
  HWY_ALIGN float cell[kTilesAtOnce * kTileRows * kGemmTokens];
  for (int64_t tile = begin; tile < end; tile += kTilesAtOnce) {
    const int64_t tiles = std::min(kTilesAtOnce, end - tile);
    const bool pair = kTilesAtOnce == 2 && tiles == 2;
    for (int64_t i = 0; i < tiles; ++i) UnpackTile<kW8>(w, tile + i, scratch + i * tile_bytes);
    TileScales scales[2];
    for (int64_t i = 0; i < tiles; ++i) scales[i] = ScalesOf(w, tile + i);
    const int64_t block_bytes = tiles * kTileRows * w.row_bytes() / (w.cols() / kBlock);
    const Ahead next{w.TileData(tile) + tiles * kTileRows * w.row_bytes(), block_bytes};
    const int64_t first = tile * kTileRows;
    const int64_t count = std::min(tiles * kTileRows, w.rows() - first);
    for (int64_t token = 0; token < tokens;) {
      // Six at a time on 512-bit vectors, unless that leaves a thin rest.
      const int64_t rest = tokens - token;
      const int64_t nt = kGemmTokens == 6 && pair && (rest >= 9 || rest == 6) ? 6 : std::min<int64_t>(4, rest);
      const int vectors = pair ? 1 : kParts * static_cast<int>(tiles);  // cells along the rows
      for (int v = 0; v < vectors; ++v) {
        const Ahead ahead = token == 0 && v == 0 ? next : Ahead{};
        const int64_t part = v % kParts * kLanes;
        const uint8_t* base[2] = {scratch + (pair ? 0 : part * 4), scratch + tile_bytes};
        const int64_t index[2] = {pair ? 0 : part, 0};
        float* out[2] = {cell + (pair ? 0 : part), cell + kTileRows};
        constexpr int64_t kLdc = kTilesAtOnce * kTileRows;
        if (pair) {
          switch (nt) {
            case 6:
              GemmCell<kW8, kPlanes, kGemmRows, kGemmTokens>(w, x, base, scales, index, token, ahead, out, kLdc);
              break;
            case 4: GemmCell<kW8, kPlanes, kGemmRows, 4>(w, x, base, scales, index, token, ahead, out, kLdc); break;
            case 3: GemmCell<kW8, kPlanes, kGemmRows, 3>(w, x, base, scales, index, token, ahead, out, kLdc); break;
            case 2: GemmCell<kW8, kPlanes, kGemmRows, 2>(w, x, base, scales, index, token, ahead, out, kLdc); break;
            default: GemmCell<kW8, kPlanes, kGemmRows, 1>(w, x, base, scales, index, token, ahead, out, kLdc); break;
          }
        } else {
          switch (nt) {
            case 4: GemmCell<kW8, kPlanes, 1, 4>(w, x, base, scales, index, token, ahead, out, kLdc); break;
            case 3: GemmCell<kW8, kPlanes, 1, 3>(w, x, base, scales, index, token, ahead, out, kLdc); break;
            case 2: GemmCell<kW8, kPlanes, 1, 2>(w, x, base, scales, index, token, ahead, out, kLdc); break;
            default: GemmCell<kW8, kPlanes, 1, 1>(w, x, base, scales, index, token, ahead, out, kLdc); break;
          }
        }
      }
      for (int64_t t = 0; t < nt; ++t) {
        std::memcpy(product.out + (token + t) * product.ldo + first, cell + t * kTilesAtOnce * kTileRows,
                    static_cast<size_t>(count) * sizeof(float));
      }
      token += nt;
    }
  }
}

void MultiplyTiles(const QuantProduct& product, int64_t begin, int64_t end, uint8_t* scratch) {
  const bool w8 = product.weights->bits() == 8;
  const bool two = product.x->planes() == 2;
  if (product.x->rows() == 1) {
    if (w8) {
      two ? GemvTiles<true, 2>(product, begin, end) : GemvTiles<true, 1>(product, begin, end);
    } else {
      two ? GemvTiles<false, 2>(product, begin, end) : GemvTiles<false, 1>(product, begin, end);
    }
  } else {
    if (w8) {
      two ? GemmTiles<true, 2>(product, begin, end, scratch) : GemmTiles<true, 1>(product, begin, end, scratch);
    } else {
      two ? GemmTiles<false, 2>(product, begin, end, scratch) : GemmTiles<false, 1>(product, begin, end, scratch);
    }
  }
}

int64_t ScratchBytes(int64_t cols, int weight_bits) {
  return 2 * (cols / kBlock) * (weight_bits == 8 ? kTileBlockBytes<true> : kTileBlockBytes<false>);
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

// Quantizes one token; see QuantActivations::Quantize. Outputs: lines, one sum per block, digit sums of the row.
void QuantizeToken(const float* HWY_RESTRICT x, int64_t cols, bool two_planes, bool block_scale, bool nibble_order,
                   bool bytes, int8_t* HWY_RESTRICT lines, int32_t* HWY_RESTRICT sums, float* HWY_RESTRICT block_scales,
                   float* HWY_RESTRICT token_scale, int64_t* HWY_RESTRICT row_sum) {
  const hn::Rebind<int8_t, DI32> d8;
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
      if (bytes) {
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

HWY_EXPORT(MultiplyTiles);
HWY_EXPORT(ScratchBytes);
HWY_EXPORT(TargetName);
HWY_EXPORT(QuantizeToken);

const char* KernelTarget() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

void QuantActivations::Quantize(const float* x, int64_t rows, int64_t cols, int64_t ldx, ActivationBits bits,
                                ActivationScale scale, int weight_bits, ThreadPool* pool) {
  assert(cols % kBlock == 0 && cols <= kMaxCols);
  rows_ = rows;
  cols_ = cols;
  bits_ = bits;
  scale_kind_ = scale;
  weight_bits_ = weight_bits;
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
    (x + row * ldx, cols, bits == ActivationBits::k16, scale == ActivationScale::kPerBlock, weight_bits == 4, rows > 1,
     lines, sums_.data() + row * blocks(), block_scales_.empty() ? nullptr : block_scales_.data() + row * blocks(),
     token_scales_.data() + row, row_sums_.data() + row);
  };
  if (pool != nullptr && rows > 1) {
    pool->Run(rows, one);
  } else {
    for (int64_t row = 0; row < rows; ++row) one(row, 0);
  }
}

void QuantMatMul(std::span<const QuantProduct> products, ThreadPool& pool) {
  // Tasks of about equal bytes: enough for balance, large enough to be worth claiming. Even numbers of tiles pair up.
  int64_t all_bytes = 0;
  int64_t scratch_bytes = 0;
  for (const QuantProduct& product : products) {
    const QuantMatrix& w = *product.weights;
    assert(w.cols() == product.x->cols() && w.bits() == product.x->weight_bits());
    assert(ScaleKindFor(w, product.x->bits()) == product.x->scale_kind());
    all_bytes += w.tiles() * kTileRows * w.row_bytes();
    if (product.x->rows() > 1) {
      scratch_bytes = std::max(scratch_bytes, HWY_DYNAMIC_DISPATCH(ScratchBytes)(w.cols(), w.bits()));
    }
  }
  const int64_t wanted_bytes = std::max<int64_t>(16384, all_bytes / (static_cast<int64_t>(pool.threads()) * 8));
  struct Task {
    const QuantProduct* product;
    int64_t begin, end;
  };
  std::vector<Task> tasks;
  for (const QuantProduct& product : products) {
    if (product.x->rows() == 0) continue;
    const int64_t tiles = product.weights->tiles();
    int64_t chunk = std::max<int64_t>(1, wanted_bytes / (kTileRows * product.weights->row_bytes()));
    chunk += chunk % 2;
    for (int64_t begin = 0; begin < tiles; begin += chunk)
      tasks.push_back({&product, begin, std::min(begin + chunk, tiles)});
  }
  std::vector<std::vector<uint8_t>> scratch(static_cast<size_t>(pool.threads()));
  pool.Run(static_cast<int64_t>(tasks.size()), [&](int64_t index, int thread) {
    const Task& task = tasks[static_cast<size_t>(index)];
    auto& buffer = scratch[static_cast<size_t>(thread)];
    if (buffer.empty() && task.product->x->rows() > 1) buffer.resize(static_cast<size_t>(scratch_bytes) + 64);
    uint8_t* aligned = buffer.data() + (64 - reinterpret_cast<uintptr_t>(buffer.data()) % 64) % 64;
    HWY_DYNAMIC_DISPATCH(MultiplyTiles)(*task.product, task.begin, task.end, aligned);
  });
}

}  // namespace pith::kernels
#endif  // HWY_ONCE
