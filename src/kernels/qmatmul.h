// Products of low-bit weight matrices with 16-bit or 8-bit activations: the linears and the LM head of a packed model.
//
// Definition. Every implementation (scalar reference, every instruction set, one row or many, any thread count)
// computes exactly the same bits, because all integer work is exact and the float work has one fixed order:
//
//   activations  x[k] ~ sa * q[k]        16-bit: q in [-32639, 32639], one sa per token
//                x[k] ~ sa[k / 32] * q[k] 8-bit, grouped weights: q in [-127, 127], one sa per 32 inputs
//                x[k] ~ sa * q[k]         8-bit, per-channel weights: one sa per token
//   weights      w[k] ~ s * (u[k] - z)    u unsigned 4 or 8 bits; symmetric: z = 8 or 128
//                w[k] ~ s * u[k] + m      with a float minimum (exact form of GGUF's Q4_1 and Q4_K); z = 0
//   per group g  I = sum of (u - z) * q   an exact integer for up to 32,768 inputs
//                acc = fma(float(I), s[g], acc)       in ascending g from acc = 0   (8-bit grouped: s[g] * sa[g] for
//                s[g]) with a minimum, acc = fma(float(A), m[g], acc) follows, A the sum of q         (likewise m[g] *
//                sa[g])
//   result       y = acc * sa                                                       (8-bit grouped: y = acc)
//
// A group is `group` inputs, or the whole row when weights have one scale per output channel. With 8-bit activations
// the sums of a grouped matrix are taken per 32 inputs. float() rounds an integer once, to nearest even.
//
// 16-bit activations run on 8-bit multiply-add instructions as two 8-bit digits, without rounding or overflow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pith {
class ThreadPool;
}

namespace pith::kernels {

// Rows of a weight matrix are handled in tiles of this many.
inline constexpr int64_t kTileRows = 16;
// Inputs that share an activation block: sums of activations, and scales of 8-bit ones, are kept per block.
inline constexpr int64_t kBlock = 32;
inline constexpr int64_t kMaxCols = 32768;

enum class ZeroKind {
  kSymmetric,  // z = 8 (4-bit) or 128 (8-bit)
  kZeroPoint,  // an integer z per group
  kMin,        // a float minimum per group, u is used as is
};

// Row-major description of a packed matrix, as it lies in a checkpoint. Element k of a row is bits 4k..4k+3 (4-bit) or
// byte k (8-bit) of the row's little-endian bytes: the "pack-quantized" layout of compressed-tensors, read as bytes.
struct PackedWeights {
  int64_t rows = 0;
  int64_t cols = 0;   // multiple of 32, at most kMaxCols
  int bits = 4;       // 4 or 8
  int64_t group = 0;  // inputs per scale: a multiple of 32 that divides cols, or cols (per channel)
  ZeroKind zero = ZeroKind::kSymmetric;
  const uint8_t* data = nullptr;         // rows * cols * bits / 8 bytes
  const uint16_t* scales_f16 = nullptr;  // [rows, cols / group]; either this ...
  const float* scales_f32 = nullptr;     // ... or this
  const uint8_t* zero_points = nullptr;  // [rows, cols / group], kZeroPoint
  const uint16_t* mins_f16 = nullptr;    // [rows, cols / group], kMin, when scales are F16
  const float* mins_f32 = nullptr;       // [rows, cols / group], kMin, when scales are F32
};

// A matrix ready to multiply: the packed bytes stay where they are (in the mapped file); scales are transposed into
// tiles of 16 rows, and the last tile is copied so that vector loads never leave the data. Movable; `data` must outlive
// it.
class QuantMatrix {
 public:
  QuantMatrix() = default;
  explicit QuantMatrix(const PackedWeights& weights);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int bits() const { return bits_; }
  int64_t group() const { return group_; }
  bool per_channel() const { return group_ == cols_; }
  int64_t groups() const { return cols_ / group_; }
  ZeroKind zero() const { return zero_; }
  bool f32_scales() const { return !scales_f32_.empty(); }
  int64_t row_bytes() const { return cols_ * bits_ / 8; }
  int64_t tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  // Bytes held besides the packed data.
  size_t owned_bytes() const;

  // First of 16 rows of packed bytes, row_bytes() apart; at least 64 readable bytes follow the last.
  const uint8_t* TileData(int64_t tile) const {
    return tile == tiles() - 1 ? last_tile_.data() : data_ + tile * kTileRows * row_bytes();
  }
  // 16 values per group, group after group.
  const uint16_t* TileScalesF16(int64_t tile) const { return scales_f16_.data() + tile * kTileRows * groups(); }
  const float* TileScalesF32(int64_t tile) const { return scales_f32_.data() + tile * kTileRows * groups(); }
  const uint8_t* TileZeroPoints(int64_t tile) const { return zero_points_.data() + tile * kTileRows * groups(); }
  const uint16_t* TileMinsF16(int64_t tile) const { return mins_f16_.data() + tile * kTileRows * groups(); }
  const float* TileMinsF32(int64_t tile) const { return mins_f32_.data() + tile * kTileRows * groups(); }

