#include "quant/latent_file.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "model/hf_names.h"

namespace pith::quant {

Result<std::unique_ptr<LatentWriter>> LatentWriter::Create(const std::string& path, const ModelConfig& config,
                                                           const PackRecipe& recipe) {
  auto writer = std::make_unique<LatentWriter>();
  std::vector<SafetensorsEntry> entries;
  ModelConfig packed = config;  // the packer gives a tied head a matrix of its own where its format is another
  packed.tied_embeddings = config.tied_embeddings && recipe.head == recipe.embedding;
  for (const ModelModule& module : ModulesOf(packed)) {
    const MatrixFormat& format = module.name == "lm_head" ? recipe.head : recipe.linear;
    if (module.kind != ModuleKind::kLinear || format.kind == MatrixFormat::Kind::kFloat) continue;
    entries.push_back({module.name, DType::kF16, module.shape});
    writer->sizes_[module.name] = static_cast<size_t>(module.shape[0] * module.shape[1]);
  }
  PITH_ASSIGN(writer->file_, SafetensorsWriter::Create(path, std::move(entries)));
  return writer;
}

Status LatentWriter::Begin(const std::string& module) {
  PITH_RETURN_IF_ERROR(Flush());
  const auto found = sizes_.find(module);
  if (found == sizes_.end()) return Error{ErrorCode::kInternal, "'" + module + "' has no latent values"};
  module_ = module;
  values_.assign(found->second, 0.0f);
  return {};
}

Status LatentWriter::Flush() {
  if (module_.empty()) return {};
  std::vector<uint16_t> halves(values_.size());
  std::transform(values_.begin(), values_.end(), halves.begin(), F32ToF16);
  return file_->Write(std::exchange(module_, std::string()), std::as_bytes(std::span(halves)));
}

Status LatentWriter::Finish() {
  PITH_RETURN_IF_ERROR(Flush());
  return file_->Finish();
}

}  // namespace pith::quant
