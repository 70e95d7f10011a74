#include "grade/probe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "grade/exact.h"

namespace pith::grade {

namespace {

constexpr mpfr_prec_t kBasePrecision = 256;
constexpr int64_t kMaxConstantBits = 2048;  // constants with more bits are compared exactly or not at all
constexpr double kSureBits = 100;
constexpr double kMaxExponent = 1 << 20;  // of a value, in bits
constexpr double kMaxArgument = 256;      // log2 of the argument of a periodic or exponential function
constexpr double kZero = -std::numeric_limits<double>::infinity();
constexpr double kGuard = 6;  // bits by which an error bound must be exceeded

// MPFR keeps constants per thread; they are freed with the thread.
struct ThreadCache {
  ThreadCache() = default;
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;
  ~ThreadCache() { mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE); }
  void Touch() {}
};

double Log2(mpfr_srcptr x) {
  if (mpfr_zero_p(x) != 0) return kZero;
  long exponent = 0;
  const double mantissa = mpfr_get_d_2exp(&exponent, x, MPFR_RNDN);
  return std::log2(std::fabs(mantissa)) + static_cast<double>(exponent);
}

// log2 of the absolute value, within 1/2.
double Log2(const Complex& z) {
  const double re = Log2(z.real());
  const double im = Log2(z.imag());
  return std::max(re, im) + (re == kZero || im == kZero ? 0.0 : 0.5);
}

// How much more an operation costs than at kBasePrecision (measured: about the power 3/2 of the bits).
int64_t CostFactor(mpfr_prec_t precision) {
  const double ratio = static_cast<double>(precision) / static_cast<double>(kBasePrecision);
  return static_cast<int64_t>(std::ceil(ratio * std::sqrt(ratio)));
}

class Evaluator {
 public:
  Evaluator(const ProbePoint& point, mpfr_prec_t precision, WorkBudget* budget)
      : point_(point), precision_(precision), budget_(budget) {
    static thread_local ThreadCache cache;
    cache.Touch();
  }

  Probed Eval(const Expr& expr) {
    if (!Spend(1)) return Fail(ProbeState::kTooHard);
    switch (expr.kind) {
      case ExprKind::kNumber: return FromRational(expr.number);
      case ExprKind::kSymbol: return Symbol(expr.name);
      case ExprKind::kSum:
      case ExprKind::kProduct: {
        Probed total = Eval(*expr.args[0]);
        for (size_t i = 1; i < expr.args.size() && total.state == ProbeState::kValue; ++i) {
          const Probed next = Eval(*expr.args[i]);
          total = expr.kind == ExprKind::kSum ? Add(total, next) : Multiply(total, next);
        }
        return total;
      }
      case ExprKind::kQuotient: return Multiply(Eval(*expr.args[0]), Invert(Eval(*expr.args[1])));
      case ExprKind::kPower: return Power(expr);
      case ExprKind::kFunction: return Function(expr);
      case ExprKind::kQuantity: {
        Probed value = Eval(*expr.args[0]);
        if (expr.name == "percent") return Multiply(value, FromRational(mpq_class(1, 100)));
        if (expr.name == "degree") return Multiply(Multiply(value, Pi()), FromRational(mpq_class(1, 180)));
        return value;
      }
      case ExprKind::kUndefined: return Fail(ProbeState::kUndefined);
      default: return Fail(ProbeState::kTooHard);
    }
  }

  // The largest number of bits between two terms of a sum: a precision below it loses the smaller one.
  double spread() const { return spread_; }

  Probed Add(const Probed& a, const Probed& b) {
    if (const ProbeState bad = Bad(a, b); bad != ProbeState::kValue) return Fail(bad);
    if (const double spread = std::fabs(Log2(a.value) - Log2(b.value)); std::isfinite(spread)) {
      spread_ = std::max(spread_, spread);
    }
    Probed sum = New();
    mpc_add(sum.value.get(), a.value.get(), b.value.get(), MPC_RNDNN);
    return Finish(std::move(sum), std::max(a.error, b.error) + 1);
  }

