#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>

#include "model/gguf.h"
#include "support/data.h"
#include "support/gguf_builder.h"
#include "support/tiny_checkpoint.h"

namespace pith {
namespace {

using testing::GgufBuilder;
using testing::TinyCheckpoint;
using testing::TinyTensor;
using testing::Zeros;

void ExpectError(const std::string& path, ErrorCode code, const std::string& part) {
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_FALSE(checkpoint.ok()) << "accepted, expected an error about: " << part;
  EXPECT_EQ(checkpoint.error().code, code) << checkpoint.error().message;
  EXPECT_NE(checkpoint.error().message.find(part), std::string::npos) << checkpoint.error().message;
}

TEST(HfCheckpoint, OpensEveryArchitecture) {
  for (const char* arch : {"llama", "qwen2", "qwen3"}) {
    const std::string dir = TinyCheckpoint(arch).Write();
    const auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(checkpoint.ok()) << arch << ": " << checkpoint.error().message;
    EXPECT_STREQ(ArchitectureName((*checkpoint)->config().arch), arch);
    EXPECT_EQ((*checkpoint)->format(), CheckpointFormat::kHuggingFace);
    EXPECT_EQ((*checkpoint)->gguf(), nullptr);
    EXPECT_FALSE((*checkpoint)->quantization().has_value());
    EXPECT_EQ((*checkpoint)->file_bytes(), std::filesystem::file_size(dir + "/model.safetensors"));
    EXPECT_EQ((*checkpoint)->fingerprint().size(), 64u);
    EXPECT_FALSE((*checkpoint)->RowsInterleaved("model.layers.0.self_attn.q_proj.weight"));
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    EXPECT_NE((*checkpoint)->Find(name), nullptr);
    EXPECT_TRUE((*checkpoint)->Get(name, {64, 128}).ok());
    EXPECT_EQ((*checkpoint)->Get(name, {128, 64}).error().code, ErrorCode::kMismatch);
    EXPECT_EQ((*checkpoint)->Get("model.nothing").error().code, ErrorCode::kNotFound);
  }
}

TEST(HfCheckpoint, MissingFiles) {
  ExpectError("/no/such/model", ErrorCode::kNotFound, "/no/such/model");
  const std::string dir = testing::TempDir();
  ExpectError(dir, ErrorCode::kNotFound, "config.json");
  TinyCheckpoint().WriteConfig(dir);
  ExpectError(dir, ErrorCode::kNotFound, "model.safetensors");
}

TEST(HfCheckpoint, EveryTensorMustBeThereWithItsShape) {
  const TinyCheckpoint whole("qwen2");
  for (const auto& [name, tensor] : whole.tensors) {
    TinyCheckpoint tiny = whole;
    tiny.tensors.erase(name);
    ExpectError(tiny.Write(), ErrorCode::kNotFound, "'" + name + "'");
    tiny = whole;
    tiny.tensors[name].shape.insert(tiny.tensors[name].shape.begin(), 1);
    ExpectError(tiny.Write(), ErrorCode::kMismatch, "'" + name + "'");
    tiny = whole;
    tiny.tensors[name] = Zeros(tensor.shape, DType::kI32);
    ExpectError(tiny.Write(), ErrorCode::kUnsupported, "'" + name + "'");
  }
}

TEST(HfCheckpoint, TensorsWithoutAPlaceAreRefused) {
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.2.input_layernorm.weight",
                           "score.weight", "model.layers.0.self_attn.k_scale"}) {
    TinyCheckpoint tiny;
    tiny.tensors[name] = Zeros({64});
    ExpectError(tiny.Write(), ErrorCode::kUnsupported, name);
  }
  TinyCheckpoint tiny;
  tiny.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = Zeros({8});
  EXPECT_TRUE(Checkpoint::Open(tiny.Write()).ok());
  tiny.config["tie_word_embeddings"] = true;
  EXPECT_TRUE(Checkpoint::Open(tiny.Write()).ok());
  tiny.tensors.erase("lm_head.weight");
  const auto tied = Checkpoint::Open(tiny.Write());
  ASSERT_TRUE(tied.ok()) << tied.error().message;
  EXPECT_TRUE((*tied)->config().tied_embeddings);
}

