// Fake quantization with gradients: a tensor becomes the floats that its integers stand for. Includes torch: only for
// .cc files of src/quant and tests.
//
// Definition (FastForward's, github.com/Qualcomm-AI-research/fastforward, quantization/_quantizer_impl.py):
//   q = clamp(round(x / s - o), low, high)     x^ = (q + o) s     o rounded to an integer; symmetric: o = 0
// Backward with u = x / s - o and g = dL / dx^, summed over all x that share s and o:
//   low <= round(u) <= high   dx = g    ds = g (round(u) - u)    do = 0
//   below                     dx = 0    ds = g (low + o)         do = g s
//   above                     dx = 0    ds = g (high + o)        do = g s
// Nothing is scaled by the number of elements. Rounding is to nearest, ties to even. A scale of zero gives zeros and no
// gradient.
#pragma once

#include <torch/csrc/autograd/custom_function.h>  // first: clang does not parse types.h without it
#include <torch/types.h>

#include <cstdint>

namespace pith::quant {

// The integers of a quantizer; low < 0 < high.
struct IntegerRange {
  int32_t low = -128;
  int32_t high = 127;
};
// -2^(bits-1) .. 2^(bits-1) - 1; 2 <= bits <= 16.
IntegerRange RangeOfBits(int bits);
// What the runtime uses for activations of 16 bits (kernels/qmatmul.h) and for its cache (kernels/attention.h).
inline constexpr IntegerRange kRuntimeActivations = {-32639, 32639};
inline constexpr IntegerRange kRuntimeCache = {-127, 127};

// Which elements of x[rows, cols] share a scale and an offset.
enum class Granularity {
  kTensor,  // all
  kRow,     // of one row: an output channel of a weight, a token of an activation
  kGroup,   // `group` columns of one row, a divisor of cols
};

struct QuantSpec {
  IntegerRange range;
  bool symmetric = true;
  Granularity granularity = Granularity::kTensor;
  int64_t group = 0;

  int64_t Tiles(const at::Tensor& x) const;  // how many scales x has
};

// One value per tile, in the order of rows, then groups.
struct QuantParameters {
  at::Tensor scale;   // [tiles]
  at::Tensor offset;  // [tiles]; undefined when symmetric. Need not be an integer: it is trained
};

// The parameters that represent the ranges [min, max]. Symmetric: s = max(|min| / -low, |max| / high). Else s =
// (max - min) / (high - low), at least float's epsilon, and o = min / s - low.
QuantParameters ParametersOf(const QuantSpec& spec, const at::Tensor& min, const at::Tensor& max);
// Of the ranges of the data.
QuantParameters MinMaxParameters(const QuantSpec& spec, const at::Tensor& x);
// Of the ranges with the least error sum |x^ - x|^p among 100: symmetric i/100 of max |x|; else the products of ten
// fractions in [0.6, 1] of min with ten of max. The widest of equals.
QuantParameters GridParameters(const QuantSpec& spec, const at::Tensor& x, double p);

// Learned ranges: gradients of x, scale and offset. float32, x contiguous.
at::Tensor FakeQuantize(const QuantSpec& spec, const at::Tensor& x, const QuantParameters& parameters);
// The integers q themselves, as floats; no gradient.
at::Tensor Integers(const QuantSpec& spec, const at::Tensor& x, const QuantParameters& parameters);
// Ranges from the data, each time anew. They clip nothing, so the gradient passes as it is.
at::Tensor FakeQuantizeDynamic(const QuantSpec& spec, const at::Tensor& x);

// The same on plain memory: x^ of one tile, and its gradients (dx may be null; ds and do are returned).
struct TileParameters {
  float scale = 0, offset = 0;
};
struct TileGradients {
  double scale = 0, offset = 0;
};
void FakeQuantizeTile(IntegerRange range, TileParameters parameters, const float* x, int64_t n, float* out);
TileGradients FakeQuantizeTileBackward(IntegerRange range, TileParameters parameters, const float* x, const float* g,
                                       int64_t n, float* dx);

}  // namespace pith::quant