  Probed Multiply(const Probed& a, const Probed& b) {
    if (const ProbeState bad = Bad(a, b); bad != ProbeState::kValue) return Fail(bad);
    Probed product = New();
    mpc_mul(product.value.get(), a.value.get(), b.value.get(), MPC_RNDNN);
    const double error = std::max({a.error + Log2(b.value), b.error + Log2(a.value), a.error + b.error}) + 1.6;
    return Finish(std::move(product), error);
  }

  Probed Invert(const Probed& a) {
    if (a.state != ProbeState::kValue) return Fail(a.state);
    if (IsZero(a)) return Fail(ProbeState::kUndefined);
    Probed inverse = New();
    mpc_ui_div(inverse.value.get(), 1, a.value.get(), MPC_RNDNN);
    return Finish(std::move(inverse), a.error - 2 * Log2(a.value) + 2);
  }

 private:
  bool Spend(int64_t units) { return budget_->Spend(units * CostFactor(precision_)); }
  Probed New() const { return {ProbeState::kValue, Complex(precision_), 0}; }
  Probed Fail(ProbeState state) const { return {state, Complex(MPFR_PREC_MIN), 0}; }

  static ProbeState Bad(const Probed& a, const Probed& b) {
    if (a.state == ProbeState::kTooHard || b.state == ProbeState::kTooHard) return ProbeState::kTooHard;
    if (a.state == ProbeState::kUndefined || b.state == ProbeState::kUndefined) return ProbeState::kUndefined;
    return ProbeState::kValue;
  }

  // Not to be told from zero.
  static bool IsZero(const Probed& a) { return Log2(a.value) <= a.error + kGuard; }

  // Adds the rounding of the result to its error, drops parts that are noise, and refuses what is out of range.
  Probed Finish(Probed result, double error) {
    if (mpfr_number_p(result.value.real()) == 0 || mpfr_number_p(result.value.imag()) == 0) {
      return Fail(ProbeState::kTooHard);
    }
    const double size = Log2(result.value);
    if (size > kMaxExponent || (size != kZero && size < -kMaxExponent)) return Fail(ProbeState::kTooHard);
    result.error = std::max(error, size - static_cast<double>(precision_) + 1);
    if (std::isnan(result.error)) return Fail(ProbeState::kTooHard);
    if (Log2(result.value.imag()) <= result.error + kGuard) mpfr_set_zero(result.value.imag(), 1);
    if (Log2(result.value.real()) <= result.error + kGuard) mpfr_set_zero(result.value.real(), 1);
    return result;
  }

  Probed FromRational(const mpq_class& number) {
    if (BitsOf(number) > 4 * kMaxExactBits) return Fail(ProbeState::kTooHard);
    Probed result = New();
    const int inexact = mpfr_set_q(result.value.real(), number.get_mpq_t(), MPFR_RNDN);
    mpfr_set_zero(result.value.imag(), 1);
    result.error = inexact == 0 ? kZero : Log2(result.value) - static_cast<double>(precision_);
    return result;
  }

  Probed Pi() {
    Probed result = New();
    mpfr_const_pi(result.value.real(), MPFR_RNDN);
    mpfr_set_zero(result.value.imag(), 1);
    return Finish(std::move(result), kZero);
  }

  Probed Imaginary() {
    Probed result = New();
    mpc_set_ui_ui(result.value.get(), 0, 1, MPC_RNDNN);
    return Finish(std::move(result), kZero);
  }

  Probed Symbol(const std::string& name) {
    if (name == "pi") return Pi();
    if (name == "i") return Imaginary();
    if (name == "e") return Exp(FromRational(1));
    if (name == "infinity") return Fail(ProbeState::kUndefined);
    for (size_t i = 0; i < point_.names.size(); ++i) {
      if (point_.names[i] == name) return FromRational(point_.values[i]);
    }
    return Fail(ProbeState::kTooHard);
  }

