#include "deploy/matrix_reader.h"

#include <cstring>

#include "model/repack.h"

namespace pith {

Result<MatrixReader> MatrixReader::Open(const Checkpoint& checkpoint, const std::string& module, int64_t rows,
                                        int64_t cols) {
  MatrixReader reader;
  reader.rows_ = rows;
  reader.cols_ = cols;
  // A tied model uses the embedding even when its files hold an lm_head too, as transformers does.
  const bool tied = module == "lm_head" && checkpoint.config().tied_embeddings;
  const std::string stored = tied ? "model.embed_tokens" : module;
  if (checkpoint.Find(stored + ".weight_packed") != nullptr) {
    PITH_RETURN_IF_ERROR(reader.OpenPacked(checkpoint, stored));
    return reader;
  }
  PITH_ASSIGN(reader.values_, checkpoint.Get(stored + ".weight", {rows, cols}));
  std::vector<float> row(static_cast<size_t>(cols));
  PITH_RETURN_IF_ERROR(DequantizeRows(*reader.values_, 0, 1, row.data()));  // the types that ReadRow can read
  reader.type_ = reader.values_->type;
  reader.format_ = ExactFormat(reader.values_->type);
  if (checkpoint.RowsInterleaved(stored + ".weight")) reader.head_dim_ = checkpoint.config().head_dim;
  return reader;
}

Status MatrixReader::OpenPacked(const Checkpoint& checkpoint, const std::string& module) {
  const QuantScheme* scheme = checkpoint.quantization() ? checkpoint.quantization()->SchemeFor(module) : nullptr;
  if (scheme == nullptr) {
    return Error{ErrorCode::kMalformed, "'" + module + "' is packed but config.json does not say how"};
  }
  packed_ = true;
  QuantFormat format;
  format.bits = scheme->bits;
  format.group = scheme->group;
  format.zero = scheme->minimum ? ZeroForm::kMinimum : scheme->symmetric ? ZeroForm::kSymmetric : ZeroForm::kZeroPoint;
  const int64_t per_word = 32 / scheme->bits;
  const int64_t groups = scheme->group == 0 ? 1 : cols_ / scheme->group;
  PITH_ASSIGN(values_, checkpoint.Get(module + ".weight_packed", {rows_, (cols_ + per_word - 1) / per_word}));
  PITH_ASSIGN(scales_, checkpoint.Get(module + ".weight_scale", {rows_, groups}));
  format.scale_type = scales_->type == DType::kF16 ? DType::kF16 : DType::kF32;
  if (format.zero == ZeroForm::kMinimum) {
    PITH_ASSIGN(minimums_, checkpoint.Get(module + ".weight_min", {rows_, groups}));
  } else if (format.zero == ZeroForm::kZeroPoint) {
    PITH_ASSIGN(zeros_, checkpoint.Get(module + ".weight_zero_point", {(rows_ + per_word - 1) / per_word, groups}));
  }
  format_ = format;
  return {};
}

int64_t MatrixReader::groups() const { return format_->group == 0 ? 1 : cols_ / format_->group; }

int64_t MatrixReader::SourceRow(int64_t row) const { return head_dim_ == 0 ? row : InterleavedRow(row, head_dim_); }

void MatrixReader::ReadRow(int64_t row, float* out) const {
  if (!packed_) {
    // Cannot fail: Open has read a row.
    (void)DequantizeRows(*values_, SourceRow(row), SourceRow(row) + 1, out);
    return;
  }
  CodeRow codes;
  ReadCodes(row, &codes);
  QuantizedRow view{codes.codes.data(), codes.scales.data(), codes.zeros.data(), codes.minimums.data()};
  DequantizeRow(*format_, cols_, view, out);
}

void MatrixReader::ReadCodes(int64_t row, CodeRow* out) const {
  const int64_t count = groups();
  out->codes.resize(static_cast<size_t>(cols_));
  out->scales.resize(static_cast<size_t>(count));
  out->zeros.resize(format_->zero == ZeroForm::kZeroPoint ? static_cast<size_t>(count) : 0);
  out->minimums.resize(format_->zero == ZeroForm::kMinimum ? static_cast<size_t>(count) : 0);
  if (!packed_) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values_->data.data()) + SourceRow(row) * values_->row_bytes();
    RepackRow(values_->type, bytes, cols_,
              {out->codes.data(), out->scales.data(), out->zeros.data(), out->minimums.data()});
    return;
  }
  const int bits = format_->bits;
  const auto* bytes = reinterpret_cast<const uint8_t*>(values_->data.data()) + row * values_->row_bytes();
  for (int64_t c = 0; c < cols_; ++c) {
    out->codes[static_cast<size_t>(c)] =
        bits == 8 ? bytes[c] : static_cast<uint8_t>((bytes[c / 2] >> (c % 2 * 4)) & 15);
  }
  (void)DequantizeRows(*scales_, row, row + 1, out->scales.data());  // F16, BF16 or F32: the checkpoint has checked it
  if (minimums_ != nullptr) (void)DequantizeRows(*minimums_, row, row + 1, out->minimums.data());
  if (zeros_ == nullptr) return;
  const int64_t per_word = 32 / bits;
  for (int64_t g = 0; g < count; ++g) {
    uint32_t word;
    std::memcpy(&word, zeros_->data.data() + (row / per_word * count + g) * 4, sizeof(word));
    out->zeros[static_cast<size_t>(g)] =
        static_cast<uint8_t>((word >> (row % per_word * bits)) & ((uint32_t{1} << bits) - 1));
  }
}

Result<std::vector<float>> ReadVector(const Checkpoint& checkpoint, const std::string& module, const std::string& part,
                                      int64_t size) {
  const std::string name = module + "." + part;
  PITH_ASSIGN(const Tensor* tensor, checkpoint.Get(name, {size}));
  PITH_ASSIGN(std::vector<float> values, ToFloats(*tensor));
  if (!checkpoint.RowsInterleaved(name)) return values;
  std::vector<float> ordered(values.size());
  for (int64_t row = 0; row < size; ++row) {
    ordered[static_cast<size_t>(row)] = values[static_cast<size_t>(InterleavedRow(row, checkpoint.config().head_dim))];
  }
  return ordered;
}

}  // namespace pith
