#include "quant/merged_model.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>

#include "base/cache_folder.h"
#include "base/json.h"
#include "deploy/matrix_reader.h"
#include "model/companions.h"
#include "model/hf_export.h"
#include "model/hf_names.h"
#include "model/pack.h"
#include "model/safetensors.h"

namespace pith::quant {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kChunkElements = int64_t{4} << 20;  // of embedding and head held at a time

Status WriteText(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Error{ErrorCode::kIo, "cannot write '" + path.string() + "'"};
  return {};
}

class Merger {
 public:
  Merger(const Checkpoint& checkpoint, const std::vector<float>& rotation, ThreadPool& pool,
         const MergeOptions& options)
      : checkpoint_(checkpoint), config_(checkpoint.config()), rotation_(rotation), pool_(pool), options_(options) {
    config_.tied_embeddings = false;
  }

  Status Run(const fs::path& folder) {
    PITH_RETURN_IF_ERROR(WriteConfigAndTokenizer(folder));
    std::vector<SafetensorsEntry> entries;
    for (const ModelModule& module : ModulesOf(config_)) {
      entries.push_back({module.name + ".weight", DType::kF32, module.shape});
      if (module.bias) entries.push_back({module.name + ".bias", DType::kF32, {module.shape[0]}});
    }
    uint64_t bytes = 0;
    for (const SafetensorsEntry& entry : entries) {
      bytes += static_cast<uint64_t>(TensorBytes(DType::kF32, entry.shape).value_or(0));
    }
    PITH_RETURN_IF_ERROR(CheckFreeSpace(folder.string(), bytes));
    PITH_ASSIGN(writer_, SafetensorsWriter::Create((folder / "model.safetensors").string(), std::move(entries),
                                                   {{"format", "pt"}}));
    PITH_RETURN_IF_ERROR(WriteTable("model.embed_tokens", {}));
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      PITH_RETURN_IF_ERROR(WriteLayer(layer));
      if (options_.on_layer) options_.on_layer(layer + 1, config_.layers);
    }
    PITH_ASSIGN(const std::vector<float> gain, ReadVector(checkpoint_, "model.norm", "weight", config_.hidden));
    PITH_RETURN_IF_ERROR(WriteGain("model.norm.weight", config_.hidden));
    PITH_RETURN_IF_ERROR(WriteTable("lm_head", gain));
    return writer_->Finish();
  }

 private:
  Status WriteConfigAndTokenizer(const fs::path& folder) const {
    std::string text;
    if (checkpoint_.format() == CheckpointFormat::kGguf) {
      PITH_ASSIGN(text, HfConfigText(config_));
    } else {
      PITH_ASSIGN(const Json parsed, ReadJsonFile((fs::path(checkpoint_.path()) / "config.json").string()));
      OrderedJson json = parsed;
      json.erase("quantization_config");
      json["tie_word_embeddings"] = false;
      json["torch_dtype"] = "float32";
      if (json.contains("dtype")) json["dtype"] = "float32";
      text = json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
    }
    PITH_RETURN_IF_ERROR(WriteText(folder / "config.json", text));
    return WriteCompanions(checkpoint_, folder.string());
  }

  // Writes the next tensor, or piece of one.
  Status Write(const std::string& name, std::span<const float> values) {
    const auto finite = [](float value) { return std::isfinite(value); };
    if (!std::all_of(values.begin(), values.end(), finite)) {
      return Error{ErrorCode::kNumeric, "'" + name + "' holds a weight that is not finite"};
    }
    return writer_->Write(name, std::as_bytes(values));
  }

  // A gain of 1, or of 1 / scales.
  Status WriteGain(const std::string& name, int64_t size, const std::vector<float>& scales = {}) {
    std::vector<float> gain(static_cast<size_t>(size), 1.0f);
    for (size_t i = 0; i < scales.size(); ++i) gain[i] = 1.0f / scales[i];
    return Write(name, gain);
  }

  static void ScaleColumns(const std::vector<float>& scales, std::initializer_list<WeightMatrix*> matrices) {
    if (scales.empty()) return;
    for (WeightMatrix* matrix : matrices) {
      for (size_t i = 0; i < matrix->values.size(); ++i) matrix->values[i] *= scales[i % scales.size()];
    }
  }

