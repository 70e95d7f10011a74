#include "model/pack.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/json.h"
#include "kernels/qmatmul.h"
#include "model/hf_names.h"
#include "model/pack_cache.h"
#include "model/quantize.h"
#include "model/repack.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"
#include "support/data.h"
#include "support/gguf_builder.h"

namespace pith {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const Checkpoint> Open(const std::string& path) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  return checkpoint.ok() ? *checkpoint : nullptr;
}

// Without input moments unless the text asks for them.
PackRecipe Recipe(const std::string& text) {
  const auto recipe = ParseRecipe(text.find("weigh=") == std::string::npos ? text + ",weigh=none" : text);
  EXPECT_TRUE(recipe.ok()) << text;
  return *recipe;
}

// Row `row` of a module of a packed checkpoint, read by the definition of the layout.
std::vector<float> PackedRow(const Checkpoint& checkpoint, const std::string& module, int64_t row) {
  if (const Tensor* plain = checkpoint.Find(module + ".weight")) {
    std::vector<float> values(static_cast<size_t>(plain->cols()));
    EXPECT_TRUE(DequantizeRows(*plain, row, row + 1, values.data()).ok());
    return values;
  }
  const Tensor& packed = *checkpoint.Find(module + ".weight_packed");
  const Tensor& scale = *checkpoint.Find(module + ".weight_scale");
  const Tensor* minimum = checkpoint.Find(module + ".weight_min");
  const Tensor* zero = checkpoint.Find(module + ".weight_zero_point");
  int64_t shape[2];
  std::memcpy(shape, checkpoint.Find(module + ".weight_shape")->data.data(), sizeof(shape));
  const int bits = static_cast<int>(32 * packed.cols() / shape[1]);
  std::vector<float> scales(static_cast<size_t>(scale.cols())), minimums(scales.size());
  EXPECT_TRUE(DequantizeRows(scale, row, row + 1, scales.data()).ok());
  if (minimum != nullptr) {
    EXPECT_TRUE(DequantizeRows(*minimum, row, row + 1, minimums.data()).ok());
  }
  std::vector<float> values(static_cast<size_t>(shape[1]));
  for (int64_t k = 0; k < shape[1]; ++k) {
    uint32_t word;
    std::memcpy(&word, packed.data.data() + 4 * (row * packed.cols() + k * bits / 32), 4);
    const int code = static_cast<int>((word >> (k * bits % 32)) & ((1u << bits) - 1));
    const int64_t g = k / (shape[1] / scale.cols());
    int z = minimum != nullptr ? 0 : 1 << (bits - 1);
    if (zero != nullptr) {
      std::memcpy(&word, zero->data.data() + 4 * (row / (32 / bits) * scale.cols() + g), 4);
      z = static_cast<int>((word >> (row % (32 / bits) * bits)) & ((1u << bits) - 1));
    }
    values[static_cast<size_t>(k)] =
        scales[static_cast<size_t>(g)] * static_cast<float>(code - z) + minimums[static_cast<size_t>(g)];
  }
  return values;
}

// Every matrix of the packed directory against the quantizer applied to the source's rows.
void ExpectPacked(const Checkpoint& source, const Checkpoint& packed, const PackRecipe& recipe) {
  ModelConfig config = source.config();
  const bool tied = config.tied_embeddings;
  // A matrix that serves as both is stored once when both are to have one format.
  config.tied_embeddings = tied && recipe.head == recipe.embedding;
  EXPECT_EQ(packed.config().tied_embeddings, config.tied_embeddings);
  EXPECT_EQ(packed.Find("lm_head.weight_packed") == nullptr && packed.Find("lm_head.weight") == nullptr,
            config.tied_embeddings);
  for (const ModelModule& module : ModulesOf(config)) {
    if (module.kind == ModuleKind::kNorm) {
      EXPECT_EQ(*ToFloats(*packed.Find(module.name + ".weight")), *ToFloats(*source.Find(module.name + ".weight")));
      continue;
    }
    const std::string from = tied && module.name == "lm_head" ? "model.embed_tokens" : module.name;
    const Tensor& tensor = *source.Find(from + ".weight");
    MatrixFormat format = module.kind == ModuleKind::kEmbedding ? recipe.embedding
                          : module.name == "lm_head"            ? recipe.head
                                                                : recipe.linear;
    format.quant.scale_type = recipe.scale_type;
    const int64_t cols = module.shape[1];
    for (int64_t row = 0; row < module.shape[0]; ++row) {
      const int64_t source_row = source.RowsInterleaved(from + ".weight") ? InterleavedRow(row, config.head_dim) : row;
      std::vector<float> values(static_cast<size_t>(cols)), expected(values.size());
      ASSERT_TRUE(DequantizeRows(tensor, source_row, source_row + 1, values.data()).ok());
      if (format.kind == MatrixFormat::Kind::kFloat) {
        for (size_t i = 0; i < values.size(); ++i) {
          expected[i] = format.float_type == DType::kBF16  ? BF16ToF32(F32ToBF16(values[i]))
                        : format.float_type == DType::kF16 ? F16ToF32(F32ToF16(values[i]))
                                                           : values[i];
        }
      } else {
        std::vector<uint8_t> codes(values.size()), zeros(values.size());
        std::vector<float> scales(values.size()), minimums(values.size());
        const QuantizedRow out{codes.data(), scales.data(), zeros.data(), minimums.data()};
        QuantizeRow({format.quant, recipe.method, recipe.p}, values.data(), cols, nullptr, out);
        DequantizeRow(format.quant, cols, out, expected.data());
      }
      ASSERT_EQ(PackedRow(packed, module.name, row), expected) << module.name << " row " << row;
    }
    if (module.bias) {
      EXPECT_EQ(packed.Find(module.name + ".bias")->elements(), module.shape[0]);
    }
  }
}

