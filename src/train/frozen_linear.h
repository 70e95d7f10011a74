// A matrix that training multiplies with but does not change. Two forms behind one interface: float32 through the BLAS,
// and the packed low-bit integers through the engine's kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "engine/weights.h"
#include "kernels/qmatmul.h"

namespace pith::train {

class FrozenLinear {
 public:
  // Views the engine's linear, which must outlive this: packed as it is; float32 as it is; bf16 as a float32 copy.
  explicit FrozenLinear(const Linear& linear);

  int64_t rows() const { return linear_->rows; }  // outputs
  int64_t cols() const { return linear_->cols; }  // inputs
  bool packed() const { return linear_->packed != nullptr; }
  const std::vector<float>& bias() const { return linear_->bias; }  // [rows]; empty = none
  void Row(int64_t row, float* out) const;                          // [cols], as float32
  uint64_t owned_bytes() const;

  // Packed: builds the transposed copy that Backward needs, W^T in 8 bits, symmetric, groups of 32 along its own inputs
  // (the outputs of W, padded with zeros to a multiple of 32 and cut into pieces of at most kMaxCols). Nothing for
  // floats.
  void PrepareBackward(ThreadPool& pool);

 private:
  friend void FrozenForward(std::span<const FrozenLinear* const>, const float*, int64_t, std::span<float* const>,
                            ThreadPool&);
  friend void FrozenBackward(std::span<const FrozenLinear* const>, std::span<const float* const>, int64_t, float*,
                             ThreadPool&);

  // One piece of W^T: all cols() rows, outputs [begin, end) of W.
  struct Piece {
    int64_t begin, end;
    std::vector<uint8_t> codes;
    kernels::QuantMatrix matrix;
  };
  const Linear* linear_;
  const float* weights_ = nullptr;  // float32 form
  std::vector<float> converted_;
  std::vector<Piece> transposed_;
};

// y_i[rows, out_i] = x W_i^T + b_i for linears that read the same x[rows, in].
void FrozenForward(std::span<const FrozenLinear* const> linears, const float* x, int64_t rows,
                   std::span<float* const> y, ThreadPool& pool);

// dx[rows, in] = sum over i of dy_i W_i. Of packed linears the gradient rows are quantized to 16 bits, one scale per
// row.
void FrozenBackward(std::span<const FrozenLinear* const> linears, std::span<const float* const> dy, int64_t rows,
                    float* dx, ThreadPool& pool);

}  // namespace pith::train
