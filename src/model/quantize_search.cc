#include "model/quantize_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/quantize_search.cc"
// clang-format off
#include <hwy/foreach_target.h>  // before every other header of Highway
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// |e|^(Twice / 2), by multiplications and at most one square root.
template <int Twice>
struct Power {
  template <class V>
  HWY_INLINE V operator()(V e) const {
    static_assert(Twice >= 1);
    if constexpr (Twice == 1) {
      return hn::Sqrt(hn::Abs(e));
    } else if constexpr (Twice == 2) {
      return hn::Abs(e);
    } else if constexpr (Twice == 3) {
      return hn::Mul(Power<1>()(e), Power<2>()(e));
    } else if constexpr (Twice == 4) {
      return hn::Mul(e, e);
    } else if constexpr (Twice % 8 == 0) {
      const V root = Power<Twice / 2>()(e);
      return hn::Mul(root, root);
    } else {
      return hn::Mul(Power<4>()(e), Power<Twice - 4>()(e));
    }
  }
};
struct AnyPower {
  float p;
  template <class V>
  HWY_INLINE V operator()(V e) const {
    const hn::DFromV<V> d;
    // A tiny error counts as 1e-30: its logarithm is finite, its power is nothing beside the others.
    const V magnitude = hn::Max(hn::Abs(e), hn::Set(d, 1e-30f));
    const V exponent = hn::Max(hn::Mul(hn::Set(d, p), hn::Log(d, magnitude)), hn::Set(d, -80.0f));
    return hn::Exp(d, hn::Min(exponent, hn::Set(d, 80.0f)));
  }
};

// Errors are summed in units of the scale: x / s against its integer. `Shifted` says that minimums are not all zero.
template <bool Shifted, bool Weighted, class PowerOf>
HWY_INLINE void EvaluateWith(const float* x, const float* importance, int64_t n, const PowerOf& power,
                             ScaleCandidates* candidates) {
  const hn::CappedTag<float, 16> d;
  using V = hn::Vec<decltype(d)>;
  // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, for magnitudes below 2^22; larger
  // ones are clamped first.
  const V magic = hn::Set(d, 12582912.0f);
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int first = 0; first < candidates->count; first += lanes) {
    const V scale = hn::Load(d, candidates->scale + first);
    const V inverse = hn::Div(hn::Set(d, 1.0f), scale);
    const V minimum = hn::Load(d, candidates->minimum + first);
    const V low = hn::Load(d, candidates->low + first);
    const V high = hn::Load(d, candidates->high + first);
    V total = hn::Zero(d);
    for (int64_t i = 0; i < n; ++i) {
      V t = hn::Set(d, x[i]);
      if constexpr (Shifted) t = hn::Sub(t, minimum);
      const V ratio = hn::Mul(t, inverse);
      const V code = hn::Sub(hn::Add(hn::Min(hn::Max(ratio, low), high), magic), magic);
      V error = power(hn::Sub(code, ratio));
      if constexpr (Weighted) error = hn::Mul(hn::Set(d, importance[i]), error);
      total = hn::Add(total, error);
    }
    const V error = hn::Mul(total, power(scale));
    const V infinite = hn::Set(d, std::numeric_limits<float>::infinity());
    hn::Store(hn::IfThenElse(hn::Eq(scale, hn::Zero(d)), infinite, error), d, candidates->error + first);
  }
}

template <class PowerOf>
HWY_NOINLINE void EvaluateAll(const float* x, const float* importance, int64_t n, bool shifted, const PowerOf& power,
                              ScaleCandidates* candidates) {
  if (importance != nullptr) {
    EvaluateWith<true, true>(x, importance, n, power, candidates);
  } else if (shifted) {
    EvaluateWith<true, false>(x, nullptr, n, power, candidates);
  } else {
    EvaluateWith<false, false>(x, nullptr, n, power, candidates);
  }
}

void Evaluate(const float* x, const float* importance, int64_t n, double p, bool shifted, ScaleCandidates* candidates) {
  const double twice = 2.0 * p;
  const int half_steps = twice == std::floor(twice) && twice <= 16.0 ? static_cast<int>(twice) : 0;
  switch (half_steps) {
    case 2: return EvaluateAll(x, importance, n, shifted, Power<2>(), candidates);
    case 3: return EvaluateAll(x, importance, n, shifted, Power<3>(), candidates);
    case 4: return EvaluateAll(x, importance, n, shifted, Power<4>(), candidates);
    case 5: return EvaluateAll(x, importance, n, shifted, Power<5>(), candidates);
    case 6: return EvaluateAll(x, importance, n, shifted, Power<6>(), candidates);
    case 7: return EvaluateAll(x, importance, n, shifted, Power<7>(), candidates);
    case 8: return EvaluateAll(x, importance, n, shifted, Power<8>(), candidates);
    case 10: return EvaluateAll(x, importance, n, shifted, Power<10>(), candidates);
    case 12: return EvaluateAll(x, importance, n, shifted, Power<12>(), candidates);
    case 16: return EvaluateAll(x, importance, n, shifted, Power<16>(), candidates);
    default: return EvaluateAll(x, importance, n, shifted, AnyPower{static_cast<float>(p)}, candidates);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith {

HWY_EXPORT(Evaluate);

void EvaluateCandidates(const float* x, const float* importance, int64_t n, double p, bool shifted,
                        ScaleCandidates* candidates) {
  HWY_DYNAMIC_DISPATCH(Evaluate)(x, importance, n, p, shifted, candidates);
}

}  // namespace pith
#endif  // HWY_ONCE
