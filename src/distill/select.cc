#include "distill/select.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "distill/arithmetic.h"
#include "reason/think_tags.h"

namespace pith {
namespace {

constexpr size_t kMaxAnswer = 512;  // bytes; what is longer is no short answer

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Where the brace that is open before `begin` is closed, or npos.
size_t ClosingBrace(std::string_view text, size_t begin) {
  int depth = 1;
  for (size_t i = begin; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i;
    }
  }
  return std::string_view::npos;
}

// The answer can stand in a box: braces in pairs, one line.
bool FitsInBox(std::string_view answer) {
  if (answer.empty() || answer.size() > kMaxAnswer || answer.find('\n') != std::string_view::npos) return false;
  const std::string boxed = std::string(answer) + "}";
  return ClosingBrace(boxed, 0) == answer.size();
}

// Text that cannot be thoughts: tags would end them, and a block of code is written for an interpreter, of which there
// is none; its "output" is made up.
bool IsUnfit(std::string_view text) {
  for (const std::string_view part : {kThinkOpenTag, kThinkCloseTag, std::string_view("```")}) {
    if (text.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// A derivation, or one with an empty text where the response is not fit.
Derivation DerivationOf(const Generation& generation) {
  Derivation derivation;
  if (generation.truncated || generation.forced || generation.finish != FinishReason::kStop || !generation.answer) {
    return derivation;
  }
  const std::string& source = Trimmed(generation.reasoning).empty() ? generation.text : generation.reasoning;
  const std::string_view answer = Trimmed(generation.answer->text);
  if (IsUnfit(source) || IsUnfit(answer) || !FitsInBox(answer)) return derivation;
  const std::string open = WithoutBoxes(source);
  derivation.text = Trimmed(open);
  derivation.answer = answer;
  derivation.tokens = generation.tokens;
  return derivation;
}

std::set<std::string> Words(std::string_view normalised) {
  std::set<std::string> words;
  for (size_t begin = 0; begin < normalised.size();) {
    const size_t end = std::min(normalised.find(' ', begin), normalised.size());
    words.emplace(normalised.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// Shared words by all words.
double Likeness(const std::set<std::string>& a, const std::set<std::string>& b) {
  if (a.empty() && b.empty()) return 1;
  std::vector<std::string> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(a.size() + b.size() - both.size());
}

bool ShorterFirst(const Derivation& a, const Derivation& b) {
  return std::tie(a.tokens, a.text, a.answer) < std::tie(b.tokens, b.text, b.answer);
}

}  // namespace

std::string NormalisedText(std::string_view text) {
  std::string normalised;
  bool space = false;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::isalnum(byte) == 0) {
      space = !normalised.empty();
      continue;
    }
    if (space) normalised += ' ';
    space = false;
    normalised += byte < 0x80 ? static_cast<char>(std::tolower(byte)) : c;
  }
  return normalised;
}

std::string WithoutBoxes(std::string_view text) {
  std::string open;
  // Where boxes that were opened end; their closing braces are left out. Boxes may be inside each other.
  std::vector<size_t> closing;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!closing.empty() && i == closing.back()) {
      closing.pop_back();
      continue;
    }
    bool box = false;
    for (const std::string_view command : {"\\boxed{", "\\fbox{"}) {
      if (!text.substr(i).starts_with(command)) continue;
      const size_t end = ClosingBrace(text, i + command.size());
      if (end == std::string_view::npos) continue;
      closing.push_back(end);
      i += command.size() - 1;
      box = true;
      break;
    }
    if (!box) open += text[i];
  }
  return open;
}

Derivations SelectDerivations(std::span<const Generation> streams, int64_t keep, SampleCounts* counts) {
  struct Entry {
    Derivation derivation;
    std::string normalised;
    std::string path;
    std::set<std::string> words;
  };
  Derivations selected;
  std::vector<Entry> right;
  for (const Generation& generation : streams) {
    if (generation.error) {
      ++counts->no_answer;
      ++counts->samples;
      continue;
    }
    ++counts->samples;
    if (!generation.answer) ++counts->no_answer;
    if (generation.correct()) ++counts->right;
    Derivation derivation = DerivationOf(generation);
    if (derivation.text.empty()) {
      counts->unfit += generation.correct() ? 1 : 0;
      continue;
    }
    if (generation.correct()) {
      std::string normalised = NormalisedText(derivation.text);
      std::set<std::string> words = Words(normalised);
      std::string path = NumberPath(derivation.text);
      right.push_back({std::move(derivation), std::move(normalised), std::move(path), std::move(words)});
    } else if (generation.verdict == Verdict::kDifferent) {
      selected.wrong.push_back(std::move(derivation));
    }
  }
  std::sort(selected.wrong.begin(), selected.wrong.end(), ShorterFirst);
  selected.wrong.erase(std::unique(selected.wrong.begin(), selected.wrong.end()), selected.wrong.end());

  std::sort(right.begin(), right.end(),
            [](const Entry& a, const Entry& b) { return ShorterFirst(a.derivation, b.derivation); });
  std::set<std::string> texts;
  std::set<std::string> paths;
  std::vector<Entry> distinct;
  for (Entry& candidate : right) {
    const bool new_text = texts.insert(candidate.normalised).second;
    // Without numbers there is no path to compare.
    const bool new_path = candidate.path.empty() || paths.insert(candidate.path).second;
    if (new_text && new_path) {
      distinct.push_back(std::move(candidate));
    } else {
      ++counts->duplicates;
    }
  }
  std::vector<Entry> taken;
  while (!distinct.empty() && static_cast<int64_t>(taken.size()) < keep) {
    size_t best = 0;
    double best_cost = 0;
    for (size_t i = 0; i < distinct.size(); ++i) {
      double likeness = 0;
      for (const Entry& other : taken) likeness = std::max(likeness, Likeness(distinct[i].words, other.words));
      const double cost = static_cast<double>(distinct[i].derivation.tokens) * (1 + likeness);
      if (i == 0 || cost < best_cost) {
        best = i;
        best_cost = cost;
      }
    }
    taken.push_back(std::move(distinct[best]));
    distinct.erase(distinct.begin() + static_cast<std::ptrdiff_t>(best));
  }
  counts->surplus += static_cast<int64_t>(distinct.size());
  counts->kept += static_cast<int64_t>(taken.size());
  for (Entry& candidate : taken) selected.right.push_back(std::move(candidate.derivation));
  return selected;
}

}  // namespace pith
