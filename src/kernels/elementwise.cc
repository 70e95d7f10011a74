#include "kernels/elementwise.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {

// out[i] = f(a[i]), f on vectors; the last partial vector runs through the same code.
template <class F>
HWY_INLINE void Map(const float* a, int64_t n, float* out, const F& f) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(hn::LoadU(d, a + i)), d, out + i);
  if (i < n) StorePartial(f(LoadPartial(d, a + i, n - i)), d, out + i, n - i);
}

template <class F>
HWY_INLINE void Map2(const float* a, const float* b, int64_t n, float* out, const F& f) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  if (i < n) StorePartial(f(LoadPartial(d, a + i, n - i), LoadPartial(d, b + i, n - i)), d, out + i, n - i);
}

HWY_INLINE float SumOfSquares(const float* x, int64_t n) {
  const F32 d;
  VF32 s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const VF32 x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + i + kLanes);
    const VF32 x2 = hn::LoadU(d, x + i + 2 * kLanes), x3 = hn::LoadU(d, x + i + 3 * kLanes);
    s0 = hn::MulAdd(x0, x0, s0);
    s1 = hn::MulAdd(x1, x1, s1);
    s2 = hn::MulAdd(x2, x2, s2);
    s3 = hn::MulAdd(x3, x3, s3);
  }
  for (; i + kLanes <= n; i += kLanes) {
    const VF32 x0 = hn::LoadU(d, x + i);
    s0 = hn::MulAdd(x0, x0, s0);
  }
  if (i < n) {
    const VF32 x0 = LoadPartial(d, x + i, n - i);
    s0 = hn::MulAdd(x0, x0, s0);
  }
  return Sum(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  if (n <= 0) return;
  const F32 d;
  const VF32 inverse = hn::Set(d, 1.0f / std::sqrt(SumOfSquares(x, n) / static_cast<float>(n) + eps));
  Map2(x, weight, n, out, [inverse](VF32 a, VF32 w) HWY_ATTR { return hn::Mul(w, hn::Mul(a, inverse)); });
}

void RmsNormHeads(float* x, const float* weight, int64_t heads, int64_t head_dim, float eps) {
  for (int64_t h = 0; h < heads; ++h) RmsNorm(x + h * head_dim, weight, head_dim, eps, x + h * head_dim);
}

void ApplyRope(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin) {
  const F32 d;
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < heads; ++h) {
    float* lo = x + h * head_dim;
    float* hi = lo + half;
    int64_t j = 0;
    for (; j + kLanes <= half; j += kLanes) {
      const VF32 a = hn::LoadU(d, lo + j), b = hn::LoadU(d, hi + j);
      const VF32 c = hn::LoadU(d, cos + j), s = hn::LoadU(d, sin + j);
      hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, lo + j);
      hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, hi + j);
    }
    if (j < half) {
      const int64_t rest = half - j;
      const VF32 a = LoadPartial(d, lo + j, rest), b = LoadPartial(d, hi + j, rest);
      const VF32 c = LoadPartial(d, cos + j, rest), s = LoadPartial(d, sin + j, rest);
      StorePartial(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, lo + j, rest);
      StorePartial(hn::MulAdd(a, s, hn::Mul(b, c)), d, hi + j, rest);
    }
  }
}

void SwiGlu(const float* gate, const float* up, int64_t n, float* out) {
  Map2(gate, up, n, out, [](VF32 g, VF32 u) HWY_ATTR {
    const F32 d;
    return hn::Mul(hn::Div(g, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(g)))), u);
  });
}

void AddInPlace(float* x, const float* y, int64_t n) {
  Map2(x, y, n, x, [](VF32 a, VF32 b) HWY_ATTR { return hn::Add(a, b); });
}

void MultiplyInPlace(float* x, const float* y, int64_t n) {
  Map2(x, y, n, x, [](VF32 a, VF32 b) HWY_ATTR { return hn::Mul(a, b); });
}

void ScaleInPlace(float* x, float factor, int64_t n) {
  const VF32 f = hn::Set(F32(), factor);
  Map(x, n, x, [f](VF32 a) HWY_ATTR { return hn::Mul(a, f); });
}

void Softmax(float* x, int64_t n) {
  const F32 d;
  const VF32 lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF32 m = lowest;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) m = hn::Max(m, hn::LoadU(d, x + i));
  if (i < n) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(n - i));
    m = hn::Max(m, hn::IfThenElse(mask, LoadPartial(d, x + i, n - i), lowest));
  }
  const VF32 shift = hn::Set(d, Max(d, m));
  VF32 sum = hn::Zero(d);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const VF32 e = Exp(d, hn::Sub(hn::LoadU(d, x + i), shift));
    sum = hn::Add(sum, e);
    hn::StoreU(e, d, x + i);
  }
  if (i < n) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(n - i));
    const VF32 e = hn::IfThenElseZero(mask, Exp(d, hn::Sub(LoadPartial(d, x + i, n - i), shift)));
    sum = hn::Add(sum, e);
    StorePartial(e, d, x + i, n - i);
  }
  const VF32 inverse = hn::Set(d, 1.0f / Sum(d, sum));
  Map(x, n, x, [inverse](VF32 a) HWY_ATTR { return hn::Mul(a, inverse); });
}

