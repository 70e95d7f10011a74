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

// True when `open` more ballots of weight at most `most` each, whatever they say, cannot change which candidate wins:
// it is heavier than all others and the open ballots together, for a ballot may also show that others are one
// candidate. How the winner is written may still change (the shortest of its answers).
bool VoteIsDecided(const VoteResult& vote, int64_t open, double most = 1.0);

// VoteIsDecided while ballots come in, one by one. Each pair of answers is compared at most once.
class RunningVote {
 public:
  void Add(const Ballot& ballot);
  bool Decided(int64_t open, double most = 1.0) const;
  int64_t comparisons() const { return comparisons_; }  // of two answers, so far

 private:
  struct Candidate {
    std::vector<Answer> answers;
    double weight = 0;
  };
  std::vector<Candidate> candidates_;
  int64_t comparisons_ = 0;
};

}  // namespace pith
