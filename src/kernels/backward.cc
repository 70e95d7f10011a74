#include "kernels/backward.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backward.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {

// body(i, count): `count` elements from i on, kLanes of them but for the last call.
template <class Body>
HWY_INLINE void ForVectors(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, n - i);
}

HWY_INLINE VF32 LoadSome(F32 d, const float* p, int64_t count) {
  return count == kLanes ? hn::LoadU(d, p) : LoadPartial(d, p, count);
}

HWY_INLINE void StoreSome(VF32 v, F32 d, float* p, int64_t count) {
  if (count == kLanes) {
    hn::StoreU(v, d, p);
  } else {
    StorePartial(v, d, p, count);
  }
}

SoftmaxStats SoftmaxWithStats(float* x, int64_t n, float scale) {
  const F32 d;
  const VF32 lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF32 m = lowest;
  ForVectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    VF32 v = LoadSome(d, x + i, count);
    if (count < kLanes) v = hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(count)), v, lowest);
    m = hn::Max(m, v);
  });
  const float most = scale * Max(d, m);
  const VF32 shift = hn::Set(d, most);
  const VF32 s = hn::Set(d, scale);
  VF32 sum = hn::Zero(d);
  VF32 moment = hn::Zero(d);  // sum of e * (z - max); an underflowed e counts as 0, also where z is -inf
  ForVectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const VF32 z = hn::MulSub(LoadSome(d, x + i, count), s, shift);
    VF32 e = Exp(d, z);
    if (count < kLanes) e = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count)), e);
    sum = hn::Add(sum, e);
    moment = hn::Add(moment, hn::IfThenElseZero(hn::Ne(e, hn::Zero(d)), hn::Mul(e, z)));
    StoreSome(e, d, x + i, count);
  });
  const float total = Sum(d, sum);
  const float inverse = 1.0F / total;
  const VF32 vinverse = hn::Set(d, inverse);
  ForVectors(n, [&](int64_t i, int64_t count)
                    HWY_ATTR { StoreSome(hn::Mul(LoadSome(d, x + i, count), vinverse), d, x + i, count); });
  const float log_total = std::log(total);
  return {most + log_total, log_total - Sum(d, moment) * inverse};
}

void SoftmaxFromLogSum(float* x, int64_t n, float scale, float log_sum) {
  const F32 d;
  const VF32 s = hn::Set(d, scale);
  const VF32 shift = hn::Set(d, log_sum);
  ForVectors(n, [&](int64_t i, int64_t count)
                    HWY_ATTR { StoreSome(Exp(d, hn::MulSub(LoadSome(d, x + i, count), s, shift)), d, x + i, count); });
}

void SoftmaxBackward(const float* p, float* dp, int64_t n, float delta, float scale) {
  const F32 d;
  const VF32 vdelta = hn::Set(d, delta);
  const VF32 s = hn::Set(d, scale);
  ForVectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const VF32 g = hn::Mul(hn::Sub(LoadSome(d, dp + i, count), vdelta), s);
    StoreSome(hn::Mul(LoadSome(d, p + i, count), g), d, dp + i, count);
  });
}

float Dot(const float* a, const float* b, int64_t n) {
  const F32 d;
  VF32 sum = hn::Zero(d);
  ForVectors(n, [&](int64_t i, int64_t count)
                    HWY_ATTR { sum = hn::MulAdd(LoadSome(d, a + i, count), LoadSome(d, b + i, count), sum); });
  return Sum(d, sum);
}

void DotColumns(const float* a, const float* x, int64_t n, float sums[8]) {
  const hn::CappedTag<float, 8> d;
  constexpr int64_t kWidth = static_cast<int64_t>(hn::MaxLanes(d));
  for (int64_t part = 0; part < 8; part += kWidth) {
    // Four sums under way: a multiply-add takes as long as four of them can begin.
    auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    const float* from = x + part;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
      sum0 = hn::MulAdd(hn::Set(d, a[i]), hn::LoadU(d, from + 8 * i), sum0);
      sum1 = hn::MulAdd(hn::Set(d, a[i + 1]), hn::LoadU(d, from + 8 * i + 8), sum1);
      sum2 = hn::MulAdd(hn::Set(d, a[i + 2]), hn::LoadU(d, from + 8 * i + 16), sum2);
      sum3 = hn::MulAdd(hn::Set(d, a[i + 3]), hn::LoadU(d, from + 8 * i + 24), sum3);
    }
    for (; i < n; ++i) sum0 = hn::MulAdd(hn::Set(d, a[i]), hn::LoadU(d, from + 8 * i), sum0);
    hn::StoreU(hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)), d, sums + part);
  }
}