class PackModels : public ::testing::TestWithParam<std::string> {};

TEST_P(PackModels, RoundTrip) {
  const auto source = Open(testing::GoldenPath("models/" + GetParam()));
  ASSERT_NE(source, nullptr);
  for (const char* text : {"w4g32,head=w8g32,embed=w8,method=best", "w4g32,head=w8,embed=w8,method=best",
                           "w4,method=minmax,head=same,embed=same", "w4g32z,head=w8z,embed=bf16,method=lp",
                           "w4g32m,head=w4g32m,embed=w8g32m,scales=f32,method=best,p=3",
                           "w8,head=f32,embed=f16,kv=none", "f32", "bf16,head=w4,embed=w4g32"}) {
    SCOPED_TRACE(text);
    const PackRecipe recipe = Recipe(text);
    const std::string out = testing::TempDir() + "/packed";
    const auto report = PackCheckpoint(*source, recipe, out);
    ASSERT_TRUE(report.ok()) << report.error().message;
    const auto packed = Open(out);
    ASSERT_NE(packed, nullptr);
    ExpectPacked(*source, *packed, recipe);
    const bool quantized = std::string(text) != "f32";
    EXPECT_EQ(packed->quantization().has_value(), quantized);
    if (quantized) {
      EXPECT_EQ(packed->quantization()->kv_bits, recipe.kv_bits);
    }
    EXPECT_EQ(report->file_bytes, fs::file_size(out + "/model.safetensors"));
  }
}

TEST_P(PackModels, ReportTellsTheNoise) {
  const auto source = Open(testing::GoldenPath("models/" + GetParam()));
  ASSERT_NE(source, nullptr);
  const std::string out = testing::TempDir() + "/packed";
  const auto report = PackCheckpoint(*source, Recipe("w4g32"), out);
  ASSERT_TRUE(report.ok()) << report.error().message;
  const auto packed = Open(out);
  ASSERT_NE(packed, nullptr);
  double total_signal = 0.0, total_noise = 0.0, weights = 0.0, bits = 0.0;
  for (const PackedTensorReport& tensor : report->tensors) {
    const Tensor* from = source->Find(tensor.module + ".weight");
    if (from == nullptr) from = source->Find("model.embed_tokens.weight");
    double signal = 0.0, noise = 0.0;
    std::vector<float> values(static_cast<size_t>(tensor.cols));
    for (int64_t row = 0; row < tensor.rows; ++row) {
      ASSERT_TRUE(DequantizeRows(*from, row, row + 1, values.data()).ok());
      const std::vector<float> stored = PackedRow(*packed, tensor.module, row);
      for (size_t i = 0; i < values.size(); ++i) {
        signal += std::pow(static_cast<double>(values[i]), 2.0);
        noise += std::pow(static_cast<double>(values[i]) - static_cast<double>(stored[i]), 2.0);
      }
    }
    ASSERT_TRUE(tensor.sqnr_db.has_value());
    EXPECT_NEAR(*tensor.sqnr_db, 10.0 * std::log10(signal / noise), 1e-6) << tensor.module;
    total_signal += signal;
    total_noise += noise;
    weights += static_cast<double>(tensor.rows * tensor.cols);
    bits += static_cast<double>(tensor.rows * tensor.cols) * tensor.bits_per_weight;
  }
  EXPECT_NEAR(*report->sqnr_db, 10.0 * std::log10(total_signal / total_noise), 1e-6);
  EXPECT_NEAR(report->bits_per_weight, bits / weights, 1e-9);
  // The bits are those of the tensors in the file.
  double file_bits = 0.0;
  for (const auto& [name, tensor] : packed->tensors()) {
    const bool matrix =
        name.find(".weight_packed") != std::string::npos || name.find(".weight_scale") != std::string::npos;
    if (matrix) file_bits += 8.0 * static_cast<double>(tensor.data.size());
  }
  EXPECT_DOUBLE_EQ(file_bits, bits);
}

