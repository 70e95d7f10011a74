#include "deploy/gguf_blocks.h"

#include <cmath>
#include <cstring>

#include "model/repack.h"

namespace pith {

namespace {

constexpr int64_t kBlock = 32;
constexpr float kMaxF16 = 65504.0F;

void StoreF16(float value, std::byte* out) {
  const uint16_t half = F32ToF16(value);
  std::memcpy(out, &half, sizeof(half));
}

}  // namespace

std::optional<DType> ExactGgufType(const MatrixReader& matrix) {
  if (!matrix.format()) {
    const DType type = *matrix.type();
    if (type == DType::kF32 || type == DType::kF16 || type == DType::kBF16) return type;
    return std::nullopt;
  }
  const QuantFormat& format = *matrix.format();
  if (format.scale_type != DType::kF16 || matrix.cols() % kBlock != 0 || format.group % kBlock != 0)
    return std::nullopt;
  if (format.zero == ZeroForm::kSymmetric) return format.bits == 4 ? DType::kQ4_0 : DType::kQ8_0;
  if (format.zero == ZeroForm::kMinimum && format.bits == 4) return DType::kQ4_1;
  return std::nullopt;
}

GgufRowEncoder::GgufRowEncoder(const MatrixReader& matrix, DType type)
    : matrix_(matrix), type_(type), exact_(ExactGgufType(matrix) == type) {
  const BlockLayout layout = DTypeBlock(type);
  row_bytes_ = matrix.cols() / layout.elements * layout.bytes;
}

void GgufRowEncoder::EncodeFloats(const std::vector<float>& values, std::byte* out) const {
  if (type_ == DType::kF32) {
    std::memcpy(out, values.data(), values.size() * sizeof(float));
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t word = type_ == DType::kF16 ? F32ToF16(values[i]) : F32ToBF16(values[i]);
    std::memcpy(out + i * sizeof(word), &word, sizeof(word));
  }
}

void GgufRowEncoder::EncodeBlocks(const CodeRow& row, int64_t group, std::byte* out) const {
  const int64_t bytes = DTypeBlock(type_).bytes;
  for (int64_t b = 0; b < matrix_.cols() / kBlock; ++b) {
    const uint8_t* codes = row.codes.data() + b * kBlock;
    const auto g = static_cast<size_t>(b * kBlock / group);
    std::byte* block = out + b * bytes;
    StoreF16(row.scales[g], block);
    block += 2;
    if (type_ == DType::kQ8_0) {
      for (int i = 0; i < kBlock; ++i) block[i] = static_cast<std::byte>(codes[i] ^ 0x80);  // offset 128 to signed
      continue;
    }
    if (type_ == DType::kQ4_1) {
      StoreF16(row.minimums[g], block);
      block += 2;
    }
    for (int i = 0; i < kBlock / 2; ++i) block[i] = static_cast<std::byte>(codes[i] | (codes[i + kBlock / 2] << 4));
  }
}

bool GgufRowEncoder::Encode(int64_t row, std::byte* out, Loss* loss) const {
  *loss = {};
  const auto cols = static_cast<size_t>(matrix_.cols());
  if (exact_ && matrix_.format()) {
    CodeRow codes;
    matrix_.ReadCodes(row, &codes);
    EncodeBlocks(codes, matrix_.format()->group == 0 ? matrix_.cols() : matrix_.format()->group, out);
    return true;
  }
  std::vector<float> values(cols);
  matrix_.ReadRow(row, values.data());
  for (const float value : values) {
    if (!std::isfinite(value)) return false;
    loss->signal += static_cast<double>(value) * static_cast<double>(value);
  }
  if (IsBlockType(type_)) {
    // Q4_1 as q * d + m; the other two symmetric.
    const QuantFormat format = *ExactFormat(type_);
    CodeRow codes;
    codes.codes.resize(cols);
    codes.scales.resize(cols / kBlock);
    codes.minimums.resize(format.zero == ZeroForm::kMinimum ? cols / kBlock : 0);
    const QuantizedRow view{codes.codes.data(), codes.scales.data(), nullptr, codes.minimums.data()};
    // Scales and minimums are half floats.
    const float steps = static_cast<float>((1 << (format.bits - 1)) - 1);
    const float limit = format.zero == ZeroForm::kMinimum ? kMaxF16 : kMaxF16 * steps;
    for (const float value : values) {
      if (std::fabs(value) > limit) return false;
    }
    const QuantMethod method = format.bits == 4 ? QuantMethod::kBest : QuantMethod::kMinMax;
    QuantizeRow({format, method, 2.0}, values.data(), matrix_.cols(), nullptr, view);
    EncodeBlocks(codes, kBlock, out);
  } else {
    EncodeFloats(values, out);
  }
  if (type_ == DType::kF32) return true;
  // What the file says, read as any reader would.
  Tensor written;
  written.type = type_;
  written.shape = {1, matrix_.cols()};
  written.data = {out, static_cast<size_t>(row_bytes_)};
  std::vector<float> stored(cols);
  if (!DequantizeRows(written, 0, 1, stored.data()).ok()) return false;
  for (size_t i = 0; i < cols; ++i) {
    if (!std::isfinite(stored[i])) return false;
    const double difference = static_cast<double>(stored[i]) - static_cast<double>(values[i]);
    loss->noise += difference * difference;
  }
  return true;
}

}  // namespace pith
