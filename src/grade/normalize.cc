#include "grade/normalize.h"

#include <algorithm>
#include <utility>

#include "grade/exact.h"

namespace pith::grade {

namespace {

bool IsUpperRun(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

// f(x), f'(x), f^{-1}(x), P(X = 2)
bool IsApplication(const Expr& expr) { return expr.kind == ExprKind::kFunction && expr.name == "apply"; }

}  // namespace

bool IsNameLike(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kSymbol: return !IsConstantName(expr.name);
    case ExprKind::kText: return true;
    case ExprKind::kRatio:
    case ExprKind::kTuple:
      return std::all_of(expr.args.begin(), expr.args.end(), [](const ExprPtr& arg) { return IsNameLike(*arg); });
    case ExprKind::kFunction:
      return IsApplication(expr) || (expr.name == "abs" && expr.args[0]->kind == ExprKind::kSymbol &&
                                     IsUpperRun(expr.args[0]->name) && expr.args[0]->name.size() > 1);
    default: return false;
  }
}

std::string NameKey(const Expr& expr) {
  if (IsApplication(expr)) return StructureKey(*expr.args[0]) + "()";
  return StructureKey(expr);
}

bool IsAssignment(const Expr& expr) {
  return expr.kind == ExprKind::kRelation && expr.operators.size() == 1 && expr.operators[0] == "=" &&
         IsNameLike(*expr.args[0]);
}

namespace {

ExprPtr MakeAssignment(const ExprPtr& name, const ExprPtr& value) { return MakeRelation({name, value}, {"="}); }

// The tree with every plus-minus decided one way.
ExprPtr DecideSigns(const ExprPtr& expr, bool upper) {
  if (!Contains(*expr, ExprKind::kPlusMinus)) return expr;
  std::vector<ExprPtr> args;
  for (const ExprPtr& arg : expr->args) args.push_back(DecideSigns(arg, upper));
  if (expr->kind == ExprKind::kPlusMinus) {
    const bool plus = (expr->name == "+-") == upper;
    return MakeNode(ExprKind::kSum, {args[0], plus ? args[1] : Negate(args[1])});
  }
  auto node = std::make_shared<Expr>(*expr);
  node->args = std::move(args);
  return node;
}

ExprPtr ResolveChain(const ExprPtr& relation) {
  std::vector<ExprPtr> args = relation->args;
  std::vector<std::string> operators = relation->operators;
  const auto approximately = std::find(operators.begin(), operators.end(), "~=");
  if (approximately != operators.end()) {
    const auto index = static_cast<size_t>(approximately - operators.begin());
    if (index == 0 && IsNameLike(*args[0])) {
      operators = {"="};
      args.resize(2);
    } else {
      operators.resize(index);
      args.resize(index + 1);
    }
  }
  if (operators.empty()) return args[0];
  const bool equalities =
      std::all_of(operators.begin(), operators.end(), [](const std::string& op) { return op == "="; });
  if (!equalities) return args.size() == relation->args.size() ? relation : MakeRelation(args, operators);
  if (IsNameLike(*args.front())) return MakeAssignment(args.front(), args.back());
  const bool constant =
      std::all_of(args.begin(), args.end(), [](const ExprPtr& arg) { return FreeSymbols(*arg).empty(); });
  if (constant) return args.back();
  if (args.size() == 2 && IsNameLike(*args[1]) && args[1]->kind != ExprKind::kTuple)
    return MakeAssignment(args[1], args[0]);
  return MakeRelation(args, operators);
}

bool HoldsMatrix(const ExprPtr& expr) { return expr->kind == ExprKind::kMatrix && expr->name.empty(); }

ExprPtr Scale(const ExprPtr& matrix, const std::vector<ExprPtr>& factors) {
  if (factors.empty()) return matrix;
  std::vector<ExprPtr> cells;
  for (const ExprPtr& cell : matrix->args) {
    std::vector<ExprPtr> product = factors;
    product.push_back(cell);
    cells.push_back(MakeNode(ExprKind::kProduct, std::move(product)));
  }
  return MakeMatrix(std::move(cells), static_cast<size_t>(matrix->columns));
}

// Null when the sizes do not fit or the result is too large.
ExprPtr MultiplyMatrices(const ExprPtr& a, const ExprPtr& b) {
  const size_t inner = static_cast<size_t>(a->columns);
  const size_t columns = static_cast<size_t>(b->columns);
  const size_t rows = a->args.size() / inner;
  // Cells are shared between products: it is the size of the trees, not of the matrices, that multiplies.
  if (b->args.size() / columns != inner || rows * columns * inner > kMaxItems ||
      a->size * columns + b->size * rows > kMaxNodes) {
    return nullptr;
  }
  std::vector<ExprPtr> cells;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      std::vector<ExprPtr> terms;
      for (size_t k = 0; k < inner; ++k) {
        terms.push_back(MakeNode(ExprKind::kProduct, {a->args[row * inner + k], b->args[k * columns + column]}));
      }
      cells.push_back(terms.size() == 1 ? terms[0] : MakeNode(ExprKind::kSum, std::move(terms)));
    }
  }
  return MakeMatrix(std::move(cells), columns);
}

