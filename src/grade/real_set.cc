#include "grade/real_set.h"

#include <algorithm>
#include <utility>

#include "grade/exact.h"

namespace pith::grade {

namespace {

constexpr size_t kMaxParts = 64;

ExprPtr Infinity() { return MakeSymbol("infinity"); }
ExprPtr MinusInfinity() { return Negate(MakeSymbol("infinity")); }

// +1 and -1 for the two infinities, 0 for anything else.
int InfinitySign(const Expr& expr) {
  if (expr.kind == ExprKind::kSymbol && expr.name == "infinity") return 1;
  if (expr.kind == ExprKind::kProduct && expr.args.size() == 2 && expr.args[0]->kind == ExprKind::kNumber &&
      InfinitySign(*expr.args[1]) != 0) {
    return expr.args[0]->number < 0 ? -1 : 1;
  }
  return 0;
}

bool IsRealConstant(const Expr& expr) {
  return InfinitySign(expr) != 0 ||
         ((IsValueKind(expr.kind) || expr.kind == ExprKind::kQuantity) && FreeSymbols(expr).empty() &&
          !Contains(expr, ExprKind::kPlusMinus) && !Contains(expr, ExprKind::kUndefined));
}

// The order of two ends; false when it is not decided.
bool Order(const Expr& a, const Expr& b, int* order, WorkBudget* budget) {
  const int infinite_a = InfinitySign(a);
  const int infinite_b = InfinitySign(b);
  if (infinite_a != 0 || infinite_b != 0) {
    *order = infinite_a < infinite_b ? -1 : (infinite_a > infinite_b ? 1 : 0);
    return true;
  }
  if (a.kind == ExprKind::kNumber && b.kind == ExprKind::kNumber) {
    const int sign = cmp(a.number, b.number);
    *order = sign < 0 ? -1 : (sign > 0 ? 1 : 0);
    return budget->Spend(1);
  }
  return CompareOrder(a, b, order, budget) != Sameness::kUnknown;
}

// Sorts, drops empty parts, joins parts that touch.
std::optional<RealSet> Tidy(RealSet parts, WorkBudget* budget) {
  if (parts.size() > kMaxParts) return std::nullopt;
  bool decided = true;
  const auto order = [&](const ExprPtr& a, const ExprPtr& b) {
    int result = 0;
    decided &= Order(*a, *b, &result, budget);
    return result;
  };
  parts.erase(std::remove_if(parts.begin(), parts.end(),
                             [&](const RealPart& part) {
                               const int relation = order(part.low, part.high);
                               return relation > 0 || (relation == 0 && !(part.low_closed && part.high_closed));
                             }),
              parts.end());
  // Insertion: an undecided order must not break a sort.
  RealSet sorted;
  for (RealPart& part : parts) {
    size_t at = sorted.size();
    while (at > 0) {
      const int relation = order(part.low, sorted[at - 1].low);
      if (relation > 0 || (relation == 0 && !part.low_closed)) break;
      --at;
    }
    sorted.insert(sorted.begin() + static_cast<long>(at), std::move(part));
    if (!decided) return std::nullopt;
  }
  RealSet tidy;
  for (RealPart& part : sorted) {
    if (!tidy.empty()) {
      RealPart& last = tidy.back();
      const int gap = order(part.low, last.high);
      if (gap < 0 || (gap == 0 && (part.low_closed || last.high_closed))) {
        const int reach = order(part.high, last.high);
        if (reach > 0) {
          last.high = part.high;
          last.high_closed = part.high_closed;
        } else if (reach == 0) {
          last.high_closed |= part.high_closed;
        }
        continue;
      }
    }
    tidy.push_back(std::move(part));
  }
  if (!decided) return std::nullopt;
  return tidy;
}

std::optional<RealSet> Intersect(const RealSet& a, const RealSet& b, WorkBudget* budget) {
  RealSet parts;
  for (const RealPart& x : a) {
    for (const RealPart& y : b) {
      RealPart part = x;
      int order = 0;
      if (!Order(*x.low, *y.low, &order, budget)) return std::nullopt;
      if (order < 0) {
        part.low = y.low;
        part.low_closed = y.low_closed;
      } else if (order == 0) {
        part.low_closed &= y.low_closed;
      }
      if (!Order(*x.high, *y.high, &order, budget)) return std::nullopt;
      if (order > 0) {
        part.high = y.high;
        part.high_closed = y.high_closed;
      } else if (order == 0) {
        part.high_closed &= y.high_closed;
      }
      parts.push_back(std::move(part));
      if (parts.size() > kMaxParts) return std::nullopt;
    }
  }
  return Tidy(std::move(parts), budget);
}

// The real numbers that are not in `set`.
RealSet Complement(const RealSet& set) {
  RealSet parts;
  ExprPtr low = MinusInfinity();
  bool closed = false;
  for (const RealPart& part : set) {
    if (InfinitySign(*part.low) >= 0) parts.push_back({low, part.low, closed, !part.low_closed});
    low = part.high;
    closed = !part.high_closed;
  }
  if (InfinitySign(*low) <= 0) parts.push_back({low, Infinity(), closed, false});
  return parts;
}

}  // namespace

std::optional<RealSet> SetFromNotation(const Expr& expr, WorkBudget* budget) {
  if (!budget->Spend(1)) return std::nullopt;
  switch (expr.kind) {
    case ExprKind::kSymbol:
      if (expr.name == "\\mathbb R") return RealSet{{MinusInfinity(), Infinity(), false, false}};
      return std::nullopt;
    case ExprKind::kTuple: {
      if (expr.args.size() != 2 || !IsRealConstant(*expr.args[0]) || !IsRealConstant(*expr.args[1]))
        return std::nullopt;
      RealPart part{expr.args[0], expr.args[1], expr.name[0] == '[', expr.name[1] == ']'};
      if (InfinitySign(*part.low) != 0) part.low_closed = false;
      if (InfinitySign(*part.high) != 0) part.high_closed = false;
      return Tidy({part}, budget);
    }
    case ExprKind::kSet: {
      if (expr.name == "where") {
        std::string symbol;
        return SetFromInequality(*expr.args[0], &symbol, budget);
      }
      RealSet parts;
      for (const ExprPtr& arg : expr.args) {
        if (!IsRealConstant(*arg) || InfinitySign(*arg) != 0) return std::nullopt;
        parts.push_back({arg, arg, true, true});
      }
      return Tidy(std::move(parts), budget);
    }
    case ExprKind::kUnion:
    case ExprKind::kIntersection:
    case ExprKind::kDifference: {
      auto total = SetFromNotation(*expr.args[0], budget);
      for (size_t i = 1; total && i < expr.args.size(); ++i) {
        const auto next = SetFromNotation(*expr.args[i], budget);
        if (!next) return std::nullopt;
        if (expr.kind == ExprKind::kUnion) {
          total->insert(total->end(), next->begin(), next->end());
          total = Tidy(std::move(*total), budget);
        } else {
          total = Intersect(*total, expr.kind == ExprKind::kDifference ? Complement(*next) : *next, budget);
        }
      }
      return total;
    }
    default: return std::nullopt;
  }
}

namespace {

std::string Flipped(const std::string& op) {
  if (op == "<") return ">";
  if (op == "<=") return ">=";
  if (op == ">") return "<";
  if (op == ">=") return "<=";
  return op;
}

ExprPtr Substitute(const ExprPtr& expr, const std::string& symbol, const mpq_class& value) {
  if (expr->kind == ExprKind::kSymbol && expr->name == symbol) return MakeNumber(value);
  if (expr->args.empty()) return expr;
  auto node = std::make_shared<Expr>(*expr);
  for (ExprPtr& arg : node->args) arg = Substitute(arg, symbol, value);
  return node;
}

RealSet Beside(const ExprPtr& bound, const std::string& op) {
  if (op == "<") return {{MinusInfinity(), bound, false, false}};
  if (op == "<=") return {{MinusInfinity(), bound, false, true}};
  if (op == ">") return {{bound, Infinity(), false, false}};
  if (op == ">=") return {{bound, Infinity(), true, false}};
  return {{MinusInfinity(), bound, false, false}, {bound, Infinity(), false, false}};  // "!="
}

// Where f op bound; f holds the symbol, the bound does not.
std::optional<RealSet> Solve(const ExprPtr& f, const std::string& op, const ExprPtr& bound, const std::string& symbol,
                             WorkBudget* budget) {
  if (f->kind == ExprKind::kSymbol) return Tidy(Beside(bound, op), budget);
  if (f->kind == ExprKind::kFunction && f->name == "abs" && f->args.size() == 1) {
    if (InfinitySign(*bound) != 0) return std::nullopt;
    int sign = 0;
    if (!Order(*bound, *MakeNumber(0), &sign, budget) || sign < 0) return std::nullopt;
    const ExprPtr opposite = Negate(bound);
    auto above = Solve(f->args[0], op, bound, symbol, budget);
    auto below = Solve(f->args[0], Flipped(op), opposite, symbol, budget);
    if (!above || !below) return std::nullopt;
    if (op == "<" || op == "<=" || op == "!=") return Intersect(*above, *below, budget);
    above->insert(above->end(), below->begin(), below->end());
    return Tidy(std::move(*above), budget);
  }
  // A linear function with rational coefficients.
  mpq_class at[3];
  for (int i = 0; i < 3; ++i) {
    const ExactValue value = EvaluateExact(*Substitute(f, symbol, i * i * 3 + i), budget);  // at 0, 4, 14
    if (value.state != ExactState::kRational) return std::nullopt;
    at[i] = value.value;
  }
  const mpq_class slope = (at[1] - at[0]) / 4;
  if (slope == 0 || at[2] != at[0] + slope * 14) return std::nullopt;
  const ExactValue odd = EvaluateExact(*Substitute(f, symbol, mpq_class(-355, 113)), budget);
  if (odd.state != ExactState::kRational || odd.value != at[0] + slope * mpq_class(-355, 113)) return std::nullopt;
  const ExactValue exact = EvaluateExact(*bound, budget);
  if (exact.state != ExactState::kRational) return std::nullopt;
  return Tidy(Beside(MakeNumber(mpq_class((exact.value - at[0]) / slope)), slope > 0 ? op : Flipped(op)), budget);
}

bool IsInequalityOperator(const std::string& op) {
  return op == "<" || op == "<=" || op == ">" || op == ">=" || op == "!=";
}

std::optional<RealSet> SolveChain(const Expr& expr, std::string* symbol, WorkBudget* budget) {
  const std::vector<std::string> names = FreeSymbols(expr);
  if (names.size() != 1 || (!symbol->empty() && *symbol != names[0])) return std::nullopt;
  *symbol = names[0];
  std::optional<RealSet> total;
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    if (!IsInequalityOperator(expr.operators[i])) return std::nullopt;
    const ExprPtr& left = expr.args[i];
    const ExprPtr& right = expr.args[i + 1];
    if (!IsValueKind(left->kind) || !IsValueKind(right->kind)) return std::nullopt;
    std::optional<RealSet> part;
    if (IsRealConstant(*right)) {
      part = Solve(left, expr.operators[i], right, *symbol, budget);
    } else if (IsRealConstant(*left)) {
      part = Solve(right, Flipped(expr.operators[i]), left, *symbol, budget);
    } else {
      const ExprPtr difference = MakeNode(ExprKind::kSum, {left, Negate(right)});
      part = Solve(difference, expr.operators[i], MakeNumber(0), *symbol, budget);
    }
    if (!part) return std::nullopt;
    total = total ? Intersect(*total, *part, budget) : part;
    if (!total) return std::nullopt;
  }
  return total;
}

}  // namespace

std::optional<RealSet> SetFromInequality(const Expr& expr, std::string* symbol, WorkBudget* budget) {
  if (!budget->Spend(4)) return std::nullopt;
  if (expr.kind == ExprKind::kRelation) return SolveChain(expr, symbol, budget);
  if (expr.kind != ExprKind::kList || expr.args.size() > 16) return std::nullopt;
  RealSet all;
  std::optional<RealSet> common;
  for (const ExprPtr& arg : expr.args) {
    if (arg->kind != ExprKind::kRelation) return std::nullopt;
    const auto part = SolveChain(*arg, symbol, budget);
    if (!part) return std::nullopt;
    all.insert(all.end(), part->begin(), part->end());
    common = common ? Intersect(*common, *part, budget) : part;
    if (!common) return std::nullopt;
  }
  // "x < 1, x > 5" can only mean either; "x > 1, x < 5" means both.
  const bool either = expr.name == "or" || (expr.name == "," && common->empty());
  return either ? Tidy(std::move(all), budget) : common;
}

}  // namespace pith::grade
