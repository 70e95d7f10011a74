// Dequantization of floating-point and GGUF block types.
//
// The block layouts are those of ggml's quantized types (https://github.com/ggml-org/ggml, ggml-common.h; documented by
// their reference implementation in the `gguf` Python package, whose results these functions equal bit for bit). Where
// a minimum is added or subtracted, the product before it is exact in binary32 (at most 22 significant bits), so a
// compiler may or may not fuse the two operations without changing any result.

#include <cstring>

#include "model/block_scales.h"
#include "model/tensor.h"

namespace pith {

namespace {

template <class T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float LoadF16(const uint8_t* bytes) { return F16ToF32(Load<uint16_t>(bytes)); }

// Elements 0..15 are the low nibbles of the 16 bytes, 16..31 the high ones; value (q - 8) * d.
void DequantizeQ4_0(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const uint8_t* quants = block + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((quants[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((quants[i] >> 4) - 8);
  }
}

// As Q4_0, value q * d + m.
void DequantizeQ4_1(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const float m = LoadF16(block + 2);
  const uint8_t* quants = block + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(quants[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(quants[i] >> 4) + m;
  }
}

// As Q4_0 with bit i of a 32-bit word as the fifth bit of element i; value (q - 16) * d.
void DequantizeQ5_0(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const auto high = Load<uint32_t>(block + 2);
  const uint8_t* quants = block + 6;
  for (int i = 0; i < 16; ++i) {
    const int low_bit = static_cast<int>((high >> i) & 1u) << 4;
    const int high_bit = static_cast<int>((high >> (i + 16)) & 1u) << 4;
    out[i] = d * static_cast<float>(((quants[i] & 15) | low_bit) - 16);
    out[i + 16] = d * static_cast<float>(((quants[i] >> 4) | high_bit) - 16);
  }
}

// As Q5_0, value q * d + m.
void DequantizeQ5_1(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const float m = LoadF16(block + 2);
  const auto high = Load<uint32_t>(block + 4);
  const uint8_t* quants = block + 8;
  for (int i = 0; i < 16; ++i) {
    const int low_bit = static_cast<int>((high >> i) & 1u) << 4;
    const int high_bit = static_cast<int>((high >> (i + 16)) & 1u) << 4;
    out[i] = d * static_cast<float>((quants[i] & 15) | low_bit) + m;
    out[i + 16] = d * static_cast<float>((quants[i] >> 4) | high_bit) + m;
  }
}

void DequantizeQ8_0(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// Eight sub-blocks of 32; each 32 bytes of quants hold sub-block 2k in the low nibbles and 2k + 1 in the high ones.
void DequantizeQ4_K(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const float dmin = LoadF16(block + 2);
  uint8_t scales[8], minimums[8];
  UnpackBlockScales(block + 4, scales, minimums);
  const uint8_t* quants = block + 16;
  for (int sub = 0; sub < 8; ++sub) {
    const float scale = d * static_cast<float>(scales[sub]);
    const float minimum = dmin * static_cast<float>(minimums[sub]);
    const uint8_t* bytes = quants + sub / 2 * 32;
    const int shift = sub % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      out[sub * 32 + i] = scale * static_cast<float>((bytes[i] >> shift) & 15) - minimum;
    }
  }
}

// As Q4_K; bit `sub` of the 32 high bytes is the fifth bit of element i of that sub-block.
void DequantizeQ5_K(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const float dmin = LoadF16(block + 2);
  uint8_t scales[8], minimums[8];
  UnpackBlockScales(block + 4, scales, minimums);
  const uint8_t* high = block + 16;
  const uint8_t* quants = block + 48;
  for (int sub = 0; sub < 8; ++sub) {
    const float scale = d * static_cast<float>(scales[sub]);
    const float minimum = dmin * static_cast<float>(minimums[sub]);
    const uint8_t* bytes = quants + sub / 2 * 32;
    const int shift = sub % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int quant = ((bytes[i] >> shift) & 15) | (((high[i] >> sub) & 1) << 4);
      out[sub * 32 + i] = scale * static_cast<float>(quant) - minimum;
    }
  }
}

// Two halves of 128 elements; in each, 64 bytes hold the low nibbles of four runs of 32 (runs 0, 1 low; 2, 3 high) and
// 32 bytes their upper two bits. One int8 scale per 16 elements; value (q - 32) * (d * scale).
void DequantizeQ6_K(const uint8_t* block, float* out) {
  const float d = LoadF16(block + 208);
  const uint8_t* scales = block + 192;
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + half * 64;
    const uint8_t* high = block + 128 + half * 32;
    for (int run = 0; run < 4; ++run) {
      const uint8_t* bytes = low + run % 2 * 32;
      const int shift = run / 2 * 4;
      float* values = out + half * 128 + run * 32;
      for (int i = 0; i < 32; ++i) {
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[half * 8 + run * 2 + i / 16]));
        const int quant = ((bytes[i] >> shift) & 15) | (((high[i] >> (2 * run)) & 3) << 4);
        values[i] = scale * static_cast<float>(quant - 32);
      }
    }
  }
}

using BlockFunction = void (*)(const uint8_t* block, float* out);

BlockFunction FunctionFor(DType type) {
  switch (type) {
    case DType::kQ4_0: return DequantizeQ4_0;
    case DType::kQ4_1: return DequantizeQ4_1;
    case DType::kQ5_0: return DequantizeQ5_0;
    case DType::kQ5_1: return DequantizeQ5_1;
    case DType::kQ8_0: return DequantizeQ8_0;
    case DType::kQ4_K: return DequantizeQ4_K;
    case DType::kQ5_K: return DequantizeQ5_K;
    case DType::kQ6_K: return DequantizeQ6_K;
    default: return nullptr;
  }
}

}  // namespace

