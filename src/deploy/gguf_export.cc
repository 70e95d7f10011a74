#include "deploy/gguf_export.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "base/cache_folder.h"
#include "base/thread_pool.h"
#include "deploy/gguf_blocks.h"
#include "deploy/gguf_tokenizer.h"
#include "deploy/gguf_writer.h"
#include "deploy/lora_factors.h"
#include "deploy/matrix_reader.h"
#include "model/hf_names.h"

namespace pith {

namespace {

constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kChunkBytes = int64_t{8} << 20;  // encoded bytes held before they are written
constexpr uint32_t kQuantizationVersion = 2;       // of ggml's block types

bool IsPermuted(const ModelConfig& config, const std::string& name) {
  return config.arch == Architecture::kLlama &&
         (name.find(".self_attn.q_proj") != std::string::npos || name.find(".self_attn.k_proj") != std::string::npos);
}

// The Hugging Face row that lies at row `row` of a GGUF llama file: the inverse of InterleavedRow.
int64_t DeinterleavedRow(int64_t row, int64_t head_dim) {
  const int64_t in_head = row % head_dim;
  return row - in_head + in_head / 2 + (in_head % 2 == 0 ? 0 : head_dim / 2);
}

int64_t HfRow(const ModelConfig& config, const std::string& name, int64_t row) {
  return IsPermuted(config, name) ? DeinterleavedRow(row, config.head_dim) : row;
}

// Llama 3's scaling as a divisor of each frequency; GGUF has no other form of it.
std::vector<float> RopeDivisors(const ModelConfig& config) {
  if (!config.rope_frequency_divisors.empty()) return config.rope_frequency_divisors;
  if (config.rope_scaling.kind != RopeScalingKind::kLlama3) return {};
  ModelConfig plain = config;
  plain.rope_scaling = RopeScaling();
  const RopeFrequencies scaled = ComputeRopeFrequencies(config);
  const RopeFrequencies unscaled = ComputeRopeFrequencies(plain);
  std::vector<float> divisors;
  for (size_t i = 0; i < scaled.inv_freq.size(); ++i) {
    divisors.push_back(static_cast<float>(unscaled.inv_freq[i] / scaled.inv_freq[i]));
  }
  return divisors;
}

Status AddModelMetadata(const ModelConfig& config, const std::string& name, GgufMetadata* metadata) {
  const auto unsupported = [](const std::string& what) {
    return Error{ErrorCode::kUnsupported, "llama.cpp has no model with " + what};
  };
  if (config.arch == Architecture::kQwen2 && (!config.attention_bias || config.attention_out_bias || config.mlp_bias)) {
    return unsupported("the biases of this one (qwen2: on q, k and v and nowhere else)");
  }
  if (config.arch == Architecture::kQwen3 && (config.attention_bias || config.attention_out_bias || config.mlp_bias)) {
    return unsupported("the biases of this one (qwen3 has none there)");
  }
  const std::string arch = ArchitectureName(config.arch);
  const auto add = [&](const char* key, int64_t value) {
    metadata->AddU32(arch + "." + key, static_cast<uint32_t>(value));
  };
  metadata->AddString("general.architecture", arch);
  metadata->AddString("general.type", "model");
  metadata->AddString("general.name", name);
  add("context_length", config.max_position);
  add("embedding_length", config.hidden);
  add("block_count", config.layers);
  add("feed_forward_length", config.intermediate);
  add("attention.head_count", config.heads);
  add("attention.head_count_kv", config.kv_heads);
  add("attention.key_length", config.head_dim);
  add("attention.value_length", config.head_dim);
  add("rope.dimension_count", config.head_dim);
  add("vocab_size", config.vocab);
  metadata->AddF32(arch + ".attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_eps));
  metadata->AddF32(arch + ".rope.freq_base", static_cast<float>(config.rope_theta));
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind == RopeScalingKind::kLinear) {
    metadata->AddString(arch + ".rope.scaling.type", "linear");
    metadata->AddF32(arch + ".rope.scaling.factor", static_cast<float>(scaling.factor));
  } else if (scaling.kind == RopeScalingKind::kYarn) {
    metadata->AddString(arch + ".rope.scaling.type", "yarn");
    metadata->AddF32(arch + ".rope.scaling.factor", static_cast<float>(scaling.factor));
    add("rope.scaling.original_context_length", scaling.original_max_position);
    metadata->AddF32(arch + ".rope.scaling.yarn_beta_fast", static_cast<float>(scaling.beta_fast));
    metadata->AddF32(arch + ".rope.scaling.yarn_beta_slow", static_cast<float>(scaling.beta_slow));
    if (scaling.attention_factor != 0.0 && scaling.factor > 1.0) {
      // llama.cpp multiplies its own factor by this one.
      const double own = 0.1 * std::log(scaling.factor) + 1.0;
      metadata->AddF32(arch + ".rope.scaling.attn_factor", static_cast<float>(scaling.attention_factor / own));
    }
  }
  return {};
}

uint32_t FileType(DType type) {
  switch (type) {
    case DType::kF32: return 0;
    case DType::kQ4_0: return 2;
    case DType::kQ4_1: return 3;
    case DType::kQ8_0: return 7;
    case DType::kBF16: return 32;
    default: return 1;  // F16
  }
}

class Exporter {
 public:
  Exporter(const Checkpoint& checkpoint, const GgufExportOptions& options)
      : checkpoint_(checkpoint), config_(checkpoint.config()), options_(options), pool_(options.threads) {}

