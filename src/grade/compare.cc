#include "grade/compare.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "grade/exact.h"
#include "grade/normalize.h"
#include "grade/real_set.h"
#include "grade/units.h"

namespace pith::grade {

namespace {

constexpr size_t kMaxUnordered = 64;
// A decimal stands for a number that has no finite decimal from this many digits on.
// Digits that a decimal has when it stands for a number without a finite one: places after the point and significant
// digits; with one more of these, one fewer of those will do.
constexpr int kMinDecimals = 3;
constexpr int kMinSignificant = 4;

Sameness Of(bool same) { return same ? Sameness::kSame : Sameness::kDifferent; }

// Same if one of them is; unknown before different.
Sameness Either(Sameness a, Sameness b) {
  if (a == Sameness::kSame || b == Sameness::kSame) return Sameness::kSame;
  return a == Sameness::kUnknown || b == Sameness::kUnknown ? Sameness::kUnknown : Sameness::kDifferent;
}

bool HasFiniteDecimal(const mpq_class& x) {
  mpz_class rest = x.get_den();
  for (const unsigned long prime : {2UL, 5UL}) {
    mpz_class factor = prime;
    mpz_remove(rest.get_mpz_t(), rest.get_mpz_t(), factor.get_mpz_t());
  }
  return rest == 1;
}

bool HoldsInfinity(const Expr& expr) {
  if (expr.kind == ExprKind::kSymbol && expr.name == "infinity") return true;
  return std::any_of(expr.args.begin(), expr.args.end(), [](const ExprPtr& arg) { return HoldsInfinity(*arg); });
}

class Comparer {
 public:
  Comparer(const CompareOptions& options, WorkBudget* budget) : options_(options), budget_(budget) {}

  Sameness Compare(const ExprPtr& g, const ExprPtr& p) {
    if (!budget_->Spend(2 + static_cast<int64_t>((g->size + p->size) / 8))) return Sameness::kUnknown;
    // What has no value is equal to nothing, not even to itself written in another way.
    if (Contains(*g, ExprKind::kUndefined) || Contains(*p, ExprKind::kUndefined)) return Sameness::kDifferent;
    if (g->kind == p->kind && StructureKey(*g) == StructureKey(*p)) return Sameness::kSame;
    if (g->kind == ExprKind::kText || p->kind == ExprKind::kText) return CompareText(*g, *p);
    const Sameness structure = CompareStructures(g, p);
    return budget_->exhausted() && structure == Sameness::kDifferent ? Sameness::kUnknown : structure;
  }

 private:
  static bool IsScalar(const Expr& expr) { return IsValueKind(expr.kind) || expr.kind == ExprKind::kQuantity; }

  // Words against words, and against a single letter.
  static Sameness CompareText(const Expr& g, const Expr& p) {
    const auto words = [](const Expr& expr) -> std::string {
      if (expr.kind == ExprKind::kText || expr.kind == ExprKind::kSymbol) return WordsKey(expr.name);
      if (IsAssignment(expr) && expr.args[1]->kind == ExprKind::kText) return WordsKey(expr.args[1]->name);
      return {};
    };
    const std::string key = words(g);
    return Of(!key.empty() && key == words(p));
  }

  Sameness CompareStructures(const ExprPtr& g, const ExprPtr& p) {
    if (IsScalar(*g) && IsScalar(*p)) return CompareScalars(g, p);
    // Names: a record by its names, or its values in order; an assignment by its value.
    if (g->kind == ExprKind::kRecord || p->kind == ExprKind::kRecord) return CompareRecords(g, p);
    const bool assigned_g = IsAssignment(*g);
    const bool assigned_p = IsAssignment(*p);
    if (assigned_g && assigned_p) {
      if (NameKey(*g->args[0]) == NameKey(*p->args[0])) return Compare(g->args[1], p->args[1]);
      return CompareEquations(*g, *p);
    }
    if (assigned_g && p->kind != ExprKind::kRelation) return Compare(g->args[1], p);
    if (assigned_p && g->kind != ExprKind::kRelation) return Compare(g, p->args[1]);
    // Membership: x in S against S.
    const auto membership = [](const Expr& expr) {
      return expr.kind == ExprKind::kRelation && expr.operators.size() == 1 && expr.operators[0] == "in";
    };
    if (membership(*g) && membership(*p)) {
      if (StructureKey(*g->args[0]) != StructureKey(*p->args[0])) return Sameness::kDifferent;
      return Compare(g->args[1], p->args[1]);
    }
    if (membership(*g)) return Compare(g->args[1], p);
    if (membership(*p) && g->kind == ExprKind::kRelation) {
      return CompareRealSets(g, p->args[1]).value_or(Sameness::kDifferent);
    }
    if (membership(*p)) return Compare(g, p->args[1]);

    const bool both_tuples = g->kind == ExprKind::kTuple && p->kind == ExprKind::kTuple;
    if (!both_tuples && (IsSetNotation(*g) || IsSetNotation(*p) || HoldsInequality(*g) || HoldsInequality(*p))) {
      if (const auto sets = CompareRealSets(g, p)) return *sets;
    }
    if (g->kind == ExprKind::kRelation && p->kind == ExprKind::kRelation) return CompareRelations(*g, *p);
    if (g->kind == ExprKind::kRatio || p->kind == ExprKind::kRatio) return CompareRatios(g, p);
    return CompareCollections(g, p);
  }

