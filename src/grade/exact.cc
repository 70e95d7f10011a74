#include "grade/exact.h"

#include <algorithm>
#include <utility>

namespace pith::grade {

namespace {

constexpr long kMaxFactorial = 4000;
constexpr long kMaxBinomial = 4000;

ExactValue Rational(mpq_class value) { return {ExactState::kRational, std::move(value)}; }
ExactValue Of(ExactState state) { return {state, {}}; }

bool IsInteger(const mpq_class& x) { return x.get_den() == 1; }
bool FitsInt(const mpq_class& x) { return IsInteger(x) && x.get_num().fits_sint_p(); }

// Units of work of an operation on numbers of so many bits (a product and the reduction of a fraction).
int64_t CostOf(int64_t bits) {
  const int64_t limbs = bits / 64 + 1;
  return 1 + limbs * limbs / 40;
}

class Evaluator {
 public:
  explicit Evaluator(WorkBudget* budget) : budget_(budget) {}

  bool Spend() { return budget_->Spend(1); }

  // The value of a node whose arguments have these values.
  ExactValue Apply(const Expr& expr, const std::vector<ExactValue>& args) {
    for (const ExactValue& arg : args) {
      if (arg.state == ExactState::kUndefined) return Of(ExactState::kUndefined);
    }
    bool other = false;
    for (const ExactValue& arg : args) {
      if (arg.state == ExactState::kTooLarge) return Of(ExactState::kTooLarge);
      other |= arg.state == ExactState::kOther;
    }
    if (expr.kind == ExprKind::kUndefined) return Of(ExactState::kUndefined);
    if (expr.kind == ExprKind::kNumber) return Rational(expr.number);
    if (other) {
      // 0 / 0 inside is undefined whatever stands beside it; a quotient by an exact zero too.
      if (expr.kind == ExprKind::kQuotient && args[1].state == ExactState::kRational && args[1].value == 0) {
        return Of(ExactState::kUndefined);
      }
      return Of(ExactState::kOther);
    }
    switch (expr.kind) {
      case ExprKind::kSum: return Sum(args);
      case ExprKind::kProduct: return Product(args);
      case ExprKind::kQuotient: return Quotient(args[0].value, args[1].value);
      case ExprKind::kPower: return Power(args[0].value, args[1].value);
      case ExprKind::kFunction: return Function(expr.name, args);
      case ExprKind::kQuantity:
        if (expr.name == "percent") return Quotient(args[0].value, 100);
        if (expr.name == "degree") return Of(ExactState::kOther);
        return args[0];
      default: return Of(ExactState::kOther);
    }
  }

 private:
  ExactValue Checked(mpq_class value) {
    const int64_t bits = BitsOf(value);
    if (bits > kMaxExactBits || !budget_->Spend(CostOf(bits))) return Of(ExactState::kTooLarge);
    return Rational(std::move(value));
  }

  ExactValue Sum(const std::vector<ExactValue>& args) {
    ExactValue total = Rational(0);
    for (const ExactValue& arg : args) {
      total = Checked(mpq_class(total.value + arg.value));
      if (total.state != ExactState::kRational) break;
    }
    return total;
  }

  ExactValue Product(const std::vector<ExactValue>& args) {
    ExactValue total = Rational(1);
    for (const ExactValue& arg : args) {
      total = Checked(mpq_class(total.value * arg.value));
      if (total.state != ExactState::kRational) break;
    }
    return total;
  }

  ExactValue Quotient(const mpq_class& a, const mpq_class& b) {
    if (b == 0) return Of(ExactState::kUndefined);
    return Checked(mpq_class(a / b));
  }

  ExactValue Power(const mpq_class& base, const mpq_class& exponent) {
    if (!IsInteger(exponent)) return Root(base, exponent);
    if (base == 0) {
      if (exponent < 0) return Of(ExactState::kUndefined);
      return Rational(exponent == 0 ? 1 : 0);
    }
    if (base == 1) return Rational(1);
    if (base == -1) return Rational(mpz_even_p(exponent.get_num().get_mpz_t()) != 0 ? 1 : -1);
    if (!FitsInt(exponent)) return Of(ExactState::kTooLarge);
    const long n = exponent.get_num().get_si();
    const int64_t bits = BitsOf(base);
    if (std::labs(n) > kMaxExactBits || bits * std::labs(n) > kMaxExactBits + bits) return Of(ExactState::kTooLarge);
    if (!budget_->Spend(CostOf(bits * std::labs(n)))) return Of(ExactState::kTooLarge);
    mpz_class num;
    mpz_class den;
    mpz_pow_ui(num.get_mpz_t(), base.get_num_mpz_t(), static_cast<unsigned long>(std::labs(n)));
    mpz_pow_ui(den.get_mpz_t(), base.get_den_mpz_t(), static_cast<unsigned long>(std::labs(n)));
    mpq_class value = n >= 0 ? mpq_class(num, den) : mpq_class(den, num);
    value.canonicalize();
    return Rational(std::move(value));
  }

