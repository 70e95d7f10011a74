// Numeric evaluation of expressions with a tracked error bound, and the comparison of two expressions by it.
//
// Values are complex numbers of `precision` bits (MPFR and MPC); beside each value stands a bound on its absolute
// error. Two values are told apart only where they differ by more than their bounds, and taken for the same only where
// the bounds are at least kSureBits smaller than the values: there is no fixed tolerance.
#pragma once

#include <mpc.h>

#include <cstdint>

#include "grade/expression.h"
#include "grade/probe_points.h"
#include "grade/work_budget.h"

namespace pith::grade {

enum class Sameness : uint8_t { kSame, kDifferent, kUnknown };

// A complex number that owns its MPC value.
class Complex {
 public:
  explicit Complex(mpfr_prec_t precision);
  Complex(const Complex& other);
  Complex(Complex&& other) noexcept;
  Complex& operator=(Complex other) noexcept;
  ~Complex();

  mpc_ptr get() { return value_; }
  mpc_srcptr get() const { return value_; }
  mpfr_ptr real() { return mpc_realref(value_); }
  mpfr_srcptr real() const { return mpc_realref(value_); }
  mpfr_ptr imag() { return mpc_imagref(value_); }
  mpfr_srcptr imag() const { return mpc_imagref(value_); }
  bool is_real() const { return mpfr_zero_p(mpc_imagref(value_)) != 0; }
  mpfr_prec_t precision() const { return mpfr_get_prec(mpc_realref(value_)); }

 private:
  mpc_t value_;
};

enum class ProbeState : uint8_t { kValue, kUndefined, kTooHard };

struct Probed {
  ProbeState state = ProbeState::kUndefined;
  Complex value;
  double error = 0;  // log2 of a bound on the absolute error
};

// The value of `expr` at a point. Structures and words have none (kTooHard).
Probed EvaluateAt(const Expr& expr, const ProbePoint& point, mpfr_prec_t precision, WorkBudget* budget);

// Whether two values are the same number.
Sameness CompareProbed(const Probed& a, const Probed& b);

// Whether two value expressions are equal wherever both are real (or, at positive values of the symbols, complex).
Sameness CompareByProbing(const Expr& a, const Expr& b, WorkBudget* budget);

// Whether a == c * b for a constant c other than zero; `sign` is the sign of c where it is real, else 0.
Sameness CompareProportional(const Expr& a, const Expr& b, int* sign, WorkBudget* budget);

// The order of two real constants: -1, 0 (kSame) or 1 in `order`; kUnknown when not real or not decided.
Sameness CompareOrder(const Expr& a, const Expr& b, int* order, WorkBudget* budget);

}  // namespace pith::grade