Status DequantizeRows(const Tensor& tensor, int64_t row_begin, int64_t row_end, float* out) {
  if (row_begin < 0 || row_begin > row_end || row_end > tensor.rows()) {
    return Error{ErrorCode::kInvalidArgument, "rows " + std::to_string(row_begin) + " to " + std::to_string(row_end) +
                                                  " are outside tensor '" + tensor.name + "' " +
                                                  ShapeText(tensor.shape)};
  }
  const std::optional<int64_t> bytes = TensorBytes(tensor.type, tensor.shape);
  if (!bytes || static_cast<uint64_t>(*bytes) != tensor.data.size()) {
    return Error{ErrorCode::kInvalidArgument, "tensor '" + tensor.name + "' does not have the bytes of its shape"};
  }
  const auto* in = reinterpret_cast<const uint8_t*>(tensor.data.data()) + row_begin * tensor.row_bytes();
  const int64_t count = (row_end - row_begin) * tensor.cols();
  switch (tensor.type) {
    case DType::kF32:
      if (count > 0) std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
      return {};
    case DType::kF64:
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(Load<double>(in + 8 * i));
      return {};
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = LoadF16(in + 2 * i);
      return {};
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) out[i] = BF16ToF32(Load<uint16_t>(in + 2 * i));
      return {};
    default: break;
  }
  const BlockFunction dequantize = FunctionFor(tensor.type);
  if (dequantize == nullptr) {
    return Error{ErrorCode::kUnsupported, "tensor '" + tensor.name + "' has integer type " + DTypeName(tensor.type) +
                                              " where floating-point values are needed"};
  }
  const BlockLayout block = DTypeBlock(tensor.type);
  for (int64_t i = 0; i < count / block.elements; ++i) dequantize(in + i * block.bytes, out + i * block.elements);
  return {};
}

Result<std::vector<float>> ToFloats(const Tensor& tensor) {
  // The byte check comes before the allocation: a shape without data must not allocate.
  const std::optional<int64_t> bytes = TensorBytes(tensor.type, tensor.shape);
  if (!bytes || static_cast<uint64_t>(*bytes) != tensor.data.size()) {
    return Error{ErrorCode::kInvalidArgument, "tensor '" + tensor.name + "' does not have the bytes of its shape"};
  }
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  PITH_RETURN_IF_ERROR(DequantizeRows(tensor, 0, tensor.rows(), values.data()));
  return values;
}

}  // namespace pith