  Result<GgufExportReport> Run(const std::string& path) {
    GgufMetadata metadata;
    std::string name = options_.name;
    std::filesystem::path source = std::filesystem::path(checkpoint_.path()).lexically_normal();
    if (name.empty())
      name = source.has_filename() ? source.filename().string() : source.parent_path().filename().string();
    PITH_RETURN_IF_ERROR(AddModelMetadata(config_, name, &metadata));
    PITH_RETURN_IF_ERROR(Plan());
    metadata.AddU32("general.file_type", FileType(MostCommonType()));
    metadata.AddU32("general.quantization_version", kQuantizationVersion);
    PITH_RETURN_IF_ERROR(AddTokenizerMetadata(checkpoint_, &metadata));
    std::vector<GgufEntry> entries;
    uint64_t bytes = 0;
    for (const Item& item : items_) {
      entries.push_back({item.name, item.type, item.shape});
      bytes += static_cast<uint64_t>(TensorBytes(item.type, item.shape).value_or(0));
    }
    const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
    PITH_RETURN_IF_ERROR(CheckFreeSpace(folder.string(), bytes));
    PITH_ASSIGN(writer_, GgufWriter::Create(path, metadata, std::move(entries)));
    for (const Item& item : items_) PITH_RETURN_IF_ERROR(Write(item));
    report_.file_bytes = writer_->file_bytes();
    report_.path = path;
    PITH_RETURN_IF_ERROR(writer_->Finish());
    return std::move(report_);
  }

 private:
  struct Item {
    std::string name;    // GGUF's
    std::string module;  // Hugging Face's
    std::string part;    // "weight" or "bias"
    DType type = DType::kF32;
    std::vector<int64_t> shape;
    std::unique_ptr<MatrixReader> matrix;  // null for vectors
    std::vector<float> values;             // of a tensor that no file of the source holds
  };

  Status Plan() {
    for (const ModelModule& module : ModulesOf(config_)) {
      PITH_RETURN_IF_ERROR(Add(module, "weight"));
      if (module.bias) PITH_RETURN_IF_ERROR(Add(module, "bias"));
    }
    Item divisors;
    divisors.values = RopeDivisors(config_);
    if (divisors.values.empty()) return {};
    divisors.name = "rope_freqs.weight";
    divisors.shape = {static_cast<int64_t>(divisors.values.size())};
    items_.push_back(std::move(divisors));
    return {};
  }

  Status Add(const ModelModule& module, const std::string& part) {
    Item item;
    const std::string name = module.name + "." + part;
    const std::optional<std::string> gguf = GgufNameOfHf(name);
    if (!gguf) return Error{ErrorCode::kInternal, "tensor '" + name + "' has no name in GGUF files"};
    item.name = *gguf;
    item.module = module.name;
    item.part = part;
    item.shape = part == "bias" ? std::vector<int64_t>{module.shape[0]} : module.shape;
    if (item.shape.size() == 2) {
      PITH_ASSIGN(MatrixReader reader, MatrixReader::Open(checkpoint_, module.name, module.shape[0], module.shape[1]));
      item.matrix = std::make_unique<MatrixReader>(std::move(reader));
      PITH_ASSIGN(item.type, TypeFor(item, module));
      weights_ += static_cast<uint64_t>(item.matrix->rows() * item.matrix->cols());
    }
    items_.push_back(std::move(item));
    return {};
  }

  Result<DType> TypeFor(const Item& item, const ModelModule& module) const {
    const std::optional<DType> exact = ExactGgufType(*item.matrix);
    if (!options_.type) return exact.value_or(DType::kF16);
    DType type = *options_.type;
    const bool four_bits = type == DType::kQ4_0 || type == DType::kQ4_1;
    if (four_bits && (module.name == "lm_head" || module.kind == ModuleKind::kEmbedding)) {
      const bool fits = exact == DType::kQ4_0 || exact == DType::kQ4_1;
      type = fits ? *exact : DType::kQ8_0;
    }
    if (item.matrix->cols() % DTypeBlock(type).elements != 0) {
      return Error{ErrorCode::kInvalidArgument, "'" + module.name + "' cannot be written as " + DTypeName(type) +
                                                    ": it has " + std::to_string(item.matrix->cols()) +
                                                    " inputs, no multiple of 32"};
    }
    return type;
  }

