// A model as static ONNX graphs with their weights beside them (decoder_graph.h has the contract).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "deploy/decoder_graph.h"
#include "model/adapter.h"
#include "model/checkpoint.h"

namespace pith {

// The file that says what an exported folder holds (docs/deploy.md).
inline constexpr const char* kExportManifest = "pith-export.json";
inline constexpr int kExportVersion = 1;

struct OnnxExportOptions {
  std::vector<int64_t> tokens = {128, 1};  // a graph for each number of new tokens
  int64_t context = 4096;
  int64_t parts = 1;  // 1 = one graph; n > 1: the embedding, then n - 1 runs of layers
  bool qnn = false;   // 1x1 convolutions and attention head by head, as Qualcomm's compiler wants it
  bool qdq = false;   // graphs that AddEncodings will quantize (qdq.h): opset 21; not with qnn
  bool lora_inputs = false;
  const AdapterFile* adapter = nullptr;
  const SwitcherHead* switcher = nullptr;
  const VerifierHead* verifier = nullptr;
  std::function<void(uint64_t done, uint64_t total)> on_progress = {};  // bytes of weights
};

struct OnnxPartReport {
  GraphPart part;
  std::vector<std::string> graphs;  // file names, in the order of `tokens`
  uint64_t base_bytes = 0;
  uint64_t adapter_bytes = 0;
  uint64_t graph_bytes = 0;
  std::vector<OnnxGraph> built;  // the graphs themselves
};

struct OnnxExportReport {
  std::string path;
  std::vector<OnnxPartReport> parts;
  uint64_t total_bytes() const;
};

// Layers in parts: kInvalidArgument for more parts than layers allow.
Result<std::vector<GraphPart>> PlanParts(const ModelConfig& config, int64_t parts);

// Writes graphs, weights and the manifest into `out_dir`, which must not be there yet or be empty.
// kInvalidArgument for sizes that are not possible (tokens not below the context, a context beyond the model's);
// kUnavailable without libonnx; kNumeric; kIo.
Result<OnnxExportReport> ExportOnnx(const Checkpoint& checkpoint, const std::string& out_dir,
                                    const OnnxExportOptions& options);

}  // namespace pith
