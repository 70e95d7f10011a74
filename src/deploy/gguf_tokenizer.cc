#include "deploy/gguf_tokenizer.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "model/chat_template.h"
#include "model/gguf_pretokenizer.h"
#include "model/tokenizer_file.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr int32_t kNormalToken = 1;

// What a tokenizer.json does before BPE, as far as the named pre-tokenizers of GGUF differ.
struct PreTokenizerShape {
  std::string pattern;
  bool single_digits = false;
  bool nfc = false;
  bool ignore_merges = false;
};

std::string TextOf(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end() || !found->is_string()) return {};
  return found->get<std::string>();
}

const Json& Member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

// The steps of a component: itself, or those of its Sequence (Tokenizer::FromJson has checked the structure).
std::vector<Json> Steps(const Json& component, const char* list) {
  if (component.is_null()) return {};
  if (TextOf(component, "type") != "Sequence") return {component};
  const Json& steps = Member(component, list);
  return {steps.begin(), steps.end()};
}

Result<PreTokenizerShape> ShapeOf(const Json& tokenizer, const std::string& what) {
  const auto unsupported = [&](const std::string& step) {
    return Error{ErrorCode::kUnsupported,
                 what + ": GGUF has no name for a tokenizer with " + step + " (gpt-2, smollm, qwen2, llama-bpe)"};
  };
  PreTokenizerShape shape;
  for (const Json& step : Steps(Member(tokenizer, "normalizer"), "normalizers")) {
    shape.nfc = shape.nfc || TextOf(step, "type") == "NFC";
  }
  for (const Json& step : Steps(Member(tokenizer, "pre_tokenizer"), "pretokenizers")) {
    const std::string type = TextOf(step, "type");
    if (type == "Digits" && Member(step, "individual_digits") == true && shape.pattern.empty()) {
      shape.single_digits = true;
    } else if (type == "Split" && shape.pattern.empty() && !shape.single_digits &&
               TextOf(step, "behavior") == "Isolated" && Member(step, "invert") != true &&
               !TextOf(Member(step, "pattern"), "Regex").empty()) {
      shape.pattern = TextOf(Member(step, "pattern"), "Regex");
    } else if (type == "ByteLevel" && Member(step, "add_prefix_space") == false &&
               (Member(step, "use_regex") != false) == shape.pattern.empty()) {
      continue;
    } else {
      return unsupported("such a " + type + " step");
    }
  }
  shape.ignore_merges = Member(Member(tokenizer, "model"), "ignore_merges") == true;
  return shape;
}

Result<std::string> PreTokenizerName(const Json& tokenizer, const std::string& what) {
  PITH_ASSIGN(const PreTokenizerShape shape, ShapeOf(tokenizer, what));
  for (const char* name : {"gpt-2", "smollm", "qwen2", "llama-bpe"}) {
    PITH_ASSIGN(const GgufPreTokenizer known, GgufPreTokenizerByName(name, what));
    if (known.pattern == shape.pattern && known.single_digits == shape.single_digits && known.nfc == shape.nfc &&
        known.ignore_merges == shape.ignore_merges) {
      return std::string(name);
    }
  }
  return Error{ErrorCode::kUnsupported,
               what +
                   ": GGUF has no name for this pre-tokenizer (gpt-2, smollm, qwen2 and llama-bpe have one); its "
                   "pattern is '" +
                   shape.pattern.substr(0, 120) + "'"};
}

// A special token of tokenizer_config.json: a string, or an object with "content".
std::string SpecialTokenText(const Json& config, const char* key) {
  const Json& value = Member(config, key);
  return value.is_string() ? value.get<std::string>() : TextOf(value, "content");
}

// The whole vocabulary by id, and what kind of token each is.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
};

Result<Vocabulary> VocabularyOf(const Json& tokenizer, int64_t size, const std::string& what) {
  Vocabulary vocabulary;
  vocabulary.tokens.resize(static_cast<size_t>(size));
  vocabulary.types.assign(static_cast<size_t>(size), static_cast<int32_t>(kGgufUnusedToken));
  const auto place = [&](const std::string& text, const Json& id, int64_t type) -> Status {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(size)) {
      return Error{ErrorCode::kMismatch, what + ": token '" + text.substr(0, 40) + "' has an id outside the model's " +
                                             std::to_string(size) + " embeddings"};
    }
    const auto index = id.get<size_t>();
    vocabulary.tokens[index] = text;
    vocabulary.types[index] = static_cast<int32_t>(type);
    return {};
  };
  for (const auto& [text, id] : Member(Member(tokenizer, "model"), "vocab").items()) {
    PITH_RETURN_IF_ERROR(place(text, id, kNormalToken));
  }
  for (const Json& added : Member(tokenizer, "added_tokens")) {
    const bool special = Member(added, "special") == true;
    PITH_RETURN_IF_ERROR(
        place(TextOf(added, "content"), Member(added, "id"), special ? kGgufControlToken : kGgufUserDefinedToken));
  }
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] == kGgufUnusedToken) vocabulary.tokens[id] = "[PAD" + std::to_string(id) + "]";
  }
  return vocabulary;
}

