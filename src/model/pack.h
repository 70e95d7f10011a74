// Packing a model: a checkpoint in, a directory with low-bit weights out (docs/formats.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/input_moments.h"
#include "model/recipe.h"

namespace pith {

// The file that tells what a packed directory was made of: source, fingerprint, recipe, bytes of model.safetensors and
// the version of the quantizers, which goes up when the same recipe gives other numbers.
inline constexpr const char* kPackRecord = "pith-pack.json";
inline constexpr int kPackVersion = 2;

// DefaultRecipe, but symmetric where most of the weights of the linears are so already (Q4_0) and lose nothing by it.
PackRecipe DefaultRecipeFor(const Checkpoint& checkpoint);

// Chooses the integers of row `index` for the scales that were found, or other scales too (representable in their
// type); `out` holds those of plain rounding. Called from several threads.
using RowRounding = std::function<void(int64_t index, const float* row, const QuantizedRow& out)>;

struct PackOptions {
  int threads = 0;         // 0 = one per hardware thread
  bool overwrite = false;  // replace a packed model that is there
  // For recipes that weigh inputs: the moments, or what measures them when they are needed. It may use the directory
  // `scratch`, which is not there yet, and removes it again.
  const InputMoments* moments = nullptr;
  std::function<Result<InputMoments>(const std::string& scratch)> measure_moments;
  // Asked once per matrix that is quantized from floats, in the order of the forward pass; an empty answer leaves plain
  // rounding. The answer is dropped when the matrix is done.
  std::function<Result<RowRounding>(const std::string& module, const QuantFormat& format, int64_t cols)> rounding;
  // Integers of a source that has the wanted format are taken over as they are, and not asked for above.
  bool keep_exact = true;
  // Norms and biases that replace the checkpoint's, by name ("model.norm.weight"), in Hugging Face's order; stored in
  // float32. kMismatch for another size.
  const std::map<std::string, std::vector<float>>* vectors = nullptr;
  // Bytes of source tensors done and in all.
  std::function<void(uint64_t done, uint64_t total)> on_progress;
};

// One matrix of the packed model.
struct PackedTensorReport {
  std::string module;
  int64_t rows = 0;
  int64_t cols = 0;
  std::string source;  // type of the source tensor: "Q5_0", "BF16"
  std::string format;  // "w4g32", "bf16"
  bool exact = false;  // the same numbers as the source, bit for bit
  double bits_per_weight = 0.0;
  // Signal to noise against the source, 10 log10(sum w^2 / sum (w^ - w)^2); nothing when there is no noise.
  std::optional<double> sqnr_db;
};

struct PackReport {
  std::string path;
  std::string recipe;  // canonical
  std::vector<PackedTensorReport> tensors;
  uint64_t source_bytes = 0;      // files of the source
  uint64_t file_bytes = 0;        // model.safetensors
  double bits_per_weight = 0.0;   // over all matrices
  std::optional<double> sqnr_db;  // likewise
  double seconds = 0.0;
  uint64_t peak_rss_bytes = 0;  // of the process
};

// Writes `out_dir`: config.json with a quantization_config of compressed-tensors (pack-quantized), model.safetensors,
// the tokenizer's files and generation_config.json. The directory opens with Checkpoint::Open, has Hugging Face's row
// order and an LM head of its own also when the source ties it to the embedding. Tensors go through one at a time, so
// memory stays small; everything is written beside `out_dir` and appears under its name at once.
//
// A tensor whose type has the wanted format as its exact form is repacked without loss; all others are quantized from
// their floats. kInvalidArgument: out_dir is there, the recipe does not fit a tensor, which is named, or it weighs
// inputs and no moments are given; kUnsupported: the source is packed already; kNumeric: a weight is not finite or too
// large for the scales' type; kIo.
Result<PackReport> PackCheckpoint(const Checkpoint& checkpoint, const PackRecipe& recipe, const std::string& out_dir,
                                  const PackOptions& options = {});

// The files that PackCheckpoint reads: weights, configuration, tokenizer. In a fixed order; all are there.
std::vector<std::string> PackSourceFiles(const Checkpoint& checkpoint);

// The report as text: one line per tensor and the totals, or as one JSON object.
std::string PackReportText(const PackReport& report);

}  // namespace pith