TEST(HfCheckpoint, HostileNumberOfLayersCostsNothing) {
  TinyCheckpoint tiny;
  tiny.config["num_hidden_layers"] = 16384;
  ExpectError(tiny.Write(), ErrorCode::kNotFound, "16384 layers");
}

TEST(HfCheckpoint, GenerationConfigAddsEndIds) {
  const std::string dir = TinyCheckpoint().Write();
  std::ofstream(dir + "/generation_config.json") << R"({"eos_token_id":[5,2]})";
  EXPECT_EQ((*Checkpoint::Open(dir))->config().eos_ids, (std::vector<int32_t>{2, 5}));
  std::ofstream(dir + "/generation_config.json") << "{";
  ExpectError(dir, ErrorCode::kMalformed, "generation_config.json");
}

// The tiny model in two shards, with the index as the caller wants it.
std::string WriteShards(const std::function<void(Json*)>& change_map,
                        const std::function<void(std::map<std::string, TinyTensor>*)>& change_second = {}) {
  const TinyCheckpoint tiny;
  const std::string dir = testing::TempDir();
  tiny.WriteConfig(dir);
  std::map<std::string, TinyTensor> parts[2];
  Json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", Json::object()}};
  for (const auto& [name, tensor] : tiny.tensors) {
    const int part = name.find("layers.1") != std::string::npos ? 1 : 0;
    parts[part][name] = tensor;
    index["weight_map"][name] = part == 0 ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  }
  if (change_second) change_second(&parts[1]);
  testing::WriteSafetensors(dir + "/model-00001-of-00002.safetensors", parts[0]);
  testing::WriteSafetensors(dir + "/model-00002-of-00002.safetensors", parts[1]);
  if (change_map) change_map(&index["weight_map"]);
  std::ofstream(dir + "/model.safetensors.index.json") << index.dump();
  return dir;
}

TEST(HfCheckpoint, Shards) {
  const auto checkpoint = Checkpoint::Open(WriteShards({}));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->tensors().size(), TinyCheckpoint().tensors.size());

  const std::string name = "model.layers.1.mlp.up_proj.weight";
  ExpectError(WriteShards([&](Json* map) { (*map)[name] = "model-00003-of-00002.safetensors"; }), ErrorCode::kNotFound,
              "model-00003");
  ExpectError(WriteShards([&](Json* map) { (*map)[name] = "model-00001-of-00002.safetensors"; }), ErrorCode::kMalformed,
              name);
  ExpectError(WriteShards([&](Json* map) { map->erase(name); }), ErrorCode::kMalformed, name);
  ExpectError(WriteShards([&](Json* map) { (*map)["model.more"] = "model-00001-of-00002.safetensors"; }),
              ErrorCode::kMalformed, "model.more");
  ExpectError(WriteShards({}, [](auto* second) { (*second)["model.norm.weight"] = Zeros({64}); }),
              ErrorCode::kMalformed, "model.norm.weight");
  for (const char* path :
       {"../model.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "", "a\\b", ".hidden"}) {
    ExpectError(WriteShards([&](Json* map) { (*map)[name] = path; }), ErrorCode::kMalformed, "plain file name");
  }
  ExpectError(WriteShards([&](Json* map) { (*map)[name] = 3; }), ErrorCode::kMalformed, "plain file name");
  ExpectError(WriteShards([&](Json* map) { (*map)[name] = std::string("a\0b", 3); }), ErrorCode::kMalformed,
              "plain file name");
  ExpectError(WriteShards([&](Json* map) { *map = Json::array(); }), ErrorCode::kMalformed, "weight_map");
}

Json Weights(int bits, int64_t group, bool symmetric = true) {
  Json weights = {{"num_bits", bits},       {"type", "int"},
                  {"symmetric", symmetric}, {"dynamic", false},
                  {"actorder", nullptr},    {"strategy", group > 0 ? "group" : "channel"},
                  {"observer", "minmax"},   {"observer_kwargs", Json::object()}};
  if (group > 0) weights["group_size"] = group;
  return weights;
}

