#include "model/tensor.h"

#include <cstring>

namespace pith {

const char* DTypeName(DType type) {
  switch (type) {
    case DType::kF64: return "F64";
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kI64: return "I64";
    case DType::kI32: return "I32";
    case DType::kI16: return "I16";
    case DType::kI8: return "I8";
    case DType::kU64: return "U64";
    case DType::kU32: return "U32";
    case DType::kU16: return "U16";
    case DType::kU8: return "U8";
    case DType::kBool: return "BOOL";
    case DType::kQ4_0: return "Q4_0";
    case DType::kQ4_1: return "Q4_1";
    case DType::kQ5_0: return "Q5_0";
    case DType::kQ5_1: return "Q5_1";
    case DType::kQ8_0: return "Q8_0";
    case DType::kQ4_K: return "Q4_K";
    case DType::kQ5_K: return "Q5_K";
    case DType::kQ6_K: return "Q6_K";
  }
  return "?";
}

BlockLayout DTypeBlock(DType type) {
  switch (type) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64: return {1, 8};
    case DType::kF32:
    case DType::kI32:
    case DType::kU32: return {1, 4};
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16: return {1, 2};
    case DType::kI8:
    case DType::kU8:
    case DType::kBool: return {1, 1};
    // Blocks of 32: f16 scale (and f16 minimum), fifth bits, 4-bit pairs.
    case DType::kQ4_0: return {32, 2 + 16};
    case DType::kQ4_1: return {32, 2 + 2 + 16};
    case DType::kQ5_0: return {32, 2 + 4 + 16};
    case DType::kQ5_1: return {32, 2 + 2 + 4 + 16};
    case DType::kQ8_0: return {32, 2 + 32};
    // Super-blocks of 256 with quantized sub-block scales.
    case DType::kQ4_K: return {256, 2 + 2 + 12 + 128};
    case DType::kQ5_K: return {256, 2 + 2 + 12 + 32 + 128};
    case DType::kQ6_K: return {256, 128 + 64 + 16 + 2};
  }
  return {1, 1};
}

bool IsBlockType(DType type) { return DTypeBlock(type).elements > 1; }

std::optional<int64_t> TensorBytes(DType type, const std::vector<int64_t>& shape) {
  const BlockLayout block = DTypeBlock(type);
  // Every partial product must fit, zeros aside, so that rows() and cols() can never overflow either.
  int64_t elements = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(elements, size, &elements)) {
      return std::nullopt;
    }
  }
  const int64_t cols = shape.empty() ? 1 : shape.back();
  if (cols % block.elements != 0) return std::nullopt;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / block.elements, block.bytes, &bytes)) return std::nullopt;
  return empty ? 0 : bytes;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

int64_t Tensor::rows() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}

int64_t Tensor::cols() const { return shape.empty() ? 1 : shape.back(); }

int64_t Tensor::row_bytes() const {
  const BlockLayout block = DTypeBlock(type);
  return cols() / block.elements * block.bytes;
}

namespace {

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

float F16ToF32(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude < 0x0400u) {  // zero and subnormals: a multiple of 2^-24, exact in binary32
    return FromBits(sign | Bits(static_cast<float>(magnitude) * 0x1p-24f));
  }
  uint32_t word = (magnitude << 13) + (112u << 23);  // exponent bias 15 -> 127
  if (magnitude >= 0x7c00u) word += 112u << 23;      // infinity and NaN: exponent 255
  return FromBits(sign | word);
}

uint16_t F32ToF16(float value) {
  const uint32_t word = Bits(value);
  const uint32_t sign = (word >> 16) & 0x8000u;
  const uint32_t magnitude = word & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x03ffu);  // quiet NaN
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // 65520 and more round to infinity
  } else if (magnitude >= 0x38800000u) {
    half = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  } else if (magnitude > 0x33000000u) {  // above 2^-25: a subnormal, in units of 2^-24
    const uint32_t mantissa = (magnitude & 0x007fffffu) | 0x00800000u;
    const uint32_t shift = 126u - (magnitude >> 23);  // 14..24
    const uint32_t rest = mantissa & ((1u << shift) - 1u);
    const uint32_t tie = 1u << (shift - 1u);
    half = mantissa >> shift;
    if (rest > tie || (rest == tie && (half & 1u) != 0)) ++half;
  } else {
    half = 0;
  }
  return static_cast<uint16_t>(sign | half);
}

uint16_t F32ToBF16(float value) {
  const uint32_t word = Bits(value);
  if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((word >> 16) | 0x0040u);  // quiet NaN
  return static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

}  // namespace pith