INSTANTIATE_TEST_SUITE_P(Golden, PackModels,
                         ::testing::Values("qwen2_tied", "qwen2_untied", "llama", "llama_rope_llama3", "qwen3"),
                         [](const auto& model) { return model.param; });

TEST(Pack, SameBytesForAnyNumberOfThreads) {
  const auto source = Open(testing::GoldenPath("models/qwen2_tied"));
  ASSERT_NE(source, nullptr);
  std::string first;
  for (const int threads : {1, 2, 5}) {
    const std::string out = testing::TempDir() + "/packed";
    PackOptions options;
    options.threads = threads;
    ASSERT_TRUE(PackCheckpoint(*source, Recipe("w4g32m"), out, options).ok());
    const std::string bytes = testing::ReadFile(out + "/model.safetensors");
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << threads;
  }
}

TEST(Pack, InputMomentsWeighTheErrors) {
  const auto source = Open(testing::GoldenPath("models/llama"));
  ASSERT_NE(source, nullptr);
  const std::string module = "model.layers.0.mlp.up_proj";
  const Tensor& weight = *source->Find(module + ".weight");
  InputMoments moments;
  moments[module].assign(static_cast<size_t>(weight.cols()), 1e-4f);
  moments[module][3] = 1.0f;
  const auto noise_of_input = [&](const InputMoments* given) {
    PackOptions options;
    options.moments = given;
    const std::string out = testing::TempDir() + "/packed";
    const std::string recipe = given != nullptr ? "w4,weigh=inputs" : "w4";
    EXPECT_TRUE(PackCheckpoint(*source, Recipe(recipe), out, options).ok());
    const auto packed = Open(out);
    double noise = 0.0;
    std::vector<float> values(static_cast<size_t>(weight.cols()));
    for (int64_t row = 0; row < weight.rows(); ++row) {
      EXPECT_TRUE(DequantizeRows(weight, row, row + 1, values.data()).ok());
      noise += std::pow(static_cast<double>(PackedRow(*packed, module, row)[3] - values[3]), 2.0);
    }
    return noise;
  };
  EXPECT_LT(noise_of_input(&moments), 0.5 * noise_of_input(nullptr));

  PackOptions options;
  options.moments = &moments;
  moments[module].pop_back();
  const auto mismatch = PackCheckpoint(*source, Recipe("w4,weigh=inputs"), testing::TempDir() + "/packed", options);
  ASSERT_FALSE(mismatch.ok());
  EXPECT_EQ(mismatch.error().code, ErrorCode::kMismatch);
  EXPECT_NE(mismatch.error().message.find(module), std::string::npos);
  moments.clear();
  moments["model.layers.9.nothing"] = {1.0f};
  EXPECT_EQ(PackCheckpoint(*source, Recipe("w4,weigh=inputs"), testing::TempDir() + "/packed", options).error().code,
            ErrorCode::kInvalidArgument);
  // Without moments such a recipe is refused; what measures them is called once, and its error is passed on.
  options.moments = nullptr;
  EXPECT_EQ(PackCheckpoint(*source, Recipe("w4,weigh=inputs"), testing::TempDir() + "/packed", options).error().code,
            ErrorCode::kInvalidArgument);
  int calls = 0;
  options.measure_moments = [&calls](const std::string& scratch) -> Result<InputMoments> {
    ++calls;
    EXPECT_FALSE(std::filesystem::exists(scratch));
    return Error{ErrorCode::kCancelled, "stopped"};
  };
  EXPECT_EQ(PackCheckpoint(*source, Recipe("w4,weigh=inputs"), testing::TempDir() + "/packed", options).error().code,
            ErrorCode::kCancelled);
  EXPECT_TRUE(PackCheckpoint(*source, Recipe("w4"), testing::TempDir() + "/packed", options).ok());
  EXPECT_EQ(calls, 1);
}