  Probed Exp(const Probed& z) {
    if (z.state != ProbeState::kValue) return Fail(z.state);
    if (!Spend(z.value.is_real() ? 20 : 60)) return Fail(ProbeState::kTooHard);
    if (Log2(z.value) > 24) return Fail(ProbeState::kTooHard);
    Probed result = New();
    if (z.value.is_real()) {
      mpfr_exp(result.value.real(), z.value.real(), MPFR_RNDN);
      mpfr_set_zero(result.value.imag(), 1);
    } else {
      mpc_exp(result.value.get(), z.value.get(), MPC_RNDNN);
    }
    const double error = std::max(z.error, kZero) + Log2(result.value) + 1;
    return z.error > 0 ? Fail(ProbeState::kTooHard) : Finish(std::move(result), error);
  }

  Probed Log(const Probed& z) {
    if (z.state != ProbeState::kValue) return Fail(z.state);
    if (!Spend(z.value.is_real() ? 20 : 80)) return Fail(ProbeState::kTooHard);
    if (IsZero(z)) return Fail(ProbeState::kUndefined);
    Probed result = New();
    if (z.value.is_real() && mpfr_sgn(z.value.real()) > 0) {
      mpfr_log(result.value.real(), z.value.real(), MPFR_RNDN);
      mpfr_set_zero(result.value.imag(), 1);
    } else {
      mpc_log(result.value.get(), z.value.get(), MPC_RNDNN);
    }
    return Finish(std::move(result), z.error - Log2(z.value) + 2);
  }

  Probed Sqrt(const Probed& z) {
    if (z.state != ProbeState::kValue) return Fail(z.state);
    if (!Spend(4)) return Fail(ProbeState::kTooHard);
    Probed result = New();
    mpc_sqrt(result.value.get(), z.value.get(), MPC_RNDNN);
    const double error = IsZero(z) ? (std::max(z.error, Log2(z.value)) + 1) / 2 : z.error - Log2(z.value) / 2 + 1;
    return Finish(std::move(result), error);
  }

  Probed PowerOfInteger(const Probed& base, long n) {
    if (base.state != ProbeState::kValue) return Fail(base.state);
    if (!Spend(2 + static_cast<int64_t>(std::log2(std::labs(n) + 1)))) return Fail(ProbeState::kTooHard);
    if (n == 0) return FromRational(1);
    if (IsZero(base)) {
      if (n < 0) return Fail(ProbeState::kUndefined);
      Probed zero = New();
      mpc_set_ui(zero.value.get(), 0, MPC_RNDNN);
      return Finish(std::move(zero), std::max(base.error, Log2(base.value)) + 1 > 0
                                         ? std::numeric_limits<double>::infinity()
                                         : (std::max(base.error, Log2(base.value)) + 1) * static_cast<double>(n));
    }
    const double size = Log2(base.value);
    if (std::fabs(size) * static_cast<double>(std::labs(n)) > kMaxExponent) return Fail(ProbeState::kTooHard);
    Probed result = New();
    if (base.value.is_real()) {
      mpfr_pow_si(result.value.real(), base.value.real(), n, MPFR_RNDN);
      mpfr_set_zero(result.value.imag(), 1);
    } else {
      // Repeated squaring: bounded, unlike the exact cases of a general power.
      Probed square = base;
      Probed total = FromRational(1);
      for (unsigned long rest = static_cast<unsigned long>(std::labs(n)); rest > 0; rest >>= 1) {
        if ((rest & 1) != 0) total = Multiply(total, square);
        if (rest > 1) square = Multiply(square, square);
      }
      return n < 0 ? Invert(total) : total;
    }
    const double relative = base.error - size + std::log2(std::labs(n)) + 1;
    if (relative > -8) return Fail(ProbeState::kTooHard);
    const double error = Log2(result.value) + relative + 1;
    return Finish(std::move(result), error);
  }

