// An adapter of any storage as a PEFT directory.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/adapter.h"
#include "model/adapter_writer.h"
#include "model/config.h"

namespace pith {

struct PeftExportReport {
  std::string path;
  int64_t modules = 0;
  bool exact = false;         // every factor is the same number as in the source
  double relative_error = 0;  // norm of the differences of all factors over the norm of the source's
  uint64_t file_bytes = 0;
};

// Writes adapter_config.json and adapter_model.safetensors into `out_dir`, which must not hold an adapter yet. int8 is
// for pith's own runtime (a quarter of the bytes); PEFT reads the others. Scalings of any origin (rsLoRA, patterns)
// become ranks and alphas that PEFT turns into the same float. The heads and texts of a reasoning adapter beside the
// source travel along; PEFT does not look at them. `base_model` is noted as base_model_name_or_path.
Result<PeftExportReport> ExportPeft(const AdapterFile& adapter, const ModelConfig& config, const std::string& out_dir,
                                    AdapterStorage storage, const std::string& base_model);

}  // namespace pith