TEST(Pack, InputMomentsFile) {
  const std::string path = testing::TempDir() + "/moments.safetensors";
  const auto write = [&](const std::vector<int64_t>& shape, int64_t count) {
    auto writer = SafetensorsWriter::Create(path, {{"model.layers.0.mlp.up_proj", DType::kF32, shape}});
    ASSERT_TRUE(writer.ok());
    const std::vector<float> values(static_cast<size_t>(count), 0.5f);
    ASSERT_TRUE((*writer)->Write("model.layers.0.mlp.up_proj", std::as_bytes(std::span(values))).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  };
  write({3}, 3);
  const auto moments = ReadInputMoments(path);
  ASSERT_TRUE(moments.ok()) << moments.error().message;
  EXPECT_EQ(moments->at("model.layers.0.mlp.up_proj"), std::vector<float>(3, 0.5f));
  write({3, 1}, 3);
  EXPECT_EQ(ReadInputMoments(path).error().code, ErrorCode::kMalformed);
  EXPECT_EQ(ReadInputMoments(path + "x").error().code, ErrorCode::kNotFound);
}

// --- what cannot be packed ---

TEST(Pack, RecipeThatDoesNotFitIsNamed) {
  const auto source = Open(testing::GoldenPath("models/qwen2_tied"));
  ASSERT_NE(source, nullptr);
  const std::string dir = testing::TempDir();
  const auto report = PackCheckpoint(*source, Recipe("w4g128"), dir + "/packed");
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(report.error().message.find("model.layers.0.self_attn.q_proj"), std::string::npos)
      << report.error().message;
  EXPECT_NE(report.error().message.find("groups of 64 fit"), std::string::npos) << report.error().message;
  EXPECT_TRUE(fs::is_empty(dir));
}

TEST(Pack, DestinationThatIsThere) {
  const auto source = Open(testing::GoldenPath("models/llama"));
  ASSERT_NE(source, nullptr);
  const std::string dir = testing::TempDir();
  ASSERT_TRUE(PackCheckpoint(*source, Recipe("w4"), dir + "/packed").ok());
  const auto again = PackCheckpoint(*source, Recipe("w8"), dir + "/packed");
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  PackOptions options;
  options.overwrite = true;
  ASSERT_TRUE(PackCheckpoint(*source, Recipe("w8"), dir + "/packed", options).ok());
  EXPECT_EQ(Open(dir + "/packed")->quantization()->linear.bits, 8);
  // Only packed models are replaced, not other directories with a config.json, the source among them; and an empty
  // directory may be filled.
  fs::create_directory(dir + "/project");
  for (const char* name : {"config.json", "main.cc"}) std::ofstream(dir + "/project/" + name) << "{}";
  EXPECT_FALSE(PackCheckpoint(*source, Recipe("w8"), dir + "/project", options).ok());
  EXPECT_TRUE(fs::exists(dir + "/project/main.cc"));
  std::ofstream(dir + "/packed/notes.txt") << "mine";
  EXPECT_FALSE(PackCheckpoint(*source, Recipe("w8"), dir + "/packed", options).ok());
  EXPECT_TRUE(fs::exists(dir + "/packed/notes.txt"));
  fs::copy(source->path(), dir + "/source", fs::copy_options::recursive);
  EXPECT_FALSE(PackCheckpoint(*Open(dir + "/source"), Recipe("w8"), dir + "/source", options).ok());
  EXPECT_NE(Open(dir + "/source"), nullptr);
  fs::create_directory(dir + "/photos");
  std::ofstream(dir + "/photos/cat.jpg") << "meow";
  EXPECT_FALSE(PackCheckpoint(*source, Recipe("w8"), dir + "/photos", options).ok());
  EXPECT_TRUE(fs::exists(dir + "/photos/cat.jpg"));
  fs::create_directory(dir + "/empty");
  EXPECT_TRUE(PackCheckpoint(*source, Recipe("w8"), dir + "/empty/").ok());
  EXPECT_NE(Open(dir + "/empty"), nullptr);
}

TEST(Pack, PackedSource) {
  const auto source = Open(testing::GoldenPath("models/llama"));
  ASSERT_NE(source, nullptr);
  const std::string dir = testing::TempDir();
  ASSERT_TRUE(PackCheckpoint(*source, Recipe("w4"), dir + "/packed").ok());
  const auto again = PackCheckpoint(*Open(dir + "/packed"), Recipe("w4"), dir + "/twice");
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kUnsupported);
}

