#include "train/grpo_watch.h"

#include <cmath>

namespace pith::train {

namespace {

constexpr double kAll = 0.999;           // a share that means all
constexpr double kRepetition = 0.5;      // text is far below
constexpr double kDifference = 0.1;      // rounding of weights and KV gives some hundredths at most
constexpr double kNearlyUniform = 0.95;  // of the largest possible entropy
constexpr double kNearlyCertain = 1e-3;  // nats

// Signs that mean that nothing is learned.
constexpr const char* kStuck[] = {"watch_zero_std", "watch_truncated", "watch_wrong"};

}  // namespace

std::vector<std::string> GrpoWatch::Take(const GrpoSigns& signs) {
  std::vector<std::string> said;
  if (steps_ <= 0) return said;
  const auto look = [&](const char* name, bool shows, const std::string& text) {
    int64_t& count = counts_[name];
    count = shows ? count + 1 : 0;
    if (shows && count % steps_ == 0) said.push_back("for " + std::to_string(count) + " steps " + text);
  };
  look("watch_truncated", signs.truncated >= kAll,
       "every response was cut: raise max-completion-length, or start from an adapter that comes to an end");
  look("watch_wrong", signs.accuracy == 0,
       "no response was right: the problems are too hard for this policy, or its answers are not found");
  look("watch_zero_std", signs.zero_std >= kAll,
       "all rewards of every group were equal: there is nothing to learn from");
  look("watch_repetition", signs.repetition > kRepetition,
       "most tokens repeated the one before: the policy, or the adapter in the engine, is broken");
  look("watch_difference", signs.difference && !(*signs.difference <= kDifference),
       "engine and trainer gave different log-probabilities: they do not run the same policy");
  const double most = std::log(static_cast<double>(signs.vocab));
  look("watch_uniform", signs.entropy && signs.vocab > 1 && *signs.entropy > kNearlyUniform * most,
       "the policy drew tokens nearly at random");
  look("watch_certain", signs.entropy && *signs.entropy < kNearlyCertain,
       "the policy had next to no entropy left: all responses of a group will be the same");
  return said;
}

bool GrpoWatch::stuck() const {
  if (steps_ <= 0) return false;
  for (const char* name : kStuck) {
    const auto found = counts_.find(name);
    if (found != counts_.end() && found->second >= steps_) return true;
  }
  return false;
}

}  // namespace pith::train
