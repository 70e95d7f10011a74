#include "deploy/peft_export.h"

#include <cmath>
#include <filesystem>
#include <vector>

#include "deploy/lora_factors.h"
#include "model/adapter_writer.h"
#include "model/heads.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

// What was written against what was to be.
Status Compare(const std::vector<LoraFloats>& wanted, const std::string& out_dir, const ModelConfig& config,
               PeftExportReport* report) {
  PITH_ASSIGN(const auto written, AdapterFile::Open(out_dir, config));
  if (written->modules.size() != wanted.size()) {
    return Error{ErrorCode::kInternal, "'" + out_dir + "' has lost modules on the way"};
  }
  double differences = 0;
  double squares = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    PITH_ASSIGN(const LoraFloats got, ReadFactors(written->modules[i]));
    const auto add = [&](const std::vector<float>& want, const std::vector<float>& have) {
      for (size_t k = 0; k < want.size(); ++k) {
        const double difference = static_cast<double>(have[k]) - want[k];
        differences += difference * difference;
        squares += static_cast<double>(want[k]) * want[k];
      }
    };
    add(wanted[i].a, got.a);
    add(wanted[i].b, got.b);
  }
  report->exact = differences == 0;
  report->relative_error = squares > 0 ? std::sqrt(differences / squares) : 0;
  return {};
}

}  // namespace

Result<PeftExportReport> ExportPeft(const AdapterFile& adapter, const ModelConfig& config, const std::string& out_dir,
                                    AdapterStorage storage, const std::string& base_model) {
  const fs::path folder = out_dir;
  std::error_code error;
  if (fs::exists(folder / "adapter_config.json", error)) {
    return Error{ErrorCode::kInvalidArgument, "'" + out_dir + "' holds an adapter already"};
  }
  PeftExportReport report;
  report.path = out_dir;
  std::vector<LoraFloats> factors;
  std::vector<LoraWeights> weights;
  for (const LoraModule& module : adapter.modules) {
    PITH_ASSIGN(LoraFloats floats, ReadFactors(module));
    factors.push_back(std::move(floats));
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    const LoraModule& module = adapter.modules[i];
    // alpha / rank gives the scaling back, bit for bit in float.
    const double alpha = static_cast<double>(module.scaling) * static_cast<double>(module.rank);
    weights.push_back({module.layer, module.kind, module.rank, alpha, factors[i].a, factors[i].b});
  }
  AdapterWriteOptions options;
  options.storage = storage;
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
  PITH_RETURN_IF_ERROR(Compare(factors, out_dir, config, &report));
  report.modules = static_cast<int64_t>(weights.size());
  report.file_bytes = fs::file_size(folder / "adapter_model.safetensors", error);
  return report;
}

}  // namespace pith