  // Embedding or head, times the gain of the norm before it, rotated.
  Status WriteTable(const std::string& module, const std::vector<float>& gain) {
    PITH_ASSIGN(const MatrixReader reader, MatrixReader::Open(checkpoint_, module, config_.vocab, config_.hidden));
    const int64_t chunk = std::max<int64_t>(kChunkElements / config_.hidden, 1);
    for (int64_t begin = 0; begin < config_.vocab; begin += chunk) {
      WeightMatrix piece;
      piece.rows = std::min(chunk, config_.vocab - begin);
      piece.cols = config_.hidden;
      piece.values.resize(static_cast<size_t>(piece.rows * piece.cols));
      for (int64_t row = 0; row < piece.rows; ++row) {
        float* values = piece.values.data() + row * piece.cols;
        reader.ReadRow(begin + row, values);
        for (size_t i = 0; i < gain.size(); ++i) values[i] *= gain[i];
      }
      if (!rotation_.empty()) RotateInputs(rotation_, pool_, &piece);
      PITH_RETURN_IF_ERROR(Write(module + ".weight", piece.values));
    }
    return {};
  }

  Status WriteLayer(int64_t index) {
    PITH_ASSIGN(LayerWeights weights, ReadLayer(checkpoint_, index));
    if (!rotation_.empty()) RotateLayer(rotation_, pool_, &weights);
    if (options_.layer_transforms) {
      PITH_ASSIGN(const LayerTransforms transforms, options_.layer_transforms(index, weights));
      PITH_RETURN_IF_ERROR(MergeLayer(config_, transforms, &weights));
    }
    NormScales scales;
    if (options_.norm_scales) scales = options_.norm_scales(index);
    ScaleColumns(scales.attention, {&weights.q, &weights.k, &weights.v});
    ScaleColumns(scales.mlp, {&weights.gate, &weights.up});
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    const auto linear = [&](const char* name, const WeightMatrix& matrix) -> Status {
      PITH_RETURN_IF_ERROR(Write(prefix + name + ".weight", matrix.values));
      return matrix.bias.empty() ? Status() : Write(prefix + name + ".bias", matrix.bias);
    };
    PITH_RETURN_IF_ERROR(WriteGain(prefix + "input_layernorm.weight", config_.hidden, scales.attention));
    PITH_RETURN_IF_ERROR(linear("self_attn.q_proj", weights.q));
    PITH_RETURN_IF_ERROR(linear("self_attn.k_proj", weights.k));
    PITH_RETURN_IF_ERROR(linear("self_attn.v_proj", weights.v));
    for (const char* name : {"self_attn.q_norm", "self_attn.k_norm"}) {
      if (!config_.qk_norm) continue;
      PITH_ASSIGN(const std::vector<float> gain, ReadVector(checkpoint_, prefix + name, "weight", config_.head_dim));
      PITH_RETURN_IF_ERROR(Write(prefix + name + ".weight", gain));
    }
    PITH_RETURN_IF_ERROR(linear("self_attn.o_proj", weights.o));
    PITH_RETURN_IF_ERROR(WriteGain(prefix + "post_attention_layernorm.weight", config_.hidden, scales.mlp));
    PITH_RETURN_IF_ERROR(linear("mlp.gate_proj", weights.gate));
    PITH_RETURN_IF_ERROR(linear("mlp.up_proj", weights.up));
    return linear("mlp.down_proj", weights.down);
  }

  const Checkpoint& checkpoint_;
  ModelConfig config_;  // of what is written
  const std::vector<float>& rotation_;
  ThreadPool& pool_;
  const MergeOptions& options_;
  std::unique_ptr<SafetensorsWriter> writer_;
};

}  // namespace

Status WriteMergedModel(const Checkpoint& checkpoint, const std::vector<float>& rotation, ThreadPool& pool,
                        const std::string& out_dir, const MergeOptions& options) {
  const int64_t hidden = checkpoint.config().hidden;
  if (!rotation.empty() && static_cast<int64_t>(rotation.size()) != hidden * hidden) {
    return Error{ErrorCode::kInvalidArgument, "a rotation of another size than the residual stream"};
  }
  std::error_code error;
  if (fs::exists(out_dir, error)) return Error{ErrorCode::kInvalidArgument, "'" + out_dir + "' is there already"};
  const fs::path folder = out_dir + "." + std::to_string(::getpid()) + ".partial";
  fs::remove_all(folder, error);
  if (!fs::create_directories(folder, error)) {
    return Error{ErrorCode::kIo, "cannot create '" + folder.string() + "': " + error.message()};
  }
  Status status = Merger(checkpoint, rotation, pool, options).Run(folder);
  if (status.ok()) {
    fs::rename(folder, out_dir, error);
    if (error) status = Error{ErrorCode::kIo, "cannot move the model to '" + out_dir + "': " + error.message()};
  }
  if (!status.ok()) fs::remove_all(folder, error);
  return status;
}

}  // namespace pith::quant