ExprPtr WorkOutMatrices(const ExprPtr& expr) {
  if (!Contains(*expr, ExprKind::kMatrix) || (expr->kind != ExprKind::kSum && expr->kind != ExprKind::kProduct))
    return expr;
  std::vector<ExprPtr> args;
  for (const ExprPtr& arg : expr->args) args.push_back(WorkOutMatrices(arg));
  const ExprPtr same = MakeNode(expr->kind, args);
  if (expr->kind == ExprKind::kSum) {
    if (!std::all_of(args.begin(), args.end(), HoldsMatrix)) return same;
    std::vector<ExprPtr> cells(args[0]->args.size());
    for (size_t i = 0; i < cells.size(); ++i) {
      std::vector<ExprPtr> terms;
      for (const ExprPtr& arg : args) {
        if (arg->args.size() != cells.size() || arg->columns != args[0]->columns) return same;
        terms.push_back(arg->args[i]);
      }
      cells[i] = MakeNode(ExprKind::kSum, std::move(terms));
    }
    return MakeMatrix(std::move(cells), static_cast<size_t>(args[0]->columns));
  }
  std::vector<ExprPtr> factors;
  ExprPtr matrix;
  for (const ExprPtr& arg : args) {
    if (HoldsMatrix(arg)) {
      matrix = matrix == nullptr ? arg : MultiplyMatrices(matrix, arg);
      if (matrix == nullptr) return same;
    } else if (IsValueKind(arg->kind)) {
      factors.push_back(arg);
    } else {
      return same;
    }
  }
  if (matrix == nullptr) return same;
  size_t scale = 0;
  for (const ExprPtr& factor : factors) scale += factor->size;
  return scale * matrix->args.size() > kMaxNodes ? same : Scale(matrix, factors);
}

// (p, q) = (3, 2)
ExprPtr TupleRecord(const ExprPtr& assignment) {
  const ExprPtr& names = assignment->args[0];
  const ExprPtr& values = assignment->args[1];
  if (names->kind != ExprKind::kTuple || values->kind != ExprKind::kTuple ||
      names->args.size() != values->args.size()) {
    return assignment;
  }
  auto record = std::make_shared<Expr>(*MakeNode(ExprKind::kRecord, values->args));
  for (const ExprPtr& name : names->args) record->operators.push_back(NameKey(*name));
  return record;
}

