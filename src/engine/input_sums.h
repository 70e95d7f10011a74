// Sums over the inputs of linears while a model runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/input_moments.h"

namespace pith {

// Collects sum of x^2 per input of each linear that is run. Modules that read the same activations have equal sums.
class InputSums {
 public:
  // Gets the same arguments as Add.
  using Observer = std::function<void(const std::string& module, const float* x, int64_t rows, int64_t cols)>;

  InputSums() = default;
  // Hands every input to `observer` and sums nothing: for other statistics than squares.
  explicit InputSums(Observer observer) : observer_(std::move(observer)) {}

  // Adds x[rows, cols], the input of `module`.
  void Add(const std::string& module, const float* x, int64_t rows, int64_t cols);
  // E[x^2] of every module that was added.
  InputMoments Moments() const;

 private:
  struct Sum {
    std::vector<double> squares;
    int64_t rows = 0;
  };
  std::map<std::string, Sum> sums_;
  Observer observer_;
};

}  // namespace pith
