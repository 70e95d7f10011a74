// Writes a bundle for GENIE; genie.h has its parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "deploy/genie.h"
#include "deploy/onnx_encodings.h"
#include "deploy/onnx_export.h"
#include "model/checkpoint.h"

namespace pith {

struct GenieBundleReport {
  OnnxExportReport graphs;
  EncodingReport encodings;
  GenieSizes sizes;
  std::vector<Finding> findings;
  bool fits() const;  // no finding blocks
};

// The folder: graphs for the NPU with encodings and weights, tokenizer.json, genie_config.json,
// htp_backend_ext_config.json, htp_compile_config.json, updatable_tensors.txt (with an adapter), sample_prompt.txt in
// the model's chat template, commands.sh, preflight.txt, and the manifest with the SHA-256 of every file. A bundle that
// will not fit is written all the same; the report says why it will not. `graphs`: context, parts, adapter and heads;
// the rest of its fields are set here.
Result<GenieBundleReport> ExportGenie(const Checkpoint& checkpoint, const std::string& out_dir,
                                      const OnnxExportOptions& graphs, const EncodingOptions& encodings,
                                      const GenieOptions& options);

}  // namespace pith
