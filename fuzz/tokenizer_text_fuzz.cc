// Texts: byte-level tokenizers of every kind lose nothing of any text, cut it into the same tokens at once and in the
// stream, and keep special tokens out of a user's words.

#include <cstdint>
#include <vector>

#include "model/chat_template.h"
#include "model/utf8.h"
#include "tokenizer_checks.h"

namespace {

// A tokenizer.json of the 256 bytes and a few merges.
std::string Document(std::string_view normalizer, std::string_view pre_tokenizer) {
  std::string vocab;
  std::string merges;
  int id = 0;
  const auto add = [&](const std::string& form) {
    vocab += (id == 0 ? "\"" : ",\"") + form + "\":" + std::to_string(id), ++id;
  };
  const auto merge = [&](const std::string& left, const std::string& right) {
    add(left + right);
    merges += (merges.empty() ? "[\"" : ",[\"") + left + "\",\"" + right + "\"]";
  };
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string form;
    if (byte == '"' || byte == '\\') form += '\\';
    pith::AppendUtf8(printable ? byte : next++, &form);
    add(form);
  }
  merge("a", "b");
  merge("ab", "a");
  merge("a", "a");
  merge("\xC4\xA0", "\xC4\xA0");  // two spaces
  merge("\xC4\xA0", "a");
  merge("<", "|");
  const std::string first = std::to_string(id);
  return "{\"model\":{\"type\":\"BPE\",\"vocab\":{" + vocab + "},\"merges\":[" + merges +
         "]},\"normalizer\":" + std::string(normalizer) +
         ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" + std::string(pre_tokenizer) +
         "]},\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[{\"id\":" + first +
         ",\"content\":\"<|im_end|>\",\"special\":true,\"normalized\":false},{\"id\":" + std::to_string(id + 1) +
         ",\"content\":\"<|im_start|>\",\"special\":true,\"normalized\":false},{\"id\":" + std::to_string(id + 2) +
         ",\"content\":\"<think>\",\"special\":false,\"normalized\":true}]}";
}

struct Kind {
  std::shared_ptr<const pith::Tokenizer> tokenizer;
  bool lossless;
};

std::vector<Kind> MakeKinds() {
  const std::string byte_level = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":";
  const std::string split =
      "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
      "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
      "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
      "\\\\s+(?!\\\\S)|\\\\s+\"}},";
  const std::string documents[] = {
      Document("null", byte_level + "true}"), Document("null", split + byte_level + "false}"),
      Document("{\"type\":\"NFC\"}", split + byte_level + "false}"),
      Document("null", "{\"type\":\"Digits\",\"individual_digits\":true}," + byte_level + "true}")};
  std::vector<Kind> kinds;
  for (const std::string& document : documents) {
    auto tokenizer = pith::Tokenizer::FromJson(document, "fuzz");
    if (!tokenizer.ok()) std::abort();
    kinds.push_back({*tokenizer, document.find("NFC") == std::string::npos});
  }
  return kinds;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Kind>& kinds = *new std::vector<Kind>(MakeKinds());
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string valid;
  for (size_t i = 0; i < text.size();) {
    const pith::Utf8Character character = pith::DecodeUtf8(text, i);
    pith::AppendUtf8(character.code, &valid);
    i += character.length;
  }
  for (const Kind& kind : kinds) {
    pith::CheckTokenizer(kind.tokenizer, text);
    const auto ids = kind.tokenizer->Encode(text, {});
    if (!ids.ok()) std::abort();
    if (kind.lossless && kind.tokenizer->Decode(*ids, false) != valid) std::abort();
    for (const int32_t id : *ids) {
      if (kind.tokenizer->IsSpecial(id)) std::abort();
    }
    const auto prompt = pith::RenderChat(pith::TemplateFamily::kChatML, {{"user", std::string(text)}}, {});
    if (!prompt.ok()) std::abort();
    const auto prompt_ids = pith::EncodePrompt(*kind.tokenizer, *prompt);
    if (!prompt_ids.ok()) std::abort();
    size_t specials = 0;
    for (const int32_t id : *prompt_ids) specials += kind.tokenizer->IsSpecial(id) ? 1 : 0;
    if (specials != 3) std::abort();
    (void)pith::DetectTemplate(text);
    (void)pith::RenderChat(pith::TemplateFamily::kLlama31, {{"assistant", std::string(text)}}, {});
    (void)pith::RenderChat(pith::TemplateFamily::kQwen3, {{"assistant", std::string(text)}}, {});
  }
  return 0;
}
