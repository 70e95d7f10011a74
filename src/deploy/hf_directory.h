// A model as a Hugging Face directory of floats, with an adapter merged into it on request.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "model/tensor.h"

namespace pith {

struct HfExportOptions {
  DType type = DType::kBF16;             // of the matrices: kBF16, kF16 or kF32; vectors keep their type
  const AdapterFile* adapter = nullptr;  // merged when given: W + scaling * B A, in double, rounded once
  int threads = 0;                       // 0 = one per hardware thread
  std::function<void(uint64_t done, uint64_t total)> on_progress;  // weights written, of how many
};

// What rounding did to one matrix.
struct HfTensorReport {
  std::string module;
  bool exact = false;             // nothing was lost
  std::optional<double> sqnr_db;  // signal to noise of the rounding; nothing when exact
  // Of a merged matrix: the rounding error against the adapter's own change, |round(W + D) - (W + D)| / |D| in
  // Frobenius norms. Near 1 the merge has drowned the adapter.
  std::optional<double> adapter_loss;
};

struct HfExportReport {
  std::string path;
  std::vector<HfTensorReport> matrices;
  uint64_t file_bytes = 0;
  std::optional<double> adapter_loss;  // over all merged matrices
};

// Writes `out_dir`, which must not be there yet or be empty: config.json without a quantization_config,
// model.safetensors, tokenizer files, generation_config.json. Low-bit sources are dequantized. A merged adapter on a
// tied LM head unties it. kInvalidArgument: something is there; kNumeric: a weight is not finite or beyond the type;
// kUnsupported: the adapter acts from an invocation sequence on (aLoRA), which a merged model cannot.
Result<HfExportReport> ExportHfDirectory(const Checkpoint& checkpoint, const std::string& out_dir,
                                         const HfExportOptions& options);

}  // namespace pith
