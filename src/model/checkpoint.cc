#include "model/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/json.h"
#include "base/sha256.h"
#include "model/config_checks.h"
#include "model/gguf.h"
#include "model/hf_names.h"
#include "model/quantization_config.h"
#include "model/safetensors.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;

// Reads a small text file.
Result<std::string> ReadText(const std::string& path) {
  PITH_ASSIGN(const auto file, MappedFile::Open(path));
  if (file->size() > kMaxConfigBytes) return Error{ErrorCode::kMalformed, "'" + path + "' is too large"};
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->size());
}

// Shard names come from a file: only plain names in the same directory are followed.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || type == DType::kF64;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

// Puts a Checkpoint together: reads the files of either format, then checks that the tensors are those of the model.
struct CheckpointBuilder {
  std::shared_ptr<Checkpoint> checkpoint{new Checkpoint()};
  Digest digest;
  std::string what;

  Error Fail(ErrorCode code, const std::string& message) const { return {code, what + ": " + message}; }

  // Adds a file to the fingerprint: its size, its header and the middle of every tensor, so that a change to any whole
  // tensor shows while only a few pages are read.
  void HashFile(uint64_t size, std::span<const std::byte> header, const std::vector<Tensor>& tensors) {
    constexpr size_t kSample = 1024;
    digest.Update("file " + std::to_string(size) + " " + std::to_string(header.size()) + "\n");
    digest.Update(header);
    for (const Tensor& tensor : tensors) {
      const size_t length = std::min(kSample, tensor.data.size());
      digest.Update(tensor.data.subspan((tensor.data.size() - length) / 2, length));
    }
    checkpoint->file_bytes_ += size;
  }

