#include "quant/fake_quant.h"

#include <cmath>
#include <limits>
#include <vector>

namespace pith::quant {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int kCandidates = 100;
constexpr int kSide = 10;  // of the asymmetric grid

// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, where |value| < 2^22.
float RoundToInteger(float value) {
  constexpr float kMagic = 12582912.0F;
  return (value + kMagic) - kMagic;
}

float Limited(float value, float low, float high) { return std::min(std::max(value, low), high); }

// x / s - o, brought to just outside of the integers where it lies beyond them, so that rounding cannot overflow.
struct Ratio {
  float scale, offset, least, most;

  Ratio(IntegerRange range, TileParameters parameters)
      : scale(parameters.scale),
        offset(RoundToInteger(Limited(parameters.offset, -4e6F, 4e6F))),
        least(static_cast<float>(range.low) - 1.0F),
        most(static_cast<float>(range.high) + 1.0F) {}
  float operator()(float x) const { return Limited(x / scale - offset, least, most); }
};

int64_t Length(const QuantSpec& spec, const Tensor& x) {
  switch (spec.granularity) {
    case Granularity::kTensor: return x.numel();
    case Granularity::kRow: return x.size(-1);
    case Granularity::kGroup: return spec.group;
  }
  return 0;
}

// Without an offset the tensor has no elements: autograd functions take no undefined tensors.
Tensor OrEmpty(const Tensor& offset) { return offset.defined() ? offset : at::empty({0}, at::kFloat); }
bool Has(const Tensor& offset) { return offset.numel() > 0; }

TileParameters At(const Tensor& scale, const Tensor& offset, int64_t tile) {
  return {scale.data_ptr<float>()[tile], Has(offset) ? offset.data_ptr<float>()[tile] : 0.0F};
}

struct FakeQuantizeFunction : Function<FakeQuantizeFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& scale, const Tensor& offset,
                        int64_t low, int64_t high) {
    const IntegerRange range{static_cast<int32_t>(low), static_cast<int32_t>(high)};
    const int64_t tiles = scale.numel();
    const int64_t n = x.numel() / tiles;
    Tensor out = at::empty_like(x);
    for (int64_t t = 0; t < tiles; ++t) {
      FakeQuantizeTile(range, At(scale, offset, t), x.data_ptr<float>() + t * n, n, out.data_ptr<float>() + t * n);
    }
    context->save_for_backward({x, scale, offset});
    context->saved_data["low"] = low;
    context->saved_data["high"] = high;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &scale = saved[1], &offset = saved[2];
    const IntegerRange range{static_cast<int32_t>(context->saved_data["low"].toInt()),
                             static_cast<int32_t>(context->saved_data["high"].toInt())};
    const int64_t tiles = scale.numel();
    const int64_t n = x.numel() / tiles;
    const Tensor g = gradients[0].contiguous();
    Tensor dx = at::empty_like(x);
    Tensor dscale = at::empty_like(scale);
    Tensor doffset = Has(offset) ? at::empty_like(offset) : Tensor();
    for (int64_t t = 0; t < tiles; ++t) {
      const TileGradients tile = FakeQuantizeTileBackward(range, At(scale, offset, t), x.data_ptr<float>() + t * n,
                                                          g.data_ptr<float>() + t * n, n, dx.data_ptr<float>() + t * n);
      dscale.data_ptr<float>()[t] = static_cast<float>(tile.scale);
      if (Has(offset)) doffset.data_ptr<float>()[t] = static_cast<float>(tile.offset);
    }
    return {dx, dscale, doffset, Tensor(), Tensor()};
  }
};

// Of one range, as ParametersOf.
TileParameters OfRange(const QuantSpec& spec, float min, float max) {
  const auto low = static_cast<float>(spec.range.low);
  const auto high = static_cast<float>(spec.range.high);
  if (spec.symmetric) return {std::max(std::fabs(min) / -low, std::fabs(max) / high), 0.0F};
  const float scale = std::max((max - min) / (high - low), std::numeric_limits<float>::epsilon());
  return {scale, min / scale - low};
}

struct Extremes {
  float min, max;
};

Extremes ExtremesOf(const float* x, int64_t n) {
  Extremes range{x[0], x[0]};
  for (int64_t i = 0; i < n; ++i) {
    range.min = std::min(range.min, x[i]);
    range.max = std::max(range.max, x[i]);
  }
  return range;
}

// parameters of each tile by find(x, n).
template <class Find>
QuantParameters OfTiles(const QuantSpec& spec, const Tensor& x, const Find& find) {
  const int64_t n = Length(spec, x);
  const int64_t tiles = spec.Tiles(x);
  QuantParameters parameters;
  parameters.scale = at::empty({tiles}, at::kFloat);
  if (!spec.symmetric) parameters.offset = at::empty({tiles}, at::kFloat);
  const Tensor data = x.detach().contiguous();
  for (int64_t t = 0; t < tiles; ++t) {
    const TileParameters tile = find(data.data_ptr<float>() + t * n, n);
    parameters.scale.data_ptr<float>()[t] = tile.scale;
    if (!spec.symmetric) parameters.offset.data_ptr<float>()[t] = tile.offset;
  }
  return parameters;
}

}  // namespace

IntegerRange RangeOfBits(int bits) { return {-(1 << (bits - 1)), (1 << (bits - 1)) - 1}; }

int64_t QuantSpec::Tiles(const Tensor& x) const { return x.numel() / Length(*this, x); }

