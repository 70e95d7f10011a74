// The weighted majority vote over equivalent answers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "grade/grade.h"

namespace pith {

struct Ballot {
  Answer answer;      // empty: no answer; it never wins, whatever its weight
  double weight = 1;  // >= 0
};

struct VoteCandidate {
  std::string answer;        // the same whatever the order of the ballots
  double weight = 0;         // sum over its ballots
  std::vector<int> ballots;  // indices, ascending
};

// How ties are broken; part of the results.
inline constexpr const char* kTieRule =
    "most ballots, then the largest single weight, then the shortest answer, then the first in byte order";

struct VoteResult {
  std::vector<VoteCandidate> candidates;  // best first
  int no_answer = 0;                      // ballots without an answer
  bool tie = false;                       // the two best had the same weight: the rule decided

  bool has_winner() const { return !candidates.empty(); }
};

// Answers are grouped by ClassifyAnswers; the heaviest group wins, ties by kTieRule. Candidates and winner do not
// depend on the order of the ballots (weights are summed in order of size).
VoteResult Vote(std::span<const Ballot> ballots);

// True when `open` more ballots of weight at most `most` each, whatever they say, cannot change the winner.
bool VoteIsDecided(const VoteResult& vote, int64_t open, double most = 1.0);

}  // namespace pith
