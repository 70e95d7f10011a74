#include "model/quantize_search.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/quantize_search.cc"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// |e|^p for the powers that need no logarithm, then for any.
struct PowerOne {
  template <class V>
  HWY_INLINE V operator()(V e) const {
    return hn::Abs(e);
  }
};
struct PowerTwo {
  template <class V>
  HWY_INLINE V operator()(V e) const {
    return hn::Mul(e, e);
  }
};
struct PowerThree {
  template <class V>
  HWY_INLINE V operator()(V e) const {
    return hn::Abs(hn::Mul(hn::Mul(e, e), e));
  }
};
struct PowerFour {
  template <class V>
  HWY_INLINE V operator()(V e) const {
    const V square = hn::Mul(e, e);
    return hn::Mul(square, square);
  }
};
struct PowerAny {
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

template <class Power>
HWY_INLINE void EvaluateWith(const float* x, const float* importance, int64_t n, const Power& power,
                             ScaleCandidates* candidates) {
  const hn::CappedTag<float, 16> d;
  using V = hn::Vec<decltype(d)>;
  // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, for magnitudes below 2^22; larger
  // ones are clamped first.
  const V magic = hn::Set(d, 12582912.0f);
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int first = 0; first < candidates->count; first += lanes) {
    const V scale = hn::Load(d, candidates->scale + first);
    const V inverse = hn::Load(d, candidates->inverse + first);
    const V minimum = hn::Load(d, candidates->minimum + first);
    const V low = hn::Load(d, candidates->low + first);
    const V high = hn::Load(d, candidates->high + first);
    V total = hn::Zero(d);
    for (int64_t i = 0; i < n; ++i) {
      const V t = hn::Sub(hn::Set(d, x[i]), minimum);
      const V clamped = hn::Min(hn::Max(hn::Mul(t, inverse), low), high);
      const V code = hn::Sub(hn::Add(clamped, magic), magic);
      const V error = power(hn::Sub(hn::Mul(scale, code), t));
      total = hn::Add(total, importance == nullptr ? error : hn::Mul(hn::Set(d, importance[i]), error));
    }
    hn::Store(total, d, candidates->error + first);
  }
}

void Evaluate(const float* x, const float* importance, int64_t n, double p, ScaleCandidates* candidates) {
  if (p == 1.0) {
    EvaluateWith(x, importance, n, PowerOne(), candidates);
  } else if (p == 2.0) {
    EvaluateWith(x, importance, n, PowerTwo(), candidates);
  } else if (p == 3.0) {
    EvaluateWith(x, importance, n, PowerThree(), candidates);
  } else if (p == 4.0) {
    EvaluateWith(x, importance, n, PowerFour(), candidates);
  } else {
    EvaluateWith(x, importance, n, PowerAny{static_cast<float>(p)}, candidates);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith {

HWY_EXPORT(Evaluate);

void EvaluateCandidates(const float* x, const float* importance, int64_t n, double p, ScaleCandidates* candidates) {
  // The last vector may reach beyond the count: repeat the last candidate there.
  for (int i = candidates->count; i % 16 != 0; ++i) {
    candidates->scale[i] = candidates->scale[candidates->count - 1];
    candidates->inverse[i] = candidates->inverse[candidates->count - 1];
    candidates->minimum[i] = candidates->minimum[candidates->count - 1];
    candidates->low[i] = candidates->low[candidates->count - 1];
    candidates->high[i] = candidates->high[candidates->count - 1];
  }
  HWY_DYNAMIC_DISPATCH(Evaluate)(x, importance, n, p, candidates);
}

}  // namespace pith
#endif  // HWY_ONCE