  Probed Power(const Expr& expr) {
    const Probed base = Eval(*expr.args[0]);
    // A rational exponent is one number: the trees are folded.
    if (expr.args[1]->kind == ExprKind::kNumber) {
      const mpq_class& q = expr.args[1]->number;
      if (q.get_den() == 1) {
        if (!q.get_num().fits_sint_p()) return Fail(ProbeState::kTooHard);
        return PowerOfInteger(base, q.get_num().get_si());
      }
      if (q == mpq_class(1, 2)) return Sqrt(base);
      // A root of odd index of a negative number is real.
      if (base.state == ProbeState::kValue && base.value.is_real() && mpfr_sgn(base.value.real()) < 0 &&
          mpz_odd_p(q.get_den_mpz_t()) != 0) {
        Probed positive = base;
        mpfr_neg(positive.value.real(), positive.value.real(), MPFR_RNDN);
        Probed root = GeneralPower(positive, FromRational(q));
        if (root.state == ProbeState::kValue && mpz_odd_p(q.get_num_mpz_t()) != 0) {
          mpfr_neg(root.value.real(), root.value.real(), MPFR_RNDN);
        }
        return root;
      }
      return GeneralPower(base, FromRational(q));
    }
    return GeneralPower(base, Eval(*expr.args[1]));
  }

  Probed GeneralPower(const Probed& base, const Probed& exponent) {
    if (const ProbeState bad = Bad(base, exponent); bad != ProbeState::kValue) return Fail(bad);
    if (IsZero(base)) {
      const bool positive = exponent.value.is_real() && mpfr_sgn(exponent.value.real()) > 0;
      return positive ? FromRational(0) : Fail(ProbeState::kUndefined);
    }
    return Exp(Multiply(exponent, Log(base)));
  }

  Probed SinOrCos(const Probed& z, bool sine) {
    if (z.state != ProbeState::kValue) return Fail(z.state);
    if (!Spend(z.value.is_real() ? 25 : 100)) return Fail(ProbeState::kTooHard);
    const double imag = std::fabs(mpfr_get_d(z.value.imag(), MPFR_RNDN));
    if (Log2(z.value) > kMaxArgument || imag > 1e5 || z.error > 0) return Fail(ProbeState::kTooHard);
    Probed result = New();
    if (z.value.is_real()) {
      if (sine) {
        mpfr_sin(result.value.real(), z.value.real(), MPFR_RNDN);
      } else {
        mpfr_cos(result.value.real(), z.value.real(), MPFR_RNDN);
      }
      mpfr_set_zero(result.value.imag(), 1);
    } else if (sine) {
      mpc_sin(result.value.get(), z.value.get(), MPC_RNDNN);
    } else {
      mpc_cos(result.value.get(), z.value.get(), MPC_RNDNN);
    }
    return Finish(std::move(result), z.error + imag * 1.5 + 1);
  }

  Probed Negated(Probed z) {
    if (z.state == ProbeState::kValue) mpc_neg(z.value.get(), z.value.get(), MPC_RNDNN);
    return z;
  }
  Probed One() { return FromRational(1); }
  Probed Half(const Probed& z) { return Multiply(z, FromRational(mpq_class(1, 2))); }

  // asin z = -i log(i z + sqrt(1 - z^2))
  Probed ArcSin(const Probed& z) {
    const Probed root = Sqrt(Add(One(), Negated(Multiply(z, z))));
    return Negated(Multiply(Imaginary(), Log(Add(Multiply(Imaginary(), z), root))));
  }
  // atan z = (i / 2) (log(1 - i z) - log(1 + i z))
  Probed ArcTan(const Probed& z) {
    const Probed iz = Multiply(Imaginary(), z);
    return Half(Multiply(Imaginary(), Add(Log(Add(One(), Negated(iz))), Negated(Log(Add(One(), iz))))));
  }
  Probed Sinh(const Probed& z) { return Half(Add(Exp(z), Negated(Exp(Negated(z))))); }
  Probed Cosh(const Probed& z) { return Half(Add(Exp(z), Exp(Negated(z)))); }
  Probed ArSinh(const Probed& z) { return Log(Add(z, Sqrt(Add(Multiply(z, z), One())))); }
  Probed ArCosh(const Probed& z) { return Log(Add(z, Multiply(Sqrt(Add(z, Negated(One()))), Sqrt(Add(z, One()))))); }
  Probed ArTanh(const Probed& z) { return Half(Add(Log(Add(One(), z)), Negated(Log(Add(One(), Negated(z)))))); }

