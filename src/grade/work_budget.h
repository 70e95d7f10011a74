// The work a comparison may do. One unit is about half a microsecond; every stage spends units and stops when they are
// gone, so the time of a comparison is bounded by construction.
#pragma once

#include <cstdint>

namespace pith::grade {

// Limits on what is read and built. A text beyond them is compared as text only.
constexpr size_t kMaxAnswerBytes = 8192;
constexpr size_t kMaxTokens = 2048;
constexpr size_t kMaxNodes = 4096;
constexpr int kMaxDepth = 160;            // of the parser
constexpr int kMaxHeight = 96;            // of a tree
constexpr size_t kMaxItems = 256;         // of a list, tuple, set or matrix row
constexpr int64_t kMaxExactBits = 32768;  // of a numerator or denominator: 2004! has 19,000
constexpr int64_t kCompareUnits = 12000;

class WorkBudget {
 public:
  explicit WorkBudget(int64_t units) : units_(units) {}
  // False when the work is used up; stays false.
  bool Spend(int64_t units) {
    units_ -= units;
    return units_ >= 0;
  }
  bool exhausted() const { return units_ < 0; }

 private:
  int64_t units_;
};

}  // namespace pith::grade
