// Data parallel training: what ranks tell each other. The number of ranks and the rank come from torchrun's environment
// variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
#pragma once

#include <memory>
#include <span>

#include "base/result.h"

namespace pith::train {

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // In place; every rank gets the sum over ranks, the same bits on each.
  virtual Status AllReduceSum(std::span<float> values) = 0;
  virtual Status Barrier() = 0;
};

// One process: rank 0 of 1.
std::unique_ptr<Comm> SingleProcess();

// What the environment asks for: SingleProcess without WORLD_SIZE or with 1. kInvalidArgument for values that make no
// sense, kUnavailable when the other ranks cannot be reached.
Result<std::unique_ptr<Comm>> CommFromEnvironment();

}  // namespace pith::train
