// The words and commands that the lexer knows.
#pragma once

#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace pith::grade {

using LatexTable = std::unordered_map<std::string_view, std::string_view>;
using LatexNames = std::unordered_set<std::string_view>;

const LatexTable& FunctionNames();    // name -> canonical function
const LatexTable& SymbolWords();      // symbols that are written as words -> canonical symbol
const LatexTable& SignCommands();     // commands that stand for a sign -> the sign
const LatexNames& SpacingCommands();  // commands that only space or size
const LatexNames& TextCommands();     // commands whose group is words, or a name in another font

}  // namespace pith::grade
