// Which family a Jinja template belongs to; see chat_template.h.
#include <filesystem>

#include "base/json.h"
#include "base/mapped_file.h"
#include "model/chat_template.h"
#include "model/checkpoint.h"
#include "model/gguf.h"

namespace pith {

namespace {

// A template is taken for a family when it holds all texts of `has` and none of `lacks`. The texts are what the members
// of the family say and relatives do not. They are compared without white space, with ' for ", and with \n as two
// characters, the way templates write it.
struct Signature {
  TemplateFamily family;
  std::initializer_list<std::string_view> has;
  std::initializer_list<std::string_view> lacks;
};

const Signature kSignatures[] = {
    {TemplateFamily::kQwen25,
     {"<|im_start|>system\\nYouareQwen,createdbyAlibabaCloud.Youareahelpfulassistant.<|im_end|>\\n",
      "'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>'+'\\n'", "'<|im_start|>assistant\\n'"},
     {"think>", "<|vision_start|>", "raise_exception"}},
    {TemplateFamily::kSmolLM2,
     {"'<|im_start|>system\\nYouareahelpfulAIassistantnamedSmolLM,trainedbyHuggingFace<|im_end|>\\n'",
      "'<|im_start|>'+message['role']+'\\n'+message['content']+'<|im_end|>'+'\\n'", "'<|im_start|>assistant\\n'"},
     {"think>", "<|vision_start|>", "raise_exception"}},
    {TemplateFamily::kQwen3,
     {"last_query_index", "messages[0].role=='system'", "enable_thinkingisdefinedandenable_thinkingisfalse",
      "'<think>\\n\\n</think>\\n\\n'", ".split('<think>')[-1]"},
     {"<|vision_start|>", "raise_exception", "'<|im_start|>assistant\\n<think>"}},
    {TemplateFamily::kLlama31,
     {"'<|start_header_id|>system<|end_header_id|>\\n\\n'", "'CuttingKnowledgeDate:December2023\\n'",
      "'TodayDate:'+date_string+'\\n\\n'",
      "'<|start_header_id|>'+message['role']+'<|end_header_id|>\\n\\n'+message['content']|trim+'<|eot_id|>'",
      "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'"},
     {"think"}},
    // This one writes its line breaks as such.
    {TemplateFamily::kLlama3,
     {"'<|start_header_id|>'+message['role']+'<|end_header_id|>'+message['content']|trim+'<|eot_id|>'",
      "ifloop.index0==0", "bos_token+content", "'<|start_header_id|>assistant<|end_header_id|>'"},
     {"CuttingKnowledge", "think", "raise_exception", "tools"}},
};

// Plain ChatML is known only as a whole: it has nothing characteristic of its own.
constexpr std::string_view kPlainChatML[] = {
    "{%formessageinmessages%}{{'<|im_start|>'+message['role']+'\\n'+message['content']+'<|im_end|>'+'\\n'}}{%endfor%}"
    "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%endif%}",
    "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}"
    "{%formessageinmessages%}{{'<|im_start|>'+message['role']+'\\n'+message['content']+'<|im_end|>'+'\\n'}}{%endfor%}"
    "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%endif%}",
};

std::string Condense(std::string_view jinja) {
  std::string text;
  text.reserve(jinja.size());
  for (size_t i = 0; i < jinja.size(); ++i) {
    const char c = jinja[i];
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
    // White-space control: {%- ... -%}.
    if (c == '-' && ((i > 0 && (jinja[i - 1] == '%' || jinja[i - 1] == '{')) ||
                     (i + 1 < jinja.size() && (jinja[i + 1] == '%' || jinja[i + 1] == '}')))) {
      continue;
    }
    text += c == '"' ? '\'' : c;
  }
  return text;
}

bool Fits(const Signature& signature, std::string_view text) {
  for (const auto part : signature.has) {
    if (text.find(part) == std::string_view::npos) return false;
  }
  for (const auto part : signature.lacks) {
    if (text.find(part) != std::string_view::npos) return false;
  }
  return true;
}

// The template in a tokenizer_config.json: one string, or a list of named ones.
Result<std::string> TemplateOfConfig(const std::string& path) {
  PITH_ASSIGN(const Json config, ReadJsonFile(path));
  const auto found = config.is_object() ? config.find("chat_template") : config.end();
  if (!config.is_object() || found == config.end()) {
    return Error{ErrorCode::kUnsupported, "'" + path + "' has no chat_template; choose one with --template"};
  }
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const Json& entry : *found) {
      if (entry.is_object() && entry.value("name", Json()) == "default" && entry.value("template", Json()).is_string()) {
        return entry["template"].get<std::string>();
      }
    }
  }
  return Error{ErrorCode::kMalformed, "'" + path + "': chat_template is neither a string nor a list with a default"};
}

}  // namespace

Result<TemplateFamily> DetectTemplate(std::string_view jinja) {
  const std::string text = Condense(jinja);
  for (const Signature& signature : kSignatures) {
    if (Fits(signature, text)) return signature.family;
  }
  for (const auto plain : kPlainChatML) {
    if (text == plain) return TemplateFamily::kChatML;
  }
  return Error{ErrorCode::kUnsupported,
               "the model's chat template is of no known family; choose one with --template (qwen2.5, smollm2, qwen3, "
               "llama3, llama3.1, chatml)"};
}

Result<TemplateFamily> CheckpointTemplate(const Checkpoint& checkpoint) {
  if (const GgufFile* gguf = checkpoint.gguf(); gguf != nullptr) {
    const auto text = gguf->GetString("tokenizer.chat_template");
    if (!text.ok()) {
      if (text.error().code != ErrorCode::kNotFound) return text.error();
      return Error{ErrorCode::kUnsupported, "'" + checkpoint.path() + "' has no chat template; choose one with --template"};
    }
    return DetectTemplate(*text);
  }
  const std::filesystem::path dir = checkpoint.path();
  const auto file = MappedFile::Open((dir / "chat_template.jinja").string());
  if (file.ok()) {
    const auto bytes = (*file)->bytes();
    return DetectTemplate({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  if (file.error().code != ErrorCode::kNotFound) return file.error();
  PITH_ASSIGN(const std::string text, TemplateOfConfig((dir / "tokenizer_config.json").string()));
  return DetectTemplate(text);
}

}  // namespace pith