Json Quantization(Json groups, Json ignore) {
  return {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"},  {"quantization_status", "compressed"},
          {"config_groups", std::move(groups)},   {"ignore", std::move(ignore)}, {"kv_cache_scheme", nullptr}};
}

Json Group(const std::vector<std::string>& targets, Json weights) {
  return {{"targets", targets},
          {"weights", std::move(weights)},
          {"input_activations", nullptr},
          {"output_activations", nullptr}};
}

// Linears at 4 bits in groups of 32, the head ignored.
TinyCheckpoint PackedCheckpoint(bool symmetric = true) {
  TinyCheckpoint tiny;
  for (const auto& [name, shape] : TinyCheckpoint::Linears()) tiny.Pack(name, shape, 4, 32, symmetric);
  tiny.config["quantization_config"] =
      Quantization({{"group_0", Group({"Linear"}, Weights(4, 32, symmetric))}}, {"lm_head"});
  return tiny;
}

TEST(PackedCheckpoint, LinearsOnly) {
  for (const bool symmetric : {true, false}) {
    const auto checkpoint = Checkpoint::Open(PackedCheckpoint(symmetric).Write());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const QuantizationConfig& quantization = *(*checkpoint)->quantization();
    EXPECT_EQ(quantization.linear.bits, 4);
    EXPECT_EQ(quantization.linear.group, 32);
    EXPECT_EQ(quantization.linear.symmetric, symmetric);
    EXPECT_EQ(quantization.ignore, (std::set<std::string>{"lm_head", "model.embed_tokens"}));
    EXPECT_TRUE(quantization.by_module.empty());
    EXPECT_FALSE(quantization.kv_bits.has_value());
    EXPECT_EQ(quantization.SchemeFor("lm_head"), nullptr);
    EXPECT_EQ(quantization.SchemeFor("model.layers.0.mlp.up_proj"), &quantization.linear);
  }
}