void FakeQuantizeTile(IntegerRange range, TileParameters parameters, const float* x, int64_t n, float* out) {
  if (parameters.scale == 0.0F) {
    for (int64_t i = 0; i < n; ++i) out[i] = 0.0F;
    return;
  }
  const Ratio ratio(range, parameters);
  const auto low = static_cast<float>(range.low);
  const auto high = static_cast<float>(range.high);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = (Limited(RoundToInteger(ratio(x[i])), low, high) + ratio.offset) * ratio.scale;
  }
}

TileGradients FakeQuantizeTileBackward(IntegerRange range, TileParameters parameters, const float* x, const float* g,
                                       int64_t n, float* dx) {
  TileGradients sums;
  if (parameters.scale == 0.0F) {
    for (int64_t i = 0; i < n && dx != nullptr; ++i) dx[i] = 0.0F;
    return sums;
  }
  const Ratio ratio(range, parameters);
  const auto low = static_cast<float>(range.low);
  const auto high = static_cast<float>(range.high);
  // In eight partial sums, so that it vectorizes; a fixed order.
  constexpr int kLanes = 8;
  double scales[kLanes] = {}, clipped[kLanes] = {};
  const auto add = [&](int64_t i, int lane) {
    const float u = ratio(x[i]);
    const float integer = RoundToInteger(u);
    const float kept = Limited(integer, low, high);
    const bool inside = kept == integer;
    const float slope = inside ? integer - u : kept + ratio.offset;
    scales[lane] += static_cast<double>(g[i] * slope);
    clipped[lane] += static_cast<double>(inside ? 0.0F : g[i]);
    if (dx != nullptr) dx[i] = inside ? g[i] : 0.0F;
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (; i < n; ++i) add(i, 0);
  for (int lane = 0; lane < kLanes; ++lane) {
    sums.scale += scales[lane];
    sums.offset += clipped[lane] * static_cast<double>(ratio.scale);
  }
  return sums;
}

QuantParameters ParametersOf(const QuantSpec& spec, const Tensor& min, const Tensor& max) {
  QuantParameters parameters;
  parameters.scale = at::empty_like(min);
  if (!spec.symmetric) parameters.offset = at::empty_like(min);
  for (int64_t t = 0; t < min.numel(); ++t) {
    const TileParameters tile = OfRange(spec, min.data_ptr<float>()[t], max.data_ptr<float>()[t]);
    parameters.scale.data_ptr<float>()[t] = tile.scale;
    if (!spec.symmetric) parameters.offset.data_ptr<float>()[t] = tile.offset;
  }
  return parameters;
}

QuantParameters MinMaxParameters(const QuantSpec& spec, const Tensor& x) {
  return OfTiles(spec, x, [&](const float* values, int64_t n) {
    const Extremes range = ExtremesOf(values, n);
    return OfRange(spec, range.min, range.max);
  });
}

QuantParameters GridParameters(const QuantSpec& spec, const Tensor& x, double p) {
  std::vector<float> approximation;
  return OfTiles(spec, x, [&](const float* values, int64_t n) {
    approximation.resize(static_cast<size_t>(n));
    const Extremes range = ExtremesOf(values, n);
    const float largest = std::max(std::fabs(range.min), std::fabs(range.max));
    TileParameters best = OfRange(spec, range.min, range.max);
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kCandidates; ++i) {
      TileParameters candidate;
      if (spec.symmetric) {
        const float end = largest * (static_cast<float>(kCandidates - i) / static_cast<float>(kCandidates));
        candidate = OfRange(spec, -end, end);
      } else {
        const auto fraction = [](int k) { return 1.0F - 0.4F * static_cast<float>(k) / static_cast<float>(kSide - 1); };
        candidate = OfRange(spec, fraction(i / kSide) * range.min, fraction(i % kSide) * range.max);
      }
      FakeQuantizeTile(spec.range, candidate, values, n, approximation.data());
      double error = 0;
      for (int64_t k = 0; k < n; ++k) {
        const double difference = std::fabs(static_cast<double>(approximation[static_cast<size_t>(k)] - values[k]));
        error += p == 2.0 ? difference * difference : std::pow(difference, p);
      }
      if (error < least) {
        least = error;
        best = candidate;
      }
    }
    return best;
  });
}

Tensor FakeQuantize(const QuantSpec& spec, const Tensor& x, const QuantParameters& parameters) {
  return FakeQuantizeFunction::apply(x, parameters.scale, OrEmpty(parameters.offset), spec.range.low, spec.range.high);
}

Tensor Integers(const QuantSpec& spec, const Tensor& x, const QuantParameters& parameters) {
  const at::AutoGradMode no_graph(false);
  Tensor integers = at::empty_like(x);
  const int64_t n = x.numel() / parameters.scale.numel();
  const float* values = x.data_ptr<float>();
  float* out = integers.data_ptr<float>();
  const Tensor offset = OrEmpty(parameters.offset);
  for (int64_t t = 0; t < parameters.scale.numel(); ++t) {
    const TileParameters tile = At(parameters.scale, offset, t);
    const Ratio ratio(spec.range, tile);
    for (int64_t i = t * n; i < (t + 1) * n; ++i) {
      const float u = tile.scale == 0.0F ? 0.0F : ratio(values[i]);
      out[i] = Limited(RoundToInteger(u), static_cast<float>(spec.range.low), static_cast<float>(spec.range.high));
    }
  }
  return integers;
}

Tensor FakeQuantizeDynamic(const QuantSpec& spec, const Tensor& x) {
  const QuantParameters parameters = MinMaxParameters(spec, x);
  Tensor rounded;
  {
    const at::AutoGradMode no_graph(false);
    rounded = FakeQuantize(spec, x, parameters);
  }
  return x + (rounded - x.detach());  // straight through
}

}  // namespace pith::quant