// A list of assignments as records: a name that comes again begins the next record.
std::vector<ExprPtr> GroupAssignments(const std::vector<ExprPtr>& items) {
  std::vector<ExprPtr> records;
  std::vector<ExprPtr> current;
  const auto flush = [&] {
    if (current.size() == 1) records.push_back(current[0]);
    if (current.size() > 1) {
      std::vector<ExprPtr> values;
      std::vector<std::string> names;
      for (const ExprPtr& item : current) {
        values.push_back(item->args[1]);
        names.push_back(NameKey(*item->args[0]));
      }
      auto record = std::make_shared<Expr>(*MakeNode(ExprKind::kRecord, std::move(values)));
      record->operators = std::move(names);
      records.push_back(record);
    }
    current.clear();
  };
  for (const ExprPtr& item : items) {
    const std::string name = NameKey(*item->args[0]);
    const bool again = std::any_of(current.begin(), current.end(),
                                   [&](const ExprPtr& other) { return NameKey(*other->args[0]) == name; });
    if (again) flush();
    current.push_back(item);
  }
  flush();
  return records;
}

bool IsAllReals(const std::string& words) {
  std::string lower = words;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower == "all real numbers" || lower == "all reals" || lower == "real numbers";
}

class Normalizer {
 public:
  explicit Normalizer(WorkBudget* budget) : budget_(budget) {}

  // One item of a list, or the whole answer, as the list of what it stands for.
  bool Items(const ExprPtr& expr, std::vector<ExprPtr>* out) {
    if (out->size() >= kMaxItems || !budget_->Spend(2)) return false;
    if (expr->kind == ExprKind::kList) {
      std::vector<ExprPtr> items;
      for (const ExprPtr& item : expr->args) {
        if (!Items(item, &items)) return false;
      }
      GroupList(std::move(items), out);
      return out->size() <= kMaxItems;
    }
    if (Contains(*expr, ExprKind::kPlusMinus)) {
      return Items(DecideSigns(expr, true), out) && Items(DecideSigns(expr, false), out);
    }
    ExprPtr item = WorkOutMatrices(expr);
    if (item->kind == ExprKind::kText && IsAllReals(item->name)) item = MakeSymbol("\\mathbb R");
    if (item->kind == ExprKind::kRelation) {
      item = ResolveChain(item);
      if (IsAssignment(*item)) {
        // x = 1, 2 inside one relation: x = {1, 2}
        if (item->args[1]->kind == ExprKind::kList) {
          std::vector<ExprPtr> values;
          if (!Items(item->args[1], &values)) return false;
          out->insert(out->end(), values.begin(), values.end());
          return true;
        }
        item = MakeAssignment(item->args[0], WorkOutMatrices(item->args[1]));
        item = TupleRecord(item);
      }
    }
    out->push_back(item);
    return true;
  }

 private:
  static void GroupList(std::vector<ExprPtr> items, std::vector<ExprPtr>* out) {
    const auto assigned = [](const ExprPtr& item) { return IsAssignment(*item); };
    if (!items.empty() && std::all_of(items.begin(), items.end(), assigned)) {
      items = GroupAssignments(items);
    } else if (items.size() > 1) {
      // "x = 1, 2, 3" and "(x, y) = (5, 8), (8, 5)": the name was said once for all.
      const bool named_once = std::none_of(items.begin() + 1, items.end(), [&](const ExprPtr& item) {
        return item->kind == ExprKind::kRelation || item->kind == ExprKind::kRecord;
      });
      if (named_once && assigned(items[0])) items[0] = items[0]->args[1];
      if (named_once && items[0]->kind == ExprKind::kRecord) {
        items[0] = MakeNode(ExprKind::kTuple, items[0]->args, "()");
      }
    }
    out->insert(out->end(), items.begin(), items.end());
  }

  WorkBudget* budget_;
};

}  // namespace

ExprPtr NormalizeTree(const ExprPtr& tree, WorkBudget* budget, bool* too_large) {
  std::vector<ExprPtr> items;
  if (!Normalizer(budget).Items(tree, &items) || items.empty()) return nullptr;
  const std::string joined = tree->kind == ExprKind::kList ? tree->name : ",";
  ExprPtr result = items.size() == 1 ? items[0] : MakeNode(ExprKind::kList, std::move(items), joined);
  return FoldExact(result, budget, too_large);
}

}  // namespace pith::grade
