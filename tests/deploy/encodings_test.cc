// Encodings of all versions: what is written passes the validator, every kind of corruption fails it.
#include "deploy/encodings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/json.h"
#include "deploy/golden_model.h"
#include "deploy/matrix_reader.h"
#include "deploy/onnx_encodings.h"
#include "deploy/onnx_file.h"
#include "deploy/onnx_weights.h"
#include "deploy/qdq.h"
#include "model/pack.h"

namespace pith {
namespace {

using testing::GoldenPath;
using testing::Open;

Encodings Sample() {
  Encodings encodings;
  TensorEncoding weight;
  weight.parameter = weight.symmetric = true;
  weight.bits = 4;
  weight.offset = -8;
  weight.scales = {0.5F, 0.25F, 0.125F};
  encodings["w"] = weight;
  encodings["x"] = EncodeRange(-3.0F, 5.0F, 16, false);
  encodings["k"] = EncodeRange(-3.0F, 5.0F, 8, true);
  return encodings;
}

const std::map<std::string, GraphTensor> kTensors = {
    {"w", {{3, 64}, true}}, {"x", {{1, 4}, false}}, {"k", {{2, 1, 8, 4}, false}}};

TEST(Encodings, RangesHoldZeroAndBothEnds) {
  for (const auto& [low, high] : {std::pair{-3.0F, 5.0F}, std::pair{2.0F, 5.0F}, std::pair{-7.0F, -1.0F},
                                  std::pair{0.0F, 0.0F}, std::pair{-1e-30F, 1e30F}}) {
    for (const bool symmetric : {false, true}) {
      const TensorEncoding encoding = EncodeRange(low, high, 16, symmetric);
      const double scale = static_cast<double>(encoding.scales[0]);
      EXPECT_GT(scale, 0);
      EXPECT_LE(encoding.Lowest(0), std::min(0.0, static_cast<double>(low)) + 0.51 * scale);
      EXPECT_GE(encoding.Highest(0), std::max(0.0, static_cast<double>(high)) - 0.51 * scale);
      EXPECT_LE(encoding.offset, 0);
      if (symmetric) {
        EXPECT_EQ(encoding.offset, -32768);
      }
    }
  }
}

TEST(Encodings, EveryVersionPasses) {
  for (const auto version : {EncodingVersion::k0_6_1, EncodingVersion::k1_0_0, EncodingVersion::k2_0_0}) {
    const auto text = WriteEncodings(Sample(), version);
    ASSERT_TRUE(text.ok());
    const Status status = ValidateEncodings(*text, "sample", &kTensors);
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ((*ParseJson(*text, "sample"))["version"], EncodingVersionName(version));
  }
}

TEST(Encodings, FormsAreTheSchemas) {
  const Json legacy = *ParseJson(*WriteEncodings(Sample(), EncodingVersion::k0_6_1), "x");
  EXPECT_EQ(legacy["param_encodings"]["w"].size(), 3U);
  EXPECT_EQ(legacy["param_encodings"]["w"][1], (Json{{"bitwidth", 4},
                                                     {"dtype", "int"},
                                                     {"is_symmetric", "True"},
                                                     {"max", 1.75},
                                                     {"min", -2.0},
                                                     {"offset", -8},
                                                     {"scale", 0.25}}));
  const Json named = *ParseJson(*WriteEncodings(Sample(), EncodingVersion::k1_0_0), "x");
  EXPECT_EQ(named["param_encodings"][0], (Json{{"name", "w"},
                                               {"dtype", "INT"},
                                               {"enc_type", "PER_CHANNEL"},
                                               {"bw", 4},
                                               {"is_sym", true},
                                               {"scale", {0.5, 0.25, 0.125}},
                                               {"offset", {-8, -8, -8}}}));
  const Json onnx = *ParseJson(*WriteEncodings(Sample(), EncodingVersion::k2_0_0), "x");
  EXPECT_EQ(onnx["encodings"][1],
            (Json{{"name", "w"}, {"output_dtype", "int4"}, {"axis", 0}, {"y_scale", {0.5, 0.25, 0.125}}}));
  EXPECT_EQ(onnx["encodings"][2]["output_dtype"], "uint16");
  EXPECT_EQ(onnx["encodings"][2]["y_zero_point"], -EncodeRange(-3.0F, 5.0F, 16, false).offset);
}

TEST(Encodings, BlocksNeedVersion1) {
  Encodings encodings = Sample();
  encodings["w"].block = 32;
  encodings["w"].scales.assign(6, 0.5F);
  const auto text = WriteEncodings(encodings, EncodingVersion::k1_0_0);
  ASSERT_TRUE(text.ok());
  EXPECT_TRUE(ValidateEncodings(*text, "x", &kTensors).ok());
  for (const auto version : {EncodingVersion::k0_6_1, EncodingVersion::k2_0_0}) {
    EXPECT_EQ(WriteEncodings(encodings, version).error().code, ErrorCode::kUnsupported);
  }
}

struct Corruption {
  EncodingVersion version;
  std::function<void(Json&)> change;
  const char* named;  // in the message
};

TEST(Encodings, EveryCorruptionFails) {
  constexpr auto k0 = EncodingVersion::k0_6_1;
  constexpr auto k1 = EncodingVersion::k1_0_0;
  constexpr auto k2 = EncodingVersion::k2_0_0;
  const Corruption corruptions[] = {
      {k0, [](Json& j) { j.erase("version"); }, "version"},
      {k0, [](Json& j) { j["version"] = "0.7"; }, "version"},
      {k0, [](Json& j) { j.erase("quantizer_args"); }, "quantizer_args"},
      {k0, [](Json& j) { j["extra"] = 1; }, "extra"},
      {k0, [](Json& j) { j["quantizer_args"]["dtype"] = 3; }, "quantizer_args"},
      {k0, [](Json& j) { j["quantizer_args"].erase("param_bitwidth"); }, "param_bitwidth"},
      {k0, [](Json& j) { j["param_encodings"] = Json::array(); }, "param_encodings"},
      {k0, [](Json& j) { j["param_encodings"]["w"][1].erase("scale"); }, "'w'"},
      {k0, [](Json& j) { j["param_encodings"]["w"][1]["bitwidth"] = 5; }, "bitwidth"},
      {k0, [](Json& j) { j["param_encodings"]["w"][1]["dtype"] = "float"; }, "dtype"},
      {k0, [](Json& j) { j["param_encodings"]["w"][1]["is_symmetric"] = true; }, "is_symmetric"},
      {k0, [](Json& j) { j["param_encodings"]["w"][1]["scale"] = -0.25; }, "scale"},
      {k0, [](Json& j) { j["param_encodings"]["w"][1]["scale"] = "x"; }, "scale"},
      {k0, [](Json& j) { j["param_encodings"]["w"][1]["offset"] = -7; }, "offset"},
      {k0, [](Json& j) { j["param_encodings"]["w"][1]["min"] = -1.0; }, "min"},
      {k0, [](Json& j) { j["param_encodings"]["w"][1]["max"] = 9.0; }, "max"},
      {k0, [](Json& j) { j["param_encodings"]["w"].erase(2); }, "2 scales"},
      {k0, [](Json& j) { j["param_encodings"]["w"] = Json::array(); }, "no scale"},
      {k0, [](Json& j) { j["param_encodings"]["y"] = j["param_encodings"]["w"]; }, "not in the graph"},
      {k0, [](Json& j) { j["activation_encodings"]["w"] = j["activation_encodings"]["x"]; }, "twice"},
      {k0,
       [](Json& j) {
         std::swap(j["activation_encodings"]["x"], j["activation_encodings"]["y"]);
         j["activation_encodings"].erase("x");
       },
       "not in the graph"},
      {k0, [](Json& j) { j["activation_encodings"]["x"][0]["offset"] = 1; }, "offset"},
      {k0, [](Json& j) { j["activation_encodings"]["x"].push_back(j["activation_encodings"]["x"][0]); },
       "more than one"},
      {k1, [](Json& j) { j["param_encodings"][0]["name"] = ""; }, "empty name"},
      {k1, [](Json& j) { j["param_encodings"][0]["name"] = 4; }, "name"},
      {k1, [](Json& j) { j["param_encodings"][0]["bw"] = 32; }, "bw"},
      {k1, [](Json& j) { j["param_encodings"][0]["dtype"] = "int"; }, "dtype"},
      {k1, [](Json& j) { j["param_encodings"][0]["enc_type"] = "PER_ROW"; }, "enc_type"},
      {k1, [](Json& j) { j["param_encodings"][0]["enc_type"] = "PER_TENSOR"; }, "PER_TENSOR"},
      {k1, [](Json& j) { j["param_encodings"][0]["is_sym"] = "True"; }, "is_sym"},
      {k1, [](Json& j) { j["param_encodings"][0]["offset"].erase(0); }, "offset"},
      {k1, [](Json& j) { j["param_encodings"][0]["offset"][1] = -7; }, "offset"},
      {k1, [](Json& j) { j["param_encodings"][0]["scale"][1] = 0; }, "scale"},
      {k1, [](Json& j) { j["param_encodings"][0]["block_size"] = 32; }, "block_size"},
      {k1, [](Json& j) { j["param_encodings"][0]["enc_type"] = "PER_BLOCK"; }, "block_size"},
      {k1, [](Json& j) { std::swap(j["param_encodings"], j["activation_encodings"]); }, ""},
      {k1, [](Json& j) { j["activation_encodings"].push_back(j["activation_encodings"][0]); }, "twice"},
      {k2, [](Json& j) { j["encodings"] = Json::object(); }, "encodings"},
      {k2, [](Json& j) { j["encodings"][1]["axis"] = 1; }, "axis"},
      {k2, [](Json& j) { j["encodings"][1].erase("axis"); }, "axis"},
      {k2, [](Json& j) { j["encodings"][1]["output_dtype"] = "int5"; }, "output_dtype"},
      {k2, [](Json& j) { j["encodings"][1]["y_zero_point"] = 0; }, "y_zero_point"},
      {k2, [](Json& j) { j["encodings"][1]["y_scale"][0] = -1; }, "y_scale"},
      {k2, [](Json& j) { j["encodings"][2].erase("y_zero_point"); }, "y_zero_point"},
      {k2, [](Json& j) { j["encodings"][2]["y_zero_point"] = 65536; }, "y_zero_point"},
      {k2, [](Json& j) { j["encodings"][2]["bw"] = 16; }, "bw"},
  };
  for (const Corruption& corruption : corruptions) {
    Json json = *ParseJson(*WriteEncodings(Sample(), corruption.version), "x");
    corruption.change(json);
    const Status status = ValidateEncodings(json.dump(), "x", &kTensors);
    ASSERT_FALSE(status.ok()) << json.dump();
    EXPECT_TRUE(status.error().code == ErrorCode::kMalformed || status.error().code == ErrorCode::kMismatch);
    EXPECT_NE(status.error().message.find(corruption.named), std::string::npos)
        << corruption.named << ": " << status.error().message;
  }
  EXPECT_FALSE(ValidateEncodings("{\"version\":", "x").ok());
  EXPECT_FALSE(ValidateEncodings("[]", "x").ok());
}

// A tiny model packed by the recipe.
std::shared_ptr<const Checkpoint> OpenPacked(const char* recipe) {
  const std::string packed = testing::TempDir() + "/packed";
  EXPECT_TRUE(PackCheckpoint(*Open(GoldenPath("models/qwen2_untied")), *ParseRecipe(recipe), packed).ok());
  return Open(packed);
}

// The encodings of one graph of 8 tokens, measured on the golden ids of `model`.
Json EncodingsOf(const Checkpoint& checkpoint, const char* model) {
  OnnxExportOptions options;
  options.tokens = {8};
  options.context = 64;
  const auto exported = ExportOnnx(checkpoint, testing::TempDir() + "/onnx", options);
  EXPECT_TRUE(exported.ok()) << exported.error().message;
  EncodingOptions encoding;
  encoding.tokens = testing::GoldenIds(model);
  encoding.tokens.resize(24);
  const auto report = AddEncodings(checkpoint, *exported, options, encoding);
  EXPECT_TRUE(report.ok()) << report.error().message;
  return *ReadJsonFile(exported->path + "/" + report->files.front());
}

// A packed model with an adapter, exported with encodings: checked against the graphs by the exporter, and tied where
// the cache goes round.
TEST(Encodings, ExportedGraphsHaveThem) {
  if (!OnnxIsBuiltIn()) GTEST_SKIP() << "SKIPPED LOUDLY: built without libonnx";
  const auto checkpoint = OpenPacked("w4,head=w8,embed=w8,method=minmax");
  const auto adapter = *AdapterFile::Open(GoldenPath("models/qwen2_untied/adapters/all"), checkpoint->config());
  for (const bool qnn : {false, true}) {
    OnnxExportOptions options;
    options.tokens = {8, 1};
    options.context = 64;
    options.parts = 2;
    options.qnn = qnn;
    options.adapter = adapter.get();
    const auto exported = ExportOnnx(*checkpoint, testing::TempDir() + "/onnx", options);
    ASSERT_TRUE(exported.ok()) << exported.error().message;
    EncodingOptions encoding;
    encoding.tokens = testing::GoldenIds("qwen2_untied");
    encoding.tokens.resize(24);
    const auto report = AddEncodings(*checkpoint, *exported, options, encoding);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->requantized, 0);
    EXPECT_EQ(report->files.size(), 4U);
    std::map<std::string, Json> first;
    for (const std::string& file : report->files) {
      const Json json = *ReadJsonFile(exported->path + "/" + file);
      for (const char* list : {"param_encodings", "activation_encodings"}) {
        for (const Json& entry : json[list]) {
          const std::string name = entry["name"];
          const auto [found, added] = first.try_emplace(name, entry);
          EXPECT_EQ(found->second, entry) << name;  // the same in every graph
        }
      }
    }
    for (const std::string layer : {"0", "1"}) {
      for (const std::string kind : {"past_key_", "past_value_"}) {
        Json in = first.at(kind + layer + "_in"), out = first.at(kind + layer + "_out");
        EXPECT_EQ(in["bw"], 8);
        EXPECT_EQ(in["is_sym"], true);
        EXPECT_EQ(in["scale"], out["scale"]);
      }
    }
    const std::string q = "model.layers.0.self_attn.q_proj.weight";
    EXPECT_EQ(first.at(qnn ? q + ".rows8" : q)["bw"], 4);
    EXPECT_EQ(first.at("lm_head.weight")["bw"], 8);
    EXPECT_EQ(first.at("model.layers.0.mlp.up_proj.lora_A")["bw"], 8);
    EXPECT_EQ(first.at("logits")["bw"], 16);
    // One operator to the converter: its ends have encodings, its inside has none.
    EXPECT_TRUE(first.contains("layer0.attention_norm") && first.contains("layer0.sum"));
    EXPECT_FALSE(first.contains("layer0.attention_norm.sum") || first.contains("final_norm.mean"));
  }
}

// Yarn puts a factor above 1 on cosines and sines, which must not be cut off.
TEST(Encodings, YarnsCosinesFit) {
  if (!OnnxIsBuiltIn()) GTEST_SKIP() << "SKIPPED LOUDLY: built without libonnx";
  const auto checkpoint = Open(GoldenPath("models/qwen2_yarn"));
  const Json json = EncodingsOf(*checkpoint, "qwen2_yarn");
  int found = 0;
  for (const Json& entry : json["activation_encodings"]) {
    if (entry["name"] != "position_ids_cos" && entry["name"] != "position_ids_sin") continue;
    const double factor = 0.1 * std::log(4.0) + 1;  // transformers' yarn, factor 4
    EXPECT_NEAR(entry["scale"][0].get<double>() * 65535, 2 * factor, 1e-3);
    ++found;
  }
  EXPECT_EQ(found, 2);
}

// Quantized graphs: every matrix behind a DequantizeLinear with the packed integers, the cache in 8 bits at both ends.
TEST(Qdq, GraphsHoldThePackedIntegers) {
  const auto checkpoint = OpenPacked("w4,head=w8,embed=w8,method=minmax");
  const std::string folder = testing::TempDir();
  const GraphPart part = PlanParts(checkpoint->config(), 1)->front();
  const FoldedKeys folded = *FoldedKeys::Of(*checkpoint);
  const auto weights = WritePartWeights(*checkpoint, folded, part, nullptr, nullptr, nullptr, folder, {});
  ASSERT_TRUE(weights.ok());
  DecoderGraphOptions options;
  options.tokens = 4;
  options.context = 32;
  options.opset = 21;
  const OnnxGraph graph = BuildDecoderGraph(checkpoint->config(), part, options, weights->places);
  ValueRanges ranges;
  for (const auto& [name, value] : graph.values) ranges[name] = {-2, 3};
  Encodings encodings = *ActivationEncodings(graph, ranges);
  const std::string q = "model.layers.1.self_attn.q_proj";
  const LinearShape shape = ShapeOf(checkpoint->config(), LinearKind::kQ);
  const MatrixReader reader = *MatrixReader::Open(*checkpoint, q, shape.out, shape.in);
  TensorEncoding weight;
  weight.parameter = weight.symmetric = true;
  weight.bits = 4;
  weight.offset = -8;
  std::string want;
  for (int64_t r = 0; r < shape.out; ++r) {
    CodeRow row;
    reader.ReadCodes(r, &row);
    weight.scales.push_back(row.scales[0] * folded.Of(q)[static_cast<size_t>(r)]);
    for (size_t c = 0; c < row.codes.size(); c += 2) {
      want += static_cast<char>(((row.codes[c] ^ 8) & 15) | ((row.codes[c + 1] ^ 8) & 15) << 4);
    }
  }
  encodings[q + ".weight"] = weight;
  std::map<std::string, uint64_t> places;
  const auto quantized = QuantizeGraph(graph, encodings, folder, "integers.bin", &places);
  ASSERT_TRUE(quantized.ok()) << quantized.error().message;
  EXPECT_EQ(testing::ReadFile(folder + "/integers.bin").substr(places.at(q + ".weight.integers"), want.size()), want);
  std::map<std::string, const OnnxNode*> makers;
  for (const OnnxNode& node : quantized->nodes) makers[node.outputs.front()] = &node;
  EXPECT_EQ(makers.at(q + ".weight")->op, "DequantizeLinear");
  EXPECT_EQ(quantized->values.at("past_key_1_in.dq.q").type, OnnxType::kInt8);
  EXPECT_EQ(quantized->values.at("layer1.k.scaled.q").type, OnnxType::kInt8);  // moves on into past_key_1_out
  EXPECT_EQ(quantized->values.at("layer1.silu.q").type, OnnxType::kUInt16);
  // Every value that a node reads is there before it.
  std::set<std::string> known;
  for (const OnnxValue& input : quantized->inputs) known.insert(input.name);
  for (const OnnxConstant& constant : quantized->constants) known.insert(constant.value.name);
  size_t late = 0;
  for (const OnnxNode& node : quantized->nodes) {
    for (const std::string& input : node.inputs) late += known.contains(input) ? 0 : 1;
    known.insert(node.outputs.front());
  }
  EXPECT_EQ(late, 0U);
  for (const OnnxValue& output : quantized->outputs) EXPECT_TRUE(known.contains(output.name)) << output.name;
}

// The scales of groups are those that are packed, made positive; only where that cannot be (a negative scale with the
// lowest integer) a group gets another, and its neighbours keep theirs.
TEST(Encodings, GroupsKeepTheirScales) {
  if (!OnnxIsBuiltIn()) GTEST_SKIP() << "SKIPPED LOUDLY: built without libonnx";
  const auto checkpoint = OpenPacked("w4g32,head=w8g32,embed=w8g32,method=best,weigh=none");
  const Json json = EncodingsOf(*checkpoint, "qwen2_untied");
  int64_t kept = 0, changed = 0;
  for (const Json& entry : json["param_encodings"]) {
    const std::string name = entry["name"];
    if (!name.ends_with("mlp.up_proj.weight")) continue;
    const std::string module = name.substr(0, name.size() - 7);
    const ModelConfig& config = checkpoint->config();
    const auto reader = MatrixReader::Open(*checkpoint, module, config.intermediate, config.hidden);
    ASSERT_TRUE(reader.ok());
    CodeRow row;
    size_t at = 0;
    for (int64_t r = 0; r < config.intermediate; ++r) {
      reader->ReadCodes(r, &row);
      for (size_t g = 0; g < row.scales.size(); ++g, ++at) {
        const auto begin = row.codes.begin() + static_cast<int64_t>(32 * g);
        const bool possible = row.scales[g] > 0 || std::count(begin, begin + 32, 0) == 0;
        const float scale = entry["scale"][at].get<float>();
        EXPECT_GT(scale, 0);
        if (possible) {
          EXPECT_FLOAT_EQ(scale, std::fabs(row.scales[g])) << name << " row " << r << " group " << g;
        }
        ++(possible ? kept : changed);
      }
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(changed, 0);  // else nothing was seen
}

}  // namespace
}  // namespace pith
