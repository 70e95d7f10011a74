// Vote curves: what N streams would have given, from the streams that are stored.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pith {

// A stored stream as a ballot. Its candidate was found once, among all streams of its problem.
struct StoredBallot {
  int candidate = -1;  // equal answers have equal numbers; -1 = no answer
  double weight = 1;   // of the verifier
  std::string answer;  // for the tie rule
  bool correct = false;
};

// Candidates of a problem's stored answers (nothing = no answer), by the grader.
std::vector<int> CandidatesOf(std::span<const std::optional<std::string>> answers);

// The ballot that wins among `chosen` (indices), by the rules of Vote() (vote.h); -1 when none has an answer.
// `weighted`: by the weights, else every ballot counts 1.
int WinningBallot(std::span<const StoredBallot> ballots, std::span<const int> chosen, bool weighted);

struct VoteCurvePoint {
  int64_t n = 0;
  double majority_mean = 0;  // share of problems whose winner is right: mean and standard deviation over the draws
  double majority_sd = 0;
  double weighted_mean = 0;
  double weighted_sd = 0;
};

// For each n of 1..most (or as many as every problem has): `draws` times n streams of every problem, without
// putting back. A draw takes the first n of one order, so its points belong together. Depends on its arguments only.
std::vector<VoteCurvePoint> VoteCurve(const std::vector<std::vector<StoredBallot>>& problems, int64_t most,
                                      int64_t draws, uint64_t seed);

}  // namespace pith