  // x^(p/q) where x is a perfect q-th power.
  ExactValue Root(const mpq_class& base, const mpq_class& exponent) {
    if (!exponent.get_den().fits_sint_p()) return Of(ExactState::kOther);
    const long index = exponent.get_den().get_si();
    if (index > 64 || (base < 0 && index % 2 == 0)) return Of(ExactState::kOther);
    if (base == 0) return exponent > 0 ? Rational(0) : Of(ExactState::kUndefined);
    if (!budget_->Spend(4 * CostOf(BitsOf(base)))) return Of(ExactState::kTooLarge);
    mpz_class num;
    mpz_class den;
    if (mpz_root(num.get_mpz_t(), base.get_num_mpz_t(), static_cast<unsigned long>(index)) == 0 ||
        mpz_root(den.get_mpz_t(), base.get_den_mpz_t(), static_cast<unsigned long>(index)) == 0) {
      return Of(ExactState::kOther);
    }
    mpq_class root(num, den);
    root.canonicalize();
    return Power(root, mpq_class(exponent.get_num()));
  }

  ExactValue Function(const std::string& name, const std::vector<ExactValue>& args) {
    const mpq_class& x = args[0].value;
    if (name == "factorial" && args.size() == 1) {
      if (!IsInteger(x)) return Of(ExactState::kOther);
      if (x < 0) return Of(ExactState::kUndefined);
      if (x > kMaxFactorial) return Of(ExactState::kTooLarge);
      const unsigned long n = x.get_num().get_ui();
      if (!budget_->Spend(static_cast<int64_t>(n) / 2)) return Of(ExactState::kTooLarge);
      mpz_class value;
      mpz_fac_ui(value.get_mpz_t(), n);
      return Checked(mpq_class(value));
    }
    if (name == "binom" && args.size() == 2) {
      const mpq_class& k = args[1].value;
      if (!FitsInt(x) || !FitsInt(k) || x < 0 || k < 0) return Of(ExactState::kOther);
      if (k > x) return Rational(0);
      if (x > kMaxBinomial) return Of(ExactState::kTooLarge);
      if (!budget_->Spend(static_cast<int64_t>(x.get_num().get_si()))) return Of(ExactState::kTooLarge);
      mpz_class value;
      mpz_bin_uiui(value.get_mpz_t(), x.get_num().get_ui(), k.get_num().get_ui());
      return Checked(mpq_class(value));
    }
    if (name == "mod" && args.size() == 2) {
      const mpq_class& m = args[1].value;
      if (!IsInteger(x) || !IsInteger(m)) return Of(ExactState::kOther);
      if (m == 0) return Of(ExactState::kUndefined);
      mpz_class rest;
      mpz_mod(rest.get_mpz_t(), x.get_num_mpz_t(), m.get_num_mpz_t());
      return Rational(mpq_class(rest));
    }
    if (name == "sqrt" && args.size() == 1) return Root(x, mpq_class(1, 2));
    if (name == "cbrt" && args.size() == 1) return Root(x, mpq_class(1, 3));
    if (name == "abs" && args.size() == 1) return Rational(mpq_class(abs(x)));
    if ((name == "floor" || name == "ceil") && args.size() == 1) {
      mpz_class value;
      if (name == "floor") {
        mpz_fdiv_q(value.get_mpz_t(), x.get_num_mpz_t(), x.get_den_mpz_t());
      } else {
        mpz_cdiv_q(value.get_mpz_t(), x.get_num_mpz_t(), x.get_den_mpz_t());
      }
      return Rational(mpq_class(value));
    }
    if (name == "min" || name == "max") {
      mpq_class best = x;
      for (const ExactValue& arg : args) {
        if (name == "min" ? arg.value < best : arg.value > best) best = arg.value;
      }
      return Rational(best);
    }
    if (name == "gcd" || name == "lcm") return GcdOrLcm(name == "gcd", args);
    if (name == "exp" && x == 0) return Rational(1);
    if (name == "log" && args.size() == 2) return LogToBase(x, args[1].value);
    if (name == "log" && x == 1) return Rational(0);
    return Of(ExactState::kOther);
  }

