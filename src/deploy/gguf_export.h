// A model, or a LoRA adapter for it, as a GGUF file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "model/tensor.h"

namespace pith {

// "auto", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"; nothing stands for auto. kInvalidArgument.
Result<std::optional<DType>> ParseGgufType(std::string_view text);

struct GgufExportOptions {
  // The type of the linears. Nothing: the type that holds each matrix without loss where there is one, else F16.
  //   stored                                        written
  //   F32, F16, BF16                                the same
  //   w4 symmetric with F16 scales, Q4_0            Q4_0, the scale of a wide group once per 32 inputs
  //   w4 with F16 minimums, Q4_1                    Q4_1
  //   w8 symmetric with F16 scales, Q8_0, Q5_0      Q8_0
  // With a type: matrices that fit it without loss are repacked, all others converted or quantized. The embedding and
  // the LM head get Q8_0 when the linears get 4 bits, unless they fit 4 bits without loss.
  std::optional<DType> type;
  std::string name;  // general.name; empty: the last part of the checkpoint's path
  int threads = 0;   // 0 = one per hardware thread
  std::function<void(uint64_t done, uint64_t total)> on_progress;  // weights written, of how many
};

struct GgufTensorReport {
  std::string name;  // GGUF's
  int64_t rows = 0;
  int64_t cols = 0;
  DType type = DType::kF32;
  bool exact = false;             // the same numbers as the checkpoint's, bit for bit
  std::optional<double> sqnr_db;  // signal to noise against the checkpoint; nothing when exact
};

struct GgufExportReport {
  std::string path;
  std::vector<GgufTensorReport> matrices;
  uint64_t file_bytes = 0;
  bool exact() const;  // all matrices are
};

// Writes the model with its tokenizer and chat template. llama.cpp loads the file; pith's own reader gives the same
// tensors and tokenizer back. kNumeric when a weight is not finite or beyond the type; kUnsupported where GGUF has no
// word for the model (a mix of biases, another pre-tokenizer); kIo.
Result<GgufExportReport> ExportGguf(const Checkpoint& checkpoint, const std::string& path,
                                    const GgufExportOptions& options);

struct GgufAdapterOptions {
  DType type = DType::kF32;  // or kF16, kBF16
};

struct GgufAdapterReport {
  std::string path;
  int64_t modules = 0;
  uint64_t file_bytes = 0;
  // Modules whose scaling llama.cpp could not be told: the format has one alpha, and B is multiplied instead.
  int64_t folded = 0;
};

// Writes an adapter in the form of llama.cpp's "lora" adapters, with the invocation tokens of an aLoRA. `config` is
// that of the base model, whose GGUF file this one is for. kUnsupported names a module that the base's file has no
// tensor for (the LM head of a model that ties it); kNumeric when a value is beyond the type.
Result<GgufAdapterReport> ExportAdapterGguf(const AdapterFile& adapter, const ModelConfig& config,
                                            const std::string& path, const GgufAdapterOptions& options);

}  // namespace pith
