// Which samples of a problem are worth training on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/generations.h"

namespace pith {

// What a response says, fit to be thought: its thoughts, or where it had none its answer; without boxes (a box stands
// for the final answer alone) and white space at its ends.
struct Derivation {
  std::string text;
  std::string answer;  // as it was found
  int64_t tokens = 0;  // of the response
  bool operator==(const Derivation&) const = default;
};

struct Derivations {
  std::vector<Derivation> right;  // no two of the same normalised text or the same path, best first, at most `keep`
  std::vector<Derivation> wrong;  // the shortest first
};

// Why samples were left out. Each sample is counted once: as kept, or by the first of these that applies.
struct SampleCounts {
  int64_t samples = 0;
  int64_t right = 0;       // by the grader
  int64_t no_answer = 0;   // of the others; errors too
  int64_t unfit = 0;       // right, but cut, forced to answer, or with think tags, code or unclosed braces in it
  int64_t duplicates = 0;  // right, but as another one
  int64_t surplus = 0;     // right, but more than `keep`
  int64_t kept = 0;
};

// `streams`: all samples of one problem. Of right ones the shortest is the best; the next is the one whose length,
// times one plus how much its words are like those that were taken, is least. Only depends on the set of samples.
Derivations SelectDerivations(std::span<const Generation> streams, int64_t keep, SampleCounts* counts);

// Lower case, words and numbers alone, one space between them.
std::string NormalisedText(std::string_view text);
// "\boxed{X}" and "\fbox{X}" replaced by X. An unclosed box stays.
std::string WithoutBoxes(std::string_view text);

}  // namespace pith