Result<std::vector<std::string>> MergesOf(const Json& tokenizer, const std::string& what) {
  std::vector<std::string> merges;
  for (const Json& merge : Member(Member(tokenizer, "model"), "merges")) {
    if (merge.is_string()) {
      merges.push_back(merge.get<std::string>());
      continue;
    }
    // A pair; GGUF joins the parts by a space, which the byte alphabet never holds.
    const std::string left = merge[0].get<std::string>();
    const std::string right = merge[1].get<std::string>();
    if ((left + right).find(' ') != std::string::npos) {
      return Error{ErrorCode::kUnsupported, what + ": a merge with a space in it cannot be written to GGUF"};
    }
    merges.push_back(left + " " + right);
  }
  return merges;
}

Status AddFromDirectory(const Checkpoint& checkpoint, GgufMetadata* metadata) {
  const fs::path dir = checkpoint.path();
  const std::string path = (dir / "tokenizer.json").string();
  const std::string what = "'" + path + "'";
  // The reader of the runtime checks everything about the file that is relied on below.
  PITH_ASSIGN(const auto tokenizer, CheckpointTokenizer(checkpoint));
  PITH_ASSIGN(const Json json, ReadJsonFile(path));
  PITH_ASSIGN(const std::string pre, PreTokenizerName(json, what));
  PITH_ASSIGN(const Vocabulary vocabulary, VocabularyOf(json, checkpoint.config().vocab, what));
  PITH_ASSIGN(const std::vector<std::string> merges, MergesOf(json, what));
  metadata->AddString("tokenizer.ggml.model", "gpt2");
  metadata->AddString("tokenizer.ggml.pre", pre);
  metadata->AddStrings("tokenizer.ggml.tokens", vocabulary.tokens);
  metadata->AddI32s("tokenizer.ggml.token_type", vocabulary.types);
  metadata->AddStrings("tokenizer.ggml.merges", merges);

  Json config;
  const std::string config_path = (dir / "tokenizer_config.json").string();
  if (Result<Json> read = ReadJsonFile(config_path); read.ok()) {
    config = *std::move(read);
  } else if (read.error().code != ErrorCode::kNotFound) {
    return read.error();
  }
  const auto add_id = [&](const char* key, const char* name, int32_t fallback) {
    const std::string text = SpecialTokenText(config, name);
    int32_t id = text.empty() ? -1 : tokenizer->FindToken(text);
    if (id < 0) id = fallback;
    if (id >= 0) metadata->AddU32(key, static_cast<uint32_t>(id));
  };
  const ModelConfig& model = checkpoint.config();
  const bool adds_bos = tokenizer->bos_id() >= 0;
  add_id("tokenizer.ggml.bos_token_id", "bos_token",
         adds_bos ? tokenizer->bos_id() : static_cast<int32_t>(model.bos_id));
  add_id("tokenizer.ggml.eos_token_id", "eos_token", model.eos_ids.empty() ? -1 : model.eos_ids.front());
  add_id("tokenizer.ggml.padding_token_id", "pad_token", -1);
  metadata->AddBool("tokenizer.ggml.add_bos_token", adds_bos);
  const Result<std::string> text = CheckpointTemplateText(checkpoint);
  if (text.ok()) {
    metadata->AddString("tokenizer.chat_template", *text);
  } else if (text.error().code != ErrorCode::kUnsupported) {
    return text.error();
  }
  return {};
}

}  // namespace

Status AddTokenizerMetadata(const Checkpoint& checkpoint, GgufMetadata* metadata) {
  if (checkpoint.gguf() == nullptr) return AddFromDirectory(checkpoint, metadata);
  for (const auto& [key, value] : checkpoint.gguf()->metadata()) {
    if (key.starts_with("tokenizer.")) metadata->AddEncoded(key, value);
  }
  return {};
}

}  // namespace pith
