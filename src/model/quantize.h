// Quantizers of weight rows: floats in, small integers with a scale (and a zero) per group out.
//
//   symmetric    w ~ s * (u - 2^(b-1))      u unsigned, b bits; as signed integers the range is [-2^(b-1), 2^(b-1) - 1]
//   zero point   w ~ s * (u - z)            z an integer in [0, 2^b)
//   minimum      w ~ s * u + m              m a float
//
// Scales and minimums are rounded to their storage type before the integers are computed (kBest corrects them once more
// afterwards). All arithmetic is element-wise IEEE without contraction in a fixed order: the same row gives the same
// integers on every machine and thread count.
#pragma once

#include <cstdint>
#include <string>

#include "model/tensor.h"

namespace pith {

enum class ZeroForm { kSymmetric, kZeroPoint, kMinimum };

// How a low-bit matrix is stored.
struct QuantFormat {
  int bits = 4;        // 4 or 8
  int64_t group = 32;  // inputs per scale; 0 = one scale per row
  ZeroForm zero = ZeroForm::kSymmetric;
  DType scale_type = DType::kF16;  // of scales and minimums: kF16 or kF32

  bool operator==(const QuantFormat&) const = default;
  // Bits per weight with scales, zero points and minimums, for rows of `cols` inputs.
  double BitsPerWeight(int64_t cols) const;
};

// How the scales are found.
enum class QuantMethod {
  // The range of the weights. Symmetric: s = max(|min| / 2^(b-1), |max| / (2^(b-1) - 1)), as FastForward defines it
  // (github.com/Qualcomm-AI-research/fastforward, affine/range.py). With a zero: s = (max - min) / (2^b - 1).
  kMinMax,
  // The range with the least error sum |x^ - x|^p among 100 candidates. Symmetric: t = i/100 * max |x|, i = 1..100;
  // with a zero: 10 x 10 fractions in [0.6, 1] of both ends. p = 2 is the initialisation of arXiv 2603.16867.
  kLp,
  // What measured best (docs/results.md). The least error sum |x^ - x|^p over scales of both signs (a negative one puts
  // the end of the range with the extra integer at the other side) that clip nothing; whole rows may be clipped. Then
  // the
  // scale is raised so that the approximation is as long as the weights: its projection on them is they themselves.
  kBest,
};

const char* QuantMethodName(QuantMethod method);  // "minmax", "lp", "best"

struct Quantizer {
  QuantFormat format;
  QuantMethod method = QuantMethod::kMinMax;
  double p = 2.0;  // >= 1, for kLp and kBest
};

// Where the result of one row goes; `groups` = cols / group.
struct QuantizedRow {
  uint8_t* codes = nullptr;   // cols values below 2^bits
  float* scales = nullptr;    // groups values, representable in scale_type
  uint8_t* zeros = nullptr;   // groups values, kZeroPoint only
  float* minimums = nullptr;  // groups values, kMinimum only
};

// Quantizes `cols` finite weights, a multiple of the group. `importance`, when not null, has cols values >= 0 that
// weigh the error of each input (the second moment E[x^2] of its activation); kMinMax does not use it.
void QuantizeRow(const Quantizer& quantizer, const float* row, int64_t cols, const float* importance,
                 const QuantizedRow& out);

// The floats that the integers stand for, each operation rounded once.
void DequantizeRow(const QuantFormat& format, int64_t cols, const QuantizedRow& row, float* out);

// Packs integers of `bits` bits, the first in the lowest bits: 4-bit pairs into bytes. cols is even. `out` has
// cols * bits / 8 bytes.
void PackCodes(const uint8_t* codes, int64_t cols, int bits, uint8_t* out);

// Sum over inputs of importance * |x^ - x|^p in double, in order: the measure that kLp and kBest reduce.
double WeightedError(const float* row, const float* approximation, int64_t cols, const float* importance, double p);

}  // namespace pith