// A tiny llama as GGUF. `q_data`: the data of every 64 x 64 matrix, of a type; other tensors are F32.
std::string TinyGguf(uint32_t type, const std::string& matrix, float head_value = 0.5f) {
  testing::GgufBuilder builder;
  builder.AddString("general.architecture", "llama");
  builder.AddU32("llama.embedding_length", 64).AddU32("llama.feed_forward_length", 64);
  builder.AddU32("llama.block_count", 1).AddU32("llama.attention.head_count", 4);
  builder.AddU32("llama.attention.head_count_kv", 4).AddU32("llama.context_length", 128);
  builder.AddF32("llama.attention.layer_norm_rms_epsilon", 1e-5f).AddF32("llama.rope.freq_base", 10000.0f);
  builder.AddString("tokenizer.ggml.model", "gpt2").AddString("tokenizer.ggml.pre", "smollm");
  // Every byte is a token, as byte-level BPE wants it, then a merge and a special token.
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (int byte = 0, extra = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = printable ? byte : 256 + extra++;
    tokens.push_back(code < 128
                         ? std::string(1, static_cast<char>(code))
                         : std::string{static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))});
    types.push_back(1);
  }
  tokens.insert(tokens.end(), {"ab", "<|im_end|>", "unused"});
  types.insert(types.end(), {1, 3, 5});
  builder.AddStrings("tokenizer.ggml.tokens", tokens).AddStrings("tokenizer.ggml.merges", {"a b"});
  builder.AddArray<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, types);
  builder.AddU32("tokenizer.ggml.eos_token_id", 257).AddU32("tokenizer.ggml.bos_token_id", 257);
  builder.AddString("tokenizer.chat_template", "{{ messages }}");
  builder.AddFloats("token_embd.weight", {64, 259}, 0.25f).AddFloats("output.weight", {64, 259}, head_value);
  builder.AddFloats("output_norm.weight", {64}, 1.0f);
  for (const char* norm : {"attn_norm", "ffn_norm"})
    builder.AddFloats(std::string("blk.0.") + norm + ".weight", {64}, 1.0f);
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
    builder.AddTensor(std::string("blk.0.") + name + ".weight", {64, 64}, type, matrix);
  }
  const std::string path = testing::TempDir() + "/tiny.gguf";
  const std::string bytes = builder.Build();
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

std::string RandomFloats(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  std::string data;
  for (int i = 0; i < 64 * 64; ++i) data += testing::Raw(normal(random));
  return data;
}

TEST(Pack, GgufRowsComeOutInHuggingFaceOrder) {
  const auto source = Open(TinyGguf(0, RandomFloats(1)));
  ASSERT_NE(source, nullptr);
  ASSERT_TRUE(source->RowsInterleaved("model.layers.0.self_attn.q_proj.weight"));
  const std::string out = testing::TempDir() + "/packed";
  const PackRecipe recipe = Recipe("w8g32,head=w4,embed=f32");
  ASSERT_TRUE(PackCheckpoint(*source, recipe, out).ok());
  const auto packed = Open(out);
  ASSERT_NE(packed, nullptr);
  ExpectPacked(*source, *packed, recipe);
  EXPECT_EQ(packed->config().head_dim, source->config().head_dim);
  EXPECT_EQ(packed->config().rope_theta, source->config().rope_theta);
  EXPECT_EQ(packed->config().eos_ids, source->config().eos_ids);
  // Row 1 of a head of 16 is row 2 of the file: the check above would not notice a map that is the identity.
  EXPECT_NE(InterleavedRow(1, 16), 1);
}

