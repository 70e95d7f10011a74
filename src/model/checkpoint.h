// A model on disk, whatever its format: config, tensors under their Hugging Face names, tokenizer and template sources.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/tensor.h"

namespace pith {

class GgufFile;

// One linear-layer quantization scheme of a compressed-tensors "pack-quantized" checkpoint (a `config_groups` entry of
// `quantization_config` in config.json).
struct QuantScheme {
  int bits = 4;           // 4 or 8
  int64_t group = 0;      // inputs per scale; 0 = one scale per output channel
  bool symmetric = true;  // false: an integer zero point per scale, or with `minimum` a float
  bool minimum = false;   // w = scale * u + minimum, pith's extension ("minimum": true): `weight_min` beside the scales
};

// Targets and ignore patterns are resolved to module names ("model.layers.0.mlp.up_proj", "model.embed_tokens") on
// load.
struct QuantizationConfig {
  QuantScheme linear;                            // targets "Linear"
  std::map<std::string, QuantScheme> by_module;  // module name -> scheme, where it differs (lm_head, embeddings, ...)
  std::set<std::string> ignore;                  // all modules that stay unquantized
  std::optional<int> kv_bits;                    // kv_cache_scheme.num_bits

  // The scheme of a linear or embedding module of this model; null when it stays unquantized.
  const QuantScheme* SchemeFor(const std::string& module) const;
};

enum class CheckpointFormat { kHuggingFace, kGguf };

// Opens a Hugging Face directory (config.json + *.safetensors, single or sharded by model.safetensors.index.json) or a
// GGUF file (v2 or v3). Everything is mapped, nothing is copied. Tensor names are Hugging Face's
// ("model.layers.0.self_attn.q_proj.weight"), also for GGUF. Immutable, thread-safe.
class Checkpoint {
 public:
  static Result<std::shared_ptr<const Checkpoint>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  CheckpointFormat format() const { return format_; }
  const ModelConfig& config() const { return config_; }
  const std::optional<QuantizationConfig>& quantization() const { return quantization_; }

  const Tensor* Find(const std::string& name) const;  // null if absent
  // The tensor, or kNotFound naming it; kMismatch if the shape differs from `shape` (when not empty).
  Result<const Tensor*> Get(const std::string& name, const std::vector<int64_t>& shape = {}) const;
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // GGUF llama files store the rows of q and k permuted for interleaved RoPE (pairs 2j, 2j+1 within a head). True when
  // `name` is such a tensor: a reader that wants Hugging Face row order takes row HfRow(...) for each output row.
  bool RowsInterleaved(const std::string& name) const;

  // Sources for the tokenizer and the chat template. For a directory: the paths of tokenizer.json and
  // tokenizer_config.json. For GGUF: gguf() holds the metadata.
  const GgufFile* gguf() const { return gguf_.get(); }

  // Total bytes of the files on disk, and a hash of their identity (sizes and the SHA-256 of headers and a sample of
  // the data), which keys caches and KV provenance. 64 hex digits.
  uint64_t file_bytes() const { return file_bytes_; }
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  Checkpoint() = default;
  friend struct CheckpointBuilder;
  std::string path_;
  CheckpointFormat format_ = CheckpointFormat::kHuggingFace;
  ModelConfig config_;
  std::optional<QuantizationConfig> quantization_;
  std::map<std::string, Tensor> tensors_;
  std::shared_ptr<const GgufFile> gguf_;
  uint64_t file_bytes_ = 0;
  std::string fingerprint_;
};

// Row permutation of interleaved-RoPE weights: the row of the GGUF tensor that holds Hugging Face row `row`, for heads
// of `head_dim` rows each.
inline int64_t InterleavedRow(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim;
  const int64_t in_head = row % head_dim;
  const int64_t half = head_dim / 2;
  const int64_t position = in_head < half ? 2 * in_head : 2 * (in_head - half) + 1;
  return head * head_dim + position;
}

}  // namespace pith