float AbsMax(const float* x, int64_t n) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  // Bit patterns of |x| order like the numbers, and NaN above infinity, so an integer maximum cannot lose a NaN.
  const hn::RebindToSigned<F32> di;
  auto m = hn::Zero(di);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) m = hn::Max(m, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
  if (i < n) m = hn::Max(m, hn::BitCast(di, hn::Abs(LoadPartial(d, x + i, n - i))));
  return hn::GetLane(hn::BitCast(d, hn::BitCast(du, hn::MaxOfLanes(di, m))));
}

void DequantizeI8(const int8_t* row, float scale, int64_t n, float* out) {
  const F32 d;
  const VF32 s = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Mul(LoadI8(d, row + i), s), d, out + i);
  if (i < n) {
    HWY_ALIGN int8_t buffer[kLanes] = {};
    std::memcpy(buffer, row + i, static_cast<size_t>(n - i));
    StorePartial(hn::Mul(LoadI8(d, buffer), s), d, out + i, n - i);
  }
}

void ConvertBF16(const uint16_t* row, int64_t n, float* out) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(LoadBF16(d, row + i), d, out + i);
  if (i < n) StorePartial(LoadPartialBF16(d, row + i, n - i), d, out + i, n - i);
}

// Half to float on integers, so that every target treats subnormals, infinities and NaN the same way.
HWY_INLINE VF32 LoadF16(F32 d, const uint16_t* HWY_RESTRICT p) {
  const hn::Rebind<uint16_t, F32> d16;
  const hn::RebindToUnsigned<F32> d32;
  const auto h = hn::PromoteTo(d32, hn::LoadU(d16, p));
  const auto sign = hn::ShiftLeft<16>(hn::And(h, hn::Set(d32, 0x8000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(h, hn::Set(d32, 0x7FFFu)));
  // The exponent of a half read as a float is 112 too small; a product by 2^112 corrects it and is exact, for
  // subnormals too.
  const VF32 finite = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1.0p112f));
  const auto special = hn::Or(magnitude, hn::Set(d32, 0x7F800000u));
  const hn::RebindToSigned<F32> di;
  const auto is_special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, (0x7BFF << 13)));
  const auto bits = hn::IfThenElse(hn::RebindMask(d32, is_special), special, hn::BitCast(d32, finite));
  return hn::BitCast(d, hn::Or(bits, sign));
}

void ConvertF16(const uint16_t* row, int64_t n, float* out) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(LoadF16(d, row + i), d, out + i);
  if (i < n) {
    HWY_ALIGN uint16_t buffer[kLanes] = {};
    std::memcpy(buffer, row + i, static_cast<size_t>(n - i) * sizeof(uint16_t));
    StorePartial(LoadF16(d, buffer), d, out + i, n - i);
  }
}

HWY_INLINE void StoreAsBF16(VF32 v, uint16_t* HWY_RESTRICT to) {
  const hn::Rebind<uint16_t, F32> d16;
  const hn::RebindToUnsigned<F32> d32;
  const hn::RebindToSigned<F32> di;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFFu)));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000u));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, high)), d16, to);
}

void ConvertToBF16(const float* row, int64_t n, uint16_t* out) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreAsBF16(hn::LoadU(d, row + i), out + i);
  if (i < n) {
    HWY_ALIGN uint16_t buffer[kLanes];
    StoreAsBF16(LoadPartial(d, row + i, n - i), buffer);
    std::memcpy(out + i, buffer, static_cast<size_t>(n - i) * sizeof(uint16_t));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(RmsNormHeads);
HWY_EXPORT(ApplyRope);
HWY_EXPORT(SwiGlu);
HWY_EXPORT(AddInPlace);
HWY_EXPORT(MultiplyInPlace);
HWY_EXPORT(ScaleInPlace);
HWY_EXPORT(Softmax);
HWY_EXPORT(AbsMax);
HWY_EXPORT(DequantizeI8);
HWY_EXPORT(ConvertBF16);
HWY_EXPORT(ConvertF16);
HWY_EXPORT(ConvertToBF16);

void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, n, eps, out);
}
void RmsNormHeads(float* x, const float* weight, int64_t heads, int64_t head_dim, float eps) {
  HWY_DYNAMIC_DISPATCH(RmsNormHeads)(x, weight, heads, head_dim, eps);
}
void ApplyRope(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin) {
  HWY_DYNAMIC_DISPATCH(ApplyRope)(x, heads, head_dim, cos, sin);
}
void SwiGlu(const float* gate, const float* up, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(SwiGlu)(gate, up, n, out);
}
void AddInPlace(float* x, const float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(AddInPlace)(x, y, n); }
void MultiplyInPlace(float* x, const float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(MultiplyInPlace)(x, y, n); }
void ScaleInPlace(float* x, float factor, int64_t n) { HWY_DYNAMIC_DISPATCH(ScaleInPlace)(x, factor, n); }
void Softmax(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Softmax)(x, n); }
float AbsMax(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(AbsMax)(x, n); }
void DequantizeI8(const int8_t* row, float scale, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(DequantizeI8)(row, scale, n, out);
}
void ConvertBF16(const uint16_t* row, int64_t n, float* out) { HWY_DYNAMIC_DISPATCH(ConvertBF16)(row, n, out); }
void ConvertF16(const uint16_t* row, int64_t n, float* out) { HWY_DYNAMIC_DISPATCH(ConvertF16)(row, n, out); }
void ConvertToBF16(const float* row, int64_t n, uint16_t* out) { HWY_DYNAMIC_DISPATCH(ConvertToBF16)(row, n, out); }

}  // namespace pith
#endif  // HWY_ONCE
