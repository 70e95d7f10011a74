// A head while it is trained: linear, or one hidden layer with ReLU. The gradient is written by hand.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/optimizer.h"

namespace pith::heads {

// logit = w2 . (keep * relu(W1 x + b1)) + b2, or with inner = 0: logit = w1 . x + b1.
class HeadNet {
 public:
  // Weights and biases uniform in +-1/sqrt(inputs of the layer), as torch.nn.Linear begins; a pure function of the
  // seed.
  HeadNet(int64_t inputs, int64_t inner, uint64_t seed);
  HeadNet(const HeadNet&) = delete;
  HeadNet& operator=(const HeadNet&) = delete;

  int64_t inputs() const { return inputs_; }
  int64_t inner() const { return inner_; }
  // "fc1.weight" [inner, inputs], "fc1.bias" [inner], "fc2.weight" [1, inner], "fc2.bias" [1]; linear: "weight"
  // [1, inputs], "bias" [1]. In place as long as the net lives.
  const std::vector<train::Parameter>& parameters() const { return parameters_; }

  double Logit(std::span<const float> x) const;

  // Adds the gradient of weight * BCE(sigmoid(logit), label), and returns that loss. `keep` has a factor for each inner
  // unit (0 = dropped, else 1 / (1 - dropout)); empty = 1.
  double Accumulate(std::span<const float> x, bool label, double weight, std::span<const float> keep);
  void ZeroGradients();

 private:
  double Forward(std::span<const float> x, std::span<const float> keep, std::vector<double>* hidden) const;

  int64_t inputs_;
  int64_t inner_;
  std::vector<float> values_;  // of all parameters, in order
  std::vector<float> gradients_;
  std::vector<double> hidden_;  // of the row under way
  std::vector<train::Parameter> parameters_;
};

// -log p of the label at this logit, without overflow.
double BinaryCrossEntropy(double logit, bool label);
double Sigmoid(double x);

}  // namespace pith::heads
