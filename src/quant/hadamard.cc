#include "quant/hadamard.h"

#include <cmath>
#include <numbers>

#include "base/random.h"

namespace pith::quant {

namespace {

bool IsPrime(int64_t n) {
  if (n < 2) return false;
  for (int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return true;
}

// Legendre symbols of 0..q-1: 0, 1 for squares, -1 for others.
std::vector<int> QuadraticCharacter(int64_t q) {
  std::vector<int> character(static_cast<size_t>(q), -1);
  character[0] = 0;
  for (int64_t x = 1; x < q; ++x) character[static_cast<size_t>(x * x % q)] = 1;
  return character;
}

// The bordered matrix of characters, [q + 1, q + 1]: zeros on the diagonal, +-1 elsewhere, orthogonal rows. `border`
// stands in the first column; -1 makes it skew for q = 3 mod 4, 1 symmetric for q = 1 mod 4.
std::vector<int> ConferenceMatrix(int64_t q, int border) {
  const std::vector<int> character = QuadraticCharacter(q);
  const int64_t n = q + 1;
  std::vector<int> matrix(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      int& value = matrix[static_cast<size_t>(i * n + j)];
      if (i == 0 && j == 0) continue;
      value = i == 0 ? 1 : j == 0 ? border : character[static_cast<size_t>(((i - j) % q + q) % q)];
    }
  }
  return matrix;
}

std::optional<std::vector<int8_t>> PaleyMatrix(int64_t m) {
  if (m == 1) return std::vector<int8_t>{1};
  std::vector<int8_t> result(static_cast<size_t>(m * m));
  if (m % 4 != 0) return std::nullopt;
  if (const int64_t q = m - 1; IsPrime(q)) {  // q = 3 mod 4
    const std::vector<int> conference = ConferenceMatrix(q, -1);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < m; ++j) {
        const auto at = static_cast<size_t>(i * m + j);
        result[at] = static_cast<int8_t>(conference[at] + (i == j ? 1 : 0));
      }
    }
    return result;
  }
  const int64_t half = m / 2;
  const int64_t q = half - 1;
  if (q % 4 != 1 || !IsPrime(q)) return std::nullopt;
  const std::vector<int> conference = ConferenceMatrix(q, 1);
  constexpr int kPlain[2][2] = {{1, 1}, {1, -1}};
  constexpr int kDiagonal[2][2] = {{1, -1}, {-1, -1}};
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      const int c = conference[static_cast<size_t>(i / 2 * half + j / 2)];
      const int value = i / 2 == j / 2 ? kDiagonal[i % 2][j % 2] : c * kPlain[i % 2][j % 2];
      result[static_cast<size_t>(i * m + j)] = static_cast<int8_t>(value);
    }
  }
  return result;
}

struct Factors {
  int64_t odd_part;  // m of Paley's construction
  int64_t power;     // 2^k
  std::vector<int8_t> paley;
};

// The largest power of two for which the rest has a construction.
std::optional<Factors> Factorize(int64_t n) {
  int64_t power = 1;
  while (n % (power * 2) == 0) power *= 2;
  for (; power >= 1; power /= 2) {
    if (auto paley = PaleyMatrix(n / power)) return Factors{n / power, power, std::move(*paley)};
  }
  return std::nullopt;
}

std::vector<int8_t> Expand(const Factors& factors) {
  const int64_t n = factors.odd_part * factors.power;
  std::vector<int8_t> matrix(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const auto low = static_cast<uint64_t>(i % factors.power) & static_cast<uint64_t>(j % factors.power);
      const int sylvester = __builtin_popcountll(low) % 2 == 0 ? 1 : -1;
      const int paley = factors.paley[static_cast<size_t>(i / factors.power * factors.odd_part + j / factors.power)];
      matrix[static_cast<size_t>(i * n + j)] = static_cast<int8_t>(paley * sylvester);
    }
  }
  return matrix;
}

// Gram-Schmidt, twice for each row, in double.
std::vector<float> RandomOrthogonal(int64_t n, uint64_t seed) {
  const auto size = static_cast<size_t>(n);
  std::vector<double> rows(size * size);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - RandomUniform(seed, 1, 2 * i)));
    rows[i] = radius * std::cos(2.0 * std::numbers::pi * RandomUniform(seed, 1, 2 * i + 1));
  }
  for (size_t i = 0; i < size; ++i) {
    double* row = rows.data() + i * size;
    for (size_t pass = 0; pass < 2 * i; ++pass) {
      const double* other = rows.data() + pass % i * size;
      double product = 0.0;
      for (size_t k = 0; k < size; ++k) product += row[k] * other[k];
      for (size_t k = 0; k < size; ++k) row[k] -= product * other[k];
    }
    double square = 0.0;
    for (size_t k = 0; k < size; ++k) square += row[k] * row[k];
    for (size_t k = 0; k < size; ++k) row[k] /= std::sqrt(square);
  }
  return {rows.begin(), rows.end()};
}

}  // namespace

std::optional<std::vector<int8_t>> HadamardMatrix(int64_t n) {
  if (n < 1) return std::nullopt;
  const std::optional<Factors> factors = Factorize(n);
  if (!factors) return std::nullopt;
  return Expand(*factors);
}

Rotation MakeRotation(int64_t n, uint64_t seed) {
  Rotation rotation;
  const std::optional<Factors> factors = Factorize(n);
  if (!factors) return {RandomOrthogonal(n, seed), "random orthogonal"};
  const std::vector<int8_t> hadamard = Expand(*factors);
  rotation.matrix.resize(hadamard.size());
  const double norm = 1.0 / std::sqrt(static_cast<double>(n));
  for (int64_t i = 0; i < n; ++i) {
    const double sign = RandomBits(seed, 0, static_cast<uint64_t>(i)) % 2 == 0 ? norm : -norm;
    for (int64_t j = 0; j < n; ++j) {
      const auto at = static_cast<size_t>(i * n + j);
      rotation.matrix[at] = static_cast<float>(sign * static_cast<double>(hadamard[at]));
    }
  }
  rotation.description =
      "Hadamard " + std::to_string(factors->odd_part) + " x " + std::to_string(factors->power) + ", random signs";
  return rotation;
}

}  // namespace pith::quant