  ExactValue GcdOrLcm(bool gcd, const std::vector<ExactValue>& args) {
    mpz_class total = gcd ? 0 : 1;
    for (const ExactValue& arg : args) {
      if (!IsInteger(arg.value)) return Of(ExactState::kOther);
      const mpz_class n = arg.value.get_num();
      if (gcd) {
        mpz_gcd(total.get_mpz_t(), total.get_mpz_t(), n.get_mpz_t());
      } else {
        mpz_lcm(total.get_mpz_t(), total.get_mpz_t(), n.get_mpz_t());
      }
      const ExactValue checked = Checked(mpq_class(total));
      if (checked.state != ExactState::kRational) return checked;
    }
    return Rational(mpq_class(total));
  }

  // log_b(x) where x is a power of b with a small integer exponent.
  ExactValue LogToBase(const mpq_class& x, const mpq_class& base) {
    if (x <= 0 || base <= 1 || BitsOf(x) > 2048 || BitsOf(base) > 2048) return Of(ExactState::kOther);
    mpq_class power = 1;
    const bool small = x < 1;
    const mpq_class target = small ? mpq_class(1 / x) : x;
    for (long n = 0; n <= 2048 && power <= target; ++n) {
      if (power == target) return Rational(mpq_class(small ? -n : n));
      if (!budget_->Spend(CostOf(BitsOf(power)))) return Of(ExactState::kTooLarge);
      power *= base;
    }
    return Of(ExactState::kOther);
  }

  WorkBudget* budget_;
};

// The exponent n of 10^n, or nothing.
bool IsPowerOfTen(const mpq_class& x, int* n) {
  mpq_class rest = x;
  for (*n = 0; *n < 400 && rest > 1; ++*n) rest /= 10;
  for (; *n > -400 && rest > 0 && rest < 1; --*n) rest *= 10;
  return rest == 1;
}

// The number; a decimal literal times a power of ten keeps the digits that it was written with.
ExprPtr WithDigits(const Expr& expr, const std::vector<ExprPtr>& args, const mpq_class& value) {
  auto node = std::make_shared<Expr>(*MakeNumber(value));
  if (expr.kind == ExprKind::kProduct && args.size() == 2 && args[0]->kind == ExprKind::kNumber &&
      args[1]->kind == ExprKind::kNumber && args[0]->decimals > 0) {
    int n = 0;
    const bool negation = args[1]->number == -1;
    if (negation || (BitsOf(args[1]->number) < 1500 && IsPowerOfTen(args[1]->number, &n))) {
      node->decimals = std::max(args[0]->decimals - n, 0);
      node->significant = args[0]->significant;
    }
  }
  return node;
}

struct Folded {
  ExprPtr expr;
  ExactValue value;
};

Folded Fold(const ExprPtr& expr, Evaluator* evaluator, bool* too_large) {
  if (!evaluator->Spend()) {
    *too_large = true;
    return {expr, {ExactState::kTooLarge, {}}};
  }
  std::vector<ExactValue> values;
  std::vector<ExprPtr> args;
  values.reserve(expr->args.size());
  args.reserve(expr->args.size());
  bool changed = false;
  for (const ExprPtr& arg : expr->args) {
    Folded folded = Fold(arg, evaluator, too_large);
    changed |= folded.expr != arg;
    args.push_back(std::move(folded.expr));
    values.push_back(std::move(folded.value));
  }
  Folded result;
  result.value = IsValueKind(expr->kind) || expr->kind == ExprKind::kQuantity ? evaluator->Apply(*expr, values)
                                                                              : ExactValue{ExactState::kOther, {}};
  if (result.value.state == ExactState::kTooLarge) *too_large = true;
  result.expr = expr;
  if (expr->kind == ExprKind::kNumber) return result;
  if (result.value.state == ExactState::kRational && IsValueKind(expr->kind)) {
    result.expr = WithDigits(*expr, args, result.value.value);
  } else if (result.value.state == ExactState::kUndefined) {
    result.expr = MakeNode(ExprKind::kUndefined, {});
  } else if (changed) {
    auto node = std::make_shared<Expr>(*expr);
    node->args = std::move(args);
    result.expr = node;
  }
  return result;
}

}  // namespace

int64_t BitsOf(const mpq_class& value) {
  return static_cast<int64_t>(
      std::max(mpz_sizeinbase(value.get_num_mpz_t(), 2), mpz_sizeinbase(value.get_den_mpz_t(), 2)));
}

ExactValue EvaluateExact(const Expr& expr, WorkBudget* budget) {
  bool too_large = false;
  Evaluator evaluator(budget);
  const auto shared = std::make_shared<Expr>(expr);
  return Fold(shared, &evaluator, &too_large).value;
}

ExprPtr FoldExact(const ExprPtr& expr, WorkBudget* budget, bool* too_large) {
  Evaluator evaluator(budget);
  return Fold(expr, &evaluator, too_large).expr;
}

}  // namespace pith::grade
