// Primitives over one row of logits: extrema, sums of exponentials, validity, exact selection of the largest.
#pragma once

#include <cstdint>
#include <vector>

namespace pith {

// Index of the largest value, the lowest index among equals. n >= 1, no NaN (see LogitsValid).
int64_t ArgMax(const float* x, int64_t n);

// Largest value; n >= 1, no NaN.
float MaxValue(const float* x, int64_t n);

// Sum of exp((x[i] - shift) * factor), factor > 0, for shift = max(x) (so that no term exceeds 1). Terms below 1e-38
// count as 0. Groups of 1024 in float lanes, the groups in double: relative error below 1e-6, and the same bits on
// every call.
double SumExp(const float* x, int64_t n, float shift, float factor = 1.0f);

// out[i] = exp((x[i] - shift) * factor), with the terms of SumExp; exactly 1 where x[i] = shift. out may be x.
void ExpRow(const float* x, int64_t n, float shift, float factor, float* out);

// False when a NaN or an infinity is among x.
bool AllFinite(const float* x, int64_t n);

// False when a NaN or +infinity is among x; -infinity (an excluded token) is allowed.
bool LogitsValid(const float* x, int64_t n);

struct Candidate {
  int32_t index = 0;
  float value = 0.0f;

  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// The order of selection: larger value first, lower index among equals.
inline bool Before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// The k first values in the order `Before` (all of them when k >= n), in that order. No NaN; k >= 0; n < 2^31.
void TopK(const float* x, int64_t n, int64_t k, std::vector<Candidate>* out);

// Every value >= threshold, in index order.
void CollectAtLeast(const float* x, int64_t n, float threshold, std::vector<Candidate>* out);

}  // namespace pith
