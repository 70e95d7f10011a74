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
// of the family say and relatives do not. They are compared in the form that Condense gives.
struct Signature {
  TemplateFamily family;
  std::initializer_list<std::string_view> has;
  std::initializer_list<std::string_view> lacks;
};

const Signature kSignatures[] = {
    {TemplateFamily::kQwen25,
     {"'<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n'",
      "'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>'+'\\n'", "'<|im_start|>assistant\\n'"},
     {"think>", "<|vision_start|>", "raise_exception"}},
    {TemplateFamily::kSmolLM2,
     {"'<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n'",
      "'<|im_start|>'+message['role']+'\\n'+message['content']+'<|im_end|>'+'\\n'", "'<|im_start|>assistant\\n'"},
     {"think>", "<|vision_start|>", "raise_exception"}},
    {TemplateFamily::kQwen3,
     {"ns.last_query_index", "'<|im_start|>system\\n'+messages[0].content+'<|im_end|>\\n'",
      "'<|im_start|>assistant\\n'", "enable_thinkingisdefinedandenable_thinkingisfalse",
      "'<think>\\n\\n</think>\\n\\n'", ".split('<think>')[-1]"},
     {"<|vision_start|>", "raise_exception", "'<|im_start|>assistant\\n<think>"}},
    {TemplateFamily::kLlama31,
     {"'<|start_header_id|>system<|end_header_id|>\\n\\n'", "'Cutting Knowledge Date: December 2023\\n'",
      "'Today Date: '+date_string+'\\n\\n'",
      "'<|start_header_id|>'+message['role']+'<|end_header_id|>\\n\\n'+message['content']|trim+'<|eot_id|>'",
      "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'"},
     {"think"}},
    {TemplateFamily::kLlama3,
     {"'<|start_header_id|>'+message['role']+'<|end_header_id|>\\n\\n'+message['content']|trim+'<|eot_id|>'",
      "bos_token+content", "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'"},
     {"Cutting Knowledge", "think", "raise_exception", "tools"}},
};

// Plain ChatML is known only as a whole: it has nothing characteristic of its own.
constexpr std::string_view kPlainChatML[] = {
    "{%formessageinmessages%}{{'<|im_start|>'+message['role']+'\\n'+message['content']+'<|im_end|>'+'\\n'}}{%endfor%}"
    "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%endif%}",
    "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}"
    "{%formessageinmessages%}{{'<|im_start|>'+message['role']+'\\n'+message['content']+'<|im_end|>'+'\\n'}}{%endfor%}"
    "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%endif%}",
};

// The template without what writers of templates are free in: comments, white space outside of strings, white-space
// control ({%- -%}), the kind of quotes, and whether a line break in a string is written out or as \n.
std::string Condense(std::string_view jinja) {
  std::string text;
  text.reserve(jinja.size());
  bool in_block = false;
  char quote = 0;  // of the string that is open, or 0
  for (size_t i = 0; i < jinja.size(); ++i) {
    const char c = jinja[i];
    const std::string_view two = jinja.substr(i, 2);
    if (quote != 0) {
      if (c == '\\' && two.size() == 2) {
        text += two;
        ++i;
      } else if (c == '\n') {
        text += "\\n";
      } else if (c == quote) {
        text += '\'';
        quote = 0;
      } else {
        text += c;
      }
      continue;
    }
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
    if (!in_block) {
      if (two == "{#") {
        const size_t end = jinja.find("#}", i + 2);
        if (end == std::string_view::npos) break;
        i = end + 1;
      } else if (two == "{{" || two == "{%") {
        in_block = true;
        text += two;
        ++i;
        if (jinja.substr(i + 1, 1) == "-") ++i;
      } else {
        text += c;
      }
      continue;
    }
    if (c == '\'' || c == '"') {
      quote = c;
      text += '\'';
    } else if (jinja.substr(i, 3) == "-}}" || jinja.substr(i, 3) == "-%}") {
      continue;
    } else if (two == "}}" || two == "%}") {
      in_block = false;
      text += two;
      ++i;
    } else {
      text += c;
    }
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
      if (entry.is_object() && entry.value("name", Json()) == "default" &&
          entry.value("template", Json()).is_string()) {
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

Result<std::string> CheckpointTemplateText(const Checkpoint& checkpoint) {
  if (const GgufFile* gguf = checkpoint.gguf(); gguf != nullptr) {
    const auto text = gguf->GetString("tokenizer.chat_template");
    if (!text.ok()) {
      if (text.error().code != ErrorCode::kNotFound) return text.error();
      return Error{ErrorCode::kUnsupported,
                   "'" + checkpoint.path() + "' has no chat template; choose one with --template"};
    }
    return std::string(*text);
  }
  const std::filesystem::path dir = checkpoint.path();
  const auto file = MappedFile::Open((dir / "chat_template.jinja").string());
  if (file.ok()) {
    const auto bytes = (*file)->bytes();
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  if (file.error().code != ErrorCode::kNotFound) return file.error();
  Result<std::string> text = TemplateOfConfig((dir / "tokenizer_config.json").string());
  if (text.ok()) return text;
  if (text.error().code != ErrorCode::kNotFound) return text.error();
  return Error{ErrorCode::kUnsupported, "'" + checkpoint.path() +
                                            "' has neither chat_template.jinja nor tokenizer_config.json; choose a "
                                            "chat template with --template"};
}

Result<TemplateFamily> CheckpointTemplate(const Checkpoint& checkpoint) {
  PITH_ASSIGN(const std::string text, CheckpointTemplateText(checkpoint));
  return DetectTemplate(text);
}

}  // namespace pith