  static bool IsSetNotation(const Expr& expr) {
    return expr.kind == ExprKind::kUnion || expr.kind == ExprKind::kIntersection ||
           expr.kind == ExprKind::kDifference ||
           (expr.kind == ExprKind::kTuple && expr.args.size() == 2 && expr.name != "()") ||
           (expr.kind == ExprKind::kSet && expr.name == "where") ||
           (expr.kind == ExprKind::kSymbol && expr.name == "\\mathbb R");
  }
  static bool HoldsInequality(const Expr& expr) {
    if (expr.kind == ExprKind::kList) {
      return std::all_of(expr.args.begin(), expr.args.end(), [](const ExprPtr& arg) { return HoldsInequality(*arg); });
    }
    return expr.kind == ExprKind::kRelation &&
           std::none_of(expr.operators.begin(), expr.operators.end(), [](const auto& op) {
             return op == "=" || op == "in" || op == "==" || op == "~=" || op == "notin";
           });
  }

  // Both sides as sets of reals; nothing when one of them is none.
  std::optional<Sameness> CompareRealSets(const ExprPtr& g, const ExprPtr& p) {
    std::string symbol_g;
    std::string symbol_p;
    auto set_g = SetFromNotation(*g, budget_);
    const bool notation_g = set_g.has_value();
    if (!set_g) set_g = SetFromInequality(*g, &symbol_g, budget_);
    if (!set_g) return std::nullopt;
    auto set_p = SetFromNotation(*p, budget_);
    const bool notation_p = set_p.has_value();
    if (!set_p) set_p = SetFromInequality(*p, &symbol_p, budget_);
    if (!set_p) return std::nullopt;
    if (options_.directed && notation_g && !notation_p) return Sameness::kDifferent;
    if (!symbol_g.empty() && !symbol_p.empty() && symbol_g != symbol_p) return Sameness::kDifferent;
    if (set_g->size() != set_p->size()) return Sameness::kDifferent;
    Sameness total = Sameness::kSame;
    for (size_t i = 0; i < set_g->size(); ++i) {
      const RealPart& a = (*set_g)[i];
      const RealPart& b = (*set_p)[i];
      if (a.low_closed != b.low_closed || a.high_closed != b.high_closed) return Sameness::kDifferent;
      for (const Sameness same : {CompareScalars(a.low, b.low), CompareScalars(a.high, b.high)}) {
        if (same == Sameness::kDifferent) return same;
        if (same == Sameness::kUnknown) total = same;
      }
    }
    return total;
  }

  struct Pair {
    ExprPtr low;
    ExprPtr high;
    std::string op;  // "<", "<=", "!=", "=", "=="
  };
  static std::vector<Pair> PairsOf(const Expr& relation) {
    std::vector<Pair> pairs;
    for (size_t i = 0; i < relation.operators.size(); ++i) {
      const std::string& op = relation.operators[i];
      const bool flipped = op == ">" || op == ">=";
      pairs.push_back({relation.args[flipped ? i + 1 : i], relation.args[flipped ? i : i + 1],
                       op == ">" ? "<" : (op == ">=" ? "<=" : op)});
    }
    return pairs;
  }

