#include "model/chat_template.h"

#include <algorithm>

#include "model/utf8.h"

namespace pith {

namespace {

struct FamilyName {
  TemplateFamily family;
  const char* name;
};
constexpr FamilyName kFamilies[] = {{TemplateFamily::kQwen25, "qwen2.5"},   {TemplateFamily::kSmolLM2, "smollm2"},
                                    {TemplateFamily::kQwen3, "qwen3"},      {TemplateFamily::kLlama3, "llama3"},
                                    {TemplateFamily::kLlama31, "llama3.1"}, {TemplateFamily::kChatML, "chatml"}};

constexpr std::string_view kQwen25System = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
constexpr std::string_view kSmolLM2System = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

// Builds the prompt and notes which bytes are the template's.
class PromptWriter {
 public:
  void Template(std::string_view text) {
    if (text.empty()) return;
    auto& ranges = prompt_.template_ranges;
    if (ranges.empty() || ranges.back().end != prompt_.text.size()) {
      ranges.push_back({prompt_.text.size(), prompt_.text.size()});
    }
    prompt_.text += text;
    ranges.back().end = prompt_.text.size();
  }
  void Content(std::string_view text) { prompt_.text += text; }

  RenderedPrompt Take() { return std::move(prompt_); }

 private:
  RenderedPrompt prompt_;
};

std::string_view Strip(std::string_view text, char c, bool left, bool right) {
  while (left && !text.empty() && text.front() == c) text.remove_prefix(1);
  while (right && !text.empty() && text.back() == c) text.remove_suffix(1);
  return text;
}

// What Python's str.strip() removes.
bool IsPythonSpace(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

std::string_view Trim(std::string_view text) {
  size_t begin = 0;
  size_t end = 0;  // of the last character that is not white space
  bool started = false;
  for (size_t i = 0; i < text.size();) {
    const Utf8Character character = DecodeUtf8(text, i);
    const bool space = character.state == Utf8State::kValid && IsPythonSpace(character.code);
    if (!space && !started) {
      begin = i;
      started = true;
    }
    i += character.length;
    if (!space) end = i;
  }
  return started ? text.substr(begin, end - begin) : std::string_view();
}

void OpenTurn(std::string_view role, PromptWriter* out) {
  out->Template("<|im_start|>");
  out->Template(role);
  out->Template("\n");
}

void ChatMLTurn(std::string_view role, std::string_view content, PromptWriter* out) {
  OpenTurn(role, out);
  out->Content(content);
  out->Template("<|im_end|>\n");
}

void RenderChatML(const std::vector<ChatMessage>& messages, std::string_view default_system,
                  const RenderOptions& options, PromptWriter* out) {
  if (!default_system.empty() && messages[0].role != "system") {
    OpenTurn("system", out);
    out->Template(default_system);
    out->Template("<|im_end|>\n");
  }
  for (const ChatMessage& message : messages) ChatMLTurn(message.role, message.content, out);
  if (options.add_generation_prompt) OpenTurn("assistant", out);
}

// An assistant's message of Qwen3, taken apart.
struct Thought {
  std::string_view reasoning;
  std::string_view answer;
};

Thought SplitThought(std::string_view content) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  const size_t first_close = content.find(kClose);
  if (first_close == std::string_view::npos) return {{}, content};
  Thought thought;
  thought.answer = Strip(content.substr(content.rfind(kClose) + kClose.size()), '\n', true, false);
  thought.reasoning = Strip(content.substr(0, first_close), '\n', false, true);
  if (const size_t open = thought.reasoning.rfind(kOpen); open != std::string_view::npos) {
    thought.reasoning.remove_prefix(open + kOpen.size());
  }
  thought.reasoning = Strip(thought.reasoning, '\n', true, false);
  return thought;
}

void RenderQwen3(const std::vector<ChatMessage>& messages, const RenderOptions& options, PromptWriter* out) {
  // Thoughts are kept only after the last question of the user; what looks like the result of a tool is no question.
  size_t last_query = messages.size() - 1;
  for (size_t i = messages.size(); i-- > 0;) {
    const ChatMessage& message = messages[i];
    if (message.role == "user" &&
        !(message.content.starts_with("<tool_response>") && message.content.ends_with("</tool_response>"))) {
      last_query = i;
      break;
    }
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "assistant") {
      ChatMLTurn(message.role, message.content, out);
      continue;
    }
    const Thought thought = SplitThought(message.content);
    OpenTurn("assistant", out);
    if (i > last_query && (i + 1 == messages.size() || !thought.reasoning.empty())) {
      out->Template("<think>\n");
      out->Content(Strip(thought.reasoning, '\n', true, true));
      out->Template("\n</think>\n\n");
      out->Content(Strip(thought.answer, '\n', true, false));
    } else {
      out->Content(thought.answer);
    }
    out->Template("<|im_end|>\n");
  }
  if (options.add_generation_prompt) {
    OpenTurn("assistant", out);
    if (options.enable_thinking.has_value() && !*options.enable_thinking) out->Template("<think>\n\n</think>\n\n");
  }
}

void OpenLlamaTurn(std::string_view role, PromptWriter* out) {
  out->Template("<|start_header_id|>");
  out->Template(role);
  out->Template("<|end_header_id|>\n\n");
}

void RenderLlama3(const std::vector<ChatMessage>& messages, bool dates, const RenderOptions& options,
                  PromptWriter* out) {
  out->Template("<|begin_of_text|>");
  size_t first = 0;
  if (dates) {
    OpenLlamaTurn("system", out);
    out->Template("Cutting Knowledge Date: December 2023\nToday Date: ");
    out->Content(options.date);
    out->Template("\n\n");
    if (messages[0].role == "system") {
      out->Content(Trim(messages[0].content));
      first = 1;
    }
    out->Template("<|eot_id|>");
  }
  for (size_t i = first; i < messages.size(); ++i) {
    OpenLlamaTurn(messages[i].role, out);
    out->Content(Trim(messages[i].content));
    out->Template("<|eot_id|>");
  }
  if (options.add_generation_prompt) OpenLlamaTurn("assistant", out);
}

}  // namespace

