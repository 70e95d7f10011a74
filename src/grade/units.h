// Units that answers carry.
#pragma once

#include <gmpxx.h>

#include <optional>
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

}  // namespace pith::grade
