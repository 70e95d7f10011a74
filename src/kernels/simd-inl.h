// Vector helpers shared by the kernels of this folder. Compiled once per target: include after hwy/foreach_target.h,
// outside namespaces.
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(PITH_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PITH_KERNELS_SIMD_INL_H_
#undef PITH_KERNELS_SIMD_INL_H_
#else
#define PITH_KERNELS_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using VF32 = hn::Vec<F32>;
inline constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));

// True where vectors have 32 registers instead of 16: register tiles may be twice as wide.
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr bool kManyRegisters = true;
#else
inline constexpr bool kManyRegisters = false;
#endif

// The first `count` < kLanes elements at p, the other lanes 0. Reads nothing beyond them.
HWY_INLINE VF32 LoadPartial(F32 d, const float* HWY_RESTRICT p, int64_t count) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, p);
#else
  HWY_ALIGN float buffer[kLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(float));
  return hn::Load(d, buffer);
#endif
}

HWY_INLINE void StorePartial(VF32 v, F32 d, float* HWY_RESTRICT p, int64_t count) {
  hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(count)), d, p);
}

// bf16 bits to float.
HWY_INLINE VF32 LoadBF16(F32 d, const uint16_t* HWY_RESTRICT p) {
  const hn::Rebind<uint16_t, F32> d16;
  const hn::RebindToUnsigned<F32> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}

HWY_INLINE VF32 LoadPartialBF16(F32 d, const uint16_t* HWY_RESTRICT p, int64_t count) {
  HWY_ALIGN uint16_t buffer[kLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(uint16_t));
  return LoadBF16(d, buffer);
}

HWY_INLINE VF32 LoadI8(F32 d, const int8_t* HWY_RESTRICT p) {
  const hn::Rebind<int8_t, F32> d8;
  const hn::RebindToSigned<F32> d32;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, p)));
}

// exp(x), relative error below 2e-7 between the bounds; 0 below -87.33 (where the result would be subnormal), +inf
// above 88.37; NaN stays NaN. The argument is reduced to |r| <= ln(2) / 2; the polynomial is the minimax fit of (exp(r)
// - 1 - r) / r^2 of degree 4 for the relative error of exp (3.1e-9 in exact arithmetic), found by iteratively
// reweighted least squares.
HWY_INLINE VF32 Exp(F32 d, VF32 x) {
  const hn::RebindToSigned<F32> di;
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504f)));
  const VF32 nf = hn::ConvertTo(d, n);
  VF32 r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375f), x);  // ln(2) in two parts: n times the first is exact
  r = hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4f), r);
  VF32 p = hn::Set(d, 0.0013814598474952927f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00836871688733669f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.04166838804882975f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.16666520631627307f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.49999993447779056f));
  p = hn::MulAdd(p, hn::Mul(r, r), r);
  p = hn::Add(p, hn::Set(d, 1.0f));
  const VF32 power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  VF32 y = hn::Mul(p, power);
  y = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.33f)), y);
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.37f)), hn::Set(d, std::numeric_limits<float>::infinity()), y);
}

// Sum of all lanes in a fixed tree; the largest lane.
HWY_INLINE float Sum(F32 d, VF32 v) { return hn::GetLane(hn::SumOfLanes(d, v)); }
HWY_INLINE float Max(F32 d, VF32 v) { return hn::GetLane(hn::MaxOfLanes(d, v)); }

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#endif  // include guard
