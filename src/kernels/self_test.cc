#include "kernels/self_test.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/float_matmul.h"
#include "kernels/qmatmul.h"
#include "kernels/reference.h"
#include "kernels/targets.h"

namespace pith::kernels {
namespace {

std::vector<float> RandomFloats(size_t n, uint64_t stream) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(RandomUniform(5, stream, i) * 2 - 1);
  return values;
}

Error Differs(const std::string& kernel) {
  return Error{ErrorCode::kInternal, "self-test: " + kernel + " on " + ActiveKernelTarget() +
                                         " differs from its reference; this build or this processor cannot be trusted"};
}

// |got - want| <= tolerance * largest |want|, for every element.
bool Close(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  float largest = 0;
  for (const float v : want) largest = std::max(largest, std::fabs(v));
  for (size_t i = 0; i < want.size(); ++i) {
    if (!(std::fabs(got[i] - want[i]) <= tolerance * largest)) return false;
  }
  return true;
}

Status TestPacked(ThreadPool& pool) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kCols = 384;
  const bool fused = std::string(ActiveKernelTarget()) != "SSSE3";
  for (const int bits : {4, 8}) {
    for (const int64_t group : {int64_t{32}, int64_t{128}, kCols}) {
      for (const ZeroKind zero : {ZeroKind::kSymmetric, ZeroKind::kZeroPoint, ZeroKind::kMin}) {
        std::vector<uint8_t> data(static_cast<size_t>(kRows * kCols * bits / 8));
        for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(RandomBits(1, 0, i));
        const auto groups = static_cast<size_t>(kRows * kCols / group);
        const auto scales = RandomFloats(groups, 2);
        const auto mins = RandomFloats(groups, 3);
        std::vector<uint8_t> zero_points(groups);
        for (size_t i = 0; i < groups; ++i)
          zero_points[i] = static_cast<uint8_t>(RandomBits(1, 4, i) % (bits == 4 ? 16 : 256));
        PackedWeights packed;
        packed.rows = kRows;
        packed.cols = kCols;
        packed.bits = bits;
        packed.group = group;
        packed.zero = zero;
        packed.data = data.data();
        packed.scales_f32 = scales.data();
        packed.mins_f32 = mins.data();
        packed.zero_points = zero_points.data();
        const QuantMatrix matrix(packed);
        for (const ActivationBits activation_bits : {ActivationBits::k16, ActivationBits::k8}) {
          for (const int64_t tokens : {1, 7}) {
            const auto x = RandomFloats(static_cast<size_t>(tokens * kCols), 6);
            QuantActivations activations;
            activations.Quantize(x.data(), tokens, kCols, kCols, activation_bits, ScaleKindFor(matrix, activation_bits),
                                 bits, &pool);
            std::vector<float> got(static_cast<size_t>(tokens * kRows));
            std::vector<float> want(got.size());
            const QuantProduct product{&matrix, &activations, got.data(), kRows};
            QuantMatMul({&product, 1}, pool);
            QuantMatMulReference({&matrix, &activations, want.data(), kRows});
            const bool same = fused ? std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0
                                    : Close(got, want, 16 * 0x1p-23F);
            if (!same) {
              return Differs("the W" + std::to_string(bits) + (activation_bits == ActivationBits::k16 ? "A16" : "A8") +
                             " product, groups of " + std::to_string(group));
            }
          }
        }
      }
    }
  }
  return {};
}

Status TestFloat() {
  constexpr int64_t kRows = 19;
  constexpr int64_t kCols = 131;
  constexpr int64_t kTokens = 5;
  const auto x = RandomFloats(kTokens * kCols, 7);
  const auto w = RandomFloats(kRows * kCols, 8);
  std::vector<uint16_t> w16(w.size());
  ConvertToBF16(w.data(), static_cast<int64_t>(w.size()), w16.data());
  for (const bool bf16 : {false, true}) {
    const FloatMatrix matrix{bf16 ? FloatType::kBF16 : FloatType::kF32,
                             bf16 ? static_cast<const void*>(w16.data()) : static_cast<const void*>(w.data()), kRows,
                             kCols};
    std::vector<float> got(kTokens * kRows);
    std::vector<float> want(got.size());
    FloatMatmul(x.data(), kCols, kTokens, matrix, 0, kRows, 1.0F, false, got.data(), kRows);
    reference::FloatMatmul(x.data(), kCols, kTokens, matrix, 0, kRows, 1.0F, false, want.data(), kRows);
    // Each sum of kCols terms of size <= 1 rounds at most kCols times.
    if (!Close(got, want, kCols * 0x1p-23F)) return Differs(bf16 ? "the bf16 product" : "the f32 product");
  }
  return {};
}

Status TestAttention() {
  constexpr int64_t kDim = 64;
  constexpr int64_t kTokens = 150;
  constexpr int64_t kQueries = 7;
  for (const KvType type : {KvType::kInt8, KvType::kBF16, KvType::kF32}) {
    constexpr int64_t kBlocks = 3;
    std::vector<std::vector<std::byte>> memory;
    std::vector<MutableKvBlock> blocks;
    std::vector<KvBlockView> views;
    for (int64_t b = 0; b < kBlocks; ++b) {
      memory.emplace_back(static_cast<size_t>(2 * KvBlockBytes(type, kDim) + 2 * kKvBlockTokens * 4));
      std::byte* base = memory.back().data();
      MutableKvBlock block{type, base, base + KvBlockBytes(type, kDim), nullptr, nullptr};
      if (type == KvType::kInt8) {
        block.k_scale = reinterpret_cast<float*>(base + 2 * KvBlockBytes(type, kDim));
        block.v_scale = block.k_scale + kKvBlockTokens;
      }
      blocks.push_back(block);
      views.push_back(block);
    }
    const auto k = RandomFloats(kTokens * kDim, 9);
    const auto v = RandomFloats(kTokens * kDim, 10);
    for (int64_t t = 0; t < kTokens; ++t) {
      StoreKv(k.data() + t * kDim, v.data() + t * kDim, kDim, t % kKvBlockTokens,
              blocks[static_cast<size_t>(t / kKvBlockTokens)]);
    }
    const auto q = RandomFloats(kQueries * kDim, 11);
    std::vector<int64_t> limits;
    for (int64_t r = 0; r < kQueries; ++r) limits.push_back(kTokens - 13 * r);
    std::vector<float> got(kQueries * kDim);
    std::vector<float> want(got.size());
    std::vector<float> workspace(static_cast<size_t>(AttentionWorkspaceFloats(kQueries, kDim)));
    Attend(q.data(), limits.data(), kQueries, kDim, views.data(), kBlocks, workspace.data(), got.data(), kDim);
    reference::Attend(q.data(), limits.data(), kQueries, kDim, views.data(), kBlocks, want.data(), kDim);
    if (!Close(got, want, (kDim + kTokens) * 0x1p-23F)) return Differs("attention");
  }
  return {};
}

}  // namespace

Status SelfTest(ThreadPool& pool) {
  if (const Status status = TestPacked(pool); !status.ok()) return status;
  if (const Status status = TestFloat(); !status.ok()) return status;
  return TestAttention();
}

}  // namespace pith::kernels