TEST(Pack, GgufTokenizerComesOutTheSame) {
  const std::string path = TinyGguf(0, RandomFloats(2));
  const std::string out = testing::TempDir() + "/packed";
  ASSERT_TRUE(PackCheckpoint(*Open(path), Recipe("w4"), out).ok());
  const auto gguf = GgufFile::Open(path);
  ASSERT_TRUE(gguf.ok());
  const auto before = Tokenizer::FromGguf(**gguf);
  const auto after = Tokenizer::FromJson(testing::ReadFile(out + "/tokenizer.json"), "tokenizer.json");
  ASSERT_TRUE(before.ok()) << before.error().message;
  ASSERT_TRUE(after.ok()) << after.error().message;
  for (const char* text : {"ab cab 12ab\n\n", "caf\xC3\xA9 <|im_end|>ab unused", ""}) {
    for (const bool special : {false, true}) {
      EncodeOptions options;
      options.parse_special = special;
      EXPECT_EQ(*(*before)->Encode(text, options), *(*after)->Encode(text, options)) << text;
    }
  }
  const auto config = ReadJsonFile(out + "/tokenizer_config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ((*config)["chat_template"], "{{ messages }}");
  EXPECT_EQ((*config)["eos_token"], "<|im_end|>");
  EXPECT_EQ((*config)["model_input_names"].dump(), R"(["input_ids","attention_mask"])");
}

// A matrix of Q4_0 blocks for TinyGguf.
std::string SymmetricBlocks() {
  std::mt19937 random(5);
  std::string blocks;
  for (int i = 0; i < 64 * 2; ++i) {
    blocks += testing::Raw<uint16_t>(F32ToF16(0.01f * (i % 2 == 0 ? 1.0f : -1.0f)));
    for (int k = 0; k < 16; ++k) blocks += testing::Raw(static_cast<uint8_t>(random()));
  }
  return blocks;
}

TEST(Pack, FourBitGgufTensorsAreRepackedWithoutLoss) {
  const auto source = Open(TinyGguf(2, SymmetricBlocks()));  // Q4_0
  ASSERT_NE(source, nullptr);
  for (const char* text : {"keep", "w4g32", "w4g32,method=minmax"}) {
    const std::string out = testing::TempDir() + "/packed";
    const auto report = PackCheckpoint(*source, Recipe(text), out);
    ASSERT_TRUE(report.ok()) << report.error().message;
    const auto packed = Open(out);
    ASSERT_NE(packed, nullptr);
    for (const PackedTensorReport& tensor : report->tensors) {
      if (tensor.module == "lm_head" || tensor.module == "model.embed_tokens") continue;
      EXPECT_TRUE(tensor.exact) << tensor.module;
      EXPECT_FALSE(tensor.sqnr_db.has_value());
      EXPECT_EQ(tensor.format, "w4g32");
      const std::string name = tensor.module + ".weight";
      std::vector<float> expected(64);
      for (int64_t row = 0; row < 64; ++row) {
        const int64_t source_row = source->RowsInterleaved(name) ? InterleavedRow(row, 16) : row;
        ASSERT_TRUE(DequantizeRows(*source->Find(name), source_row, source_row + 1, expected.data()).ok());
        ASSERT_EQ(PackedRow(*packed, tensor.module, row), expected);
      }
    }
  }
}

TEST(Pack, WeightsThatAreNoNumbers) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f}) {
    const auto source = Open(TinyGguf(0, RandomFloats(3), value));
    ASSERT_NE(source, nullptr);
    const std::string dir = testing::TempDir();
    const auto report = PackCheckpoint(*source, Recipe("w4g32,head=w4g32"), dir + "/packed");
    ASSERT_FALSE(report.ok()) << value;
    EXPECT_EQ(report.error().code, ErrorCode::kNumeric);
    EXPECT_NE(report.error().message.find("lm_head.weight"), std::string::npos) << report.error().message;
    EXPECT_TRUE(fs::is_empty(dir)) << "a partial directory is left";
  }
  // Scales of F32 hold what those of F16 cannot.
  const auto large = Open(TinyGguf(0, RandomFloats(3), 1e30f));
  EXPECT_TRUE(PackCheckpoint(*large, Recipe("w4g32,head=w4g32,scales=f32"), testing::TempDir() + "/packed").ok());
}

// --- reading back what is broken ---

class BrokenPack : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/packed";
    const auto source = Open(testing::GoldenPath("models/llama"));
    ASSERT_TRUE(PackCheckpoint(*source, Recipe("w4g32m,head=w8,embed=w8"), dir_).ok());
    ASSERT_NE(Open(dir_), nullptr);
  }
  Json Config() const { return *ReadJsonFile(dir_ + "/config.json"); }
  Error ErrorWith(const Json& config) const {
    std::ofstream(dir_ + "/config.json") << config.dump();
    const auto checkpoint = Checkpoint::Open(dir_);
    EXPECT_FALSE(checkpoint.ok());
    return checkpoint.ok() ? Error{} : checkpoint.error();
  }
  static Json& LinearWeights(Json& config) {
    for (auto& [name, group] : config["quantization_config"]["config_groups"].items()) {
      if (group["targets"][0] == "Linear") return group["weights"];
    }
    ADD_FAILURE() << "no group for Linear";
    return config;
  }
  std::string dir_;
};

TEST_F(BrokenPack, MinimumsThatAreNotDeclared) {
  Json config = Config();
  LinearWeights(config).erase("minimum");
  const Error error = ErrorWith(config);
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_NE(error.message.find("weight_zero_point"), std::string::npos) << error.message;
}