  // Scalar access for the reference path.
  int ElementBits(int64_t row, int64_t col) const;  // u
  float Scale(int64_t row, int64_t group) const;
  float Min(int64_t row, int64_t group) const;  // 0 unless kMin
  int ZeroPoint(int64_t row, int64_t group) const;
  // The weights of one row as floats: s * (u - z), or s * u + m, each rounded once per operation.
  void DequantizeRow(int64_t row, float* out) const;

 private:
  int64_t rows_ = 0, cols_ = 0, group_ = 0;
  int bits_ = 4;
  ZeroKind zero_ = ZeroKind::kSymmetric;
  const uint8_t* data_ = nullptr;
  std::vector<uint16_t> scales_f16_, mins_f16_;
  std::vector<float> scales_f32_, mins_f32_;
  std::vector<uint8_t> zero_points_;
  std::vector<uint8_t> last_tile_;
};

enum class ActivationBits { k8, k16 };
// 8-bit activations of grouped weights have a scale per block, those of per-channel weights one per token.
enum class ActivationScale { kPerToken, kPerBlock };

// How the integers of activations lie in memory; it suits the loop that reads them (qmatmul_tiles.h).
enum class ActivationDigits {
  kSigned,  // one token or a few: q = 256 * high + low, both in [-128, 127]
  kOffset,  // many tokens: the bytes of q + 32768 (8-bit: q + 128)
  kWords,   // many tokens of 16 bits where 8-bit instructions gain nothing: q itself
};

// Quantized activations of several tokens. One instance is reused for many products.
class QuantActivations {
 public:
  // Quantizes x[rows, cols] (row stride ldx), symmetric, round to nearest even. 16-bit: |q| <= 32639, so that both int8
  // digits exist; 8-bit: |q| <= 127. `weight_bits` is the width of the weights they will meet (it sets the order of
  // elements). Non-finite inputs give non-finite scales, and so non-finite results.
  void Quantize(const float* x, int64_t rows, int64_t cols, int64_t ldx, ActivationBits bits, ActivationScale scale,
                int weight_bits, ThreadPool* pool);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int planes() const { return bits_ == ActivationBits::k16 ? 2 : 1; }
  ActivationBits bits() const { return bits_; }
  ActivationScale scale_kind() const { return scale_kind_; }
  int weight_bits() const { return weight_bits_; }
  int64_t blocks() const { return cols_ / kBlock; }
  ActivationDigits digits() const { return digits_; }

  // One line of 32 * planes() bytes per block: the high digits (16-bit only), then the low digits. For 4-bit weights
  // the even elements of each plane come first, then the odd ones, as the nibbles of a packed byte do. kWords: 32
  // int16_t per block, in order.
  const int8_t* Lines(int64_t row) const { return lines_.data() + row * line_stride_; }
  // Of a few tokens, once more: the bytes of the lines, four of each token side by side.
  const int8_t* Interleaved() const { return interleaved_.data(); }
  const int32_t* BlockSums(int64_t row) const { return sums_.data() + row * blocks(); }  // sums of q
  const float* BlockScales(int64_t row) const { return block_scales_.data() + row * blocks(); }
  float TokenScale(int64_t row) const { return token_scales_[static_cast<size_t>(row)]; }  // 1 for kPerBlock
  int64_t RowSum(int64_t row) const { return row_sums_[static_cast<size_t>(row)]; }        // sum of q over the row

  // Scalar access for the reference path: q of element k.
  int Value(int64_t row, int64_t k) const;

 private:
  int64_t rows_ = 0, cols_ = 0, line_stride_ = 0;
  ActivationBits bits_ = ActivationBits::k16;
  ActivationScale scale_kind_ = ActivationScale::kPerToken;
  int weight_bits_ = 4;
  ActivationDigits digits_ = ActivationDigits::kSigned;
  std::vector<int8_t> lines_, interleaved_;
  std::vector<int32_t> sums_;
  std::vector<int64_t> row_sums_;
  std::vector<float> block_scales_, token_scales_;
};

// The scale kind that a matrix wants.
inline ActivationScale ScaleKindFor(const QuantMatrix& w, ActivationBits bits) {
  return bits == ActivationBits::k8 && !w.per_channel() ? ActivationScale::kPerBlock : ActivationScale::kPerToken;
}

// One product: out[t, r] = y for tokens t of the activations and rows r of the matrix; out has row stride ldo >= rows.
// The activations must have been quantized for matrices of this width, bits and scale kind.
struct QuantProduct {
  const QuantMatrix* weights = nullptr;
  const QuantActivations* x = nullptr;
  float* out = nullptr;
  int64_t ldo = 0;
};

// Computes several products in one parallel loop.
void QuantMatMul(std::span<const QuantProduct> products, ThreadPool& pool);

// The same, one element at a time by the definition above; slow.
void QuantMatMulReference(const QuantProduct& product);

}  // namespace pith::kernels
