// The quantized model as it is trained: what its decoder multiplies with is a function of a few trained parameters.
//
// A step writes the weights into a train::TrainModel (all of whose tensors are leaves), runs passes that gather the
// gradients of those weights, and takes them back to the parameters. So the decoder knows nothing of quantizers, and
// what a step costs beyond its passes does not depend on the number of tokens.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/checkpoint.h"
#include "model/quantize.h"
#include "train/train_model.h"

namespace pith::quant {

// The integers of one matrix, and their scales.
struct QuantizedMatrix {
  int64_t rows = 0, cols = 0;
  QuantFormat format;          // symmetric
  std::vector<uint8_t> codes;  // [rows, cols], unsigned as QuantizeRow gives them
  std::vector<float> scales;   // [rows, groups], representable in their type
  int64_t groups() const { return format.group == 0 ? 1 : cols / format.group; }
};

// What training gives to the packer: matrices by module, norms and biases by tensor name.
struct TrainedWeights {
  std::map<std::string, QuantizedMatrix> matrices;
  std::map<std::string, std::vector<float>> vectors;
};

class Student {
 public:
  Student() = default;
  virtual ~Student() = default;
  Student(const Student&) = delete;
  Student& operator=(const Student&) = delete;

  // What is trained, in an order that does not change. All at one learning rate: each parameter is in a unit of its
  // own, in which steps of the same size make sense.
  virtual std::vector<train::Parameter>& parameters() = 0;
  // Weights from parameters.
  virtual Status Write(ThreadPool& pool) = 0;
  // Gradients of parameters (added) from those of the weights.
  virtual Status Collect(ThreadPool& pool) = 0;
};

// What is trained of a model whose integers were chosen by error feedback or plain rounding.
struct IntegerTrainables {
  bool scales = true;     // one factor per scale
  bool norms = true;      // gains of the norms, and biases where the model has them
  bool integers = false;  // the integers themselves, through values that are rounded to them
};

// Weights are scale * integer. Scales are s0 exp(t), rounded to their type as they are stored; gains g0 exp(t); biases
// b0 + t; integers the rounding of t, straight through where it is not clipped. `latents` names a file with
// the values that the integers were rounded from, in units of the scale, by module; for what it has not (or without a
// file) the integers themselves are the start.
class IntegerStudent : public Student {
 public:
  // Of a packed checkpoint; `model` holds it in float32 and all its parameters are trained. Both outlive the student.
  // kUnsupported: a matrix with zero points or minimums, which is named.
  static Result<std::unique_ptr<IntegerStudent>> Make(const Checkpoint& packed, train::TrainModel& model,
                                                      const IntegerTrainables& trainables, const std::string& latents);

  std::vector<train::Parameter>& parameters() override { return parameters_; }
  Status Write(ThreadPool& pool) override;
  Status Collect(ThreadPool& pool) override;
  TrainedWeights Trained() const;

 private:
  struct Matrix {
    std::string module;
    QuantizedMatrix quantized;           // scales as at the beginning
    train::Parameter* weight = nullptr;  // of the model
    std::vector<float> scale, scale_gradient;
    std::vector<float> latent, latent_gradient;
  };
  struct Vector {
    std::string name;
    bool additive = false;
    std::vector<float> start;
    train::Parameter* target = nullptr;
    std::vector<float> value, gradient;
  };
  float ScaleOf(const Matrix& matrix, int64_t tile) const;
  void WriteMatrix(Matrix* matrix, ThreadPool& pool) const;
  void CollectMatrix(Matrix* matrix, ThreadPool& pool) const;

  IntegerTrainables trainables_;
  std::vector<std::unique_ptr<Matrix>> matrices_;
  std::vector<std::unique_ptr<Vector>> vectors_;
  std::vector<train::Parameter> parameters_;
};

// The matrices of a packed checkpoint that are linears of the decoder (not the embedding). kUnsupported as above.
Result<std::map<std::string, QuantizedMatrix>> ReadQuantizedMatrices(const Checkpoint& packed);

}  // namespace pith::quant
