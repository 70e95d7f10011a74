#include "engine/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "kernels/elementwise.h"
#include "model/key_equalizer.h"

namespace pith {

using kernels::PackedWeights;
using kernels::QuantMatrix;
using kernels::ZeroKind;

void EmbeddingTable::Row(int32_t token, float* out) const {
  if (packed != nullptr) {
    packed->DequantizeRow(token, out);
    return;
  }
  // Cannot fail: the loader admits only types that dequantize.
  (void)DequantizeRows(table, token, token + 1, out);
}

class WeightLoader {
 public:
  WeightLoader(std::shared_ptr<const Checkpoint> checkpoint, WeightFormat format,
               std::function<void(int64_t, int64_t)> on_layer)
      : checkpoint_(std::move(checkpoint)),
        config_(checkpoint_->config()),
        on_layer_(std::move(on_layer)),
        weights_(std::make_unique<ModelWeights>()) {
    weights_->checkpoint_ = checkpoint_;
    weights_->config = config_;
    weights_->format = format;
  }

  Result<std::unique_ptr<ModelWeights>> Load() {
    PITH_RETURN_IF_ERROR(LoadEmbedding());
    weights_->layers.resize(static_cast<size_t>(config_.layers));
    for (int64_t i = 0; i < config_.layers; ++i) {
      PITH_RETURN_IF_ERROR(LoadLayer(i, &weights_->layers[static_cast<size_t>(i)]));
      if (on_layer_) on_layer_(i + 1, config_.layers);
    }
    PITH_ASSIGN(weights_->final_norm, LoadVector("model.norm.weight", config_.hidden));
    // A tied model uses the embedding even when its files hold an lm_head too, as transformers does.
    const char* head = config_.tied_embeddings ? "model.embed_tokens" : "lm_head";
    PITH_RETURN_IF_ERROR(LoadLinear(head, config_.vocab, config_.hidden, false, &weights_->lm_head));
    Describe();
    return std::move(weights_);
  }

 private:
  Result<std::vector<float>> LoadVector(const std::string& name, int64_t size) {
    PITH_ASSIGN(const Tensor* tensor, checkpoint_->Get(name, {size}));
    return ToFloats(*tensor);
  }

  Status LoadEmbedding() {
    const std::string module = "model.embed_tokens";
    if (checkpoint_->Find(module + ".weight_packed") != nullptr) {
      PITH_ASSIGN(weights_->embedding.packed, LoadPacked(module, config_.vocab, config_.hidden));
      return {};
    }
    PITH_ASSIGN(const Tensor* tensor, checkpoint_->Get(module + ".weight", {config_.vocab, config_.hidden}));
    std::vector<float> row(static_cast<size_t>(config_.hidden));
    PITH_RETURN_IF_ERROR(DequantizeRows(*tensor, 0, 1, row.data()));
    weights_->embedding.table = *tensor;
    return {};
  }

  Status LoadLayer(int64_t index, LayerWeights* layer) {
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    const int64_t hidden = config_.hidden;
    const int64_t q_rows = config_.heads * config_.head_dim;
    const int64_t kv_rows = config_.kv_heads * config_.head_dim;
    PITH_ASSIGN(layer->attention_norm, LoadVector(prefix + "input_layernorm.weight", hidden));
    PITH_ASSIGN(layer->mlp_norm, LoadVector(prefix + "post_attention_layernorm.weight", hidden));
    const std::string attention = prefix + "self_attn.";
    if (config_.qk_norm) {
      PITH_ASSIGN(layer->q_norm, LoadVector(attention + "q_norm.weight", config_.head_dim));
      PITH_ASSIGN(layer->k_norm, LoadVector(attention + "k_norm.weight", config_.head_dim));
    }
    PITH_RETURN_IF_ERROR(LoadLinear(attention + "q_proj", q_rows, hidden, config_.attention_bias, &layer->q));
    PITH_RETURN_IF_ERROR(LoadLinear(attention + "k_proj", kv_rows, hidden, config_.attention_bias, &layer->k));
    PITH_RETURN_IF_ERROR(LoadLinear(attention + "v_proj", kv_rows, hidden, config_.attention_bias, &layer->v));
    PITH_RETURN_IF_ERROR(LoadLinear(attention + "o_proj", hidden, q_rows, config_.attention_out_bias, &layer->o));
    const std::string mlp = prefix + "mlp.";
    PITH_RETURN_IF_ERROR(LoadLinear(mlp + "gate_proj", config_.intermediate, hidden, config_.mlp_bias, &layer->gate));
    PITH_RETURN_IF_ERROR(LoadLinear(mlp + "up_proj", config_.intermediate, hidden, config_.mlp_bias, &layer->up));
    PITH_RETURN_IF_ERROR(LoadLinear(mlp + "down_proj", hidden, config_.intermediate, config_.mlp_bias, &layer->down));
    PITH_ASSIGN(layer->k_static_scale, LoadKvScale(attention + "k_scale"));
    PITH_ASSIGN(layer->v_static_scale, LoadKvScale(attention + "v_scale"));
    EqualizeLayer(layer);
    return {};
  }

