// A LoRA adapter ready to run: factors per linear, stacked by the input that they share.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/float_matmul.h"
#include "kernels/qmatmul.h"
#include "model/adapter.h"
#include "model/adapter_writer.h"
#include "model/config.h"

namespace pith {

// How the factors of an adapter are held.
enum class LoraFormat {
  kAuto,  // as stored: bf16 and int8 as they are, f32 and f16 as bf16
  kF32,   // f32 and f16 as f32, bf16 as it is (the same numbers)
  kBF16,
  kInt8,  // one scale per row of A and of B: half the bytes of bf16 to read in each step
};

// One adapted linear: y += scaling * B (A x). Either the float or the packed pair is set.
struct LoraFactors {
  FloatMatrix a;                             // [rank, in]
  FloatMatrix b;                             // [out, rank]
  std::unique_ptr<kernels::QuantMatrix> a8;  // the same, the rank rounded up to 32 with zeros
  std::unique_ptr<kernels::QuantMatrix> b8;
  float scaling = 0;

  bool packed() const { return a8 != nullptr; }
};

// Immutable once loaded; may be used by any number of sequences at the same time. Every loaded instance has an id of
// its own, never used again in this process: KV made by an adapter that was since reloaded is never mistaken for the
// new one's.
class Adapter {
 public:
  // kInt8 needs linears whose widths are multiples of 32 (others are held as bf16).
  static Result<std::shared_ptr<const Adapter>> Load(const std::string& dir, const ModelConfig& config,
                                                     LoraFormat format);

  // From factors in memory (the policy of a training run), with a new id: what older factors left in a KV cache is not
  // taken for this one's. kAuto holds them as f32. Errors as WriteAdapter's: no modules, a module twice, a layer
  // outside the model, sizes, values that are not finite.
  static Result<std::shared_ptr<const Adapter>> Make(const ModelConfig& config, std::span<const LoraWeights> modules,
                                                     bool rslora, LoraFormat format = LoraFormat::kAuto);

  // Random factors of one rank on every linear of the layers, for measuring speed.
  static std::shared_ptr<const Adapter> Random(const ModelConfig& config, int64_t rank, LoraFormat format);

  uint64_t id() const { return id_; }  // > 0
  const std::string& path() const { return file_->path; }
  const AdapterFile& file() const { return *file_; }  // empty for a random adapter
  uint64_t bytes() const { return bytes_; }

  // Whether it was loaded for a model of these sizes: another one must not be run with it.
  bool Fits(const ModelConfig& config) const;

  // Null when the adapter does not touch this linear. layer is ignored for the LM head.
  const LoraFactors* Find(int64_t layer, LinearKind kind) const;

 private:
  explicit Adapter(const ModelConfig& config);
  void Place(int64_t layer, LinearKind kind, std::unique_ptr<LoraFactors> factors);
  // Puts A [rank, in] and B [out, rank], given as floats, in `format` (not kAuto).
  void Hold(const std::vector<float>& a, const std::vector<float>& b, int64_t rank, int64_t in, int64_t out,
            LoraFormat format, LoraFactors* factors);
  FloatMatrix HoldFloats(const std::vector<float>& values, int64_t rows, int64_t cols, FloatType type);
  std::unique_ptr<kernels::QuantMatrix> HoldInt8(const std::vector<float>& values, int64_t rows, int64_t cols,
                                                 int64_t padded_rows, int64_t padded_cols);

  static constexpr size_t kKinds = 8;
  std::shared_ptr<const AdapterFile> file_ = std::make_shared<AdapterFile>();
  std::array<LinearShape, kKinds> shapes_{};
  std::vector<std::array<std::unique_ptr<LoraFactors>, kKinds>> layers_;  // the last entry holds the LM head
  std::vector<std::vector<std::byte>> owned_;
  uint64_t id_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace pith
