// A folder from which Qualcomm's tools make a model for a phone's NPU: graphs, encodings, tokenizer, GENIE's
// configuration files, the vendor's commands in order, and what will not fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "deploy/encodings.h"
#include "deploy/onnx_export.h"
#include "model/config.h"

namespace pith {

// A chip, as GENIE's backend extensions name it.
struct Chip {
  const char* name;       // "8gen3"
  const char* full_name;  // "Snapdragon 8 Gen 3"
  int soc_model;
  int hexagon;   // version of the Hexagon architecture: 73, 75, 79
  bool windows;  // X Elite
};
Result<Chip> FindChip(std::string_view name);  // kInvalidArgument lists the names: 8gen2, 8gen3, 8elite, xelite

struct GenieOptions {
  std::string chip = "8gen3";
  int64_t context = 4096;
  int64_t parts = 1;
  int64_t device_memory_gib = 0;  // of the phone; 0 = not known
  std::string adapter_name = {};  // empty = no adapter
  bool switcher = false;          // the graphs have one
  bool decodes = true;            // there is a graph for one token
};

// Bits of the integers in the encodings; of mixed models the most.
struct GenieWeightBits {
  int linears = 4;
  int head = 8;
  int embedding = 8;
};

// Sizes that decide whether a model fits, with weights as the encodings have them.
struct GenieSizes {
  GenieWeightBits bits;
  uint64_t embedding_bytes = 0;
  uint64_t layer_bytes = 0;  // linears of all layers
  uint64_t head_bytes = 0;
  uint64_t adapter_bytes = 0;        // 8 bits
  uint64_t kv_bytes = 0;             // of a full context, 8 bits
  std::vector<uint64_t> part_bytes;  // weights of each part
};
GenieSizes ComputeGenieSizes(const ModelConfig& config, const std::vector<GraphPart>& parts, int64_t context,
                             const AdapterFile* adapter, GenieWeightBits bits = {});

// One finding of the preflight, in words. `blocks`: the bundle cannot run like this.
struct Finding {
  bool blocks = false;
  std::string text;
};
// What will not fit or is known to go wrong on this chip: floors of features, bytes per context binary, memory of the
// phone, length of the context, how the layers are cut. With a suggestion where there is one.
std::vector<Finding> Preflight(const ModelConfig& config, const Chip& chip, const GenieOptions& options,
                               const GenieSizes& sizes);

// genie_config.json. Without an adapter the "lora" section is left out.
std::string GenieConfigText(const ModelConfig& config, const GenieOptions& options, const AdapterFile* adapter);
// htp_backend_ext_config.json.
std::string HtpConfigText(const Chip& chip);
// The vendor's commands, one after the other, for the graphs of `exported`.
std::string GenieCommands(const OnnxExportReport& exported, const Chip& chip, const GenieOptions& options);

// Checks the two JSON files against the keys that GENIE knows: it refuses unknown ones. kMalformed names the key.
Status ValidateGenieConfig(std::string_view json, const std::string& what);
Status ValidateHtpConfig(std::string_view json, const std::string& what);

}  // namespace pith