  Status AddTensors(const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) {
      if (!checkpoint->tensors_.emplace(tensor.name, tensor).second) {
        return Fail(ErrorCode::kMalformed, "tensor '" + tensor.name + "' is in two files");
      }
    }
    return {};
  }

  Status ReadDirectory(const std::string& dir) {
    what = "'" + dir + "'";
    const std::string config_path = (fs::path(dir) / "config.json").string();
    PITH_ASSIGN(const std::string config_text, ReadText(config_path));
    PITH_ASSIGN(checkpoint->config_, ParseHfConfig(config_text, "'" + config_path + "'"));
    const std::string generation_path = (fs::path(dir) / "generation_config.json").string();
    if (const Result<std::string> text = ReadText(generation_path); text.ok()) {
      PITH_RETURN_IF_ERROR(MergeGenerationConfig(*text, "'" + generation_path + "'", &checkpoint->config_));
    } else if (text.error().code != ErrorCode::kNotFound) {
      return text.error();
    }
    digest.Update("config " + std::to_string(config_text.size()) + "\n" + config_text);

    // The order of transformers: one file first, then the index.
    const std::string single = (fs::path(dir) / "model.safetensors").string();
    const std::string index = (fs::path(dir) / "model.safetensors.index.json").string();
    std::error_code ignored;
    if (fs::exists(single, ignored)) {
      PITH_ASSIGN(const auto file, SafetensorsFile::Open(single));
      HashFile(file->file_bytes(), file->header(), file->tensors());
      PITH_RETURN_IF_ERROR(AddTensors(file->tensors()));
    } else if (fs::exists(index, ignored)) {
      PITH_RETURN_IF_ERROR(ReadShards(dir, index));
    } else {
      return Fail(ErrorCode::kNotFound, "neither model.safetensors nor model.safetensors.index.json is there");
    }

    const std::vector<ModelModule> modules = Modules();
    if (modules.empty()) return TooFewTensors();
    PITH_ASSIGN(checkpoint->quantization_, ParseQuantizationConfig(config_text, modules, "'" + config_path + "'"));
    return CheckTensors(modules);
  }

  Status ReadShards(const std::string& dir, const std::string& index_path) {
    PITH_ASSIGN(const Json index, ReadJsonFile(index_path));
    const std::string index_what = "'" + index_path + "'";
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
      return Error{ErrorCode::kMalformed, index_what + ": 'weight_map' is not an object"};
    }
    std::map<std::string, std::vector<std::string>> names_of_shard;
    for (const auto& [name, shard] : index["weight_map"].items()) {
      if (!shard.is_string() || !IsPlainFileName(shard.get<std::string>())) {
        return Error{ErrorCode::kMalformed,
                     index_what + ": the file of tensor '" + name + "' is not a plain file name"};
      }
      names_of_shard[shard.get<std::string>()].push_back(name);
    }
    std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
    for (const auto& [shard, names] : names_of_shard) {
      Result<std::shared_ptr<const SafetensorsFile>> file = SafetensorsFile::Open((fs::path(dir) / shard).string());
      if (!file.ok()) return file.error().Wrap(index_what);
      files[shard] = *std::move(file);
    }
    for (const auto& [shard, names] : names_of_shard) {
      const SafetensorsFile& file = *files[shard];
      for (const std::string& name : names) {
        if (file.Find(name) == nullptr) {
          return Error{ErrorCode::kMalformed, index_what + ": tensor '" + name + "' is not in '" + shard + "'"};
        }
      }
      for (const Tensor& tensor : file.tensors()) {
        const auto entry = index["weight_map"].find(tensor.name);
        if (entry == index["weight_map"].end() || *entry != shard) {
          return Error{ErrorCode::kMalformed, index_what + ": tensor '" + tensor.name + "' is in '" + shard +
                                                  "', which the index does not say"};
        }
      }
      HashFile(file.file_bytes(), file.header(), file.tensors());
      PITH_RETURN_IF_ERROR(AddTensors(file.tensors()));
    }
    return {};
  }

  Status ReadGguf(const std::string& path) {
    what = "'" + path + "'";
    checkpoint->format_ = CheckpointFormat::kGguf;
    PITH_ASSIGN(checkpoint->gguf_, GgufFile::Open(path));
    const GgufFile& gguf = *checkpoint->gguf_;
    PITH_ASSIGN(checkpoint->config_, ConfigFromGguf(gguf));
    HashFile(gguf.file()->size(), gguf.header(), gguf.tensors());
    for (const Tensor& tensor : gguf.tensors()) {
      if (tensor.name == "rope_freqs.weight") continue;  // part of the configuration
      const std::optional<std::string> name = HfNameOfGguf(tensor.name);
      if (!name) {
        return Fail(ErrorCode::kUnsupported, "tensor '" + tensor.name + "' has no place in a " +
                                                 ArchitectureName(checkpoint->config_.arch) + " model");
      }
      Tensor& renamed = checkpoint->tensors_[*name];
      renamed = tensor;
      renamed.name = *name;
    }
    const std::vector<ModelModule> modules = Modules();
    if (modules.empty()) return TooFewTensors();
    return CheckTensors(modules);
  }

  // The modules of the model; none when the files cannot hold as many layers as the configuration claims, so that a
  // hostile number of layers costs nothing.
  std::vector<ModelModule> Modules() const {
    if (checkpoint->config_.layers > static_cast<int64_t>(checkpoint->tensors_.size())) return {};
    return ModulesOf(checkpoint->config_);
  }

  Error TooFewTensors() const {
    return Fail(ErrorCode::kNotFound, "the files hold " + std::to_string(checkpoint->tensors_.size()) +
                                          " tensors, too few for " + std::to_string(checkpoint->config_.layers) +
                                          " layers");
  }

  // Checks that every tensor of the model is there with the right type and shape, and that there is none beside them:
  // a tensor that pith would not use could change the result.
  Status CheckTensors(const std::vector<ModelModule>& modules) {
    std::set<std::string> expected;
    for (const ModelModule& module : modules) {
      const QuantScheme* scheme = nullptr;
      if (module.kind != ModuleKind::kNorm && checkpoint->quantization_) {
        scheme = checkpoint->quantization_->SchemeFor(module.name);
      }
      if (scheme == nullptr) {
        PITH_RETURN_IF_ERROR(CheckFloats(module.name + ".weight", module.shape, module.kind != ModuleKind::kNorm));
        expected.insert(module.name + ".weight");
      } else {
        PITH_RETURN_IF_ERROR(CheckPacked(module, *scheme, &expected));
      }
      if (module.bias) {
        PITH_RETURN_IF_ERROR(CheckFloats(module.name + ".bias", {module.shape[0]}, false));
        expected.insert(module.name + ".bias");
      }
    }
    for (const auto& [name, tensor] : checkpoint->tensors_) {
      if (expected.count(name) != 0) continue;
      const bool kv_scale = EndsWith(name, ".self_attn.k_scale") || EndsWith(name, ".self_attn.v_scale");
      const bool harmless = EndsWith(name, ".rotary_emb.inv_freq") ||  // old files; follows from the configuration
                            (name == "lm_head.weight" && checkpoint->config_.tied_embeddings) ||
                            (kv_scale && checkpoint->quantization_ && checkpoint->quantization_->kv_bits);
      if (harmless) continue;
      return Fail(ErrorCode::kUnsupported, "tensor '" + name + "' has no place in this " +
                                               ArchitectureName(checkpoint->config_.arch) + " model");
    }
    return {};
  }

  Status CheckFloats(const std::string& name, const std::vector<int64_t>& shape, bool blocks_allowed) const {
    PITH_ASSIGN(const Tensor* tensor, checkpoint->Get(name, shape));
    if (IsFloat(tensor->type) || (blocks_allowed && IsBlockType(tensor->type))) return {};
    return Fail(ErrorCode::kUnsupported,
                "tensor '" + name + "' has type " + DTypeName(tensor->type) + ", which is not supported there");
  }

  Status CheckType(const Tensor& tensor, std::initializer_list<DType> types) const {
    if (std::find(types.begin(), types.end(), tensor.type) != types.end()) return {};
    return Fail(ErrorCode::kMismatch, "tensor '" + tensor.name + "' has type " + DTypeName(tensor.type));
  }

  // The tensors of one pack-quantized module: values packed along the inputs, one scale (and zero point, packed along
  // the outputs) per group of inputs, and the unpacked shape.
  Status CheckPacked(const ModelModule& module, const QuantScheme& scheme, std::set<std::string>* expected) const {
    const int64_t out = module.shape[0];
    const int64_t in = module.shape[1];
    if (scheme.group > 0 && in % scheme.group != 0) {
      return Fail(ErrorCode::kUnsupported, "module '" + module.name + "' has " + std::to_string(in) +
                                               " inputs, no multiple of the group size " +
                                               std::to_string(scheme.group));
    }
    const int64_t groups = scheme.group > 0 ? in / scheme.group : 1;
    const int64_t per_word = 32 / scheme.bits;

    const std::string packed_name = module.name + ".weight_packed";
    PITH_ASSIGN(const Tensor* packed, checkpoint->Get(packed_name, {out, CeilDiv(in, per_word)}));
    PITH_RETURN_IF_ERROR(CheckType(*packed, {DType::kI32}));
    const std::string scale_name = module.name + ".weight_scale";
    PITH_ASSIGN(const Tensor* scale, checkpoint->Get(scale_name, {out, groups}));
    PITH_RETURN_IF_ERROR(CheckType(*scale, {DType::kF32, DType::kF16, DType::kBF16}));
    expected->insert({packed_name, scale_name});
    if (scheme.minimum) {
      const std::string minimum_name = module.name + ".weight_min";
      PITH_ASSIGN(const Tensor* minimum, checkpoint->Get(minimum_name, {out, groups}));
      PITH_RETURN_IF_ERROR(CheckType(*minimum, {scale->type}));
      expected->insert(minimum_name);
    } else if (!scheme.symmetric) {
      const std::string zero_name = module.name + ".weight_zero_point";
      PITH_ASSIGN(const Tensor* zero, checkpoint->Get(zero_name, {CeilDiv(out, per_word), groups}));
      PITH_RETURN_IF_ERROR(CheckType(*zero, {DType::kI32}));
      expected->insert(zero_name);
    }

    const std::string shape_name = module.name + ".weight_shape";
    PITH_ASSIGN(const Tensor* shape, checkpoint->Get(shape_name, {2}));
    PITH_RETURN_IF_ERROR(CheckType(*shape, {DType::kI64, DType::kI32}));
    expected->insert(shape_name);
    for (size_t i = 0; i < 2; ++i) {
      int64_t size = 0;
      if (shape->type == DType::kI64) {
        std::memcpy(&size, shape->data.data() + 8 * i, 8);
      } else {
        int32_t narrow = 0;
        std::memcpy(&narrow, shape->data.data() + 4 * i, 4);
        size = narrow;
      }
      if (size != module.shape[i]) {
        return Fail(ErrorCode::kMismatch, "tensor '" + shape_name + "' does not say " + ShapeText(module.shape));
      }
    }
    return {};
  }
};

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(const std::string& path) {
  CheckpointBuilder builder;
  builder.checkpoint->path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return Error{ErrorCode::kNotFound, "there is no model at '" + path + "'"};
  builder.digest.Update("pith checkpoint 1\n");
  PITH_RETURN_IF_ERROR(fs::is_directory(status) ? builder.ReadDirectory(path) : builder.ReadGguf(path));
  builder.checkpoint->fingerprint_ = builder.digest.Finish();
  return std::shared_ptr<const Checkpoint>(std::move(builder.checkpoint));
}

const Tensor* Checkpoint::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<const Tensor*> Checkpoint::Get(const std::string& name, const std::vector<int64_t>& shape) const {
  const Tensor* tensor = Find(name);
  if (tensor == nullptr) return Error{ErrorCode::kNotFound, "'" + path_ + "' has no tensor '" + name + "'"};
  if (!shape.empty() && tensor->shape != shape) {
    return Error{ErrorCode::kMismatch, "'" + path_ + "': tensor '" + name + "' has shape " + ShapeText(tensor->shape) +
                                           ", not " + ShapeText(shape)};
  }
  return tensor;
}

bool Checkpoint::RowsInterleaved(const std::string& name) const {
  if (format_ != CheckpointFormat::kGguf || config_.arch != Architecture::kLlama) return false;
  for (const char* module : {".self_attn.q_proj.", ".self_attn.k_proj."}) {
    if (name.find(module) != std::string::npos) return true;
  }
  return false;
}

}  // namespace pith
