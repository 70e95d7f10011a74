#include "grade/units.h"

#include <algorithm>
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
                                                                              {"$", {"dollars", 1, 1}},
                                                                              {"mph", {"speed", 1, 1}},
                                                                              {"kmh", {"speed", 1, 1}},
                                                                              {"kph", {"speed", 1, 1}},
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
  static const auto& words = *new std::unordered_set<std::string_view>{
      "square", "sq", "cubic", "cu", "per", "unit", "units", "each", "squared", "cubed", "of", "total"};
  return words.count(word) != 0;
}

std::optional<mpq_class> FindMultiplier(std::string_view word) {
  static const auto& table =
      *new std::unordered_map<std::string_view, mpq_class>{{"dozen", 12},
                                                           {"dozens", 12},
                                                           {"hundred", 100},
                                                           {"thousand", 1000},
                                                           {"million", 1000000},
                                                           {"billion", 1000000000},
                                                           {"trillion", mpq_class("1000000000000")},
                                                           {"tenth", mpq_class(1, 10)},
                                                           {"tenths", mpq_class(1, 10)},
                                                           {"hundredth", mpq_class(1, 100)},
                                                           {"hundredths", mpq_class(1, 100)},
                                                           {"thousandth", mpq_class(1, 1000)},
                                                           {"thousandths", mpq_class(1, 1000)}};
  const auto found = table.find(word);
  if (found == table.end()) return std::nullopt;
  return found->second;
}

namespace {

std::string LowerCase(std::string_view word) {
  std::string lower(word);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

bool IsCurrency(const std::string& dimension) { return dimension == "dollars" || dimension == "euros"; }

// Takes the power off "cm^2".
long TakePower(std::string* word) {
  const size_t caret = word->find('^');
  if (caret == std::string::npos) return 1;
  const std::string digits = word->substr(caret + 1);
  word->resize(caret);
  return digits.size() == 1 && digits[0] >= '1' && digits[0] <= '9' ? digits[0] - '0' : 0;
}

class PhraseReader {
 public:
  UnitPhrase Read(std::string_view phrase) {
    for (size_t begin = 0; begin < phrase.size();) {
      if (phrase[begin] == ' ' || phrase[begin] == '/') {
        if (phrase[begin] == '/') sign_ = -1;
        ++begin;
        continue;
      }
      const size_t end = std::min(phrase.find_first_of(" /", begin), phrase.size());
      Take(std::string(phrase.substr(begin, end - begin)));
      begin = end;
    }
    std::erase_if(phrase_.dimensions, [](const auto& entry) { return entry.second == 0; });
    return std::move(phrase_);
  }

 private:
  void Take(std::string word) {
    while (!word.empty() && word.back() == '.') word.pop_back();
    const std::string lower = LowerCase(word);
    if (lower == "per") {
      sign_ = -1;
    } else if (lower == "square" || lower == "sq") {
      power_ = 2;
    } else if (lower == "cubic" || lower == "cu") {
      power_ = 3;
    } else if (lower == "squared" || lower == "cubed") {
      if (last_) Count(*last_, last_sign_ * (lower == "squared" ? 1 : 2));
    } else if (lower == "mph") {
      Count(*FindUnit("mile"), sign_);
      Count(*FindUnit("hour"), -sign_);
    } else if (lower == "kmh" || lower == "kph") {
      Count(*FindUnit("km"), sign_);
      Count(*FindUnit("hour"), -sign_);
    } else if (!IsUnitHelper(lower)) {
      TakeUnit(std::move(word));
    }
  }

  void TakeUnit(std::string word) {
    const long power = TakePower(&word) * power_;
    power_ = 1;
    auto unit = FindUnit(word);
    if (!unit && word.size() > 2) unit = FindUnit(LowerCase(word));
    if (unit && power != 0) {
      // The currency of a sign of money is said by the word behind it: "$5 dollars".
      const std::string dimension(unit->dimension);
      if (IsCurrency(dimension) && phrase_.any_currency && sign_ > 0) {
        phrase_.dimensions.erase("dollars");
        phrase_.any_currency = false;
      }
      if (word == "$") phrase_.any_currency = true;
      Count(*unit, sign_ * power);
      last_ = unit;
      last_sign_ = sign_;
      return;
    }
    std::string name = LowerCase(word);
    if (name.size() > 3 && name.back() == 's') name.pop_back();
    (sign_ > 0 ? phrase_.words : phrase_.per_words).insert(name);
  }

  void Count(const Unit& unit, long power) {
    if (power > 9 || power < -9) return;
    // A litre is a cubic decimetre.
    const bool volume = unit.dimension == "volume";
    phrase_.dimensions[volume ? "length" : std::string(unit.dimension)] += volume ? 3 * power : power;
    const mpq_class factor = volume ? mpq_class(unit.factor / 1000) : unit.factor;
    for (long i = 0; i < power; ++i) phrase_.factor *= factor;
    for (long i = 0; i > power; --i) phrase_.factor /= factor;
  }

  UnitPhrase phrase_;
  long sign_ = 1;
  long power_ = 1;
  std::optional<Unit> last_;
  long last_sign_ = 1;
};

// Every currency as the one of dollars.
std::map<std::string, long> WithoutCurrency(const UnitPhrase& phrase) {
  std::map<std::string, long> dimensions;
  for (const auto& [name, power] : phrase.dimensions) dimensions[IsCurrency(name) ? "dollars" : name] += power;
  return dimensions;
}

}  // namespace

UnitPhrase ReadUnitPhrase(std::string_view phrase) { return PhraseReader().Read(phrase); }

bool SameMeasure(const UnitPhrase& a, const UnitPhrase& b) {
  const bool dimensions =
      a.any_currency || b.any_currency ? WithoutCurrency(a) == WithoutCurrency(b) : a.dimensions == b.dimensions;
  if (!dimensions || a.per_words != b.per_words) return false;
  // One may say more of the thing that is counted: "red apples", "apples".
  if (a.words.empty() || b.words.empty()) return !a.dimensions.empty() || a.words == b.words;
  return std::includes(a.words.begin(), a.words.end(), b.words.begin(), b.words.end()) ||
         std::includes(b.words.begin(), b.words.end(), a.words.begin(), a.words.end());
}

}  // namespace pith::grade
