// Units that answers carry.
#pragma once

#include <gmpxx.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace pith::grade {

struct Unit {
  std::string_view dimension;  // "length", "time", ...; equal dimensions can be converted
  mpq_class factor;            // how many of the dimension's base unit it is
};

// A unit word or abbreviation ("cm", "hours", "dollars"); case-sensitive where the case matters. Nothing when unknown.
std::optional<Unit> FindUnit(std::string_view word);
// Words that stand for a hundredth: "percent", "pct".
bool IsPercentWord(std::string_view word);
// Words that may stand around units ("square", "per", "units", "of").
bool IsUnitHelper(std::string_view word);
// "dozen", "million", "tenths": what the number before it is multiplied with.
std::optional<mpq_class> FindMultiplier(std::string_view word);

// The words behind a number, read as a product of units: "square cm", "km / h", "dollars per hour", "red apples".
struct UnitPhrase {
  std::map<std::string, long> dimensions;  // of the known units, with their powers
  mpq_class factor = 1;                    // size in base units
  std::set<std::string> words;             // what is no known unit, in lower case and without its plural s
  std::set<std::string> per_words;         // the same behind "per"
  bool any_currency = false;               // a sign of money, which names no currency
  bool empty() const { return dimensions.empty() && words.empty() && per_words.empty(); }
};
UnitPhrase ReadUnitPhrase(std::string_view phrase);
// Whether two phrases measure the same thing, so that numbers with them can be converted by their factors.
bool SameMeasure(const UnitPhrase& a, const UnitPhrase& b);

}  // namespace pith::grade
