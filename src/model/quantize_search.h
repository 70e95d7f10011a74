// The inner loop of the range searches in quantize.cc: the error of many candidate quantizers of one group at once.
#pragma once

#include <cstdint>

namespace pith {

// Candidates in structure-of-arrays form, so that a vector register holds as many candidates as it has lanes and every
// lane does the same operations in the same order, whatever the vector width. Capacity for the largest search.
struct ScaleCandidates {
  static constexpr int kCapacity = 128;  // a multiple of every vector width
  int count = 0;
  alignas(64) float scale[kCapacity];    // s; candidates with a scale of zero get an infinite error
  alignas(64) float minimum[kCapacity];  // m
  alignas(64) float low[kCapacity];  // least and greatest integer: x^ = s * clamp(round((x - m) / s), low, high) + m
  alignas(64) float high[kCapacity];
  alignas(64) float error[kCapacity];  // out: sum of importance * |x^ - x|^p
};

// Fills `error` of candidates [0, count), count > 0. Whole and half p up to 8 are fast; any other p >= 1 costs a
// logarithm and an exponential per error. `shifted`: some minimum is not zero. All arrays are filled to their capacity.
void EvaluateCandidates(const float* x, const float* importance, int64_t n, double p, bool shifted,
                        ScaleCandidates* candidates);

}  // namespace pith
