#include "model/hf_export.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/gguf.h"
#include "model/gguf_pretokenizer.h"

namespace pith {

namespace {

const char* ClassName(Architecture arch) {
  switch (arch) {
    case Architecture::kLlama: return "LlamaForCausalLM";
    case Architecture::kQwen2: return "Qwen2ForCausalLM";
    case Architecture::kQwen3: return "Qwen3ForCausalLM";
  }
  return "?";
}

// GGUF stores the effect of Llama 3's scaling, a divisor per pair, not its parameters. Those in use are few: the factor
// is the greatest divisor, the rest has been the same in every release.
std::optional<RopeScaling> Llama3ScalingOf(const ModelConfig& config) {
  const std::vector<float>& divisors = config.rope_frequency_divisors;
  ModelConfig trial = config;
  trial.rope_frequency_divisors.clear();
  trial.rope_scaling = RopeScaling();
  const RopeFrequencies plain = ComputeRopeFrequencies(trial);
  RopeScaling& scaling = trial.rope_scaling;
  scaling.kind = RopeScalingKind::kLlama3;
  scaling.factor = static_cast<double>(*std::max_element(divisors.begin(), divisors.end()));
  for (const int64_t original : {8192, 4096, 16384, 32768, 65536, 131072}) {
    scaling.original_max_position = original;
    const RopeFrequencies scaled = ComputeRopeFrequencies(trial);
    bool same = true;
    for (size_t i = 0; i < divisors.size(); ++i) {
      const double divisor = plain.inv_freq[i] / scaled.inv_freq[i];
      same = same && std::fabs(divisor - static_cast<double>(divisors[i])) <= 1e-4 * divisor;
    }
    if (same) return scaling;
  }
  return std::nullopt;
}

Result<OrderedJson> RopeScalingJson(const ModelConfig& config) {
  RopeScaling scaling = config.rope_scaling;
  if (!config.rope_frequency_divisors.empty()) {
    const std::optional<RopeScaling> llama3 = Llama3ScalingOf(config);
    if (scaling.kind != RopeScalingKind::kNone || !llama3) {
      return Error{ErrorCode::kUnsupported,
                   "config.json cannot express the RoPE divisors of this model (rope_freqs.weight)"};
    }
    scaling = *llama3;
  }
  switch (scaling.kind) {
    case RopeScalingKind::kNone: return OrderedJson(nullptr);
    case RopeScalingKind::kLinear: return OrderedJson{{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScalingKind::kLlama3:
      return OrderedJson{{"rope_type", "llama3"},
                         {"factor", scaling.factor},
                         {"low_freq_factor", scaling.low_freq_factor},
                         {"high_freq_factor", scaling.high_freq_factor},
                         {"original_max_position_embeddings", scaling.original_max_position}};
    case RopeScalingKind::kYarn: {
      OrderedJson json = {{"rope_type", "yarn"},
                          {"factor", scaling.factor},
                          {"original_max_position_embeddings", scaling.original_max_position},
                          {"beta_fast", scaling.beta_fast},
                          {"beta_slow", scaling.beta_slow}};
      if (scaling.attention_factor != 0.0) json["attention_factor"] = scaling.attention_factor;
      return json;
    }
  }
  return OrderedJson(nullptr);
}

OrderedJson EosJson(const ModelConfig& config) {
  if (config.eos_ids.empty()) return nullptr;
  if (config.eos_ids.size() == 1) return config.eos_ids.front();
  return config.eos_ids;
}

// One JSON string. Text that is not UTF-8 is refused.
Status AppendString(std::string_view text, const std::string& what, std::string* out) {
  try {
    *out += OrderedJson(text).dump();
  } catch (const OrderedJson::exception&) {
    return Error{ErrorCode::kMalformed, what + ": a token is not valid UTF-8"};
  }
  return {};
}

// The token that a metadata key names, if any.
Result<std::optional<std::string>> TokenOf(const GgufFile& gguf, std::string_view key,
                                           const std::vector<std::string_view>& tokens) {
  if (!gguf.Has(key)) return std::optional<std::string>();
  PITH_ASSIGN(const int64_t id, gguf.GetInt(key));
  if (id < 0 || id >= static_cast<int64_t>(tokens.size())) return std::optional<std::string>();
  return std::optional<std::string>(tokens[static_cast<size_t>(id)]);
}

// The parts of tokenizer.json behind the added tokens and before the model.
Result<OrderedJson> PipelineJson(const GgufPreTokenizer& pre, const std::optional<std::string>& bos, int64_t bos_id) {
  OrderedJson steps = OrderedJson::array();
  if (pre.single_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (!pre.pattern.empty()) {
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pre.pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  const auto byte_level = [](bool use_regex) {
    return OrderedJson{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
  };
  steps.push_back(byte_level(pre.pattern.empty()));
  OrderedJson json;
  json["normalizer"] = pre.nfc ? OrderedJson{{"type", "NFC"}} : OrderedJson(nullptr);
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  json["post_processor"] = byte_level(false);
  if (bos) {
    const OrderedJson special = {{"SpecialToken", {{"id", *bos}, {"type_id", 0}}}};
    const auto sequence = [](const char* id) { return OrderedJson{{"Sequence", {{"id", id}, {"type_id", 0}}}}; };
    json["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", OrderedJson::array({special, sequence("A")})},
        {"pair", OrderedJson::array({special, sequence("A"), special, sequence("B")})},
        {"special_tokens",
         {{*bos, {{"id", *bos}, {"ids", OrderedJson::array({bos_id})}, {"tokens", OrderedJson::array({*bos})}}}}}};
  }
  json["decoder"] = byte_level(true);
  return json;
}

}  // namespace

Result<std::string> HfConfigText(const ModelConfig& config) {
  const auto unsupported = [](const std::string& message) {
    return Error{ErrorCode::kUnsupported, "config.json cannot express this model: " + message};
  };
  if (config.arch == Architecture::kQwen2 && (!config.attention_bias || config.attention_out_bias || config.mlp_bias)) {
    return unsupported("qwen2 has biases on q, k and v and nowhere else");
  }
  if (config.arch != Architecture::kQwen2 && config.attention_bias != config.attention_out_bias) {
    return unsupported("biases on some of q, k, v and o");
  }
  if (config.arch == Architecture::kQwen3 && config.mlp_bias) return unsupported("biases in the MLP of qwen3");
  PITH_ASSIGN(const OrderedJson rope_scaling, RopeScalingJson(config));

  OrderedJson json;
  json["architectures"] = {ClassName(config.arch)};
  json["model_type"] = ArchitectureName(config.arch);
  json["vocab_size"] = config.vocab;
  json["hidden_size"] = config.hidden;
  json["intermediate_size"] = config.intermediate;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["num_key_value_heads"] = config.kv_heads;
  json["head_dim"] = config.head_dim;
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = config.max_position;
  json["rms_norm_eps"] = config.rms_eps;
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = rope_scaling;
  json["tie_word_embeddings"] = config.tied_embeddings;
  if (config.arch != Architecture::kQwen2) json["attention_bias"] = config.attention_bias;
  if (config.arch == Architecture::kLlama) json["mlp_bias"] = config.mlp_bias;
  json["bos_token_id"] = config.bos_id < 0 ? OrderedJson(nullptr) : OrderedJson(config.bos_id);
  json["eos_token_id"] = EosJson(config);
  json["attention_dropout"] = 0.0;
  json["use_cache"] = true;
  json["torch_dtype"] = "float32";
  // The version this is written for. 4.57.3 warns falsely of the tokenizer of any local model that names a later one.
  json["transformers_version"] = "4.57.2";
  return json.dump(2) + "\n";
}

std::string HfGenerationConfigText(const ModelConfig& config) {
  OrderedJson json;
  json["bos_token_id"] = config.bos_id < 0 ? OrderedJson(nullptr) : OrderedJson(config.bos_id);
  json["eos_token_id"] = EosJson(config);
  return json.dump(2) + "\n";
}

Result<HfTokenizerFiles> HfTokenizerOfGguf(const GgufFile& gguf, int64_t max_position) {
  const std::string& what = gguf.what();
  PITH_ASSIGN(const std::string_view model, gguf.GetString("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return Error{ErrorCode::kUnsupported, what + ": the tokenizer model '" + std::string(model.substr(0, 40)) +
                                              "' (tokenizer.ggml.model) is not supported; only gpt2 is"};
  }
  PITH_ASSIGN(const std::string_view pre_name, gguf.GetString("tokenizer.ggml.pre", "default"));
  PITH_ASSIGN(const GgufPreTokenizer pre, GgufPreTokenizerByName(pre_name, what));
  PITH_ASSIGN(const auto tokens, gguf.GetStrings("tokenizer.ggml.tokens"));
  PITH_ASSIGN(const auto merges, gguf.GetStrings("tokenizer.ggml.merges"));
  std::vector<int64_t> types(tokens.size(), 1);
  if (gguf.Has("tokenizer.ggml.token_type")) {
    PITH_ASSIGN(types, gguf.GetInts("tokenizer.ggml.token_type"));
    if (types.size() != tokens.size()) {
      return Error{ErrorCode::kMalformed, what + ": tokenizer.ggml.token_type has " + std::to_string(types.size()) +
                                              " entries for " + std::to_string(tokens.size()) + " tokens"};
    }
  }
  PITH_ASSIGN(const bool add_bos, gguf.GetBool("tokenizer.ggml.add_bos_token", pre.ignore_merges));
  PITH_ASSIGN(const std::optional<std::string> bos, TokenOf(gguf, "tokenizer.ggml.bos_token_id", tokens));
  PITH_ASSIGN(const std::optional<std::string> eos, TokenOf(gguf, "tokenizer.ggml.eos_token_id", tokens));
  PITH_ASSIGN(const std::optional<std::string> pad, TokenOf(gguf, "tokenizer.ggml.padding_token_id", tokens));
  PITH_ASSIGN(const std::optional<std::string> unknown, TokenOf(gguf, "tokenizer.ggml.unknown_token_id", tokens));
  int64_t bos_id = -1;
  if (bos) {
    PITH_ASSIGN(bos_id, gguf.GetInt("tokenizer.ggml.bos_token_id"));
  }

  // Written as text piece by piece: a JSON tree of a vocabulary would take many times its size.
  HfTokenizerFiles files;
  std::string& out = files.tokenizer;
  out = "{\n\"version\": \"1.0\",\n\"truncation\": null,\n\"padding\": null,\n\"added_tokens\": [";
  bool first = true;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] != kGgufControlToken && types[id] != kGgufUserDefinedToken) continue;
    out += first ? "\n" : ",\n";
    first = false;
    out += "{\"id\": " + std::to_string(id) + ", \"content\": ";
    PITH_RETURN_IF_ERROR(AppendString(tokens[id], what, &out));
    out += ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": ";
    out += types[id] == kGgufControlToken ? "true}" : "false}";
  }
  out += "\n],\n";
  PITH_ASSIGN(const OrderedJson pipeline, PipelineJson(pre, add_bos ? bos : std::nullopt, bos_id));
  for (const auto& [key, value] : pipeline.items()) out += "\"" + key + "\": " + value.dump() + ",\n";
  out +=
      "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
      "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": ";
  out += pre.ignore_merges ? "true" : "false";
  out += ",\n\"vocab\": {";
  first = true;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] == kGgufUnusedToken) continue;  // padding of the embedding table
    out += first ? "\n" : ",\n";
    first = false;
    PITH_RETURN_IF_ERROR(AppendString(tokens[id], what, &out));
    out += ": " + std::to_string(id);
  }
  out += "\n},\n\"merges\": [";
  first = true;
  for (const std::string_view merge : merges) {
    out += first ? "\n" : ",\n";
    first = false;
    PITH_RETURN_IF_ERROR(AppendString(merge, what, &out));
  }
  out += "\n]}\n}\n";

  OrderedJson config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  // Its default has token_type_ids too, which these models refuse.
  config["model_input_names"] = {"input_ids", "attention_mask"};
  config["model_max_length"] = max_position;
  config["clean_up_tokenization_spaces"] = false;
  config["add_prefix_space"] = false;
  const auto add = [&config](const char* key, const std::optional<std::string>& token) {
    config[key] = token ? OrderedJson(*token) : OrderedJson(nullptr);
  };
  add("bos_token", bos);
  add("eos_token", eos);
  add("pad_token", pad);
  add("unk_token", unknown);
  if (gguf.Has("tokenizer.chat_template")) {
    PITH_ASSIGN(const std::string_view chat_template, gguf.GetString("tokenizer.chat_template"));
    config["chat_template"] = chat_template;
  }
  try {
    files.tokenizer_config = config.dump(2) + "\n";
  } catch (const OrderedJson::exception&) {
    return Error{ErrorCode::kMalformed, what + ": the chat template or a special token is not valid UTF-8"};
  }
  return files;
}

}  // namespace pith
