#include "deploy/peft_export.h"

#include <filesystem>
#include <vector>

#include "deploy/lora_factors.h"
#include "model/adapter_writer.h"
#include "model/heads.h"

namespace pith {

namespace fs = std::filesystem;

Result<PeftExportReport> ExportPeft(const AdapterFile& adapter, const ModelConfig& config, const std::string& out_dir,
                                    DType type, const std::string& base_model) {
  const fs::path folder = out_dir;
  std::error_code error;
  if (fs::exists(folder / "adapter_config.json", error)) {
    return Error{ErrorCode::kInvalidArgument, "'" + out_dir + "' holds an adapter already"};
  }
  PeftExportReport report;
  report.path = out_dir;
  report.exact = true;
  std::vector<LoraFloats> factors;
  std::vector<LoraWeights> weights;
  for (const LoraModule& module : adapter.modules) {
    PITH_ASSIGN(LoraFloats floats, ReadFactors(module));
    if (type == DType::kBF16) {
      for (const std::vector<float>* values : {&floats.a, &floats.b}) {
        for (const float value : *values) report.exact = report.exact && BF16ToF32(F32ToBF16(value)) == value;
      }
    }
    factors.push_back(std::move(floats));
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    const LoraModule& module = adapter.modules[i];
    // alpha / rank gives the scaling back, bit for bit in float.
    const double alpha = static_cast<double>(module.scaling) * static_cast<double>(module.rank);
    weights.push_back({module.layer, module.kind, module.rank, alpha, factors[i].a, factors[i].b});
  }
  AdapterWriteOptions options;
  options.storage = type == DType::kBF16 ? AdapterStorage::kBF16 : AdapterStorage::kF32;
  options.base_model = base_model;
  options.invocation = adapter.invocation;
  PITH_RETURN_IF_ERROR(WriteAdapter(out_dir, config, weights, options));
  for (const char* name : {kSwitcherFile, kVerifierFile, "pith_reasoning.json"}) {
    const fs::path source = fs::path(adapter.path) / name;
    if (!fs::exists(source, error)) continue;
    if (!fs::copy_file(source, folder / name, fs::copy_options::overwrite_existing, error)) {
      return Error{ErrorCode::kIo, "cannot copy '" + source.string() + "': " + error.message()};
    }
  }
  report.modules = static_cast<int64_t>(weights.size());
  report.file_bytes = fs::file_size(folder / "adapter_model.safetensors", error);
  return report;
}

}  // namespace pith
