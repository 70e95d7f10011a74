// The tree of an answer. Nodes are immutable and shared; the parser bounds their height by kMaxHeight, sums and
// products are flat.
#pragma once

#include <gmpxx.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pith::grade {

enum class ExprKind : uint8_t {
  // Values.
  kNumber,     // `number`, with `name` the literal as written
  kSymbol,     // `name`; "pi", "e", "i" and "infinity" are constants
  kSum,        // of args
  kProduct,    // of args
  kQuotient,   // args[0] / args[1]
  kPower,      // args[0] ^ args[1]
  kFunction,   // `name` of args; "apply": the unknown function args[0] of args[1]
  kPlusMinus,  // args[0] +- args[1]; `name` is "+-" or "-+"
  kUndefined,  // well formed but without a value: 4 0/0, 11 7/6
  // What carries a value.
  kQuantity,  // args[0] with unit `name`: "percent", "degree", or a phrase for ReadUnitPhrase
  // Structures.
  kList,    // unordered; `name` is what joined it: ",", "and", "or"
  kSet,     // \{ ... \}; named "where" it is \{x : args[0]\}
  kTuple,   // `name` holds its two brackets: "()", "[)"
  kMatrix,  // `columns` columns, args row by row; `name` is the environment
  kUnion,   // of args
  kIntersection,
  kDifference,  // args[0] without args[1]
  kRelation,    // args[0] op args[1] op args[2] ...: `operators`
  kRatio,       // args[0] : args[1] ...
  kRecord,      // values with names: x = 1, y = 2; `operators` holds the names
  kText,        // words
};

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

struct Expr {
  ExprKind kind = ExprKind::kUndefined;
  std::string name;
  std::vector<ExprPtr> args;
  mpq_class number;                    // kNumber
  int decimals = -1;                   // kNumber: digits after the point; -1 for an integer literal
  int significant = 0;                 // kNumber: significant digits
  int columns = 0;                     // kMatrix
  int height = 1;                      // of the tree
  size_t size = 1;                     // nodes of the tree; a shared part counts wherever it stands
  bool parenthesized = false;          // stood in round brackets
  std::vector<std::string> operators;  // kRelation: "=", "<", "<=", ">", ">=", "!=", "in", "~=", "=="
};

ExprPtr MakeNumber(const mpq_class& number);
ExprPtr MakeSymbol(std::string name);
ExprPtr MakeNode(ExprKind kind, std::vector<ExprPtr> args, std::string name = {});
ExprPtr MakeRelation(std::vector<ExprPtr> args, std::vector<std::string> operators);
ExprPtr MakeMatrix(std::vector<ExprPtr> cells, size_t columns, std::string name = {});
// -x; a number is negated in place.
ExprPtr Negate(const ExprPtr& x);

// A text that is the same for trees that differ only in the order of sums, products and unordered structures. Two trees
// with the same key are equal answers.
std::string StructureKey(const Expr& expr);

// Names of the free symbols (constants are not free), sorted, without repeats. A function that is applied counts as the
// name "f()": its values are no constants.
std::vector<std::string> FreeSymbols(const Expr& expr);
bool IsConstantName(const std::string& name);  // pi, e, i, infinity
// True when a node of this kind is anywhere in the tree.
bool Contains(const Expr& expr, ExprKind kind);
// A value (kNumber ... kUndefined), as opposed to a structure.
bool IsValueKind(ExprKind kind);

}  // namespace pith::grade
