// The quantized scales of GGUF's Q4_K and Q5_K blocks.
#pragma once

#include <cstdint>

namespace pith {

// Eight 6-bit pairs in 12 bytes. Bytes 0..3 hold the scales of sub-blocks 0..3, bytes 4..7 the minimums, bytes 8..11
// the low nibbles of sub-blocks 4..7 (scale low, minimum high), whose upper two bits are the top bits of bytes 0..7.
inline void UnpackBlockScales(const uint8_t* packed, uint8_t scales[8], uint8_t minimums[8]) {
  for (int i = 0; i < 4; ++i) {
    scales[i] = packed[i] & 63;
    minimums[i] = packed[i + 4] & 63;
    scales[i + 4] = static_cast<uint8_t>((packed[i + 8] & 15) | ((packed[i] >> 2) & 0x30));
    minimums[i + 4] = static_cast<uint8_t>((packed[i + 8] >> 4) | ((packed[i + 4] >> 2) & 0x30));
  }
}

}  // namespace pith
