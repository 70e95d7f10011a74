// Runs exported graphs in ONNX Runtime and compares them with the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace pith {

struct VerifyOptions {
  std::string python = "python3";  // a Python with onnxruntime and numpy
  std::string text;                // of the prompt; empty: a page of the calibration text
  int64_t prompt_tokens = 200;     // the prompt is cut to this
  int64_t new_tokens = 64;         // decoded greedily after it, with the base and with the adapter
  std::string base_export;         // folder of the same model and sizes without the adapter; empty: none
  int threads = 0;                 // of the engine and of ONNX Runtime; 0: all cores
};

// How the graphs' logits compare with the engine's over some steps.
struct LogitComparison {
  int64_t steps = 0;
  int64_t same_choice = 0;    // steps at which both put the same token first
  double max_difference = 0;  // of two logits
  double relative = 0;        // the largest difference of a step over the standard deviation of its logits
};

struct VerifyReport {
  std::string onnxruntime;             // its version
  std::vector<double> layers;          // largest difference of the prompt's keys and values, over the largest of them
  std::vector<double> layers_allowed;  // for `layers`, with static ranges: a step and a half of the cache's 8 bits
  LogitComparison prefill;             // the last token of the prompt
  std::optional<LogitComparison> base, adapter;
  bool prompt_kv_reused = true;  // switching left the prompt's keys and values as they were
  // With alpha 0 keys, values and logits are the bits of the graphs in `base_export`.
  std::optional<bool> alpha_0_is_base;
  // Streams in one graph against the same streams one at a time.
  struct Streams {
    int64_t streams = 0;
    double relative = 0;
    bool same_text = false;
  };
  std::optional<Streams> streams;
  // Scores of the heads: the graph's and the engine's.
  struct Scores {
    double graph = 0;
    double engine = 0;
  };
  std::optional<Scores> switcher, verifier;
  double seconds = 0;
  bool quantized = false;              // QDQ graphs: integers of 16 and 8 bits, other numbers than the float engine's
  bool static_ranges = false;          // ... and the engine's static mode computed the same integers
  double allowed = 0;                  // for every `relative` and every score; of float graphs also for `layers`
  std::vector<std::string> unchecked;  // parts of the graphs that nothing was compared with, one sentence each
  std::vector<std::string> failures;   // one sentence each; empty = the graphs are the model

  bool ok() const { return failures.empty(); }
};

// `folder`: written by ExportOnnx. `model`: what it was made of; `adapter`: a PEFT directory, empty = none (then only
// the base is compared). The engine runs in float32. kMismatch when the folder is of another model or adapter;
// kUnavailable when Python or its packages are missing, with the command that installs them.
Result<VerifyReport> VerifyExport(const std::string& folder, const std::string& model, const std::string& adapter,
                                  const VerifyOptions& options);

}  // namespace pith
