// The matrices of a checkpoint row by row, whatever they are stored as.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/quantize.h"

namespace pith {

// One row of low-bit integers with what they stand for.
struct CodeRow {
  std::vector<uint8_t> codes;   // cols values below 2^bits
  std::vector<float> scales;    // one per group
  std::vector<uint8_t> zeros;   // likewise, kZeroPoint only
  std::vector<float> minimums;  // likewise, kMinimum only
};

// The weight of a linear or of the embedding: floats, pack-quantized integers or GGUF blocks. Rows are in Hugging
// Face's order, also those that a GGUF file permutes. Borrows the checkpoint. Thread-safe.
class MatrixReader {
 public:
  // `module` without ".weight". A tied LM head is the embedding table. kNotFound, kMismatch, kUnsupported.
  static Result<MatrixReader> Open(const Checkpoint& checkpoint, const std::string& module, int64_t rows, int64_t cols);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  // How the integers are stored; nothing for floats and for blocks without an exact form (model/repack.h).
  const std::optional<QuantFormat>& format() const { return format_; }
  int64_t groups() const;  // per row; with a format
  // The type of the stored floats or blocks; nothing for pack-quantized integers.
  const std::optional<DType>& type() const { return type_; }

  // Row `row` as floats, cols() values. Integers are dequantized, each operation rounded once.
  void ReadRow(int64_t row, float* out) const;
  // Row `row` as integers; only with a format().
  void ReadCodes(int64_t row, CodeRow* out) const;

 private:
  Status OpenPacked(const Checkpoint& checkpoint, const std::string& module);
  int64_t SourceRow(int64_t row) const;

  int64_t rows_ = 0;
  int64_t cols_ = 0;
  std::optional<QuantFormat> format_;
  std::optional<DType> type_;
  const Tensor* values_ = nullptr;  // floats, blocks or packed integers
  const Tensor* scales_ = nullptr;
  const Tensor* zeros_ = nullptr;
  const Tensor* minimums_ = nullptr;
  bool packed_ = false;
  int64_t head_dim_ = 0;  // of permuted rows, else 0
};

// A norm or a bias as floats, in Hugging Face's order. `module` and `part`: "model.norm", "weight".
Result<std::vector<float>> ReadVector(const Checkpoint& checkpoint, const std::string& module, const std::string& part,
                                      int64_t size);

}  // namespace pith
