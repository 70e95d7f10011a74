// At which values of their symbols two expressions are compared.
#pragma once

#include <gmpxx.h>

#include <cstdint>
#include <string>
#include <vector>

#include "grade/expression.h"

namespace pith::grade {

// A hash of 64 bits (the finalizer of SplitMix64): what stands for "some value" is made by it.
uint64_t MixBits(uint64_t x);

// Values of the free symbols, one point: parallel to `names`.
struct ProbePoint {
  std::vector<std::string> names;
  std::vector<mpq_class> values;
};
// Point number `index` for these symbols. Points 0 to kPositivePoints - 1 have positive values; then all negative ones
// and mixed ones.
ProbePoint MakePoint(const std::vector<std::string>& names, int index);
constexpr int kPositivePoints = 3;
constexpr int kProbePoints = 6;  // more where an expression is given piece by piece: see below

// The points at which two expressions with the symbols `names` are compared: kProbePoints of them (one without
// symbols), and for expressions that are given piece by piece (absolute values, minima, even roots, ...) also points
// far out and on both sides of their constants. `complete` is false when they have more constants than are probed.
std::vector<ProbePoint> ChooseProbePoints(const Expr& a, const Expr& b, const std::vector<std::string>& names,
                                          bool* complete);

}  // namespace pith::grade