  Sameness ComparePairs(const Pair& a, const Pair& b) {
    if (a.op != b.op || !IsScalar(*a.low) || !IsScalar(*a.high) || !IsScalar(*b.low) || !IsScalar(*b.high)) {
      return Sameness::kDifferent;
    }
    // The same left side: the right sides are compared as values.
    if (a.op == "=" && FreeSymbols(*a.high).empty() && FreeSymbols(*b.high).empty() &&
        StructureKey(*a.low) == StructureKey(*b.low)) {
      return CompareScalars(a.high, b.high);
    }
    const ExprPtr f = MakeNode(ExprKind::kSum, {a.high, Negate(a.low)});
    const ExprPtr g = MakeNode(ExprKind::kSum, {b.high, Negate(b.low)});
    if (Contains(*f, ExprKind::kText) || Contains(*g, ExprKind::kText)) return Sameness::kDifferent;
    if (FreeSymbols(*f) != FreeSymbols(*g)) return Sameness::kDifferent;
    int sign = 0;
    Sameness same = CompareProportional(*f, *g, &sign, budget_);
    if (same == Sameness::kSame && (a.op == "<" || a.op == "<=") && sign <= 0) same = Sameness::kDifferent;
    return options_.too_large && same == Sameness::kSame ? Sameness::kUnknown : same;
  }

  Sameness CompareEquations(const Expr& g, const Expr& p) {
    if (!IsScalar(*g.args[0]) || !IsScalar(*p.args[0])) return Sameness::kDifferent;
    return ComparePairs(PairsOf(g)[0], PairsOf(p)[0]);
  }

  Sameness CompareRelations(const Expr& g, const Expr& p) {
    const std::vector<Pair> left = PairsOf(g);
    const std::vector<Pair> right = PairsOf(p);
    if (left.size() != right.size() || left.size() > kMaxUnordered) return Sameness::kDifferent;
    return MatchAll(left.size(), [&](size_t i, size_t j) { return ComparePairs(left[i], right[j]); });
  }

  Sameness CompareRecords(const ExprPtr& g, const ExprPtr& p) {
    if (g->kind != p->kind) {
      const ExprPtr& record = g->kind == ExprKind::kRecord ? g : p;
      const ExprPtr& other = g->kind == ExprKind::kRecord ? p : g;
      const ExprPtr values = MakeNode(other->kind == ExprKind::kTuple ? ExprKind::kTuple : ExprKind::kList,
                                      record->args, other->kind == ExprKind::kTuple ? other->name : ",");
      return g->kind == ExprKind::kRecord ? Compare(values, p) : Compare(g, values);
    }
    if (g->args.size() != p->args.size()) return Sameness::kDifferent;
    Sameness total = Sameness::kSame;
    for (size_t i = 0; i < g->args.size(); ++i) {
      const auto found = std::find(p->operators.begin(), p->operators.end(), g->operators[i]);
      if (found == p->operators.end()) return Sameness::kDifferent;
      const Sameness same = Compare(g->args[i], p->args[static_cast<size_t>(found - p->operators.begin())]);
      if (same == Sameness::kDifferent) return same;
      if (same == Sameness::kUnknown) total = same;
    }
    return total;
  }

  Sameness CompareCollections(const ExprPtr& g, const ExprPtr& p) {
    const auto vector = [](const Expr& expr) {
      return expr.kind == ExprKind::kTuple ||
             (expr.kind == ExprKind::kMatrix && expr.name.empty() &&
              (expr.columns == 1 || expr.args.size() == static_cast<size_t>(expr.columns)));
    };
    const auto unordered = [](const Expr& expr) {
      return expr.kind == ExprKind::kList || (expr.kind == ExprKind::kSet && expr.name.empty());
    };
    if (g->kind == ExprKind::kMatrix && p->kind == ExprKind::kMatrix) {
      if (g->columns != p->columns || g->name != p->name) return Sameness::kDifferent;
      return InOrder(g->args, p->args);
    }
    if (vector(*g) && vector(*p)) {
      // With two parts the brackets tell intervals from points and open ends from closed ones.
      if (g->kind == ExprKind::kTuple && p->kind == ExprKind::kTuple && g->args.size() == 2 && g->name != p->name) {
        return Sameness::kDifferent;
      }
      return InOrder(g->args, p->args);
    }
    if (unordered(*g) && unordered(*p)) return Unordered(g->args, p->args);
    // A list without brackets in the order of the tuple; [2, 3] is an interval.
    if (IsSetNotation(*g) || IsSetNotation(*p)) return Sameness::kDifferent;
    if (g->kind == ExprKind::kList && vector(*p)) return InOrder(g->args, p->args);
    if (vector(*g) && p->kind == ExprKind::kList) return InOrder(g->args, p->args);
    // {5} and 5
    if (g->kind == ExprKind::kSet && g->name.empty() && g->args.size() == 1 && IsScalar(*p))
      return Compare(g->args[0], p);
    if (p->kind == ExprKind::kSet && p->name.empty() && p->args.size() == 1 && IsScalar(*g))
      return Compare(g, p->args[0]);
    return Sameness::kDifferent;
  }

