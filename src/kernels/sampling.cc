#include "kernels/sampling.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {

inline constexpr int64_t kGroup = 1024;

float MaxValue(const float* x, int64_t n) {
  const F32 d;
  const VF32 lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF32 m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    m0 = hn::Max(m0, hn::LoadU(d, x + i));
    m1 = hn::Max(m1, hn::LoadU(d, x + i + kLanes));
    m2 = hn::Max(m2, hn::LoadU(d, x + i + 2 * kLanes));
    m3 = hn::Max(m3, hn::LoadU(d, x + i + 3 * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) m0 = hn::Max(m0, hn::LoadU(d, x + i));
  float best = Max(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
  for (; i < n; ++i) best = std::max(best, x[i]);
  return best;
}

// Index of the first element equal to `value`, which is there.
int64_t FindFirst(const float* x, int64_t n, float value) {
  const F32 d;
  const VF32 wanted = hn::Set(d, value);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const intptr_t at = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), wanted));
    if (at >= 0) return i + at;
  }
  while (i + 1 < n && x[i] != value) ++i;
  return i;
}

int64_t ArgMax(const float* x, int64_t n) {
  int64_t best_group = 0;
  float best = MaxValue(x, std::min(n, kGroup));
  for (int64_t i = kGroup; i < n; i += kGroup) {
    const float value = MaxValue(x + i, std::min(n - i, kGroup));
    if (value > best) {
      best = value;
      best_group = i;
    }
  }
  return best_group + FindFirst(x + best_group, std::min(n - best_group, kGroup), best);
}

double SumExp(const float* x, int64_t n, float shift, float factor) {
  const F32 d;
  const VF32 vshift = hn::Set(d, shift), vfactor = hn::Set(d, factor);
  double total = 0.0;
  for (int64_t group = 0; group < n; group += kGroup) {
    const int64_t end = std::min(n, group + kGroup);
    VF32 s0 = hn::Zero(d), s1 = hn::Zero(d);
    int64_t i = group;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      s0 = hn::Add(s0, Exp(d, hn::Mul(hn::Sub(hn::LoadU(d, x + i), vshift), vfactor)));
      s1 = hn::Add(s1, Exp(d, hn::Mul(hn::Sub(hn::LoadU(d, x + i + kLanes), vshift), vfactor)));
    }
    for (; i < end; i += kLanes) {
      const int64_t count = std::min(end - i, kLanes);
      const VF32 v = count == kLanes ? hn::LoadU(d, x + i) : LoadPartial(d, x + i, count);
      const VF32 e = Exp(d, hn::Mul(hn::Sub(v, vshift), vfactor));
      s0 = hn::Add(s0, hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count)), e));
    }
    total += static_cast<double>(Sum(d, hn::Add(s0, s1)));
  }
  return total;
}

void ExpRow(const float* x, int64_t n, float shift, float factor, float* out) {
  const F32 d;
  const VF32 vshift = hn::Set(d, shift), vfactor = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(Exp(d, hn::Mul(hn::Sub(hn::LoadU(d, x + i), vshift), vfactor)), d, out + i);
  }
  if (i < n) {
    const VF32 v = LoadPartial(d, x + i, n - i);
    StorePartial(Exp(d, hn::Mul(hn::Sub(v, vshift), vfactor)), d, out + i, n - i);
  }
}

// True when every x[i] (or |x[i]|) compares below +infinity; NaN does not.
template <bool kAbsolute>
HWY_INLINE bool AllBelowInfinity(const float* x, int64_t n) {
  const F32 d;
  const VF32 infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  for (int64_t group = 0; group < n; group += kGroup) {
    const int64_t end = std::min(n, group + kGroup);
    auto all = hn::Lt(hn::Zero(d), infinity);
    int64_t i = group;
    for (; i < end; i += kLanes) {
      const int64_t count = std::min(end - i, kLanes);
      VF32 v = count == kLanes ? hn::LoadU(d, x + i) : LoadPartial(d, x + i, count);
      if (kAbsolute) v = hn::Abs(v);
      all = hn::And(all, hn::Lt(v, infinity));
    }
    if (!hn::AllTrue(d, all)) return false;
  }
  return true;
}

