// Tiny Hugging Face directories for tests: valid by default, changed by the caller before they are written.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "model/safetensors.h"
#include "support/data.h"

namespace pith::testing {

struct TinyTensor {
  DType type = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};

// Zeros of a shape.
inline TinyTensor Zeros(std::vector<int64_t> shape, DType type = DType::kF32) {
  TinyTensor tensor{type, std::move(shape), ""};
  tensor.bytes.assign(static_cast<size_t>(*TensorBytes(tensor.type, tensor.shape)), '\0');
  return tensor;
}

inline void WriteSafetensors(const std::string& path, const std::map<std::string, TinyTensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.type, tensor.shape});
  auto writer = SafetensorsWriter::Create(path, entries);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE((*writer)->Write(name, std::as_bytes(std::span(tensor.bytes))).ok());
  }
  ASSERT_TRUE((*writer)->Finish().ok());
}

// A model with 2 layers, hidden size 64, 4 query and 2 key/value heads of 16, MLP of 128, 10 tokens.
struct TinyCheckpoint {
  Json config;
  std::map<std::string, TinyTensor> tensors;

  explicit TinyCheckpoint(const std::string& arch = "llama") {
    config = {{"model_type", arch},     {"hidden_size", 64},        {"intermediate_size", 128},    {"head_dim", 16},
              {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},    {"vocab_size", 10},
              {"rms_norm_eps", 1e-5},   {"eos_token_id", 2},        {"tie_word_embeddings", false}};
    tensors["model.embed_tokens.weight"] = Zeros({10, 64});
    tensors["model.norm.weight"] = Zeros({64});
    tensors["lm_head.weight"] = Zeros({10, 64});
    for (const auto& [name, shape] : Linears()) tensors[name + ".weight"] = Zeros(shape);
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      const std::string prefix = layer;
      tensors[prefix + "input_layernorm.weight"] = Zeros({64});
      tensors[prefix + "post_attention_layernorm.weight"] = Zeros({64});
      if (arch == "qwen2") {
        tensors[prefix + "self_attn.q_proj.bias"] = Zeros({64});
        tensors[prefix + "self_attn.k_proj.bias"] = Zeros({32});
        tensors[prefix + "self_attn.v_proj.bias"] = Zeros({32});
      } else if (arch == "qwen3") {
        tensors[prefix + "self_attn.q_norm.weight"] = Zeros({16});
        tensors[prefix + "self_attn.k_norm.weight"] = Zeros({16});
      }
    }
  }

  // The linears of the layers and their [out, in].
  static std::map<std::string, std::vector<int64_t>> Linears() {
    std::map<std::string, std::vector<int64_t>> linears;
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      const std::string prefix = layer;
      linears[prefix + "self_attn.q_proj"] = {64, 64};
      linears[prefix + "self_attn.k_proj"] = {32, 64};
      linears[prefix + "self_attn.v_proj"] = {32, 64};
      linears[prefix + "self_attn.o_proj"] = {64, 64};
      linears[prefix + "mlp.gate_proj"] = {128, 64};
      linears[prefix + "mlp.up_proj"] = {128, 64};
      linears[prefix + "mlp.down_proj"] = {64, 128};
    }
    return linears;
  }

  // Replaces the weight of a module by pack-quantized tensors of zeros.
  void Pack(const std::string& module, std::vector<int64_t> shape, int bits, int64_t group, bool symmetric = true) {
    tensors.erase(module + ".weight");
    const int64_t per_word = 32 / bits;
    const int64_t groups = group > 0 ? shape[1] / group : 1;
    tensors[module + ".weight_packed"] = Zeros({shape[0], (shape[1] + per_word - 1) / per_word}, DType::kI32);
    tensors[module + ".weight_scale"] = Zeros({shape[0], groups}, DType::kBF16);
    if (!symmetric) {
      tensors[module + ".weight_zero_point"] = Zeros({(shape[0] + per_word - 1) / per_word, groups}, DType::kI32);
    }
    TinyTensor sizes = Zeros({2}, DType::kI64);
    std::memcpy(sizes.bytes.data(), shape.data(), 16);
    tensors[module + ".weight_shape"] = sizes;
  }

  void WriteConfig(const std::string& dir) const { std::ofstream(dir + "/config.json") << config.dump(); }

  // Writes config.json and model.safetensors into a fresh directory.
  std::string Write() const {
    const std::string dir = TempDir();
    WriteConfig(dir);
    WriteSafetensors(dir + "/model.safetensors", tensors);
    return dir;
  }
};

}  // namespace pith::testing