const char* TemplateFamilyName(TemplateFamily family) {
  for (const FamilyName& known : kFamilies) {
    if (known.family == family) return known.name;
  }
  return "";
}

Result<TemplateFamily> ParseTemplateFamily(std::string_view name) {
  std::string names;
  for (const FamilyName& known : kFamilies) {
    if (name == known.name) return known.family;
    names += std::string(names.empty() ? "" : ", ") + known.name;
  }
  return Error{ErrorCode::kInvalidArgument,
               "there is no chat template '" + std::string(name) + "'; known are " + names};
}

Result<RenderedPrompt> RenderChat(TemplateFamily family, const std::vector<ChatMessage>& messages,
                                  const RenderOptions& options) {
  if (messages.empty()) return Error{ErrorCode::kInvalidArgument, "a conversation without messages"};
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      return Error{ErrorCode::kInvalidArgument, "the role '" + message.role + "' is not system, user or assistant"};
    }
  }
  PromptWriter out;
  switch (family) {
    case TemplateFamily::kQwen25: RenderChatML(messages, kQwen25System, options, &out); break;
    case TemplateFamily::kSmolLM2: RenderChatML(messages, kSmolLM2System, options, &out); break;
    case TemplateFamily::kChatML: RenderChatML(messages, {}, options, &out); break;
    case TemplateFamily::kQwen3: RenderQwen3(messages, options, &out); break;
    case TemplateFamily::kLlama3: RenderLlama3(messages, false, options, &out); break;
    case TemplateFamily::kLlama31: RenderLlama3(messages, true, options, &out); break;
  }
  return out.Take();
}

Result<std::vector<int32_t>> EncodePrompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt) {
  EncodeOptions options;
  // No ranges would mean everywhere.
  options.parse_special = !prompt.template_ranges.empty();
  options.special_ranges = prompt.template_ranges;
  return tokenizer.Encode(prompt.text, options);
}

std::string_view TurnEndToken(TemplateFamily family) {
  switch (family) {
    case TemplateFamily::kLlama3:
    case TemplateFamily::kLlama31: return "<|eot_id|>";
    case TemplateFamily::kQwen25:
    case TemplateFamily::kSmolLM2:
    case TemplateFamily::kQwen3:
    case TemplateFamily::kChatML: break;
  }
  return "<|im_end|>";
}

}  // namespace pith
