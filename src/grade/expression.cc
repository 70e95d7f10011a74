#include "grade/expression.h"

#include <algorithm>
#include <set>

namespace pith::grade {

ExprPtr MakeNumber(const mpq_class& number) {
  auto node = std::make_shared<Expr>();
  node->kind = ExprKind::kNumber;
  node->number = number;
  return node;
}

ExprPtr MakeSymbol(std::string name) { return MakeNode(ExprKind::kSymbol, {}, std::move(name)); }

namespace {

constexpr size_t kMaxCountedSize = size_t{1} << 40;

std::shared_ptr<Expr> NewNode(ExprKind kind, std::vector<ExprPtr> args, std::string name) {
  auto node = std::make_shared<Expr>();
  node->kind = kind;
  node->args = std::move(args);
  node->name = std::move(name);
  for (const ExprPtr& arg : node->args) {
    node->height = std::max(node->height, arg->height + 1);
    node->size = std::min(node->size + arg->size, kMaxCountedSize);
  }
  return node;
}

}  // namespace

ExprPtr MakeNode(ExprKind kind, std::vector<ExprPtr> args, std::string name) {
  return NewNode(kind, std::move(args), std::move(name));
}

ExprPtr MakeRelation(std::vector<ExprPtr> args, std::vector<std::string> operators) {
  auto node = NewNode(ExprKind::kRelation, std::move(args), {});
  node->operators = std::move(operators);
  return node;
}

ExprPtr MakeMatrix(std::vector<ExprPtr> cells, size_t columns, std::string name) {
  auto node = NewNode(ExprKind::kMatrix, std::move(cells), std::move(name));
  node->columns = static_cast<int>(columns);
  return node;
}

ExprPtr Negate(const ExprPtr& x) {
  if (x->kind == ExprKind::kNumber) {
    auto node = std::make_shared<Expr>(*x);
    node->number = -node->number;
    node->name = node->name.empty() ? "" : "-" + node->name;
    node->parenthesized = false;
    return node;
  }
  if (x->kind == ExprKind::kQuantity) {
    auto node = std::make_shared<Expr>(*x);
    node->args[0] = Negate(node->args[0]);
    return node;
  }
  return MakeNode(ExprKind::kProduct, {MakeNumber(-1), x});
}

std::string StructureKey(const Expr& expr) {
  std::string key;
  if (expr.kind == ExprKind::kNumber) return expr.number.get_str();
  if (expr.kind == ExprKind::kSymbol) return "'" + expr.name + "'";
  std::vector<std::string> parts;
  parts.reserve(expr.args.size());
  for (const ExprPtr& arg : expr.args) parts.push_back(StructureKey(*arg));
  switch (expr.kind) {
    case ExprKind::kSum:
    case ExprKind::kProduct:
    case ExprKind::kList:
    case ExprKind::kSet:
    case ExprKind::kUnion:
    case ExprKind::kIntersection: std::sort(parts.begin(), parts.end()); break;
    default: break;
  }
  key = std::to_string(static_cast<int>(expr.kind));
  if (expr.kind != ExprKind::kList) key += "<" + expr.name + ">";
  if (expr.kind == ExprKind::kMatrix) key += std::to_string(expr.columns);
  for (const std::string& op : expr.operators) key += op + ".";
  key += "(";
  for (const std::string& part : parts) key += part + ";";
  return key + ")";
}

bool IsConstantName(const std::string& name) {
  return name == "pi" || name == "e" || name == "i" || name == "infinity";
}

namespace {

void CollectSymbols(const Expr& expr, std::set<std::string>* names) {
  if (expr.kind == ExprKind::kSymbol && !IsConstantName(expr.name)) names->insert(expr.name);
  if (expr.kind == ExprKind::kFunction && expr.name == "apply") {
    names->insert(StructureKey(*expr.args[0]) + "()");
    return CollectSymbols(*expr.args[1], names);
  }
  for (const ExprPtr& arg : expr.args) CollectSymbols(*arg, names);
}

}  // namespace

std::vector<std::string> FreeSymbols(const Expr& expr) {
  std::set<std::string> names;
  CollectSymbols(expr, &names);
  return {names.begin(), names.end()};
}

bool Contains(const Expr& expr, ExprKind kind) {
  if (expr.kind == kind) return true;
  return std::any_of(expr.args.begin(), expr.args.end(), [kind](const ExprPtr& arg) { return Contains(*arg, kind); });
}

bool IsValueKind(ExprKind kind) { return kind <= ExprKind::kUndefined; }

}  // namespace pith::grade
