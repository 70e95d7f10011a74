// A tensor of a checkpoint: a name, a type, a shape and bytes that lie in a mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"

namespace pith {

enum class DType {
  // Floating point.
  kF64,
  kF32,
  kF16,
  kBF16,
  // Integers.
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  // GGUF block types.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

const char* DTypeName(DType type);  // "F32", "BF16", "Q4_K", ...

// Elements per block (1 for plain types, 32 or 256 for GGUF block types) and bytes per block.
struct BlockLayout {
  int64_t elements;
  int64_t bytes;
};
BlockLayout DTypeBlock(DType type);
bool IsBlockType(DType type);  // a GGUF block type

// Bytes of a tensor of this type and shape, or nothing when a dimension is negative, the last one is no multiple of the
// block, or the element or byte count does not fit in int64.
std::optional<int64_t> TensorBytes(DType type, const std::vector<int64_t>& shape);

// "[151936, 896]", for messages.
std::string ShapeText(const std::vector<int64_t>& shape);

// A view of one tensor. `shape` is in row-major (Hugging Face) order: [out, in] for a linear layer. Blocks of GGUF
// types run along the last dimension, which is a multiple of the block. `data` has exactly the size that type and shape
// give (the loaders check this), but may start at any address, so elements are read with memcpy. `owner` keeps the
// bytes alive.
struct Tensor {
  std::string name;
  DType type = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  std::shared_ptr<const void> owner;
  std::shared_ptr<const MappedFile> file;  // the file that `data` lies in, or null

  int64_t rows() const;  // product of all dimensions but the last (1 for a vector)
  int64_t cols() const;  // the last dimension (1 for a scalar)
  int64_t elements() const { return rows() * cols(); }
  int64_t row_bytes() const;  // bytes of one row
};

// Dequantizes rows [row_begin, row_end) into `out` (row-major, (row_end - row_begin) * cols() floats). All floating
// types and GGUF block types; integer types fail with kUnsupported. Values equal those of the `gguf` Python package bit
// for bit.
Status DequantizeRows(const Tensor& tensor, int64_t row_begin, int64_t row_end, float* out);
// The whole tensor as floats.
Result<std::vector<float>> ToFloats(const Tensor& tensor);

// Scalar conversions, round to nearest even; NaN stays NaN.
float F16ToF32(uint16_t bits);
uint16_t F32ToF16(float value);
inline float BF16ToF32(uint16_t bits);
uint16_t F32ToBF16(float value);

inline float BF16ToF32(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  static_assert(sizeof(value) == sizeof(word));
  __builtin_memcpy(&value, &word, sizeof(value));
  return value;
}

}  // namespace pith
