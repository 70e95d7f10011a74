// Primitives over one row of logits: extrema, sums, finiteness, exact top-k.
#pragma once

#include <cstdint>
#include <vector>

namespace pith {

// Index of the largest value, the lowest index among equals. n >= 1 and no NaN in x (see AllFinite).
int64_t ArgMax(const float* x, int64_t n);

// Largest value; n >= 1, no NaN.
float MaxValue(const float* x, int64_t n);

// Sum of exp(x[i] - shift), shift >= every x[i]; accumulated in double over fixed groups, so the same on every call.
double SumExp(const float* x, int64_t n, float shift);

// False when a NaN or an infinity is among x.
bool AllFinite(const float* x, int64_t n);

struct Candidate {
  int32_t index = 0;
  float value = 0.0f;
};

// The k largest values (all of them when k >= n), in descending order of value, ascending index among equals; at the k-th place too,
// equals are taken by lowest index. No NaN. k >= 0.
void TopK(const float* x, int64_t n, int64_t k, std::vector<Candidate>* out);

// Every value >= threshold, in index order.
void CollectAtLeast(const float* x, int64_t n, float threshold, std::vector<Candidate>* out);

}  // namespace pith