  Sameness InOrder(const std::vector<ExprPtr>& g, const std::vector<ExprPtr>& p) {
    if (g.size() != p.size()) return Sameness::kDifferent;
    Sameness total = Sameness::kSame;
    for (size_t i = 0; i < g.size(); ++i) {
      const Sameness same = Compare(g[i], p[i]);
      if (same == Sameness::kDifferent) return same;
      if (same == Sameness::kUnknown) total = same;
    }
    return total;
  }

  // Every member of one has its own partner in the other; what is written twice counts once.
  Sameness Unordered(const std::vector<ExprPtr>& g, const std::vector<ExprPtr>& p) {
    const std::vector<ExprPtr> left = WithoutRepeats(g);
    const std::vector<ExprPtr> right = WithoutRepeats(p);
    if (left.size() != right.size()) return Sameness::kDifferent;
    if (left.size() > kMaxUnordered) return Sameness::kUnknown;
    return MatchAll(left.size(), [&](size_t i, size_t j) { return Compare(left[i], right[j]); });
  }

  // Whether `count` things on each side can be paired so that every pair is the same. `compare(i, j)`.
  template <class Compare>
  Sameness MatchAll(size_t count, const Compare& compare) {
    std::vector<std::vector<Sameness>> table(count, std::vector<Sameness>(count, Sameness::kUnknown));
    std::vector<bool> row_lost(count, true);
    std::vector<bool> column_lost(count, true);
    bool unknown = false;
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < count; ++j) {
        table[i][j] = compare(i, j);
        unknown |= table[i][j] == Sameness::kUnknown;
        if (table[i][j] == Sameness::kDifferent) continue;
        row_lost[i] = false;
        column_lost[j] = false;
      }
      if (row_lost[i]) return Sameness::kDifferent;
      if (budget_->exhausted()) return Sameness::kUnknown;
    }
    if (std::find(column_lost.begin(), column_lost.end(), true) != column_lost.end()) return Sameness::kDifferent;
    // A matching of the largest size, by augmenting paths.
    std::vector<size_t> partner(count, count);
    for (size_t i = 0; i < count; ++i) {
      std::vector<bool> seen(count, false);
      if (!Augment(table, i, &partner, &seen)) return unknown ? Sameness::kUnknown : Sameness::kDifferent;
    }
    return Sameness::kSame;
  }

  // Finds a partner for `i`, moving others to another partner where needed; as deep as there are things.
  static bool Augment(const std::vector<std::vector<Sameness>>& table, size_t i, std::vector<size_t>* partner,
                      std::vector<bool>* seen) {
    for (size_t j = 0; j < table.size(); ++j) {
      if (table[i][j] != Sameness::kSame || (*seen)[j]) continue;
      (*seen)[j] = true;
      if ((*partner)[j] == table.size() || Augment(table, (*partner)[j], partner, seen)) {
        (*partner)[j] = i;
        return true;
      }
    }
    return false;
  }

  static std::vector<ExprPtr> WithoutRepeats(const std::vector<ExprPtr>& items) {
    std::vector<ExprPtr> kept;
    std::vector<std::string> keys;
    for (const ExprPtr& item : items) {
      std::string key = StructureKey(*item);
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      keys.push_back(std::move(key));
      kept.push_back(item);
    }
    return kept;
  }