  // The checkpoint's scale of the keys or values of a layer, 0 when it has none.
  Result<float> LoadKvScale(const std::string& name) {
    const Tensor* tensor = checkpoint_->Find(name);
    if (tensor == nullptr) return 0.0F;
    if (tensor->elements() != 1) {
      return Error{ErrorCode::kUnsupported, "tensor '" + name + "' has shape " + ShapeText(tensor->shape) +
                                                "; one scale per layer is supported"};
    }
    PITH_ASSIGN(const std::vector<float> values, ToFloats(*tensor));
    if (!std::isfinite(values[0]) || values[0] < std::numeric_limits<float>::min()) {
      return Error{ErrorCode::kMalformed, "tensor '" + name + "' does not hold a positive number"};
    }
    return values[0];
  }

  void EqualizeLayer(LayerWeights* layer) const {
    const int64_t d = config_.head_dim;
    const int64_t group = config_.heads / config_.kv_heads;
    layer->key_scale.assign(static_cast<size_t>(config_.kv_heads * d), 1.0F);
    layer->query_scale.assign(static_cast<size_t>(config_.heads * d), 1.0F / std::sqrt(static_cast<float>(d)));
    if (layer->k_static_scale > 0) return;  // it is the scale of the keys as they are
    const auto read_row = [&](int64_t r, float* row) {
      if (layer->k.packed != nullptr) {
        layer->k.packed->DequantizeRow(r, row);
      } else if (layer->k.matrix.type == FloatType::kF32) {
        std::copy_n(static_cast<const float*>(layer->k.matrix.data) + r * config_.hidden, config_.hidden, row);
      } else {
        ConvertBF16(static_cast<const uint16_t*>(layer->k.matrix.data) + r * config_.hidden, config_.hidden, row);
      }
    };
    layer->key_scale = EqualizeKeys(config_, {layer->attention_norm, layer->k.bias, layer->k_norm, read_row});
    for (size_t q = 0; q < layer->query_scale.size(); ++q) {
      const auto head = static_cast<int64_t>(q) / d;
      layer->query_scale[q] /= layer->key_scale[static_cast<size_t>(head / group * d + static_cast<int64_t>(q) % d)];
    }
  }

  Status LoadLinear(const std::string& module, int64_t rows, int64_t cols, bool bias, Linear* linear) {
    linear->rows = rows;
    linear->cols = cols;
    if (bias) {
      PITH_ASSIGN(linear->bias, LoadVector(module + ".bias", rows));
      if (checkpoint_->RowsInterleaved(module + ".weight")) {
        const std::vector<float> source = linear->bias;
        for (int64_t r = 0; r < rows; ++r) {
          linear->bias[static_cast<size_t>(r)] = source[static_cast<size_t>(InterleavedRow(r, config_.head_dim))];
        }
      }
    }
    if (checkpoint_->Find(module + ".weight_packed") != nullptr) {
      if (weights_->format == WeightFormat::kStored) {
        PITH_ASSIGN(linear->packed, LoadPacked(module, rows, cols));
        return {};
      }
      PITH_ASSIGN(const auto packed, LoadPacked(module, rows, cols));
      return Convert(rows, cols, module, linear, [&](int64_t r, float* out) {
        packed->DequantizeRow(r, out);
        return Status();
      });
    }
    PITH_ASSIGN(const Tensor* tensor, checkpoint_->Get(module + ".weight", {rows, cols}));
    const bool permuted = checkpoint_->RowsInterleaved(module + ".weight");
    if (!permuted && MapDirectly(*tensor, linear)) return {};
    return Convert(rows, cols, module, linear, [&](int64_t r, float* out) {
      const int64_t row = permuted ? InterleavedRow(r, config_.head_dim) : r;
      return DequantizeRows(*tensor, row, row + 1, out);
    });
  }

