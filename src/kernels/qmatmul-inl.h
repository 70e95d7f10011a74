// What the low-bit products share. Compiled once per target: include after hwy/foreach_target.h, outside namespaces.
//
// A "unit" is 16 packed bytes of a row: 32 inputs of 4 bits (a block) or 16 of 8 bits (half a block).
#include <hwy/highway.h>

#include <cstdint>

#include "kernels/qmatmul.h"

#if defined(PITH_KERNELS_QMATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PITH_KERNELS_QMATMUL_INL_H_
#undef PITH_KERNELS_QMATMUL_INL_H_
#else
#define PITH_KERNELS_QMATMUL_INL_H_
#endif

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

// Lets the compiler know nothing about `acc`: it would otherwise turn the additions of an unrolled loop into a tree,
// whose many intermediate sums do not fit into 16 registers.
template <class V>
HWY_INLINE void KeepOrder(V& acc) {
#if HWY_ARCH_X86
  __asm__ volatile("" : "+x"(acc.raw));
#else
  (void)acc;
#endif
}

// Asks for a line that is needed soon. The first-level cache can wait for only some 24 lines at a time, which is less
// than the memory delivers: with 512-bit vectors one thread read 13.6 GB/s into the first level and 18.5 GB/s into the
// second. With 256-bit vectors (Zen 2) two threads gained 5 % by the second level; still narrower ones compute for
// longer, so that the way from there costs more than this gains.
HWY_INLINE void PrefetchWeights(const void* from) { __builtin_prefetch(from, 0, kVectorBytes >= 32 ? 2 : 3); }

// How far ahead weights are fetched: whole tiles, since the rows of this one are under way already, and at least 8 KiB,
// which a thread reads in the time that memory takes to answer.
HWY_INLINE int64_t FetchDistance(int64_t tile_bytes) { return (1 + 8192 / tile_bytes) * tile_bytes; }

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

constexpr int kGemmTokens = kVectorBytes == 64 ? 6 : kVectorBytes == 32 ? 8 : 4;  // of a cell, at most

// How many of the `rest` tokens the next cell takes: many, but so that no thin rest is left.
HWY_INLINE int64_t CellTokens(int64_t rest, bool pair) {
  if (kGemmTokens == 6 && pair && (rest >= 9 || rest == 6)) return 6;
  if (kGemmTokens == 8) {
    if (rest == 8 || rest >= 11) return 8;
    if (rest == 6 || rest >= 9) return 6;
    if (rest == 5) return 3;
  }
  return std::min<int64_t>(4, rest);
}

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

// One unit (16 packed bytes) of each of kLanes rows as four vectors, in which lane r of words[i] holds bytes 4 i .. 4 i
// + 3 of row r. `from` is the unit in the first row.
HWY_INLINE void LoadWords(const uint8_t* HWY_RESTRICT from, int64_t stride, VU8 (&words)[4]) {
  const hn::RepartitionToWide<DU32> du64;
  const auto r0 = hn::BitCast(du32, LoadUnits(du8, from, 4 * stride));
  const auto r1 = hn::BitCast(du32, LoadUnits(du8, from + stride, 4 * stride));
  const auto r2 = hn::BitCast(du32, LoadUnits(du8, from + 2 * stride, 4 * stride));
  const auto r3 = hn::BitCast(du32, LoadUnits(du8, from + 3 * stride, 4 * stride));
  const auto a = hn::BitCast(du64, hn::InterleaveLower(du32, r0, r1));
  const auto b = hn::BitCast(du64, hn::InterleaveLower(du32, r2, r3));
  const auto c = hn::BitCast(du64, hn::InterleaveUpper(du32, r0, r1));
  const auto d = hn::BitCast(du64, hn::InterleaveUpper(du32, r2, r3));
  words[0] = hn::BitCast(du8, hn::InterleaveLower(du64, a, b));
  words[1] = hn::BitCast(du8, hn::InterleaveUpper(du64, a, b));
  words[2] = hn::BitCast(du8, hn::InterleaveLower(du64, c, d));
  words[3] = hn::BitCast(du8, hn::InterleaveUpper(du64, c, d));
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

HWY_INLINE TileScales ScalesOf(const QuantMatrix& w, int64_t tile) {
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

}  // namespace HWY_NAMESPACE
}  // namespace pith::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard
