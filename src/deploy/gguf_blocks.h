// Rows of a matrix in the tensor types of GGUF files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "deploy/matrix_reader.h"
#include "model/tensor.h"

namespace pith {

// The GGUF type that holds the matrix without loss; nothing where there is none.
std::optional<DType> ExactGgufType(const MatrixReader& matrix);

// Writes rows of one matrix in one type (F32, F16, BF16, Q8_0, Q4_0, Q4_1; the width is a multiple of the block).
class GgufRowEncoder {
 public:
  GgufRowEncoder(const MatrixReader& matrix, DType type);

  bool exact() const { return exact_; }
  int64_t row_bytes() const { return row_bytes_; }

  // What one row lost: sums of squares of the values and of the differences.
  struct Loss {
    double signal = 0;
    double noise = 0;
  };
  // False when a value is not finite or beyond the type. Thread-safe.
  bool Encode(int64_t row, std::byte* out, Loss* loss) const;

 private:
  void EncodeFloats(const std::vector<float>& values, std::byte* out) const;
  void EncodeBlocks(const CodeRow& row, int64_t group, std::byte* out) const;

  const MatrixReader& matrix_;
  DType type_;
  bool exact_;
  int64_t row_bytes_;
};

}  // namespace pith