  // Uses the mapped bytes when their type is the wanted one and they are aligned.
  bool MapDirectly(const Tensor& tensor, Linear* linear) {
    const bool bf16 = tensor.type == DType::kBF16 && weights_->format != WeightFormat::kF32;
    const bool f32 = tensor.type == DType::kF32 && weights_->format != WeightFormat::kBF16;
    if (!bf16 && !f32) return false;
    if (reinterpret_cast<uintptr_t>(tensor.data.data()) % (bf16 ? 2 : 4) != 0) return false;
    linear->matrix = {bf16 ? FloatType::kBF16 : FloatType::kF32, tensor.data.data(), linear->rows, linear->cols};
    return true;
  }

  template <class ReadRow>
  Status Convert(int64_t rows, int64_t cols, const std::string& module, Linear* linear, const ReadRow& read_row) {
    // Stored floats of other types (F16, GGUF blocks) are held as bf16 too, unless f32 is asked for.
    const bool f32 = weights_->format == WeightFormat::kF32;
    if (const auto found = converted_.find(module); found != converted_.end()) {  // a tied LM head
      linear->matrix = found->second;
      return {};
    }
    const int64_t bytes = f32 ? 4 : 2;
    weights_->owned_.emplace_back(static_cast<size_t>(rows * cols * bytes));
    std::byte* out = weights_->owned_.back().data();
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      float* target = f32 ? reinterpret_cast<float*>(out) + r * cols : row.data();
      PITH_RETURN_IF_ERROR(read_row(r, target));
      if (!f32) ConvertToBF16(row.data(), cols, reinterpret_cast<uint16_t*>(out) + r * cols);
    }
    linear->matrix = {f32 ? FloatType::kF32 : FloatType::kBF16, out, rows, cols};
    converted_[module] = linear->matrix;
    weights_->owned_bytes += static_cast<uint64_t>(rows * cols * bytes);
    return {};
  }

  // The scheme of a module, by its own entry or the one for all linears.
  Result<QuantScheme> SchemeOf(const std::string& module) const {
    if (!checkpoint_->quantization()) {
      return Error{ErrorCode::kMalformed, "'" + module + "' is packed but config.json has no quantization_config"};
    }
    const QuantScheme* scheme = checkpoint_->quantization()->SchemeFor(module);
    if (scheme == nullptr) {
      return Error{ErrorCode::kMalformed, "'" + module + "' is packed but quantization_config does not quantize it"};
    }
    return *scheme;
  }

