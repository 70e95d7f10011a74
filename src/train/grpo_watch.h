// Tells early that a GRPO run learns nothing, or that something is broken: not after hours (demands 85, 89, 93, 98).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pith::train {

// What a step looked like; shares in [0, 1].
struct GrpoSigns {
  double zero_std = 0;   // of groups: all of their rewards are equal
  double truncated = 0;  // of responses
  double accuracy = 0;
  double repetition = 0;             // of tokens that equal the one before
  std::optional<double> difference;  // mean |engine's - trainer's log-prob|
  std::optional<double> entropy;     // of a token, in nats
  int64_t vocab = 0;
};

class GrpoWatch {
 public:
  // `steps`: how many steps in a row a sign must show; 0 = never speaks.
  explicit GrpoWatch(int64_t steps) : steps_(steps) {}

  // Takes the signs of the next step; returns what is to be said: each sign when it has shown for `steps` steps in a
  // row, and again every `steps` steps as long as it goes on.
  std::vector<std::string> Take(const GrpoSigns& signs);

  // True while nothing can be learned: a group without differing rewards, or all truncated or wrong, for long enough.
  bool stuck() const;

  // For checkpoints.
  const std::map<std::string, int64_t>& counts() const { return counts_; }
  void Restore(const std::map<std::string, int64_t>& counts) { counts_ = counts; }

 private:
  int64_t steps_;
  std::map<std::string, int64_t> counts_;  // by the name of a sign: steps in a row
};

}  // namespace pith::train
