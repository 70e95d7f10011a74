// Orthogonal matrices that spread outliers: normalized Hadamard matrices, where the size has a construction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pith::quant {

// A Hadamard matrix [n, n] of +1 and -1 with rows orthogonal to each other, or nothing where none is known here:
// n = m 2^k with m = 1, or m = q + 1 for a prime q = 3 mod 4, or m = 2 (q + 1) for a prime q = 1 mod 4 (Paley 1933),
// times Sylvester's doubling. 576 = 36 * 16, 896 = 28 * 32 and 1536 = 12 * 128 are of this form.
std::optional<std::vector<int8_t>> HadamardMatrix(int64_t n);

struct Rotation {
  std::vector<float> matrix;  // [n, n], orthogonal
  std::string description;    // "Hadamard 36 x 16, random signs", "random orthogonal"
};

// diag(signs) H / sqrt(n) with random signs, or, where no H is known, the orthogonal factor of a matrix of normal
// random numbers. A function of n and the seed.
Rotation MakeRotation(int64_t n, uint64_t seed);

}  // namespace pith::quant
