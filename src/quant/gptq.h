// Rounding with error feedback (GPTQ, arXiv 2210.17323): the integers of a row are chosen one after the other so that
// each makes good, as far as it can, for the errors of those before it, as the linear's own inputs see them.
//
// The error of a row, e = w - w^, changes the output by e . x; over the calibration text sum (e . x)^2 = e^T H e with
// H = sum x x^T. With H = L L^T this is |L^T e|^2, a triangular system: from the last input to the first, each integer
// is the one that brings its component nearest to zero (Babai's nearest plane, of which GPTQ is another spelling).
// Inputs are taken in the order of falling H_ii. The scale of a row decides what is clipped and how coarse the rest is;
// which one is best for error feedback is seen only by trying.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/quantize.h"

namespace pith::quant {

class ErrorFeedback {
 public:
  // `gram` is H [n, n], symmetric; `damping` times the mean of its diagonal is added to the diagonal. kNumeric when it
  // is not positive definite even so.
  static Result<std::shared_ptr<const ErrorFeedback>> Make(const std::vector<float>& gram, int64_t n, double damping);

  // Chooses the codes of one row for the scales (and zeros, minimums) in `out`. `wanted`, when not null, gets the
  // values [n] that the codes were rounded from, in units of the codes. Thread-safe.
  void Round(const QuantFormat& format, const float* row, const QuantizedRow& out, float* wanted = nullptr) const;

  // The same, and of symmetric formats the scales too: fourteen multiples of those in `out` are tried, the best is
  // fitted by least squares in H where the row has one scale, and whatever leaves the smallest e^T H e is taken. Never
  // worse than Round.
  void RoundAndScale(const QuantFormat& format, const float* row, const QuantizedRow& out,
                     float* wanted = nullptr) const;

 private:
  static constexpr int kTries = 8;  // that are computed side by side
  struct Tries {
    float factors[kTries] = {};        // of the given scales
    const uint8_t* codes = nullptr;    // of the first try, which keeps them; null = it chooses, as the others do
    std::vector<uint8_t> chosen = {};  // [n, kTries]
    std::vector<float> wanted = {};    // [n, kTries]
    double errors[kTries] = {};        // e^T H e
    int best() const;
  };
  void Try(const QuantFormat& format, const float* row, const float* scales, Tries* tries) const;
  // The factor on the scale with which the codes of a row come closest to it.
  double Fit(const QuantFormat& format, const float* row, float scale, const uint8_t* codes) const;

  int64_t n_ = 0;
  std::vector<int32_t> order_;  // input at each place of the triangle; the last place comes first
  std::vector<float> upper_;    // L^T, [n, n]: row j holds L_ij at i >= j
};

// e^T H e of a row, in double.
double QuadraticError(const std::vector<float>& gram, int64_t n, const float* row, const float* approximation);

}  // namespace pith::quant