  Result<std::unique_ptr<QuantMatrix>> LoadPacked(const std::string& module, int64_t rows, int64_t cols) {
    PITH_ASSIGN(const QuantScheme scheme, SchemeOf(module));
    const int64_t group = scheme.group == 0 ? cols : scheme.group;
    if (cols % kernels::kBlock != 0 || cols > kernels::kMaxCols || group % kernels::kBlock != 0 || cols % group != 0) {
      return Error{ErrorCode::kUnsupported, "'" + module + "': width " + std::to_string(cols) + " with groups of " +
                                                std::to_string(group) + " cannot be run packed (multiples of 32 can)"};
    }
    const int64_t groups = cols / group;
    const int64_t words = cols * scheme.bits / 32;
    PITH_ASSIGN(const Tensor* packed, checkpoint_->Get(module + ".weight_packed", {rows, words}));
    PITH_ASSIGN(const Tensor* scale, checkpoint_->Get(module + ".weight_scale", {rows, groups}));
    PackedWeights w;
    w.rows = rows;
    w.cols = cols;
    w.bits = scheme.bits;
    w.group = group;
    w.data = reinterpret_cast<const uint8_t*>(packed->data.data());
    // Scales are taken as they are when they are F16 or F32; others are widened.
    std::vector<float> scales_f32;
    std::vector<float> mins_f32;
    std::vector<uint16_t> scales_f16(static_cast<size_t>(rows * groups));
    std::vector<uint16_t> mins_f16;
    const Tensor* min = checkpoint_->Find(module + ".weight_min");
    if (scale->type == DType::kF16 && (min == nullptr || min->type == DType::kF16)) {
      std::memcpy(scales_f16.data(), scale->data.data(), scale->data.size());
      w.scales_f16 = scales_f16.data();
    } else {
      PITH_ASSIGN(scales_f32, ToFloats(*scale));
      w.scales_f32 = scales_f32.data();
    }
    std::vector<uint8_t> zero_points;
    if (min != nullptr) {
      PITH_RETURN_IF_ERROR(checkpoint_->Get(module + ".weight_min", {rows, groups}));
      w.zero = ZeroKind::kMin;
      if (w.scales_f16 != nullptr) {
        mins_f16.resize(static_cast<size_t>(rows * groups));
        std::memcpy(mins_f16.data(), min->data.data(), min->data.size());
        w.mins_f16 = mins_f16.data();
      } else {
        PITH_ASSIGN(mins_f32, ToFloats(*min));
        w.mins_f32 = mins_f32.data();
      }
    } else if (!scheme.symmetric) {
      // Packed along the rows: the zero points of rows 32 / bits * i + j are bits j * bits of word [i, group].
      const int64_t per_word = 32 / scheme.bits;
      PITH_ASSIGN(const Tensor* zero,
                  checkpoint_->Get(module + ".weight_zero_point", {(rows + per_word - 1) / per_word, groups}));
      if (zero->type != DType::kI32) {
        return Error{ErrorCode::kUnsupported,
                     "'" + module + ".weight_zero_point' is " + DTypeName(zero->type) + ", not I32"};
      }
      zero_points.resize(static_cast<size_t>(rows * groups));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t g = 0; g < groups; ++g) {
          uint32_t word;
          std::memcpy(&word, zero->data.data() + (r / per_word * groups + g) * 4, sizeof(word));
          const uint32_t value = word >> (r % per_word * scheme.bits);
          zero_points[static_cast<size_t>(r * groups + g)] = static_cast<uint8_t>(value & ((1U << scheme.bits) - 1));
        }
      }
      w.zero = ZeroKind::kZeroPoint;
      w.zero_points = zero_points.data();
    }
    auto matrix = std::make_unique<QuantMatrix>(w);
    weights_->owned_bytes += matrix->owned_bytes();
    // The tiled copy is what runs; the mapped pages of the scales are not needed any more.
    if (scale->file != nullptr) {
      const std::byte* base = scale->file->bytes().data();
      scale->file->Release(static_cast<uint64_t>(scale->data.data() - base), scale->data.size());
    }
    return matrix;
  }

  static std::string FormatOf(const Linear& linear) {
    if (linear.packed == nullptr) return linear.matrix.type == FloatType::kF32 ? "f32" : "bf16";
    const QuantMatrix& m = *linear.packed;
    std::string name = "w" + std::to_string(m.bits());
    if (!m.per_channel()) name += "g" + std::to_string(m.group());
    if (m.zero() == ZeroKind::kZeroPoint) name += "z";
    if (m.zero() == ZeroKind::kMin) name += "m";
    return name;
  }

  static uint64_t BytesOf(const Linear& linear) {
    if (linear.packed == nullptr) {
      return static_cast<uint64_t>(linear.rows * linear.cols * (linear.matrix.type == FloatType::kF32 ? 4 : 2));
    }
    return static_cast<uint64_t>(linear.rows * linear.packed->row_bytes()) + linear.packed->owned_bytes();
  }

  void Describe() {
    std::map<std::string, int> counts;
    for (const LayerWeights& layer : weights_->layers) {
      for (const Linear* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
        ++counts[FormatOf(*linear)];
        weights_->bytes_per_token += BytesOf(*linear);
      }
    }
    weights_->bytes_per_token += BytesOf(weights_->lm_head);
    for (const auto& [name, count] : counts) {
      if (!weights_->description.empty()) weights_->description += "+";
      weights_->description += name;
    }
    const std::string head = FormatOf(weights_->lm_head);
    if (head != weights_->description) weights_->description += " (lm_head " + head + ")";
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  const ModelConfig& config_;
  std::function<void(int64_t, int64_t)> on_layer_;
  std::unique_ptr<ModelWeights> weights_;
  std::map<std::string, FloatMatrix> converted_;
};

Result<std::unique_ptr<ModelWeights>> ModelWeights::Load(std::shared_ptr<const Checkpoint> checkpoint,
                                                         WeightFormat format,
                                                         std::function<void(int64_t, int64_t)> on_layer) {
  return WeightLoader(std::move(checkpoint), format, std::move(on_layer)).Load();
}

}  // namespace pith
