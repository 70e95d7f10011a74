// A LoRA adapter ready to run: factors per linear, stacked by the input that they share.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/float_matmul.h"
#include "model/adapter.h"
#include "model/config.h"

namespace pith {

// One adapted linear: y += scaling * B (A x).
struct LoraFactors {
  FloatMatrix a;  // [rank, in]
  FloatMatrix b;  // [out, rank]
  float scaling = 0;
};

// Immutable once loaded; may be used by any number of sequences at the same time. Every loaded instance has an id of its own,
// never used again in this process: KV made by an adapter that was since reloaded is never mistaken for the new one's.
class Adapter {
 public:
  // kF32 keeps f32 and f16 factors as f32; kBF16 rounds them to bf16 (half the bytes to read in each step).
  static Result<std::shared_ptr<const Adapter>> Load(const std::string& dir, const ModelConfig& config, FloatType type);

  // Random factors of one rank on every linear of the layers, for measuring speed.
  static std::shared_ptr<const Adapter> Random(const ModelConfig& config, int64_t rank, FloatType type);

  uint64_t id() const { return id_; }  // > 0
  const std::string& path() const { return file_->path; }
  const AdapterFile& file() const { return *file_; }  // empty for a random adapter
  uint64_t bytes() const { return bytes_; }

  // Null when the adapter does not touch this linear. layer is ignored for the LM head.
  const LoraFactors* Find(int64_t layer, LinearKind kind) const;

 private:
  explicit Adapter(const ModelConfig& config);
  void Place(int64_t layer, LinearKind kind, std::unique_ptr<LoraFactors> factors);
  FloatMatrix HoldFloats(const std::vector<float>& values, int64_t rows, int64_t cols, FloatType type);
  FloatMatrix Hold(const Tensor& tensor, const Tensor& scale, FloatType type, Status* status);

  static constexpr size_t kKinds = 8;
  std::shared_ptr<const AdapterFile> file_ = std::make_shared<AdapterFile>();
  std::vector<std::array<std::unique_ptr<LoraFactors>, kKinds>> layers_;  // the last entry holds the LM head
  std::vector<std::vector<std::byte>> owned_;
  uint64_t id_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace pith
