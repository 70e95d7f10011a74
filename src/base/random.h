// Counter-based random numbers: a value is a pure function of (seed, stream, position), so any run repeats, streams
// differ, and the thread count changes nothing (rule 6 of the design).
#pragma once

#include <cstdint>

namespace pith {

// Bijective 64-bit mixer (the finalizer of SplitMix64, Steele et al. 2014).
inline uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// 64 random bits for (seed, stream, position). All arithmetic wraps at 2^64.
inline uint64_t RandomBits(uint64_t seed, uint64_t stream, uint64_t position) {
  return Mix64(Mix64(Mix64(seed) ^ stream) + position);
}

// Uniform in [0, 1) with 53 bits.
inline double RandomUniform(uint64_t seed, uint64_t stream, uint64_t position) {
  return static_cast<double>(RandomBits(seed, stream, position) >> 11) * 0x1.0p-53;
}

}  // namespace pith
