#include "train/frozen_linear.h"

#include <algorithm>
#include <cmath>

#include "kernels/backward.h"
#include "kernels/elementwise.h"
#include "train/blas.h"

namespace pith::train {

using kernels::kBlock;
using kernels::QuantActivations;
using kernels::QuantProduct;

FrozenLinear::FrozenLinear(const Linear& linear) : linear_(&linear) {
  if (packed()) return;
  if (linear.matrix.type == FloatType::kF32) {
    weights_ = static_cast<const float*>(linear.matrix.data);
    return;
  }
  converted_.resize(static_cast<size_t>(linear.rows * linear.cols));
  ConvertBF16(static_cast<const uint16_t*>(linear.matrix.data), linear.rows * linear.cols, converted_.data());
  weights_ = converted_.data();
}

void FrozenLinear::Row(int64_t row, float* out) const {
  if (packed()) {
    linear_->packed->DequantizeRow(row, out);
  } else {
    std::copy_n(weights_ + row * cols(), cols(), out);
  }
}

uint64_t FrozenLinear::owned_bytes() const {
  uint64_t bytes = converted_.size() * sizeof(float);
  for (const Piece& piece : transposed_) bytes += piece.codes.size() + piece.matrix.owned_bytes();
  return bytes;
}

void FrozenLinear::PrepareBackward(ThreadPool& pool) {
  if (!packed() || !transposed_.empty()) return;
  const kernels::QuantMatrix& source = *linear_->packed;
  for (int64_t begin = 0; begin < rows(); begin += kernels::kMaxCols) {
    const int64_t end = std::min(rows(), begin + kernels::kMaxCols);
    const int64_t width = (end - begin + kBlock - 1) / kBlock * kBlock;
    const int64_t groups = width / kBlock;
    Piece piece{begin, end, std::vector<uint8_t>(static_cast<size_t>(cols() * width), 128), {}};
    std::vector<float> scales(static_cast<size_t>(cols() * groups), 0.0F);
    // One block of outputs a task: its rows of W, dequantized, become a column of groups of W^T.
    pool.Run(groups, [&](int64_t group, int) {
      std::vector<float> block(static_cast<size_t>(kBlock * cols()), 0.0F);
      const int64_t first = begin + group * kBlock;
      const int64_t count = std::min(kBlock, end - first);
      for (int64_t j = 0; j < count; ++j) source.DequantizeRow(first + j, block.data() + j * cols());
      for (int64_t c = 0; c < cols(); ++c) {
        float most = 0;
        for (int64_t j = 0; j < count; ++j)
          most = std::max(most, std::fabs(block[static_cast<size_t>(j * cols() + c)]));
        const float scale = most / 127.0F;
        if (!(scale > 0)) continue;
        scales[static_cast<size_t>(c * groups + group)] = scale;
        const float inverse = 1.0F / scale;
        uint8_t* codes = piece.codes.data() + c * width + group * kBlock;
        for (int64_t j = 0; j < count; ++j) {
          const float code = std::nearbyint(block[static_cast<size_t>(j * cols() + c)] * inverse);
          codes[j] = static_cast<uint8_t>(128 + static_cast<int>(std::clamp(code, -127.0F, 127.0F)));
        }
      }
    });
    kernels::PackedWeights packed;
    packed.rows = cols();
    packed.cols = width;
    packed.bits = 8;
    packed.group = kBlock;
    packed.data = piece.codes.data();
    packed.scales_f32 = scales.data();
    piece.matrix = kernels::QuantMatrix(packed);
    transposed_.push_back(std::move(piece));
  }
}

void FrozenForward(std::span<const FrozenLinear* const> linears, const float* x, int64_t rows,
                   std::span<float* const> y, ThreadPool& pool) {
  // Packed ones in one loop; the input is quantized once for each width of weights, as the engine does.
  std::vector<QuantProduct> products;
  QuantActivations inputs[2];
  for (size_t i = 0; i < linears.size(); ++i) {
    const FrozenLinear& linear = *linears[i];
    const int64_t in = linear.cols();
    if (linear.packed()) {
      const kernels::QuantMatrix& matrix = *linear.linear_->packed;
      QuantActivations& input = inputs[matrix.bits() == 4 ? 0 : 1];
      if (input.rows() == 0) {
        input.Quantize(x, rows, in, in, kernels::ActivationBits::k16, kernels::ActivationScale::kPerToken,
                       matrix.bits(), &pool);
      }
      products.push_back({&matrix, &input, y[i], linear.rows()});
    } else {
      Gemm(pool, rows, linear.rows(), in, 1.0F, {x, in}, {linear.weights_, in, Op::kTransposed}, 0.0F, y[i],
           linear.rows());
    }
  }
  if (!products.empty()) kernels::QuantMatMul(products, pool);
  for (size_t i = 0; i < linears.size(); ++i) {
    const std::vector<float>& bias = linears[i]->linear_->bias;
    if (bias.empty()) continue;
    const int64_t out = linears[i]->rows();
    for (int64_t r = 0; r < rows; ++r) AddInPlace(y[i] + r * out, bias.data(), out);
  }
}

void FrozenBackward(std::span<const FrozenLinear* const> linears, std::span<const float* const> dy, int64_t rows,
                    float* dx, ThreadPool& pool) {
  const int64_t in = linears[0]->cols();
  bool written = false;
  size_t pieces = 0;
  for (const FrozenLinear* linear : linears) pieces += linear->transposed_.size();
  std::vector<QuantActivations> inputs(pieces);
  std::vector<std::vector<float>> parts;  // results but the first, which goes to dx
  std::vector<QuantProduct> products;
  size_t next = 0;
  for (size_t i = 0; i < linears.size(); ++i) {
    const int64_t out = linears[i]->rows();
    for (const FrozenLinear::Piece& piece : linears[i]->transposed_) {
      const int64_t width = piece.matrix.cols();
      const float* from = dy[i] + piece.begin;
      int64_t stride = out;
      std::vector<float> padded;
      if (width != piece.end - piece.begin) {
        padded.assign(static_cast<size_t>(rows * width), 0.0F);
        for (int64_t r = 0; r < rows; ++r) {
          std::copy_n(from + r * out, piece.end - piece.begin, padded.data() + r * width);
        }
        from = padded.data();
        stride = width;
      }
      QuantActivations& input = inputs[next++];
      input.Quantize(from, rows, width, stride, kernels::ActivationBits::k16, kernels::ActivationScale::kPerToken, 8,
                     &pool);
      float* target = dx;
      if (written) target = parts.emplace_back(static_cast<size_t>(rows * in)).data();
      written = true;
      products.push_back({&piece.matrix, &input, target, in});
    }
  }
  if (!products.empty()) kernels::QuantMatMul(products, pool);
  for (const std::vector<float>& part : parts) AddInPlace(dx, part.data(), rows * in);
  for (size_t i = 0; i < linears.size(); ++i) {
    if (linears[i]->packed()) continue;
    const int64_t out = linears[i]->rows();
    Gemm(pool, rows, in, out, 1.0F, {dy[i], out}, {linears[i]->weights_, in}, written ? 1.0F : 0.0F, dx, in);
    written = true;
  }
}

}  // namespace pith::train