  // 12:00 is a time: two digits after the colon, a number of minutes.
  static bool MayBeTime(const Expr& ratio, bool* surely) {
    *surely = false;
    if (ratio.kind != ExprKind::kRatio || ratio.args.size() != 2) return false;
    const auto literal = [](const ExprPtr& part) -> std::string {
      const Expr& number = part->kind == ExprKind::kQuantity ? *part->args[0] : *part;
      return number.kind == ExprKind::kNumber ? number.name : "";
    };
    const std::string hours = literal(ratio.args[0]);
    const std::string minutes = literal(ratio.args[1]);
    const auto digits = [](const std::string& text) {
      return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    };
    if (!digits(hours) || !digits(minutes) || hours.size() > 2 || minutes.size() != 2 || minutes[0] > '5') return false;
    *surely = minutes[0] == '0';
    return true;
  }

  Sameness CompareRatios(const ExprPtr& g, const ExprPtr& p) {
    bool surely_g = false;
    bool surely_p = false;
    const bool time_g = MayBeTime(*g, &surely_g);
    const bool time_p = MayBeTime(*p, &surely_p);
    if (time_g && time_p) return InOrder(g->args, p->args);
    if (surely_g || surely_p) return Sameness::kDifferent;
    if (g->kind == p->kind) {
      if (g->args.size() != p->args.size()) return Sameness::kDifferent;
      Sameness total = Sameness::kSame;
      for (size_t i = 1; i < g->args.size(); ++i) {
        const Sameness same = CompareScalars(MakeNode(ExprKind::kProduct, {Bare(g->args[0]), Bare(p->args[i])}),
                                             MakeNode(ExprKind::kProduct, {Bare(p->args[0]), Bare(g->args[i])}));
        if (same == Sameness::kDifferent) return same;
        if (same == Sameness::kUnknown) total = same;
      }
      return total;
    }
    const ExprPtr& ratio = g->kind == ExprKind::kRatio ? g : p;
    const ExprPtr& other = g->kind == ExprKind::kRatio ? p : g;
    if (ratio->args.size() != 2 || !IsScalar(*other)) return Sameness::kDifferent;
    return CompareScalars(MakeNode(ExprKind::kQuotient, {Bare(ratio->args[0]), Bare(ratio->args[1])}), other);
  }

  static ExprPtr Bare(const ExprPtr& x) { return x->kind == ExprKind::kQuantity ? x->args[0] : x; }

  Sameness CompareScalars(const ExprPtr& g, const ExprPtr& p) {
    const std::string unit_g = g->kind == ExprKind::kQuantity ? g->name : "";
    const std::string unit_p = p->kind == ExprKind::kQuantity ? p->name : "";
    const ExprPtr x = Bare(g);
    const ExprPtr y = Bare(p);
    if (!IsValueKind(x->kind) || !IsValueKind(y->kind)) return Compare(x, y);
    const bool percent_g = unit_g == "percent";
    const bool percent_p = unit_p == "percent";
    const bool degree_g = unit_g == "degree";
    const bool degree_p = unit_p == "degree";
    if (percent_g != percent_p || degree_g != degree_p) {
      if (!IsUnitless(unit_g) && !IsUnitless(unit_p)) return Sameness::kDifferent;
      const Sameness plain = CompareValues(x, y);
      if (plain == Sameness::kSame || (options_.plain_percent && percent_g != percent_p)) return plain;
      if (degree_g || degree_p) return Either(plain, CompareValues(degree_g ? g : x, degree_p ? p : y));
      const ExprPtr hundredth = MakeNumber(mpq_class(1, 100));
      return Either(plain, percent_g ? CompareValues(Times(hundredth, x), y) : CompareValues(x, Times(hundredth, y)));
    }
    if (unit_g == unit_p || percent_g || degree_g) return CompareValues(x, y);
    const UnitPhrase phrase_g = ReadUnitPhrase(unit_g);
    const UnitPhrase phrase_p = ReadUnitPhrase(unit_p);
    if (phrase_g.empty() || phrase_p.empty()) return CompareValues(x, y);
    if (!SameMeasure(phrase_g, phrase_p)) return Sameness::kDifferent;
    if (phrase_g.factor == phrase_p.factor) return CompareValues(x, y);
    return CompareValues(Times(MakeNumber(phrase_g.factor), x), Times(MakeNumber(phrase_p.factor), y));
  }

  // No unit, or words that name none ("units", "in total").
  static bool IsUnitless(const std::string& unit) {
    return unit != "percent" && unit != "degree" && ReadUnitPhrase(unit).empty();
  }