  Probed Gamma(const Probed& z) {
    if (z.state != ProbeState::kValue) return Fail(z.state);
    if (!z.value.is_real() || Log2(z.value) > 7 || !Spend(100 * (1 + precision_ / 1024)))
      return Fail(ProbeState::kTooHard);
    Probed result = New();
    mpfr_gamma(result.value.real(), z.value.real(), MPFR_RNDN);
    mpfr_set_zero(result.value.imag(), 1);
    if (mpfr_number_p(result.value.real()) == 0) return Fail(ProbeState::kUndefined);
    const double error = z.error + std::max(Log2(result.value), 0.0) + 16;
    return Finish(std::move(result), error);
  }

  // An unknown function: a number that depends on its name and argument and on nothing else.
  Probed Application(const Expr& expr) {
    uint64_t hash = HashText(0, StructureKey(*expr.args[0]));
    const Expr& argument = *expr.args[1];
    const bool several = argument.kind == ExprKind::kTuple;
    const size_t count = several ? argument.args.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      const Expr& part = several ? *argument.args[i] : argument;
      if (!IsValueKind(part.kind) && part.kind != ExprKind::kQuantity) {
        hash = HashText(hash, StructureKey(part));
        continue;
      }
      const Probed value = Eval(part);
      if (value.state != ProbeState::kValue) return Fail(value.state);
      // The leading bits, rounded: far more than two arguments that differ may have in common.
      const mpfr_prec_t bits = precision_ - static_cast<mpfr_prec_t>(kSureBits);
      for (mpfr_srcptr component : {value.value.real(), value.value.imag()}) {
        const double size = Log2(component);
        if (size == kZero) {
          hash = HashText(hash, "0");
          continue;
        }
        if (value.error > size - static_cast<double>(bits) - kGuard) return Fail(ProbeState::kTooHard);
        Complex rounded(bits);
        mpfr_set(rounded.real(), component, MPFR_RNDN);
        mpz_class digits;
        const mpfr_exp_t exponent = mpfr_get_z_2exp(digits.get_mpz_t(), rounded.real());
        hash = HashText(hash, digits.get_str(62) + "e" + std::to_string(exponent));
      }
    }
    return FromRational(mpq_class(static_cast<unsigned long>(hash >> 8 | 1), 1UL << 54));
  }

  static uint64_t HashText(uint64_t hash, const std::string& text) {
    for (const char c : text) hash = MixBits(hash ^ static_cast<unsigned char>(c));
    return MixBits(hash ^ 0x100);
  }

