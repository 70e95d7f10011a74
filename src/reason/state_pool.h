// Pools the last-layer states of a prompt into one vector (StatePooling), as they come.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/heads.h"

namespace pith {

// Keeps two vectors, whatever the length of the prompt. The result depends on the states and the pooling only, bit for
// bit: how the prefill was cut into steps changes nothing.
class StatePool {
 public:
  StatePool(int64_t hidden, const StatePooling& pooling);

  // States of the next tokens, [n, hidden].
  void Push(std::span<const float> states);
  int64_t tokens() const { return tokens_; }
  // The pooled state of what came so far, [hidden]; zeros when nothing came.
  std::vector<float> Pooled() const;

 private:
  std::vector<double> Average() const;  // with the unfinished chunk
  int64_t hidden_;
  StatePooling pooling_;
  int64_t tokens_ = 0;
  int64_t in_chunk_ = 0;
  std::vector<double> sum_;      // of the chunk under way
  std::vector<double> average_;  // of the finished chunks; empty before the first
};

}  // namespace pith