  // A product, worked out where it is a number.
  ExprPtr Times(const ExprPtr& factor, const ExprPtr& x) {
    bool too_large = false;
    return FoldExact(MakeNode(ExprKind::kProduct, {factor, x}), budget_, &too_large);
  }

  Sameness CompareValues(const ExprPtr& raw_a, const ExprPtr& raw_b) {
    bool too_large = options_.too_large;
    const ExprPtr a = FoldExact(raw_a, budget_, &too_large);
    const ExprPtr b = FoldExact(raw_b, budget_, &too_large);
    if (a->kind == ExprKind::kNumber && b->kind == ExprKind::kNumber) {
      if (a->number == b->number) return Sameness::kSame;
      return Of(IsRounding(*a, *b) || IsRounding(*b, *a));
    }
    if (StructureKey(*a) == StructureKey(*b)) return Sameness::kSame;
    const auto symbolic_only = [](const Expr& x) {
      return HoldsInfinity(x) || Contains(x, ExprKind::kText) || Contains(x, ExprKind::kRelation);
    };
    if (symbolic_only(*a) || symbolic_only(*b)) {
      return Sameness::kDifferent;
    }
    if (a->kind == ExprKind::kUndefined || b->kind == ExprKind::kUndefined) return Sameness::kDifferent;
    const Sameness same = CompareByProbing(*a, *b, budget_);
    if (same == Sameness::kSame && too_large) return Sameness::kUnknown;
    if (same == Sameness::kDifferent && (IsRounding(*a, *b) || IsRounding(*b, *a))) return Sameness::kSame;
    return same;
  }

  // `decimal` is a decimal literal of enough digits that stands for `exact`, a number without a finite decimal: exact
  // rounded to its last digit (at most half a unit away) or cut off behind it (less than one unit nearer to zero).
  bool IsRounding(const Expr& decimal, const Expr& exact) {
    if (decimal.kind != ExprKind::kNumber || decimal.decimals < kMinDecimals - 1 ||
        decimal.significant < kMinSignificant + (decimal.decimals < kMinDecimals ? 1 : 0)) {
      return false;
    }
    if (exact.decimals >= 0 || !FreeSymbols(exact).empty()) return false;
    mpz_class scale;
    mpz_ui_pow_ui(scale.get_mpz_t(), 10, static_cast<unsigned long>(std::min(decimal.decimals, 4000)));
    const mpq_class step(mpz_class(1), scale);
    const bool negative = decimal.number < 0;
    const mpq_class low_end = decimal.number - (negative ? step : mpq_class(step / 2));
    const mpq_class high_end = decimal.number + (negative ? mpq_class(step / 2) : step);
    // The ends have finite decimals: the number is none of them.
    if (exact.kind == ExprKind::kNumber) {
      return !HasFiniteDecimal(exact.number) && low_end < exact.number && exact.number < high_end;
    }
    int low = 0;
    int high = 0;
    const Sameness above = CompareOrder(*MakeNumber(low_end), exact, &low, budget_);
    const Sameness below = CompareOrder(exact, *MakeNumber(high_end), &high, budget_);
    return above == Sameness::kDifferent && below == Sameness::kDifferent && low < 0 && high < 0;
  }

  const CompareOptions& options_;
  WorkBudget* budget_;
};

}  // namespace

Sameness CompareTrees(const ExprPtr& gold, const ExprPtr& predicted, const CompareOptions& options,
                      WorkBudget* budget) {
  return Comparer(options, budget).Compare(gold, predicted);
}

std::string WordsKey(std::string_view text) {
  std::string key;
  std::string word;
  std::string last;
  const auto flush = [&] {
    if (word != "the" && word != "a" && word != "an") key += word;
    last = word.empty() ? last : word;
    word.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      while (i + 1 < text.size() &&
             ((text[i + 1] >= 'a' && text[i + 1] <= 'z') || (text[i + 1] >= 'A' && text[i + 1] <= 'Z'))) {
        ++i;
      }
      flush();
    } else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 0x80) {
      word += c;
    } else if (c >= 'A' && c <= 'Z') {
      word += static_cast<char>(c - 'A' + 'a');
    } else if (c != '\'') {
      flush();
    }
  }
  flush();
  return key.empty() ? last : key;  // "a" alone is the letter
}

}  // namespace pith::grade