  Probed Function(const Expr& expr) {
    const std::string& name = expr.name;
    if (name == "apply") return Application(expr);
    if (expr.args.size() == 2) {
      if (name == "log") return Multiply(Log(Eval(*expr.args[0])), Invert(Log(Eval(*expr.args[1]))));
      if (name == "binom") {
        const Probed n = Eval(*expr.args[0]);
        const Probed k = Eval(*expr.args[1]);
        const Probed one = One();
        const Probed below = Multiply(Gamma(Add(k, one)), Gamma(Add(Add(n, Negated(k)), one)));
        return Multiply(Gamma(Add(n, one)), Invert(below));
      }
    }
    if (name == "min" || name == "max") return Extreme(expr, name == "min");
    if (expr.args.size() != 1) return Fail(ProbeState::kTooHard);
    const Probed z = Eval(*expr.args[0]);
    if (z.state != ProbeState::kValue) return Fail(z.state);
    if (name == "sqrt") return Sqrt(z);
    if (name == "exp") return Exp(z);
    if (name == "log") return Log(z);
    if (name == "lg") return Multiply(Log(z), Invert(Log(FromRational(10))));
    if (name == "sin") return SinOrCos(z, true);
    if (name == "cos") return SinOrCos(z, false);
    if (name == "tan") return Multiply(SinOrCos(z, true), Invert(SinOrCos(z, false)));
    if (name == "cot") return Multiply(SinOrCos(z, false), Invert(SinOrCos(z, true)));
    if (name == "sec") return Invert(SinOrCos(z, false));
    if (name == "csc") return Invert(SinOrCos(z, true));
    if (name == "asin") return ArcSin(z);
    if (name == "acos") return Add(Half(Pi()), Negated(ArcSin(z)));
    if (name == "atan") return ArcTan(z);
    if (name == "acot") return Add(Half(Pi()), Negated(ArcTan(z)));
    if (name == "asec") return Add(Half(Pi()), Negated(ArcSin(Invert(z))));
    if (name == "acsc") return ArcSin(Invert(z));
    if (name == "sinh") return Sinh(z);
    if (name == "cosh") return Cosh(z);
    if (name == "tanh") return Multiply(Sinh(z), Invert(Cosh(z)));
    if (name == "coth") return Multiply(Cosh(z), Invert(Sinh(z)));
    if (name == "sech") return Invert(Cosh(z));
    if (name == "csch") return Invert(Sinh(z));
    if (name == "asinh") return ArSinh(z);
    if (name == "acosh") return ArCosh(z);
    if (name == "atanh") return ArTanh(z);
    if (name == "factorial") return Gamma(Add(z, One()));
    if (name == "cbrt") {
      if (!z.value.is_real() || IsZero(z)) return Fail(ProbeState::kTooHard);
      Probed root = New();
      mpfr_cbrt(root.value.real(), z.value.real(), MPFR_RNDN);
      mpfr_set_zero(root.value.imag(), 1);
      return Finish(std::move(root), z.error - Log2(z.value) * 2 / 3 + 1);
    }
    if (name == "abs") {
      Probed result = New();
      mpc_abs(result.value.real(), z.value.get(), MPFR_RNDN);
      mpfr_set_zero(result.value.imag(), 1);
      return Finish(std::move(result), z.error + 1);
    }
    if (name == "floor" || name == "ceil") {
      if (!z.value.is_real() || z.error > -8 || Log2(z.value) > static_cast<double>(precision_) / 2) {
        return Fail(ProbeState::kTooHard);
      }
      Probed nearest = New();
      mpfr_rint(nearest.value.real(), z.value.real(), MPFR_RNDN);
      mpfr_set_zero(nearest.value.imag(), 1);
      nearest.error = kZero;
      Probed difference = Add(z, Negated(nearest));
      if (Log2(difference.value) <= z.error + kGuard) return Fail(ProbeState::kTooHard);  // at a jump
      Probed result = New();
      mpfr_rint(result.value.real(), z.value.real(), name == "floor" ? MPFR_RNDD : MPFR_RNDU);
      mpfr_set_zero(result.value.imag(), 1);
      return Finish(std::move(result), kZero);
    }
    return Fail(ProbeState::kTooHard);
  }

  Probed Extreme(const Expr& expr, bool smallest) {
    Probed best = Eval(*expr.args[0]);
    for (size_t i = 0; i < expr.args.size(); ++i) {
      Probed next = Eval(*expr.args[i]);
      if (const ProbeState bad = Bad(best, next); bad != ProbeState::kValue) return Fail(bad);
      if (!best.value.is_real() || !next.value.is_real()) return Fail(ProbeState::kTooHard);
      const int order = mpfr_cmp(next.value.real(), best.value.real());
      if (smallest ? order < 0 : order > 0) best = std::move(next);
    }
    return best;
  }

  const ProbePoint& point_;
  mpfr_prec_t precision_;
  WorkBudget* budget_;
  double spread_ = 0;
};

int64_t LargestConstant(const Expr& expr) {
  int64_t bits = expr.kind == ExprKind::kNumber ? BitsOf(expr.number) : 0;
  for (const ExprPtr& arg : expr.args) bits = std::max(bits, LargestConstant(*arg));
  return bits;
}

// Bits to compute with so that the constants of both sides can be told apart.
mpfr_prec_t PrecisionFor(const Expr& a, const Expr& b, bool* sure) {
  const int64_t bits = std::max(LargestConstant(a), LargestConstant(b));
  *sure = bits <= kMaxConstantBits;
  return kBasePrecision + 2 * static_cast<mpfr_prec_t>(std::min(bits, kMaxConstantBits));
}