TEST(PackedCheckpoint, GroupsByNamePatternAndClass) {
  TinyCheckpoint tiny;
  for (const auto& [name, shape] : TinyCheckpoint::Linears()) {
    if (name == "model.layers.1.mlp.down_proj") continue;  // ignored by a pattern
    const bool wide = name.find("v_proj") != std::string::npos;
    tiny.Pack(name, shape, wide ? 8 : 4, wide ? 64 : 0);
  }
  tiny.Pack("lm_head", {10, 64}, 8, 0);
  tiny.Pack("model.embed_tokens", {10, 64}, 8, 0);
  tiny.config["quantization_config"] = Quantization({{"a", Group({"Linear"}, Weights(4, 0))},
                                                     {"b", Group({"re:.*v_proj$"}, Weights(8, 64))},
                                                     {"c", Group({"lm_head", "Embedding"}, Weights(8, 0))}},
                                                    {"re:.*1[.]mlp[.]down"});
  tiny.config["quantization_config"]["kv_cache_scheme"] = {
      {"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "tensor"}, {"dynamic", false}};
  tiny.tensors["model.layers.0.self_attn.k_scale"] = Zeros({1});
  const auto checkpoint = Checkpoint::Open(tiny.Write());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const QuantizationConfig& quantization = *(*checkpoint)->quantization();
  EXPECT_EQ(quantization.linear.group, 0);
  EXPECT_EQ(quantization.by_module.size(), 4u);
  EXPECT_EQ(quantization.SchemeFor("model.layers.1.self_attn.v_proj")->group, 64);
  EXPECT_EQ(quantization.SchemeFor("lm_head")->bits, 8);
  EXPECT_EQ(quantization.SchemeFor("model.embed_tokens")->bits, 8);
  EXPECT_EQ(quantization.SchemeFor("model.layers.0.mlp.down_proj")->bits, 4);
  EXPECT_EQ(quantization.SchemeFor("model.layers.1.mlp.down_proj"), nullptr);
  EXPECT_EQ(quantization.kv_bits, 8);

  // A pattern is matched from the start of the name, as Python's re.match does.
  tiny.config["quantization_config"]["config_groups"]["b"]["targets"] = {"re:v_proj"};
  EXPECT_FALSE(Checkpoint::Open(tiny.Write()).ok());
}

TEST(PackedCheckpoint, EveryPackedTensorMustFit) {
  const TinyCheckpoint whole = PackedCheckpoint(false);
  const std::string module = "model.layers.0.self_attn.k_proj";
  for (const char* suffix : {".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point"}) {
    TinyCheckpoint tiny = whole;
    tiny.tensors.erase(module + suffix);
    ExpectError(tiny.Write(), ErrorCode::kNotFound, module + suffix);
    tiny = whole;
    tiny.tensors[module + suffix] = Zeros({3, 3}, tiny.tensors[module + suffix].type);
    ExpectError(tiny.Write(), ErrorCode::kMismatch, module + suffix);
    tiny = whole;
    tiny.tensors[module + suffix] = Zeros(tiny.tensors[module + suffix].shape, DType::kU8);
    ExpectError(tiny.Write(), ErrorCode::kMismatch, module + suffix);
  }
  TinyCheckpoint tiny = whole;
  tiny.tensors[module + ".weight_shape"].bytes[0] = 33;
  ExpectError(tiny.Write(), ErrorCode::kMismatch, "weight_shape");
  tiny = whole;  // the plain weight beside the packed one
  tiny.tensors[module + ".weight"] = Zeros({32, 64});
  ExpectError(tiny.Write(), ErrorCode::kUnsupported, module + ".weight'");
  tiny = PackedCheckpoint();  // a zero point where the scheme has none
  tiny.tensors[module + ".weight_zero_point"] = Zeros({4, 2}, DType::kI32);
  ExpectError(tiny.Write(), ErrorCode::kUnsupported, "weight_zero_point");
  tiny = whole;
  tiny.config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 48;
  ExpectError(tiny.Write(), ErrorCode::kUnsupported, "group size 48");
}

TEST(PackedCheckpoint, FieldsThatChangeTheMeaningAreRefused) {
  const auto with = [](const std::function<void(Json*)>& change) {
    TinyCheckpoint tiny = PackedCheckpoint();
    change(&tiny.config["quantization_config"]);
    return tiny.Write();
  };
  const auto with_weights = [&](const char* key, const Json& value) {
    return with([&](Json* json) { (*json)["config_groups"]["group_0"]["weights"][key] = value; });
  };
  const ErrorCode kUnsupported = ErrorCode::kUnsupported, kMalformed = ErrorCode::kMalformed;
  ExpectError(with([](Json* json) { *json = 4; }), kMalformed, "quantization_config");
  ExpectError(with([](Json* json) { (*json)["quant_method"] = "gptq"; }), kUnsupported, "gptq");
  ExpectError(with([](Json* json) { json->erase("quant_method"); }), kMalformed, "quant_method");
  ExpectError(with([](Json* json) { (*json)["format"] = "int-quantized"; }), kUnsupported, "int-quantized");
  ExpectError(with([](Json* json) { (*json)["quantization_status"] = "calibration"; }), kUnsupported, "calibration");
  ExpectError(with([](Json* json) { (*json)["novel"] = 1; }), kUnsupported, "novel");
  ExpectError(with([](Json* json) {
                (*json)["transform_config"] = {{"config_groups", 1}};
              }),
              kUnsupported, "transform");
  ExpectError(with([](Json* json) { (*json)["sparsity_config"] = {{"format", "dense"}}; }), kUnsupported, "sparsity");
  ExpectError(with([](Json* json) { (*json)["config_groups"] = Json::object(); }), kMalformed, "config_groups");
  ExpectError(with([](Json* json) { (*json)["config_groups"]["group_0"]["targets"] = Json::array(); }), kMalformed,
              "targets");
  ExpectError(with([](Json* json) { (*json)["config_groups"]["group_0"]["targets"] = {"re:("}; }), kMalformed, "re:(");
  ExpectError(
      with([](Json* json) { (*json)["config_groups"]["group_0"]["targets"] = {"re:(\\w+[.]?)+(\\w+[.]?)+[!-#]"}; }),
      kUnsupported, "too many steps");
  ExpectError(with([](Json* json) { (*json)["config_groups"]["group_0"]["input_activations"] = Weights(8, 0); }),
              kUnsupported, "input_activations");
  ExpectError(with([](Json* json) { (*json)["config_groups"]["group_0"]["weights"] = nullptr; }), kUnsupported,
              "weights");
  ExpectError(with([](Json* json) { (*json)["ignore"] = {1}; }), kMalformed, "ignore");
  ExpectError(with([](Json* json) {
                (*json)["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
              }),
              kUnsupported, "kv_cache_scheme");
  ExpectError(with([](Json* json) { (*json)["kv_cache_scheme"] = Weights(4, 0); }), kUnsupported, "kv_cache_scheme");
  ExpectError(with([](Json* json) { (*json)["config_groups"]["other"] = Group({"Linear"}, Weights(8, 0)); }),
              kMalformed, "differ");
  ExpectError(with_weights("num_bits", 3), kUnsupported, "num_bits");
  ExpectError(with_weights("num_bits", "4"), kMalformed, "num_bits");
  ExpectError(with_weights("type", "float"), kUnsupported, "type");
  ExpectError(with_weights("dynamic", true), kUnsupported, "dynamic");
  ExpectError(with_weights("actorder", "group"), kUnsupported, "actorder");
  ExpectError(with_weights("strategy", "block"), kUnsupported, "block");
  ExpectError(with_weights("strategy", "channel"), kMalformed, "channel");
  ExpectError(with_weights("group_size", 0), kMalformed, "group_size");
  ExpectError(with_weights("group_size", ~uint64_t{0}), kMalformed, "group_size");
  ExpectError(with_weights("block_structure", "2x4"), kUnsupported, "block_structure");
}

// Reads one field of `bits` bits out of words packed along an axis.
int Field(const Tensor& words, int64_t index, int64_t shift, int bits) {
  uint32_t word;
  std::memcpy(&word, words.data.data() + 4 * index, 4);
  return static_cast<int>((word >> shift) & ((1u << bits) - 1u)) - (1 << (bits - 1));
}

TEST(PackedCheckpoint, MadeByCompressedTensorsItself) {
  const auto expected = SafetensorsFile::Open(testing::GoldenPath("compressed_tensors/expected.safetensors"));
  ASSERT_TRUE(expected.ok()) << expected.error().message;
  int compared = 0;
  for (const std::string folder : {"symmetric", "asymmetric"}) {
    const auto checkpoint = Checkpoint::Open(testing::GoldenPath("compressed_tensors/" + folder));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const QuantizationConfig& quantization = *(*checkpoint)->quantization();
    EXPECT_EQ(quantization.linear.symmetric, folder == "symmetric");
    EXPECT_EQ(quantization.SchemeFor("lm_head") != nullptr, folder == "symmetric");
    EXPECT_EQ(quantization.SchemeFor("model.layers.0.mlp.down_proj") != nullptr, folder == "symmetric");
    EXPECT_EQ(quantization.SchemeFor("model.embed_tokens"), nullptr);

    for (const Tensor& tensor : (*expected)->tensors()) {
      if (tensor.name.substr(0, folder.size() + 1) != folder + "/") continue;
      const std::string weight = tensor.name.substr(folder.size() + 1);
      const QuantScheme* scheme = quantization.SchemeFor(weight.substr(0, weight.size() - 7));
      ASSERT_NE(scheme, nullptr) << weight;
      const Tensor* packed = (*checkpoint)->Find(weight + "_packed");
      const Tensor* zeros = (*checkpoint)->Find(weight + "_zero_point");
      ASSERT_NE(packed, nullptr);
      EXPECT_EQ(zeros == nullptr, scheme->symmetric);
      const std::vector<float> scales = *ToFloats(*(*checkpoint)->Find(weight + "_scale"));
      const std::vector<float> values = *ToFloats(tensor);
      const int64_t in = tensor.cols(), per_word = 32 / scheme->bits;
      const int64_t groups = scheme->group > 0 ? in / scheme->group : 1;
      for (int64_t row = 0; row < tensor.rows(); ++row) {
        for (int64_t col = 0; col < in; ++col) {
          const int64_t group = col * groups / in;
          const int quant =
              Field(*packed, row * packed->cols() + col / per_word, col % per_word * scheme->bits, scheme->bits);
          const int zero = zeros == nullptr ? 0
                                            : Field(*zeros, row / per_word * groups + group,
                                                    row % per_word * scheme->bits, scheme->bits);
          const float value = static_cast<float>(quant - zero) * scales[static_cast<size_t>(row * groups + group)];
          ASSERT_EQ(BF16ToF32(F32ToBF16(value)), values[static_cast<size_t>(row * in + col)])
              << tensor.name << " " << row << "," << col;
        }
      }
      ++compared;
    }
  }
  EXPECT_EQ(compared, 8 + 6);
}

// A llama GGUF of the same sizes as TinyCheckpoint.
GgufBuilder TinyGguf(const std::string& arch = "llama") {
  GgufBuilder builder;
  builder.AddString("general.architecture", arch);
  builder.AddU32(arch + ".embedding_length", 64).AddU32(arch + ".feed_forward_length", 128);
  builder.AddU32(arch + ".block_count", 2).AddU32(arch + ".attention.head_count", 4);
  builder.AddU32(arch + ".attention.head_count_kv", 2).AddU32(arch + ".context_length", 512);
  builder.AddF32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  builder.AddFloats("token_embd.weight", {64, 10}, 0.5f).AddFloats("output_norm.weight", {64}, 1.0f);
  for (const char* layer : {"blk.0.", "blk.1."}) {
    const std::string prefix = layer;
    builder.AddFloats(prefix + "attn_norm.weight", {64}, 1.0f).AddFloats(prefix + "ffn_norm.weight", {64}, 1.0f);
    builder.AddFloats(prefix + "attn_q.weight", {64, 64}, 0.1f).AddFloats(prefix + "attn_k.weight", {64, 32}, 0.1f);
    builder.AddTensor(prefix + "attn_v.weight", {64, 32}, 8, std::string(32 * 2 * 34, '\0'));  // Q8_0
    builder.AddFloats(prefix + "attn_output.weight", {64, 64}, 0.1f);
    builder.AddFloats(prefix + "ffn_gate.weight", {64, 128}, 0.1f).AddFloats(prefix + "ffn_up.weight", {64, 128}, 0.1f);
    builder.AddFloats(prefix + "ffn_down.weight", {128, 64}, 0.1f);
    if (arch == "qwen2") {
      builder.AddFloats(prefix + "attn_q.bias", {64}, 0.1f).AddFloats(prefix + "attn_k.bias", {32}, 0.1f);
      builder.AddFloats(prefix + "attn_v.bias", {32}, 0.1f);
    }
  }
  return builder;
}

std::string WriteGguf(const GgufBuilder& builder) {
  const std::string path = testing::TempDir() + "/model.gguf";
  std::ofstream(path, std::ios::binary) << builder.Build();
  return path;
}

TEST(GgufCheckpoint, HasHuggingFaceNames) {
  for (const char* arch : {"llama", "qwen2"}) {
    const auto checkpoint = Checkpoint::Open(WriteGguf(TinyGguf(arch)));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_EQ((*checkpoint)->format(), CheckpointFormat::kGguf);
    EXPECT_NE((*checkpoint)->gguf(), nullptr);
    EXPECT_TRUE((*checkpoint)->config().tied_embeddings);
    TinyCheckpoint same(arch);
    same.tensors.erase("lm_head.weight");
    for (const auto& [name, tensor] : same.tensors) {
      const auto found = (*checkpoint)->Get(name, tensor.shape);
      ASSERT_TRUE(found.ok()) << found.error().message;
      EXPECT_EQ((*found)->name, name);
    }
    EXPECT_EQ((*checkpoint)->tensors().size(), same.tensors.size());
    EXPECT_EQ((*checkpoint)->Find("model.layers.0.self_attn.v_proj.weight")->type, DType::kQ8_0);
    const bool llama = std::string(arch) == "llama";
    EXPECT_EQ((*checkpoint)->RowsInterleaved("model.layers.0.self_attn.q_proj.weight"), llama);
    EXPECT_EQ((*checkpoint)->RowsInterleaved("model.layers.1.self_attn.k_proj.weight"), llama);
    EXPECT_FALSE((*checkpoint)->RowsInterleaved("model.layers.1.self_attn.v_proj.weight"));
  }
}

TEST(GgufCheckpoint, Refusals) {
  ExpectError(WriteGguf(TinyGguf().AddFloats("blk.0.attn_qkv.weight", {64}, 0.0f)), ErrorCode::kUnsupported,
              "attn_qkv");
  ExpectError(WriteGguf(TinyGguf().AddFloats("blk.2.attn_norm.weight", {64}, 0.0f)), ErrorCode::kUnsupported,
              "layers.2");
  ExpectError(WriteGguf(TinyGguf().AddFloats("blk.00.attn_norm.weight", {64}, 0.0f)), ErrorCode::kUnsupported,
              "blk.00");
  ExpectError(WriteGguf(TinyGguf().AddFloats("blk.99999999999.attn_norm.weight", {64}, 0.0f)), ErrorCode::kUnsupported,
              "blk.99999999999");
  ExpectError(WriteGguf(TinyGguf().AddFloats("blk.0.attn_q.bias", {64}, 0.0f)), ErrorCode::kNotFound, "k_proj.bias");
  const std::string path = testing::TempDir() + "/model.gguf";
  std::ofstream(path) << "not a model";
  ExpectError(path, ErrorCode::kMalformed, "GGUF");
}

TEST(InterleavedRow, IsTheInverseOfLlamaCppsPermutation) {
  // The converter's permutation of one head: row (half, pair) goes to (pair, half).
  const int64_t head_dim = 8;
  for (int64_t row = 0; row < 3 * head_dim; ++row) {
    const int64_t in_head = row % head_dim;
    const int64_t expected = row / head_dim * head_dim + in_head % 4 * 2 + in_head / 4;
    EXPECT_EQ(InterleavedRow(row, head_dim), expected);
  }
}

TEST(Fingerprint, ChangesWithEachPartAndOnlyThen) {
  const auto fingerprint = [](const std::string& path) {
    const auto checkpoint = Checkpoint::Open(path);
    EXPECT_TRUE(checkpoint.ok());
    return (*checkpoint)->fingerprint();
  };
  const TinyCheckpoint tiny;
  const std::string original = fingerprint(tiny.Write());
  EXPECT_EQ(fingerprint(tiny.Write()), original);  // another directory, the same model
  for (const auto& [name, tensor] : tiny.tensors) {
    TinyCheckpoint changed = tiny;
    changed.tensors[name].bytes.assign(tensor.bytes.size(), '\1');
    EXPECT_NE(fingerprint(changed.Write()), original) << name;
  }
  TinyCheckpoint changed = tiny;
  changed.config["rms_norm_eps"] = 1e-6;
  EXPECT_NE(fingerprint(changed.Write()), original);
  EXPECT_NE(fingerprint(WriteGguf(TinyGguf())), fingerprint(WriteGguf(TinyGguf().AddU32("x", 1))));
}

TEST(RealModel, SmolLM2Opens) {
  PITH_REQUIRE_MODEL(path, "smollm2-135m");
  auto best = std::chrono::duration<double, std::milli>::max();
  for (int i = 0; i < 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const auto checkpoint = Checkpoint::Open(path);
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const ModelConfig& config = (*checkpoint)->config();
    EXPECT_EQ(config.arch, Architecture::kLlama);
    EXPECT_EQ(config.hidden, 576);
    EXPECT_EQ(config.layers, 30);
    EXPECT_EQ(config.vocab, 49152);
    EXPECT_EQ(config.rope_theta, 100000.0);
    EXPECT_TRUE(config.tied_embeddings);
    EXPECT_EQ((*checkpoint)->tensors().size(), 272u);
  }
  EXPECT_LT(best.count(), 100.0);  // measured: 3 ms
}

}  // namespace
}  // namespace pith
