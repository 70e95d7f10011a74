// Layouts of QuantMatrix and QuantActivations, and the scalar reference product.
#include <cassert>
#include <cmath>
#include <cstring>

#include "kernels/qmatmul.h"

namespace pith::kernels {
namespace {

float HalfToFloat(uint16_t bits) {
  // Exact for all finite halves: shift into float position and rescale by 2^112; infinities and NaNs keep their class.
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFFU) << 13;
  float value;
  std::memcpy(&value, &magnitude, sizeof(value));
  value *= 0x1.0p112F;
  uint32_t word;
  std::memcpy(&word, &value, sizeof(word));
  if ((bits & 0x7C00U) == 0x7C00U) word = magnitude | 0x7F800000U;
  word |= sign;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

// [rows, groups / repeat] row-major -> tiles of 16 rows, group after group, each source group `repeat` times; missing
// rows of the last tile are zero.
template <class T>
std::vector<T> ToTiles(const T* source, int64_t rows, int64_t groups, int64_t repeat) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  std::vector<T> out(static_cast<size_t>(tiles * kTileRows * groups));
  for (int64_t row = 0; row < rows; ++row) {
    T* tile = out.data() + (row / kTileRows) * kTileRows * groups + row % kTileRows;
    const T* from = source + row * (groups / repeat);
    for (int64_t g = 0; g < groups; ++g) tile[g * kTileRows] = from[g / repeat];
  }
  return out;
}

}  // namespace

QuantMatrix::QuantMatrix(const PackedWeights& w)
    : rows_(w.rows), cols_(w.cols), group_(w.group), bits_(w.bits), zero_(w.zero), data_(w.data) {
  assert(rows_ > 0 && cols_ > 0 && cols_ % kBlock == 0 && cols_ <= kMaxCols);
  assert(group_ % kBlock == 0 && cols_ % group_ == 0 && (bits_ == 4 || bits_ == 8));
  // Sums of up to 128 inputs fit the kernels' int32 lanes with their digits joined: longer groups are cut, each part
  // with the scale of the whole.
  int64_t repeat = 1;
  while (group_ < cols_ && group_ > 128) {
    int64_t parts = 2;
    while (group_ % (parts * kBlock) != 0) ++parts;
    group_ /= parts;
    repeat *= parts;
  }
  if (w.scales_f16 != nullptr) {
    scales_f16_ = ToTiles(w.scales_f16, rows_, groups(), repeat);
    if (zero_ == ZeroKind::kMin) mins_f16_ = ToTiles(w.mins_f16, rows_, groups(), repeat);
  } else {
    scales_f32_ = ToTiles(w.scales_f32, rows_, groups(), repeat);
    if (zero_ == ZeroKind::kMin) mins_f32_ = ToTiles(w.mins_f32, rows_, groups(), repeat);
  }
  if (zero_ == ZeroKind::kZeroPoint) zero_points_ = ToTiles(w.zero_points, rows_, groups(), repeat);
  const int64_t first = (tiles() - 1) * kTileRows;
  last_tile_.assign(static_cast<size_t>(kTileRows * row_bytes() + 64), 0);
  std::memcpy(last_tile_.data(), data_ + first * row_bytes(), static_cast<size_t>((rows_ - first) * row_bytes()));
}

size_t QuantMatrix::owned_bytes() const {
  return (scales_f16_.size() + mins_f16_.size()) * sizeof(uint16_t) +
         (scales_f32_.size() + mins_f32_.size()) * sizeof(float) + zero_points_.size() + last_tile_.size();
}

int QuantMatrix::ElementBits(int64_t row, int64_t col) const {
  const uint8_t* bytes = data_ + row * row_bytes();
  if (bits_ == 8) return bytes[col];
  return (bytes[col / 2] >> (4 * (col % 2))) & 15;
}

float QuantMatrix::Scale(int64_t row, int64_t group) const {
  const auto index = static_cast<size_t>(((row / kTileRows) * groups() + group) * kTileRows + row % kTileRows);
  return f32_scales() ? scales_f32_[index] : HalfToFloat(scales_f16_[index]);
}

float QuantMatrix::Min(int64_t row, int64_t group) const {
  if (zero_ != ZeroKind::kMin) return 0.0F;
  const auto index = static_cast<size_t>(((row / kTileRows) * groups() + group) * kTileRows + row % kTileRows);
  return f32_scales() ? mins_f32_[index] : HalfToFloat(mins_f16_[index]);
}

int QuantMatrix::ZeroPoint(int64_t row, int64_t group) const {
  if (zero_ == ZeroKind::kSymmetric) return bits_ == 4 ? 8 : 128;
  if (zero_ == ZeroKind::kMin) return 0;
  return zero_points_[static_cast<size_t>(((row / kTileRows) * groups() + group) * kTileRows + row % kTileRows)];
}

void QuantMatrix::DequantizeRow(int64_t row, float* out) const {
  for (int64_t g = 0; g < groups(); ++g) {
    const float scale = Scale(row, g);
    const float min = Min(row, g);
    const int zero = ZeroPoint(row, g);
    for (int64_t k = g * group_; k < (g + 1) * group_; ++k) {
      const float value = scale * static_cast<float>(ElementBits(row, k) - zero);
      out[k] = zero_ == ZeroKind::kMin ? value + min : value;
    }
  }
}

int QuantActivations::Value(int64_t row, int64_t k) const {
  const int8_t* line = Lines(row) + (k / kBlock) * kBlock * planes();
  const int64_t i = k % kBlock;
  if (digits_ == ActivationDigits::kWords) {
    int16_t word;
    std::memcpy(&word, line + 2 * i, sizeof(word));
    return word;
  }
  const int64_t at = weight_bits_ == 4 ? i / 2 + (i % 2) * (kBlock / 2) : i;
  const bool bytes = digits_ == ActivationDigits::kOffset;
  const auto digit = [&](int64_t index) {
    return bytes ? static_cast<int>(static_cast<uint8_t>(line[index])) : static_cast<int>(line[index]);
  };
  if (planes() == 1) return digit(at) - (bytes ? 128 : 0);
  return 256 * digit(at) + digit(kBlock + at) - (bytes ? 32768 : 0);
}

void QuantMatMulReference(const QuantProduct& product) {
  const QuantMatrix& w = *product.weights;
  const QuantActivations& x = *product.x;
  const bool blocked = x.scale_kind() == ActivationScale::kPerBlock;
  const int64_t span = blocked ? kBlock : w.group();  // inputs per exact integer sum
  for (int64_t t = 0; t < x.rows(); ++t) {
    for (int64_t r = 0; r < w.rows(); ++r) {
      float acc = 0;
      for (int64_t k0 = 0; k0 < w.cols(); k0 += span) {
        const int64_t g = k0 / w.group();
        const int z = w.ZeroPoint(r, g);
        int64_t sum = 0;
        int64_t ones = 0;
        for (int64_t k = k0; k < k0 + span; ++k) {
          sum += static_cast<int64_t>(w.ElementBits(r, k) - z) * x.Value(t, k);
          ones += x.Value(t, k);
        }
        const float factor = blocked ? x.BlockScales(t)[k0 / kBlock] : 1.0F;
        acc = std::fma(static_cast<float>(sum), blocked ? w.Scale(r, g) * factor : w.Scale(r, g), acc);
        if (w.zero() == ZeroKind::kMin) {
          acc = std::fma(static_cast<float>(ones), blocked ? w.Min(r, g) * factor : w.Min(r, g), acc);
        }
      }
      product.out[t * product.ldo + r] = blocked ? acc : acc * x.TokenScale(t);
    }
  }
}

}  // namespace pith::kernels
