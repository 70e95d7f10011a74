#include "reason/vote.h"

#include <algorithm>

namespace pith {
namespace {

// What decides between candidates: weight, then the tie rule. All independent of the order of the ballots.
struct Standing {
  double weight;
  size_t ballots;
  double largest;
  const std::string& answer;
};

bool Better(const Standing& a, const Standing& b) {
  if (a.weight != b.weight) return a.weight > b.weight;
  if (a.ballots != b.ballots) return a.ballots > b.ballots;
  if (a.largest != b.largest) return a.largest > b.largest;
  if (a.answer.size() != b.answer.size()) return a.answer.size() < b.answer.size();
  return a.answer < b.answer;
}

// `leader` and `total` are weights of candidates.
bool IsDecided(double leader, double total, int64_t open, double most) {
  if (open <= 0) return true;
  // Strictly, with room for rounding: a tie could go either way.
  return leader > (total - leader) + static_cast<double>(open) * most + 1e-9;
}

}  // namespace

VoteResult Vote(std::span<const Ballot> ballots) {
  std::vector<Answer> answers;
  answers.reserve(ballots.size());
  for (const Ballot& ballot : ballots) answers.push_back(ballot.answer);
  const AnswerClasses classes = ClassifyAnswers(answers);
  VoteResult result;
  result.candidates.resize(classes.representative.size());
  for (size_t i = 0; i < ballots.size(); ++i) {
    if (classes.class_of[i] < 0) {
      ++result.no_answer;
    } else {
      result.candidates[static_cast<size_t>(classes.class_of[i])].ballots.push_back(static_cast<int>(i));
    }
  }
  std::vector<std::pair<VoteCandidate, double>> ranked;
  for (size_t c = 0; c < result.candidates.size(); ++c) {
    VoteCandidate& candidate = result.candidates[c];
    candidate.answer = classes.representative[c];
    // A sum of floating-point numbers depends on their order, so the order is fixed.
    std::vector<double> weights;
    for (const int ballot : candidate.ballots) weights.push_back(ballots[static_cast<size_t>(ballot)].weight);
    std::sort(weights.begin(), weights.end());
    for (const double weight : weights) candidate.weight += weight;
    ranked.emplace_back(std::move(candidate), weights.back());
  }
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return Better({a.first.weight, a.first.ballots.size(), a.second, a.first.answer},
                  {b.first.weight, b.first.ballots.size(), b.second, b.first.answer});
  });
  for (size_t c = 0; c < ranked.size(); ++c) result.candidates[c] = std::move(ranked[c].first);
  result.tie = ranked.size() > 1 && result.candidates[0].weight == result.candidates[1].weight;
  return result;
}

bool VoteIsDecided(const VoteResult& vote, int64_t open, double most) {
  double total = 0;
  double leader = 0;
  for (const VoteCandidate& candidate : vote.candidates) {
    total += candidate.weight;
    leader = std::max(leader, candidate.weight);
  }
  return IsDecided(leader, total, open, most);
}

void RunningVote::Add(const Ballot& ballot) {
  if (ballot.answer.empty()) return;
  // Every candidate that the answer is equal to becomes part of the first such one.
  Candidate* mine = nullptr;
  for (size_t c = 0; c < candidates_.size();) {
    Candidate& candidate = candidates_[c];
    const bool same = std::any_of(candidate.answers.begin(), candidate.answers.end(), [&](const Answer& answer) {
      ++comparisons_;
      return SameAnswer(answer, ballot.answer);
    });
    if (!same || mine == nullptr) {
      if (same) mine = &candidate;
      ++c;
      continue;
    }
    mine->answers.insert(mine->answers.end(), candidate.answers.begin(), candidate.answers.end());
    mine->weight += candidate.weight;
    candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(c));
  }
  if (mine == nullptr) mine = &candidates_.emplace_back();
  mine->answers.push_back(ballot.answer);
  mine->weight += ballot.weight;
}

bool RunningVote::Decided(int64_t open, double most) const {
  double total = 0;
  double leader = 0;
  for (const Candidate& candidate : candidates_) {
    total += candidate.weight;
    leader = std::max(leader, candidate.weight);
  }
  return IsDecided(leader, total, open, most);
}

}  // namespace pith