TEST_F(BrokenPack, MinimumOfSymmetricWeights) {
  Json config = Config();
  LinearWeights(config)["symmetric"] = true;
  const Error error = ErrorWith(config);
  EXPECT_EQ(error.code, ErrorCode::kMalformed);
  EXPECT_NE(error.message.find("minimum"), std::string::npos) << error.message;
}

TEST_F(BrokenPack, MinimumThatIsNoBoolean) {
  Json config = Config();
  LinearWeights(config)["minimum"] = 1;
  EXPECT_EQ(ErrorWith(config).code, ErrorCode::kMalformed);
}

TEST_F(BrokenPack, AnotherGroup) {
  Json config = Config();
  LinearWeights(config)["group_size"] = 64;
  const Error error = ErrorWith(config);
  EXPECT_TRUE(error.code == ErrorCode::kMismatch || error.code == ErrorCode::kUnsupported) << error.message;
}

TEST_F(BrokenPack, AnotherWidth) {
  Json config = Config();
  LinearWeights(config)["num_bits"] = 8;
  EXPECT_EQ(ErrorWith(config).code, ErrorCode::kMismatch);
}

TEST_F(BrokenPack, ConfigWithoutQuantization) {
  Json config = Config();
  config.erase("quantization_config");
  EXPECT_EQ(ErrorWith(config).code, ErrorCode::kNotFound);
}

// --- the cache ---

TEST(PackCache, PacksOnceAndAgainWhenDamaged) {
  const auto source = Open(testing::GoldenPath("models/qwen3"));
  ASSERT_NE(source, nullptr);
  const std::string cache = testing::TempDir();
  EXPECT_TRUE(ListPackCache(cache)->empty());
  const PackRecipe recipe = Recipe("w4g32");
  const auto first = PackToCache(*source, recipe, cache);
  ASSERT_TRUE(first.ok()) << first.error().message;
  const std::string weights = *first + "/model.safetensors";
  const auto written = fs::last_write_time(weights);
  const std::string bytes = testing::ReadFile(weights);
  ASSERT_EQ(*PackToCache(*source, recipe, cache), *first);
  EXPECT_EQ(fs::last_write_time(weights), written);
  EXPECT_NE(*PackToCache(*source, Recipe("w8"), cache), *first);

  const auto list = ListPackCache(cache);
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 2u);
  EXPECT_TRUE(std::any_of(list->begin(), list->end(), [&](const CachedPack& pack) {
    return pack.path == *first && pack.recipe == recipe.Canonical() && pack.bytes == bytes.size() &&
           pack.source == source->path();
  }));

  // A packing that was killed leaves its directory; the next one of the same key clears it away, and no other's.
  const std::string leftover = *first + ".123.partial";
  const std::string other = *PackToCache(*source, Recipe("w8"), cache) + ".123.partial";
  fs::create_directories(leftover + "/x");
  fs::create_directories(other);
  fs::resize_file(weights, bytes.size() - 1);
  EXPECT_EQ(ListPackCache(cache)->size(), 1u);
  ASSERT_EQ(*PackToCache(*source, recipe, cache), *first);
  EXPECT_EQ(testing::ReadFile(weights), bytes);
  EXPECT_FALSE(fs::exists(leftover));
  EXPECT_TRUE(fs::exists(other));
  std::ofstream(*first + "/" + kPackRecord) << "{}";
  ASSERT_EQ(*PackToCache(*source, recipe, cache), *first);
  EXPECT_EQ(ListPackCache(cache)->size(), 2u);
}

