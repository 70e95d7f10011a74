#include "grade/latex_tables.h"

namespace pith::grade {

const LatexTable& FunctionNames() {
  static const LatexTable& table = *new LatexTable{{"sin", "sin"},        {"cos", "cos"},
                                                   {"tan", "tan"},        {"cot", "cot"},
                                                   {"sec", "sec"},        {"csc", "csc"},
                                                   {"arcsin", "asin"},    {"arccos", "acos"},
                                                   {"arctan", "atan"},    {"arccot", "acot"},
                                                   {"arcsec", "asec"},    {"arccsc", "acsc"},
                                                   {"asin", "asin"},      {"acos", "acos"},
                                                   {"atan", "atan"},      {"acot", "acot"},
                                                   {"sinh", "sinh"},      {"cosh", "cosh"},
                                                   {"tanh", "tanh"},      {"coth", "coth"},
                                                   {"sech", "sech"},      {"csch", "csch"},
                                                   {"arsinh", "asinh"},   {"arcosh", "acosh"},
                                                   {"artanh", "atanh"},   {"arcsinh", "asinh"},
                                                   {"arccosh", "acosh"},  {"arctanh", "atanh"},
                                                   {"asinh", "asinh"},    {"acosh", "acosh"},
                                                   {"atanh", "atanh"},    {"exp", "exp"},
                                                   {"log", "log"},        {"ln", "log"},
                                                   {"lg", "lg"},          {"sqrt", "sqrt"},
                                                   {"cbrt", "cbrt"},      {"abs", "abs"},
                                                   {"floor", "floor"},    {"ceil", "ceil"},
                                                   {"ceiling", "ceil"},   {"gcd", "gcd"},
                                                   {"lcm", "lcm"},        {"min", "min"},
                                                   {"max", "max"},        {"factorial", "factorial"},
                                                   {"binomial", "binom"}, {"Abs", "abs"},
                                                   {"Min", "min"},        {"Max", "max"}};
  return table;
}

// Symbols that are written as words.
const LatexTable& SymbolWords() {
  static const LatexTable& table = *new LatexTable{{"alpha", "alpha"},
                                                   {"beta", "beta"},
                                                   {"gamma", "gamma"},
                                                   {"delta", "delta"},
                                                   {"epsilon", "epsilon"},
                                                   {"varepsilon", "epsilon"},
                                                   {"zeta", "zeta"},
                                                   {"eta", "eta"},
                                                   {"theta", "theta"},
                                                   {"vartheta", "theta"},
                                                   {"iota", "iota"},
                                                   {"kappa", "kappa"},
                                                   {"lambda", "lambda"},
                                                   {"mu", "mu"},
                                                   {"nu", "nu"},
                                                   {"xi", "xi"},
                                                   {"rho", "rho"},
                                                   {"varrho", "rho"},
                                                   {"sigma", "sigma"},
                                                   {"varsigma", "sigma"},
                                                   {"tau", "tau"},
                                                   {"upsilon", "upsilon"},
                                                   {"phi", "phi"},
                                                   {"varphi", "phi"},
                                                   {"chi", "chi"},
                                                   {"psi", "psi"},
                                                   {"omega", "omega"},
                                                   {"Gamma", "Gamma"},
                                                   {"Delta", "Delta"},
                                                   {"Theta", "Theta"},
                                                   {"Lambda", "Lambda"},
                                                   {"Xi", "Xi"},
                                                   {"Pi", "Pi"},
                                                   {"Sigma", "Sigma"},
                                                   {"Phi", "Phi"},
                                                   {"Psi", "Psi"},
                                                   {"Omega", "Omega"},
                                                   {"pi", "pi"},
                                                   {"infty", "infinity"},
                                                   {"inf", "infinity"},
                                                   {"infinity", "infinity"},
                                                   {"oo", "infinity"},
                                                   {"ell", "ell"},
                                                   {"hbar", "hbar"}};
  return table;
}

const LatexTable& SignCommands() {
  static const LatexTable& table = *new LatexTable{{"le", "<="},
                                                   {"leq", "<="},
                                                   {"leqslant", "<="},
                                                   {"leqq", "<="},
                                                   {"ge", ">="},
                                                   {"geq", ">="},
                                                   {"geqslant", ">="},
                                                   {"geqq", ">="},
                                                   {"lt", "<"},
                                                   {"gt", ">"},
                                                   {"ne", "!="},
                                                   {"neq", "!="},
                                                   {"approx", "~="},
                                                   {"simeq", "~="},
                                                   {"thickapprox", "~="},
                                                   {"equiv", "=="},
                                                   {"in", "in"},
                                                   {"cup", "cup"},
                                                   {"bigcup", "cup"},
                                                   {"cap", "cap"},
                                                   {"setminus", "setminus"},
                                                   {"backslash", "setminus"},
                                                   {"pm", "+-"},
                                                   {"mp", "-+"},
                                                   {"cdot", "*"},
                                                   {"times", "*"},
                                                   {"ast", "*"},
                                                   {"div", "/"},
                                                   {"circ", "deg"},
                                                   {"degree", "deg"},
                                                   {"colon", ":"},
                                                   {"lbrace", "\\{"},
                                                   {"rbrace", "\\}"},
                                                   {"langle", "("},
                                                   {"rangle", ")"},
                                                   {"lvert", "|"},
                                                   {"rvert", "|"},
                                                   {"vert", "|"},
                                                   {"mid", "|"},
                                                   {"prime", "'"},
                                                   {"lbrack", "["},
                                                   {"rbrack", "]"},
                                                   {"lparen", "("},
                                                   {"rparen", ")"},
                                                   {"land", ","},
                                                   {"cr", "\\\\"}};
  return table;
}

const LatexNames& SpacingCommands() {
  static const LatexNames& table =
      *new LatexNames{"quad",         "qquad",     "left",        "right",    "big",    "Big",    "bigg",  "Bigg",
                      "bigl",         "bigr",      "Bigl",        "Bigr",     "biggl",  "biggr",  "Biggl", "Biggr",
                      "displaystyle", "textstyle", "limits",      "nolimits", "hspace", "middle", "boxed", "fbox",
                      "thinspace",    "space",     "n",           "t",        "hfill",  "rm",     "bf",    "it",
                      "mathstrut",    "strut",     "scriptstyle", "nonumber", "notag",  "enspace"};
  return table;
}

const LatexNames& TextCommands() {
  static const LatexNames& table =
      *new LatexNames{"text", "textbf", "textit",       "textrm", "textnormal", "textsf",    "texttt",     "mbox",
                      "hbox", "mathrm", "mathbf",       "mathit", "mathsf",     "mathtt",    "boldsymbol", "bm",
                      "emph", "bold",   "operatorname", "textup", "mathcal",    "underline", "textsc",     "pmb"};
  return table;
}

}  // namespace pith::grade
