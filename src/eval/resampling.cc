#include "eval/resampling.h"

#include <algorithm>
#include <map>

#include "base/random.h"
#include "eval/statistics.h"
#include "grade/grade.h"

namespace pith {

namespace {

// A candidate of a vote: its ballots among the chosen ones.
struct Tally {
  std::vector<double> weights;
  int best = -1;  // the ballot whose answer stands for it: the shortest, then the first in byte order
};

bool Shorter(const std::string& a, const std::string& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; }

}  // namespace

std::vector<int> CandidatesOf(std::span<const std::optional<std::string>> answers) {
  std::vector<Answer> parsed;
  parsed.reserve(answers.size());
  for (const auto& answer : answers) parsed.push_back(answer ? Answer(*answer) : Answer());
  return ClassifyAnswers(parsed).class_of;
}

int WinningBallot(std::span<const StoredBallot> ballots, std::span<const int> chosen, bool weighted) {
  std::map<int, Tally> tallies;
  for (const int index : chosen) {
    const StoredBallot& ballot = ballots[static_cast<size_t>(index)];
    if (ballot.candidate < 0) continue;
    Tally& tally = tallies[ballot.candidate];
    tally.weights.push_back(weighted ? ballot.weight : 1.0);
    if (tally.best < 0 || Shorter(ballot.answer, ballots[static_cast<size_t>(tally.best)].answer)) tally.best = index;
  }
  const Tally* winner = nullptr;
  double winner_weight = 0;
  for (auto& entry : tallies) {
    Tally& tally = entry.second;
    std::sort(tally.weights.begin(), tally.weights.end());
    double weight = 0;
    for (const double value : tally.weights) weight += value;
    const auto better = [&] {
      if (winner == nullptr) return true;
      if (weight != winner_weight) return weight > winner_weight;
      if (tally.weights.size() != winner->weights.size()) return tally.weights.size() > winner->weights.size();
      if (tally.weights.back() != winner->weights.back()) return tally.weights.back() > winner->weights.back();
      return Shorter(ballots[static_cast<size_t>(tally.best)].answer,
                     ballots[static_cast<size_t>(winner->best)].answer);
    };
    if (!better()) continue;
    winner = &tally;
    winner_weight = weight;
  }
  return winner == nullptr ? -1 : winner->best;
}

std::vector<VoteCurvePoint> VoteCurve(const std::vector<std::vector<StoredBallot>>& problems, int64_t most,
                                      int64_t draws, uint64_t seed) {
  std::vector<VoteCurvePoint> curve;
  if (problems.empty() || draws < 1) return curve;
  for (const auto& ballots : problems) most = std::min(most, static_cast<int64_t>(ballots.size()));
  if (most < 1) return curve;
  const auto points = static_cast<size_t>(most);
  // Right answers of each n and draw.
  std::vector<std::vector<double>> majority(points, std::vector<double>(static_cast<size_t>(draws)));
  auto weighted = majority;
  for (size_t p = 0; p < problems.size(); ++p) {
    const auto& ballots = problems[p];
    const uint64_t problem_seed = RandomBits(seed, p, 0);
    for (size_t draw = 0; draw < static_cast<size_t>(draws); ++draw) {
      const std::vector<int> order = RandomOrder(static_cast<int>(ballots.size()), problem_seed, draw);
      for (size_t n = 1; n <= points; ++n) {
        const auto right = [&](bool by_weight) {
          const int winner = WinningBallot(ballots, std::span(order).first(n), by_weight);
          return winner >= 0 && ballots[static_cast<size_t>(winner)].correct ? 1.0 : 0.0;
        };
        majority[n - 1][draw] += right(false);
        weighted[n - 1][draw] += right(true);
      }
    }
  }
  for (size_t n = 1; n <= points; ++n) {
    for (auto* counts : {&majority[n - 1], &weighted[n - 1]}) {
      for (double& count : *counts) count /= static_cast<double>(problems.size());
    }
    curve.push_back({static_cast<int64_t>(n), Mean(majority[n - 1]), StandardDeviation(majority[n - 1]),
                     Mean(weighted[n - 1]), StandardDeviation(weighted[n - 1])});
  }
  return curve;
}

}  // namespace pith
