// What the policy needs of an engine: sequences that fork, and batched steps over them. The seam at which tests put a
// scripted engine in the place of a model.
#pragma once

#include <span>

#include "base/result.h"
#include "engine/engine.h"

namespace pith {

class StepEngine {
 public:
  virtual ~StepEngine() = default;

  virtual Sequence NewSequence() = 0;
  virtual int64_t context() const = 0;  // most positions of a sequence
  virtual int64_t hidden() const = 0;   // width of the states

  // As Engine::Step: appends the tokens of every item to its sequence; what it returns lives until the next step; a row
  // does not depend on the other rows of the step. On an error all sequences are as they were.
  virtual Result<StepOutput> Step(std::span<const StepItem> items) = 0;
};

// The real one. Borrows the engine.
class ModelStepEngine final : public StepEngine {
 public:
  explicit ModelStepEngine(Engine& engine) : engine_(engine) {}

  Sequence NewSequence() override { return engine_.NewSequence(); }
  int64_t context() const override { return engine_.context(); }
  int64_t hidden() const override { return engine_.config().hidden; }
  Result<StepOutput> Step(std::span<const StepItem> items) override { return engine_.Step(items); }

 private:
  Engine& engine_;
};

}  // namespace pith
