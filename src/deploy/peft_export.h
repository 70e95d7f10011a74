// An adapter of any storage as a PEFT directory that PEFT reads.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/adapter.h"
#include "model/config.h"
#include "model/tensor.h"

namespace pith {

struct PeftExportReport {
  std::string path;
  int64_t modules = 0;
  bool exact = false;  // every factor is the same number as in the source
  uint64_t file_bytes = 0;
};

// Writes adapter_config.json and adapter_model.safetensors in F32 or BF16 into `out_dir`, which must not hold an
// adapter yet. Scalings of any origin (rsLoRA, patterns) become ranks and alphas that PEFT turns into the same float.
// The heads and texts of a reasoning adapter beside the source travel along; PEFT does not look at them.
// `base_model` is noted as base_model_name_or_path.
Result<PeftExportReport> ExportPeft(const AdapterFile& adapter, const ModelConfig& config, const std::string& out_dir,
                                    DType type, const std::string& base_model);

}  // namespace pith
