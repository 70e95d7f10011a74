// The student of FPTQuant (arXiv 2506.04985): a float model whose transforms and ranges are trained; its weights are
// merged with the transforms and rounded, straight through, at every step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "quant/student.h"
#include "quant/transforms.h"

namespace pith::quant {

struct TransformTrainables {
  bool rotation = true;  // T_r: R = (I + A)^-1 (I - A), A skew-symmetric (Cayley); orthogonal whatever A is
  bool keys = true;      // T_k; not with norms on queries and keys
  bool values = true;    // T_v: I + a trained matrix
  bool up = true;        // T_u
  bool ranges = true;    // the scales of all weights
};

class TransformStudent : public Student {
 public:
  // `merged`: a float model whose norms have gains of 1 (WriteMergedModel); `packed`: the same packed, from which
  // formats, scales to start with and the embedding's format are taken; `model` holds `packed` in float32 with all of
  // its parameters trained. All transforms begin as the identity. `model` outlives the student. kInvalidArgument: a
  // norm with gains; kUnsupported: a format with zero points or minimums.
  static Result<std::unique_ptr<TransformStudent>> Make(const Checkpoint& merged, const Checkpoint& packed,
                                                        train::TrainModel& model,
                                                        const TransformTrainables& trainables);
  ~TransformStudent() override;

  std::vector<train::Parameter>& parameters() override;
  Status Write(ThreadPool& pool) override;
  Status Collect(ThreadPool& pool) override;

  // What was trained; apply them to `merged`. The rotation is empty when it is not trained.
  Transforms TrainedTransforms() const;
  // The scales by module, as they are stored.
  std::map<std::string, std::vector<float>> TrainedScales() const;

 private:
  struct Impl;
  explicit TransformStudent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Largest |(R^T R - I)_ij| of R[n, n].
double OrthogonalityError(const std::vector<float>& rotation, int64_t n);

}  // namespace pith::quant