// The fingerprint sees the middle of each tensor and no tokenizer: changes elsewhere must not be answered from the
// cache.
TEST(PackCache, ChangedSourcesArePackedAgain) {
  const std::string dir = testing::TempDir();
  const std::string cache = testing::TempDir();
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(testing::GoldenPath("models/qwen3") + "/" + name, dir + "/" + name);
  }
  std::ofstream(dir + "/tokenizer.json") << "one";
  const PackRecipe recipe = Recipe("w4g32,head=f32");
  const auto pack = [&](const std::string& path) {
    const auto source = Open(path);
    const auto packed = PackToCache(*source, recipe, cache);
    EXPECT_TRUE(packed.ok()) << packed.error().message;
    return *packed;
  };
  const std::string packed = pack(dir);
  EXPECT_EQ(testing::ReadFile(packed + "/tokenizer.json"), "one");
  std::ofstream(dir + "/tokenizer.json") << "two";
  ASSERT_EQ(pack(dir), packed);
  EXPECT_EQ(testing::ReadFile(packed + "/tokenizer.json"), "two");

  // The first bytes of the largest tensor.
  const std::string weights = dir + "/model.safetensors";
  const auto before = Open(dir);
  const Tensor& tensor = *before->Find("model.embed_tokens.weight");
  const auto offset = tensor.data.data() - tensor.file->bytes().data();
  ASSERT_GT(tensor.data.size(), 4096u);
  const std::string old_bytes = testing::ReadFile(packed + "/model.safetensors");
  {
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.write("\0\0\0\0\0\0\0\0", 8);
  }
  ASSERT_EQ(pack(dir), packed) << "the fingerprint sees this change: change another place";
  EXPECT_NE(testing::ReadFile(packed + "/model.safetensors"), old_bytes);

  // The same bytes elsewhere, or touched, are not packed again.
  const auto written = fs::last_write_time(packed + "/model.safetensors");
  const std::string copy = testing::TempDir();
  fs::copy(dir, copy, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  ASSERT_EQ(pack(copy), packed);
  ASSERT_EQ(pack(dir), packed);
  fs::last_write_time(weights, fs::file_time_type::clock::now());
  ASSERT_EQ(pack(dir), packed);
  EXPECT_EQ(fs::last_write_time(packed + "/model.safetensors"), written);
}

TEST(Pack, TheDefaultRecipeIsSymmetricOnlyForSymmetricSources) {
  const auto floats = Open(testing::GoldenPath("models/qwen2_tied"));
  ASSERT_NE(floats, nullptr);
  EXPECT_EQ(DefaultRecipeFor(*floats), DefaultRecipe());
  EXPECT_EQ(MatrixFormatText(DefaultRecipe().linear), "w4g32m");
  const auto blocks = Open(TinyGguf(2, SymmetricBlocks()));
  ASSERT_NE(blocks, nullptr);
  EXPECT_EQ(MatrixFormatText(DefaultRecipeFor(*blocks).linear), "w4g32");
}

TEST(PackCache, SeveralAtOnce) {
  const auto source = Open(testing::GoldenPath("models/qwen2_tied"));
  ASSERT_NE(source, nullptr);
  const std::string cache = testing::TempDir();
  std::vector<std::thread> threads;
  std::vector<std::string> paths(6);
  for (size_t i = 0; i < paths.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto path = PackToCache(*source, Recipe("w4g32"), cache);
      paths[i] = path.ok() ? *path : path.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& path : paths) EXPECT_EQ(path, paths[0]);
  EXPECT_NE(Open(paths[0]), nullptr);
  size_t directories = 0;
  for (const auto& entry : fs::directory_iterator(cache + "/packed")) directories += entry.is_directory() ? 1 : 0;
  EXPECT_EQ(directories, 1u) << "partial directories are left";
}

// --- a real model ---

TEST(PackReal, SmolLm2KeepsItsNumbersInLittleMemory) {
  PITH_REQUIRE_MODEL(path, "smollm2-135m");
  const auto source = Open(path);
  ASSERT_NE(source, nullptr);
  const std::string out = testing::TempDir() + "/packed";
  PackOptions options;
  options.threads = 2;
  const auto report = PackCheckpoint(*source, Recipe("keep"), out, options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_FALSE(report->sqnr_db.has_value()) << "all of it is Q4_1 and Q8_0: nothing may be lost";
  // Memory: a chunk, the scales of one matrix and the tokenizer's files, not the model. The peak counts mapped pages
  // that the kernel has not taken back yet, so the bound is the size of the file: all of it was never there at once.
  EXPECT_LT(report->peak_rss_bytes, report->source_bytes);
  const auto packed = Open(out);
  ASSERT_NE(packed, nullptr);
  std::vector<float> expected(576);
  for (const std::string from :
       {"model.layers.7.self_attn.q_proj", "model.layers.29.self_attn.k_proj", "model.embed_tokens"}) {
    const Tensor& tensor = *source->Find(from + ".weight");
    for (int64_t row = 0; row < std::min<int64_t>(tensor.rows(), 300); ++row) {
      const int64_t source_row = source->RowsInterleaved(from + ".weight") ? InterleavedRow(row, 64) : row;
      ASSERT_TRUE(DequantizeRows(tensor, source_row, source_row + 1, expected.data()).ok());
      ASSERT_EQ(PackedRow(*packed, from, row), expected) << from << " row " << row;
    }
  }
}

}  // namespace
}  // namespace pith