  DType MostCommonType() const {
    std::map<DType, int64_t> weights;
    for (const Item& item : items_) {
      if (item.matrix) weights[item.type] += item.matrix->rows() * item.matrix->cols();
    }
    const auto most = std::max_element(weights.begin(), weights.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    return most->first;
  }

  Status Write(const Item& item) {
    if (item.matrix) return WriteMatrix(item);
    std::vector<float> values = item.values;
    if (values.empty()) {
      PITH_ASSIGN(values, ReadVector(checkpoint_, item.module, item.part, item.shape[0]));
    }
    std::vector<float> ordered(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      ordered[i] = values[static_cast<size_t>(HfRow(config_, item.module, static_cast<int64_t>(i)))];
    }
    return writer_->Write(item.name, std::as_bytes(std::span(ordered)));
  }

  Status WriteMatrix(const Item& item) {
    const GgufRowEncoder encoder(*item.matrix, item.type);
    const int64_t rows = item.matrix->rows();
    const int64_t row_bytes = encoder.row_bytes();
    const int64_t chunk = std::clamp<int64_t>(kChunkBytes / row_bytes, 1, rows);
    std::vector<std::byte> buffer(static_cast<size_t>(chunk * row_bytes));
    std::vector<GgufRowEncoder::Loss> losses(static_cast<size_t>(rows));
    std::atomic<int64_t> bad_row{-1};
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t end = std::min(begin + chunk, rows);
      pool_.Run((end - begin + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
        const int64_t first = begin + task * kRowsPerTask;
        for (int64_t row = first; row < std::min(first + kRowsPerTask, end); ++row) {
          std::byte* out = buffer.data() + (row - begin) * row_bytes;
          const int64_t source = HfRow(config_, item.module, row);
          if (!encoder.Encode(source, out, &losses[static_cast<size_t>(row)])) bad_row = source;
        }
      });
      if (bad_row >= 0) {
        return Error{ErrorCode::kNumeric, "'" + item.module + ".weight' row " + std::to_string(bad_row.load()) +
                                              " holds a weight that is not finite or too large for " +
                                              DTypeName(item.type)};
      }
      const auto bytes = static_cast<size_t>((end - begin) * row_bytes);
      PITH_RETURN_IF_ERROR(writer_->Write(item.name, std::span(buffer).first(bytes)));
      done_ += static_cast<uint64_t>((end - begin) * item.matrix->cols());
      if (options_.on_progress) options_.on_progress(done_, weights_);
    }
    GgufRowEncoder::Loss sum;
    for (const GgufRowEncoder::Loss& loss : losses) {
      sum.signal += loss.signal;
      sum.noise += loss.noise;
    }
    GgufTensorReport& tensor = report_.matrices.emplace_back();
    tensor.name = item.name;
    tensor.rows = rows;
    tensor.cols = item.matrix->cols();
    tensor.type = item.type;
    tensor.exact = encoder.exact() || sum.noise == 0.0;
    if (!tensor.exact) tensor.sqnr_db = 10.0 * std::log10(std::max(sum.signal, 1e-300) / sum.noise);
    return {};
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const GgufExportOptions& options_;
  ThreadPool pool_;
  std::vector<Item> items_;
  std::unique_ptr<GgufWriter> writer_;
  GgufExportReport report_;
  uint64_t weights_ = 0;
  uint64_t done_ = 0;
};

// Floats in one of the plain types. False when one does not fit.
bool ToPlain(std::span<const float> values, DType type, std::vector<std::byte>* out) {
  if (type == DType::kF32) {
    const auto bytes = std::as_bytes(values);
    out->assign(bytes.begin(), bytes.end());
    return true;
  }
  out->resize(values.size() * 2);
  bool fits = true;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t word = type == DType::kF16 ? F32ToF16(values[i]) : F32ToBF16(values[i]);
    fits = fits && std::isfinite(type == DType::kF16 ? F16ToF32(word) : BF16ToF32(word));
    std::copy_n(reinterpret_cast<const std::byte*>(&word), 2, out->data() + i * 2);
  }
  return fits;
}

}  // namespace

bool GgufExportReport::exact() const {
  return std::ranges::all_of(matrices, [](const GgufTensorReport& tensor) { return tensor.exact; });
}

Result<std::optional<DType>> ParseGgufType(std::string_view text) {
  if (text == "auto") return std::optional<DType>();
  constexpr std::pair<std::string_view, DType> kTypes[] = {{"f32", DType::kF32},   {"f16", DType::kF16},
                                                           {"bf16", DType::kBF16}, {"q8_0", DType::kQ8_0},
                                                           {"q4_0", DType::kQ4_0}, {"q4_1", DType::kQ4_1}};
  for (const auto& [name, type] : kTypes) {
    if (text == name) return std::optional<DType>(type);
  }
  return Error{ErrorCode::kInvalidArgument,
               "'" + std::string(text) + "' is no GGUF type: auto, f32, f16, bf16, q8_0, q4_0, q4_1"};
}

Result<GgufExportReport> ExportGguf(const Checkpoint& checkpoint, const std::string& path,
                                    const GgufExportOptions& options) {
  return Exporter(checkpoint, options).Run(path);
}

Result<GgufAdapterReport> ExportAdapterGguf(const AdapterFile& adapter, const ModelConfig& config,
                                            const std::string& path, const GgufAdapterOptions& options) {
  GgufAdapterReport report;
  report.path = path;
  report.modules = static_cast<int64_t>(adapter.modules.size());
  if (adapter.modules.empty()) return Error{ErrorCode::kInvalidArgument, "'" + adapter.path + "' adapts nothing"};
  // llama.cpp scales every module by alpha / its rank.
  const LoraModule& first = adapter.modules.front();
  const float alpha = first.scaling * static_cast<float>(first.rank);
  std::vector<GgufEntry> entries;
  for (const LoraModule& module : adapter.modules) {
    const std::string name = LinearName(module.layer, module.kind);
    const std::optional<std::string> gguf = GgufNameOfHf(name + ".weight");
    if (!gguf || (module.kind == LinearKind::kLmHead && config.tied_embeddings)) {
      return Error{ErrorCode::kUnsupported,
                   "'" + name +
                       "' is adapted, but the model's GGUF file has no tensor of its own for it (it is tied "
                       "to the embedding); export the base with an LM head of its own, or merge the adapter"};
    }
    const LinearShape shape = ShapeOf(config, module.kind);
    entries.push_back({*gguf + ".lora_a", options.type, {module.rank, shape.in}});
    entries.push_back({*gguf + ".lora_b", options.type, {shape.out, module.rank}});
  }
  GgufMetadata metadata;
  metadata.AddString("general.architecture", ArchitectureName(config.arch));
  metadata.AddString("general.type", "adapter");
  std::filesystem::path source = std::filesystem::path(adapter.path).lexically_normal();
  metadata.AddString("general.name",
                     source.has_filename() ? source.filename().string() : source.parent_path().filename().string());
  metadata.AddU32("general.file_type", FileType(options.type));
  metadata.AddU32("general.quantization_version", kQuantizationVersion);
  metadata.AddString("adapter.type", "lora");
  metadata.AddF32("adapter.lora.alpha", alpha);
  if (!adapter.invocation.empty()) {
    const std::vector<uint32_t> tokens(adapter.invocation.begin(), adapter.invocation.end());
    metadata.AddU32s("adapter.alora.invocation_tokens", tokens);
  }
  PITH_ASSIGN(const auto writer, GgufWriter::Create(path, metadata, entries));
  size_t entry = 0;
  for (const LoraModule& module : adapter.modules) {
    PITH_ASSIGN(LoraFloats factors, ReadFactors(module));
    const std::string name = LinearName(module.layer, module.kind);
    // An alpha of 0 means "no alpha" there, so a scaling of 0 goes into B as well.
    const float told = alpha == 0.0F ? 1.0F : alpha / static_cast<float>(module.rank);
    if (told != module.scaling) {
      ++report.folded;
      for (float& value : factors.b) value *= module.scaling / told;
    }
    std::vector<float> ordered(factors.b.size());
    const auto rank = static_cast<size_t>(module.rank);
    for (size_t row = 0; row < factors.b.size() / rank; ++row) {
      const auto from = static_cast<size_t>(HfRow(config, name, static_cast<int64_t>(row)));
      std::copy_n(factors.b.data() + from * rank, rank, ordered.data() + row * rank);
    }
    for (const std::span<const float> values : {std::span<const float>(factors.a), std::span<const float>(ordered)}) {
      std::vector<std::byte> bytes;
      if (!ToPlain(values, options.type, &bytes)) {
        return Error{ErrorCode::kNumeric, "a factor of '" + name + "' is too large for " + DTypeName(options.type)};
      }
      PITH_RETURN_IF_ERROR(writer->Write(entries[entry++].name, bytes));
    }
  }
  report.file_bytes = writer->file_bytes();
  PITH_RETURN_IF_ERROR(writer->Finish());
  return report;
}

}  // namespace pith