void AddScaled(float* y, float a, const float* x, int64_t n) {
  const F32 d;
  const VF32 factor = hn::Set(d, a);
  ForVectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    StoreSome(hn::MulAdd(factor, LoadSome(d, x + i, count), LoadSome(d, y + i, count)), d, y + i, count);
  });
}

void RmsNormBackward(const float* x, const float* weight, const float* dy, int64_t n, float eps, float* dx,
                     float* dweight) {
  if (n <= 0) return;
  const F32 d;
  VF32 squares = hn::Zero(d);
  VF32 products = hn::Zero(d);
  ForVectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const VF32 vx = LoadSome(d, x + i, count);
    squares = hn::MulAdd(vx, vx, squares);
    products = hn::MulAdd(hn::Mul(LoadSome(d, weight + i, count), LoadSome(d, dy + i, count)), vx, products);
  });
  const auto size = static_cast<float>(n);
  const float r = 1.0F / std::sqrt(Sum(d, squares) / size + eps);
  const VF32 vr = hn::Set(d, r);
  const VF32 along = hn::Set(d, Sum(d, products) * r * r * r / size);
  ForVectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const VF32 vx = LoadSome(d, x + i, count);
    const VF32 g = hn::Mul(LoadSome(d, dy + i, count), vr);
    if (dweight != nullptr) StoreSome(hn::MulAdd(g, vx, LoadSome(d, dweight + i, count)), d, dweight + i, count);
    StoreSome(hn::NegMulAdd(vx, along, hn::Mul(g, LoadSome(d, weight + i, count))), d, dx + i, count);
  });
}

void SwiGluBackward(const float* gate, const float* up, const float* dy, int64_t n, float* dgate, float* dup) {
  const F32 d;
  const VF32 one = hn::Set(d, 1.0F);
  ForVectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const VF32 g = LoadSome(d, gate + i, count);
    const VF32 u = LoadSome(d, up + i, count);
    const VF32 h = LoadSome(d, dy + i, count);
    const VF32 sigmoid = hn::Div(one, hn::Add(one, Exp(d, hn::Neg(g))));
    const VF32 silu = hn::Mul(g, sigmoid);
    // d silu = sigmoid * (1 + g * (1 - sigmoid)) = sigmoid + silu * (1 - sigmoid)
    const VF32 slope = hn::MulAdd(silu, hn::Sub(one, sigmoid), sigmoid);
    StoreSome(hn::Mul(hn::Mul(h, u), slope), d, dgate + i, count);
    StoreSome(hn::Mul(h, silu), d, dup + i, count);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith {

HWY_EXPORT(SoftmaxWithStats);
HWY_EXPORT(SoftmaxFromLogSum);
HWY_EXPORT(SoftmaxBackward);
HWY_EXPORT(RmsNormBackward);
HWY_EXPORT(SwiGluBackward);
HWY_EXPORT(Dot);
HWY_EXPORT(DotColumns);
HWY_EXPORT(AddScaled);

SoftmaxStats SoftmaxWithStats(float* x, int64_t n, float scale) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxWithStats)(x, n, scale);
}
void SoftmaxFromLogSum(float* x, int64_t n, float scale, float log_sum) {
  HWY_DYNAMIC_DISPATCH(SoftmaxFromLogSum)(x, n, scale, log_sum);
}
void SoftmaxBackward(const float* p, float* dp, int64_t n, float delta, float scale) {
  HWY_DYNAMIC_DISPATCH(SoftmaxBackward)(p, dp, n, delta, scale);
}
void RmsNormBackward(const float* x, const float* weight, const float* dy, int64_t n, float eps, float* dx,
                     float* dweight) {
  HWY_DYNAMIC_DISPATCH(RmsNormBackward)(x, weight, dy, n, eps, dx, dweight);
}
void SwiGluBackward(const float* gate, const float* up, const float* dy, int64_t n, float* dgate, float* dup) {
  HWY_DYNAMIC_DISPATCH(SwiGluBackward)(gate, up, dy, n, dgate, dup);
}
float Dot(const float* a, const float* b, int64_t n) { return HWY_DYNAMIC_DISPATCH(Dot)(a, b, n); }
void DotColumns(const float* a, const float* x, int64_t n, float sums[8]) {
  HWY_DYNAMIC_DISPATCH(DotColumns)(a, x, n, sums);
}
void AddScaled(float* y, float a, const float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(AddScaled)(y, a, x, n); }

}  // namespace pith
#endif  // HWY_ONCE
