#include "model/repack.h"

#include <cstring>

#include "model/block_scales.h"

namespace pith {

namespace {

float LoadF16(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return F16ToF32(half);
}

// The 32 four-bit integers of a block: the low nibbles of 16 bytes, then the high ones.
void SplitNibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = bytes[i] & 15;
    codes[i + 16] = bytes[i] >> 4;
  }
}

// Adds bit i of a 32-bit word as the fifth bit of integer i.
void AddFifthBits(const uint8_t* word_bytes, uint8_t* codes) {
  uint32_t word;
  std::memcpy(&word, word_bytes, sizeof(word));
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (((word >> i) & 1u) << 4));
}

// One super-block of Q4_K or Q5_K: eight groups.
void RepackKBlock(const uint8_t* block, bool fifth_bit, uint8_t* codes, float* scales, float* minimums) {
  const float d = LoadF16(block);
  const float dmin = LoadF16(block + 2);
  uint8_t scale_codes[8], minimum_codes[8];
  UnpackBlockScales(block + 4, scale_codes, minimum_codes);
  const uint8_t* high = block + 16;
  const uint8_t* quants = block + (fifth_bit ? 48 : 16);
  for (int sub = 0; sub < 8; ++sub) {
    scales[sub] = d * static_cast<float>(scale_codes[sub]);
    minimums[sub] = -(dmin * static_cast<float>(minimum_codes[sub]));
    const uint8_t* bytes = quants + sub / 2 * 32;
    const int shift = sub % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int fifth = fifth_bit ? ((high[i] >> sub) & 1) << 4 : 0;
      codes[sub * 32 + i] = static_cast<uint8_t>(((bytes[i] >> shift) & 15) | fifth);
    }
  }
}

}  // namespace

std::optional<QuantFormat> ExactFormat(DType type) {
  switch (type) {
    case DType::kQ4_0: return QuantFormat{4, 32, ZeroForm::kSymmetric, DType::kF16};
    case DType::kQ4_1: return QuantFormat{4, 32, ZeroForm::kMinimum, DType::kF16};
    case DType::kQ5_0:
    case DType::kQ8_0: return QuantFormat{8, 32, ZeroForm::kSymmetric, DType::kF16};
    case DType::kQ5_1: return QuantFormat{8, 32, ZeroForm::kMinimum, DType::kF16};
    case DType::kQ4_K: return QuantFormat{4, 32, ZeroForm::kMinimum, DType::kF32};
    case DType::kQ5_K: return QuantFormat{8, 32, ZeroForm::kMinimum, DType::kF32};
    default: return std::nullopt;
  }
}

void RepackRow(DType type, const uint8_t* row, int64_t cols, const QuantizedRow& out) {
  const BlockLayout layout = DTypeBlock(type);
  for (int64_t b = 0; b < cols / layout.elements; ++b) {
    const uint8_t* block = row + b * layout.bytes;
    uint8_t* codes = out.codes + b * layout.elements;
    float* scale = out.scales + b * layout.elements / 32;
    float* minimum = out.minimums == nullptr ? nullptr : out.minimums + b * layout.elements / 32;
    switch (type) {
      case DType::kQ4_0:
        *scale = LoadF16(block);
        SplitNibbles(block + 2, codes);
        break;
      case DType::kQ4_1:
        *scale = LoadF16(block);
        *minimum = LoadF16(block + 2);
        SplitNibbles(block + 4, codes);
        break;
      case DType::kQ5_0:
        *scale = LoadF16(block);
        SplitNibbles(block + 6, codes);
        AddFifthBits(block + 2, codes);
        for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] + 128 - 16);  // its zero is 16
        break;
      case DType::kQ5_1:
        *scale = LoadF16(block);
        *minimum = LoadF16(block + 2);
        SplitNibbles(block + 8, codes);
        AddFifthBits(block + 4, codes);
        break;
      case DType::kQ8_0:
        *scale = LoadF16(block);
        for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(block[2 + i] ^ 0x80);  // signed to offset 128
        break;
      case DType::kQ4_K: RepackKBlock(block, false, codes, scale, minimum); break;
      case DType::kQ5_K: RepackKBlock(block, true, codes, scale, minimum); break;
      default: break;
    }
  }
}

}  // namespace pith