bool AllFinite(const float* x, int64_t n) { return AllBelowInfinity<true>(x, n); }
bool LogitsValid(const float* x, int64_t n) { return AllBelowInfinity<false>(x, n); }

void CollectAtLeast(const float* x, int64_t n, float threshold, std::vector<Candidate>* out) {
  const F32 d;
  const VF32 limit = hn::Set(d, threshold);
  out->clear();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if (hn::AllFalse(d, hn::Ge(hn::LoadU(d, x + i), limit))) continue;
    for (int64_t j = i; j < i + kLanes; ++j) {
      if (x[j] >= threshold) out->push_back({static_cast<int32_t>(j), x[j]});
    }
  }
  for (; i < n; ++i) {
    if (x[i] >= threshold) out->push_back({static_cast<int32_t>(i), x[i]});
  }
}

void TopK(const float* x, int64_t n, int64_t k, std::vector<Candidate>* out) {
  out->clear();
  k = std::min(k, n);
  if (k <= 0) return;
  if (k > kGroup) {  // a heap would be slower than a selection over everything
    out->reserve(static_cast<size_t>(n));
    for (int64_t j = 0; j < n; ++j) out->push_back({static_cast<int32_t>(j), x[j]});
    if (k < n) std::nth_element(out->begin(), out->begin() + k, out->end(), Before);
    out->resize(static_cast<size_t>(k));
    std::sort(out->begin(), out->end(), Before);
    return;
  }
  const F32 d;
  out->reserve(static_cast<size_t>(k));
  int64_t i = 0;
  for (; i < k; ++i) out->push_back({static_cast<int32_t>(i), x[i]});
  // A heap of the k best so far whose front is the worst of them. An equal value that comes later has the higher index
  // and stays out.
  std::make_heap(out->begin(), out->end(), Before);
  float worst = out->front().value;
  while (i < n) {
    if (i + kLanes <= n && hn::AllFalse(d, hn::Gt(hn::LoadU(d, x + i), hn::Set(d, worst)))) {
      i += kLanes;
      continue;
    }
    const int64_t end = std::min(n, i + kLanes);
    for (; i < end; ++i) {
      if (!(x[i] > worst)) continue;
      std::pop_heap(out->begin(), out->end(), Before);
      out->back() = {static_cast<int32_t>(i), x[i]};
      std::push_heap(out->begin(), out->end(), Before);
      worst = out->front().value;
    }
  }
  std::sort(out->begin(), out->end(), Before);
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith {

HWY_EXPORT(ArgMax);
HWY_EXPORT(MaxValue);
HWY_EXPORT(SumExp);
HWY_EXPORT(ExpRow);
HWY_EXPORT(AllFinite);
HWY_EXPORT(LogitsValid);
HWY_EXPORT(TopK);
HWY_EXPORT(CollectAtLeast);

int64_t ArgMax(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(ArgMax)(x, n); }
float MaxValue(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(MaxValue)(x, n); }
double SumExp(const float* x, int64_t n, float shift, float factor) {
  return HWY_DYNAMIC_DISPATCH(SumExp)(x, n, shift, factor);
}
void ExpRow(const float* x, int64_t n, float shift, float factor, float* out) {
  HWY_DYNAMIC_DISPATCH(ExpRow)(x, n, shift, factor, out);
}
bool AllFinite(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(AllFinite)(x, n); }
bool LogitsValid(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(LogitsValid)(x, n); }
void TopK(const float* x, int64_t n, int64_t k, std::vector<Candidate>* out) {
  HWY_DYNAMIC_DISPATCH(TopK)(x, n, k, out);
}
void CollectAtLeast(const float* x, int64_t n, float threshold, std::vector<Candidate>* out) {
  HWY_DYNAMIC_DISPATCH(CollectAtLeast)(x, n, threshold, out);
}

}  // namespace pith
#endif  // HWY_ONCE