std::vector<std::string> SymbolsOfBoth(const Expr& a, const Expr& b) {
  std::vector<std::string> names = FreeSymbols(a);
  const std::vector<std::string> more = FreeSymbols(b);
  names.insert(names.end(), more.begin(), more.end());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

Complex::Complex(mpfr_prec_t precision) { mpc_init2(value_, precision); }
Complex::Complex(const Complex& other) {
  mpc_init2(value_, other.precision());
  mpc_set(value_, other.value_, MPC_RNDNN);
}
Complex::Complex(Complex&& other) noexcept {
  mpc_init2(value_, MPFR_PREC_MIN);
  mpc_swap(value_, other.value_);
}
Complex& Complex::operator=(Complex other) noexcept {
  mpc_swap(value_, other.value_);
  return *this;
}
Complex::~Complex() { mpc_clear(value_); }

Probed EvaluateAt(const Expr& expr, const ProbePoint& point, mpfr_prec_t precision, WorkBudget* budget) {
  return Evaluator(point, precision, budget).Eval(expr);
}

Sameness CompareProbed(const Probed& a, const Probed& b) {
  if (a.state != ProbeState::kValue || b.state != ProbeState::kValue) return Sameness::kUnknown;
  const mpfr_prec_t precision = a.value.precision();
  Complex difference(precision);
  mpc_sub(difference.get(), a.value.get(), b.value.get(), MPC_RNDNN);
  const double size = std::max(Log2(a.value), Log2(b.value));
  const double error = std::max({a.error, b.error, size - static_cast<double>(precision)}) + 1;
  if (Log2(difference) > error + kGuard) return Sameness::kDifferent;
  // Both are zero to within their errors, or agree in many bits.
  const double reach = size == kZero ? 0.0 : size;
  return error + kSureBits <= reach ? Sameness::kSame : Sameness::kUnknown;
}

namespace {

// Sums whose terms are farther apart are worked out again with more bits.
constexpr double kMaxSpread = 128;
constexpr double kMaxExtraBits = 4096;

// Both sides at a point, with bits enough that no term of a sum is lost.
Sameness ProbeAt(const Expr& a, const Expr& b, const ProbePoint& point, mpfr_prec_t precision, WorkBudget* budget,
                 Probed* left, Probed* right) {
  double extra = 0;
  for (int tries = 0; tries < 3; ++tries) {
    const mpfr_prec_t bits = precision + static_cast<mpfr_prec_t>(extra);
    Evaluator evaluate_a(point, bits, budget);
    Evaluator evaluate_b(point, bits, budget);
    *left = evaluate_a.Eval(a);
    *right = evaluate_b.Eval(b);
    const Sameness same = CompareProbed(*left, *right);
    const double spread = std::max(evaluate_a.spread(), evaluate_b.spread());
    if (same != Sameness::kSame || spread <= kMaxSpread + extra) return same;
    if (spread > kMaxExtraBits) return Sameness::kUnknown;
    extra = spread;
  }
  return Sameness::kUnknown;
}

Sameness ProbeWith(const Expr& a, const Expr& b, const std::vector<std::string>& names, mpfr_prec_t precision,
                   WorkBudget* budget) {
  int same = 0;
  bool complete = true;
  const std::vector<ProbePoint> points = ChooseProbePoints(a, b, names, &complete);
  for (size_t index = 0; index < points.size(); ++index) {
    Probed left{ProbeState::kTooHard, Complex(MPFR_PREC_MIN), 0};
    Probed right = left;
    const Sameness here = ProbeAt(a, b, points[index], precision, budget, &left, &right);
    if (budget->exhausted()) return Sameness::kUnknown;
    if (left.state == ProbeState::kTooHard || right.state == ProbeState::kTooHard) {
      if (names.empty()) return Sameness::kUnknown;
      continue;
    }
    if (left.state != right.state) {
      if (names.empty()) return Sameness::kDifferent;
      continue;
    }
    if (left.state == ProbeState::kUndefined) continue;
    const bool real = left.value.is_real() && right.value.is_real();
    if (here == Sameness::kDifferent && (real || index < kPositivePoints)) return Sameness::kDifferent;
    if (here == Sameness::kSame) ++same;
  }
  return complete && same >= (names.empty() ? 1 : 2) ? Sameness::kSame : Sameness::kUnknown;
}

}  // namespace

Sameness CompareByProbing(const Expr& a, const Expr& b, WorkBudget* budget) {
  const std::vector<std::string> names = SymbolsOfBoth(a, b);
  if (names.size() > 16) return Sameness::kUnknown;
  bool sure = true;
  const mpfr_prec_t precision = PrecisionFor(a, b, &sure);
  // Most of what differs does so in the leading bits.
  if (precision > 2 * kBasePrecision) {
    if (ProbeWith(a, b, names, kBasePrecision, budget) == Sameness::kDifferent) return Sameness::kDifferent;
  }
  const Sameness same = ProbeWith(a, b, names, precision, budget);
  return same == Sameness::kSame && !sure ? Sameness::kUnknown : same;
}

Sameness CompareProportional(const Expr& a, const Expr& b, int* sign, WorkBudget* budget) {
  bool sure = true;
  const mpfr_prec_t precision = PrecisionFor(a, b, &sure);
  const std::vector<std::string> names = SymbolsOfBoth(a, b);
  if (names.empty() || names.size() > 16) return Sameness::kUnknown;
  std::vector<Probed> ratios;
  bool real = true;
  bool complete = true;
  for (const ProbePoint& point : ChooseProbePoints(a, b, names, &complete)) {
    Probed left{ProbeState::kTooHard, Complex(MPFR_PREC_MIN), 0};
    Probed right = left;
    // One bit more than the terms of a sum are apart; where that is too many, no point.
    double extra = 0;
    for (int tries = 0; tries < 2; ++tries) {
      Evaluator evaluate_a(point, precision + static_cast<mpfr_prec_t>(extra), budget);
      Evaluator evaluate_b(point, precision + static_cast<mpfr_prec_t>(extra), budget);
      left = evaluate_a.Eval(a);
      right = evaluate_b.Eval(b);
      const double spread = std::max(evaluate_a.spread(), evaluate_b.spread());
      if (spread <= kMaxSpread + extra) break;
      if (spread > kMaxExtraBits) {
        left.state = ProbeState::kTooHard;
        break;
      }
      extra = spread;
    }
    if (left.state != ProbeState::kValue || right.state != ProbeState::kValue) {
      if (budget->exhausted()) return Sameness::kUnknown;
      continue;
    }
    Evaluator evaluator(point, left.value.precision(), budget);
    Probed ratio = evaluator.Multiply(left, evaluator.Invert(right));
    if (ratio.state != ProbeState::kValue) continue;
    if (Log2(ratio.value) == kZero) return Sameness::kDifferent;
    real &= ratio.value.is_real();
    ratios.push_back(std::move(ratio));
    if (ratios.size() > 1) {
      const Sameness here = CompareProbed(ratios.front(), ratios.back());
      if (here == Sameness::kDifferent) return Sameness::kDifferent;
      if (here == Sameness::kUnknown) ratios.pop_back();
    }
  }
  if (ratios.size() < 3 || !sure || !complete) return Sameness::kUnknown;
  *sign = real ? mpfr_sgn(ratios.front().value.real()) : 0;
  return Sameness::kSame;
}

Sameness CompareOrder(const Expr& a, const Expr& b, int* order, WorkBudget* budget) {
  bool sure = true;
  const mpfr_prec_t precision = PrecisionFor(a, b, &sure);
  const ProbePoint nowhere;
  Probed left{ProbeState::kTooHard, Complex(MPFR_PREC_MIN), 0};
  Probed right = left;
  const Sameness same = ProbeAt(a, b, nowhere, precision, budget, &left, &right);
  if (same == Sameness::kUnknown || !left.value.is_real() || !right.value.is_real()) return Sameness::kUnknown;
  if (same == Sameness::kSame) {
    *order = 0;
    return sure ? Sameness::kSame : Sameness::kUnknown;
  }
  *order = mpfr_cmp(left.value.real(), right.value.real()) < 0 ? -1 : 1;
  return Sameness::kDifferent;
}

}  // namespace pith::grade
