#include "grade/probe_points.h"

#include <algorithm>
#include <utility>

namespace pith::grade {

namespace {

constexpr size_t kMaxBreaks = 40;

// Functions that are given piece by piece: they must also be probed far out and beside every constant.
bool IsPiecewise(const Expr& expr) {
  if (expr.kind == ExprKind::kFunction &&
      (expr.name == "abs" || expr.name == "min" || expr.name == "max" || expr.name == "floor" || expr.name == "ceil" ||
       expr.name == "sqrt") &&
      !FreeSymbols(expr).empty()) {
    return true;
  }
  if (expr.kind == ExprKind::kPower && expr.args[1]->kind == ExprKind::kNumber &&
      mpz_even_p(expr.args[1]->number.get_den_mpz_t()) != 0) {
    return true;
  }
  return std::any_of(expr.args.begin(), expr.args.end(), [](const ExprPtr& arg) { return IsPiecewise(*arg); });
}

void CollectConstants(const Expr& expr, std::vector<mpq_class>* constants) {
  if (expr.kind == ExprKind::kNumber && expr.number != 0 && constants->size() < kMaxBreaks) {
    const mpq_class size = abs(expr.number);
    if (std::find(constants->begin(), constants->end(), size) == constants->end()) constants->push_back(size);
  }
  for (const ExprPtr& arg : expr.args) CollectConstants(*arg, constants);
}

}  // namespace

uint64_t MixBits(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

ProbePoint MakePoint(const std::vector<std::string>& names, int index) {
  constexpr double kHighs[kProbePoints] = {2.5, 0.9, 9.0, 3.0, 4.0, 6.0};
  ProbePoint point{names, {}};
  for (size_t i = 0; i < names.size(); ++i) {
    // From the place among the sorted names alone: a renamed pair of expressions is probed alike.
    const uint64_t bits = MixBits(static_cast<uint64_t>(index) * 1000 + i);
    const double unit = static_cast<double>(bits >> 24) / static_cast<double>(uint64_t{1} << 40);
    mpq_class value(0.1 + unit * kHighs[index]);
    const bool negative = index == kPositivePoints || (index > kPositivePoints && (bits & 1) != 0);
    point.values.push_back(negative ? mpq_class(-value) : value);
  }
  return point;
}

std::vector<ProbePoint> ChooseProbePoints(const Expr& a, const Expr& b, const std::vector<std::string>& names,
                                          bool* complete) {
  std::vector<ProbePoint> points;
  for (int index = 0; index < (names.empty() ? 1 : kProbePoints); ++index) points.push_back(MakePoint(names, index));
  *complete = true;
  if (names.empty() || !(IsPiecewise(a) || IsPiecewise(b))) return points;
  const auto scaled = [&](const ProbePoint& from, const mpq_class& scale, uint64_t signs) {
    ProbePoint point = from;
    for (size_t i = 0; i < point.values.size(); ++i) {
      point.values[i] = abs(point.values[i]) * scale * ((signs >> (i % 60) & 1) != 0 ? -1 : 1);
    }
    points.push_back(std::move(point));
  };
  for (const long scale : {50L, 50000L}) {
    for (const uint64_t signs :
         {uint64_t{0}, ~uint64_t{0}, uint64_t{0x5555555555555555}, uint64_t{0xAAAAAAAAAAAAAAAA}}) {
      scaled(points[2], scale, signs);
    }
  }
  // On both sides of where a linear part may change its sign: c and c / d for constants c and d.
  std::vector<mpq_class> constants;
  CollectConstants(a, &constants);
  CollectConstants(b, &constants);
  std::vector<mpq_class> breaks = constants;
  for (const mpq_class& c : constants) {
    for (const mpq_class& d : constants) {
      const mpq_class quotient = c / d;
      if (breaks.size() <= kMaxBreaks && std::find(breaks.begin(), breaks.end(), quotient) == breaks.end())
        breaks.push_back(quotient);
    }
  }
  if (breaks.size() > kMaxBreaks) {
    *complete = false;
    return points;
  }
  for (const mpq_class& at : breaks) {
    for (const int sign : {1, -1}) {
      for (const int side : {1, -1}) {
        ProbePoint point = points[0];
        for (size_t i = 0; i < point.values.size(); ++i) {
          // Different symbols at different distances, so that they are not equal by chance.
          point.values[i] = sign * at + mpq_class(side * static_cast<long>(i + 1), 1 << 20);
        }
        points.push_back(std::move(point));
      }
    }
  }
  return points;
}

}  // namespace pith::grade
