#include "grade/units.h"

#include <unordered_map>
#include <unordered_set>

namespace pith::grade {

namespace {

struct Entry {
  std::string_view dimension;
  long numerator;
  long denominator;
};

const std::unordered_map<std::string_view, Entry>& Units() {
  static const auto& table = *new std::unordered_map<std::string_view, Entry>{{"mm", {"length", 1, 1000}},
                                                                              {"millimeters", {"length", 1, 1000}},
                                                                              {"millimeter", {"length", 1, 1000}},
                                                                              {"cm", {"length", 1, 100}},
                                                                              {"centimeters", {"length", 1, 100}},
                                                                              {"centimeter", {"length", 1, 100}},
                                                                              {"dm", {"length", 1, 10}},
                                                                              {"meters", {"length", 1, 1}},
                                                                              {"meter", {"length", 1, 1}},
                                                                              {"metres", {"length", 1, 1}},
                                                                              {"metre", {"length", 1, 1}},
                                                                              {"m", {"length", 1, 1}},
                                                                              {"km", {"length", 1000, 1}},
                                                                              {"kilometers", {"length", 1000, 1}},
                                                                              {"kilometer", {"length", 1000, 1}},
                                                                              {"kilometres", {"length", 1000, 1}},
                                                                              {"inch", {"imperial", 1, 1}},
                                                                              {"inches", {"imperial", 1, 1}},
                                                                              {"in", {"imperial", 1, 1}},
                                                                              {"feet", {"imperial", 12, 1}},
                                                                              {"foot", {"imperial", 12, 1}},
                                                                              {"ft", {"imperial", 12, 1}},
                                                                              {"yards", {"imperial", 36, 1}},
                                                                              {"yard", {"imperial", 36, 1}},
                                                                              {"yd", {"imperial", 36, 1}},
                                                                              {"miles", {"imperial", 63360, 1}},
                                                                              {"mile", {"imperial", 63360, 1}},
                                                                              {"mi", {"imperial", 63360, 1}},
                                                                              {"mg", {"mass", 1, 1000}},
                                                                              {"g", {"mass", 1, 1}},
                                                                              {"grams", {"mass", 1, 1}},
                                                                              {"gram", {"mass", 1, 1}},
                                                                              {"kg", {"mass", 1000, 1}},
                                                                              {"kilograms", {"mass", 1000, 1}},
                                                                              {"kilogram", {"mass", 1000, 1}},
                                                                              {"oz", {"weight", 1, 1}},
                                                                              {"ounces", {"weight", 1, 1}},
                                                                              {"ounce", {"weight", 1, 1}},
                                                                              {"lb", {"weight", 16, 1}},
                                                                              {"lbs", {"weight", 16, 1}},
                                                                              {"pounds", {"weight", 16, 1}},
                                                                              {"pound", {"weight", 16, 1}},
                                                                              {"s", {"time", 1, 1}},
                                                                              {"sec", {"time", 1, 1}},
                                                                              {"secs", {"time", 1, 1}},
                                                                              {"seconds", {"time", 1, 1}},
                                                                              {"second", {"time", 1, 1}},
                                                                              {"min", {"time", 60, 1}},
                                                                              {"mins", {"time", 60, 1}},
                                                                              {"minutes", {"time", 60, 1}},
                                                                              {"minute", {"time", 60, 1}},
                                                                              {"h", {"time", 3600, 1}},
                                                                              {"hr", {"time", 3600, 1}},
                                                                              {"hrs", {"time", 3600, 1}},
                                                                              {"hours", {"time", 3600, 1}},
                                                                              {"hour", {"time", 3600, 1}},
                                                                              {"days", {"time", 86400, 1}},
                                                                              {"day", {"time", 86400, 1}},
                                                                              {"weeks", {"time", 604800, 1}},
                                                                              {"week", {"time", 604800, 1}},
                                                                              {"months", {"months", 1, 1}},
                                                                              {"month", {"months", 1, 1}},
                                                                              {"years", {"months", 12, 1}},
                                                                              {"year", {"months", 12, 1}},
                                                                              {"ml", {"volume", 1, 1000}},
                                                                              {"mL", {"volume", 1, 1000}},
                                                                              {"milliliters", {"volume", 1, 1000}},
                                                                              {"l", {"volume", 1, 1}},
                                                                              {"L", {"volume", 1, 1}},
                                                                              {"liters", {"volume", 1, 1}},
                                                                              {"liter", {"volume", 1, 1}},
                                                                              {"litres", {"volume", 1, 1}},
                                                                              {"gallons", {"gallons", 1, 1}},
                                                                              {"gallon", {"gallons", 1, 1}},
                                                                              {"cents", {"dollars", 1, 100}},
                                                                              {"cent", {"dollars", 1, 100}},
                                                                              {"dollars", {"dollars", 1, 1}},
                                                                              {"dollar", {"dollars", 1, 1}},
                                                                              {"USD", {"dollars", 1, 1}},
                                                                              {"EUR", {"euros", 1, 1}},
                                                                              {"euros", {"euros", 1, 1}},
                                                                              {"euro", {"euros", 1, 1}},
                                                                              {"degrees", {"degrees", 1, 1}},
                                                                              {"degree", {"degrees", 1, 1}},
                                                                              {"mph", {"mph", 1, 1}},
                                                                              {"kmh", {"kmh", 1, 1}},
                                                                              {"hz", {"hz", 1, 1}},
                                                                              {"Hz", {"hz", 1, 1}},
                                                                              {"N", {"newton", 1, 1}},
                                                                              {"J", {"joule", 1, 1}},
                                                                              {"W", {"watt", 1, 1}},
                                                                              {"V", {"volt", 1, 1}},
                                                                              {"A", {"ampere", 1, 1}},
                                                                              {"am", {"morning", 1, 1}},
                                                                              {"a.m", {"morning", 1, 1}},
                                                                              {"pm", {"afternoon", 1, 1}},
                                                                              {"p.m", {"afternoon", 1, 1}}};
  return table;
}

}  // namespace

std::optional<Unit> FindUnit(std::string_view word) {
  const auto found = Units().find(word);
  if (found == Units().end()) return std::nullopt;
  const Entry& entry = found->second;
  return Unit{entry.dimension, mpq_class(entry.numerator, entry.denominator)};
}

bool IsPercentWord(std::string_view word) {
  return word == "percent" || word == "pct" || word == "percents" || word == "Percent" || word == "percentage";
}

bool IsUnitHelper(std::string_view word) {
  static const auto& words = *new std::unordered_set<std::string_view>{"square", "sq",    "cubic", "cu",      "per",
                                                                       "unit",   "units", "each",  "squared", "cubed"};
  return words.count(word) != 0;
}

}  // namespace pith::grade
