// Chat templates of the supported model families, rendered as transformers renders them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/tokenizer.h"

namespace pith {

class Checkpoint;

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

enum class TemplateFamily {
  kQwen25,   // ChatML with Qwen2.5's default system prompt
  kSmolLM2,  // ChatML with SmolLM2's default system prompt
  kQwen3,    // ChatML, no default system prompt, thoughts dropped from history, optional empty think block
  kLlama3,   // header tokens, dates
  kChatML,   // plain ChatML, no default system prompt
};

const char* TemplateFamilyName(TemplateFamily family);  // "qwen2.5", "smollm2", "qwen3", "llama3", "chatml"
// Family by name, for --template. kInvalidArgument lists the names.
Result<TemplateFamily> ParseTemplateFamily(std::string_view name);

// Which family a Jinja template belongs to. An unknown one is kUnsupported and says to choose with --template.
Result<TemplateFamily> DetectTemplate(std::string_view jinja);
// The template of a checkpoint (tokenizer_config.json, chat_template.jinja or GGUF metadata), detected.
Result<TemplateFamily> CheckpointTemplate(const Checkpoint& checkpoint);

struct RenderOptions {
  bool add_generation_prompt = true;
  std::optional<bool> enable_thinking;  // qwen3 only
  std::string date = "26 Jul 2024";     // llama3: "Today Date"
};

// The prompt text and the byte ranges that the template itself wrote (role headers, separators): only there are special
// tokens parsed, so a user cannot inject them.
struct RenderedPrompt {
  std::string text;
  std::vector<TextRange> template_ranges;
};

// Renders messages. Unknown roles and sequences that the real template refuses are kInvalidArgument.
Result<RenderedPrompt> RenderChat(TemplateFamily family, const std::vector<ChatMessage>& messages,
                                  const RenderOptions& options);

// Text that ends an assistant turn ("<|im_end|>", "<|eot_id|>"): generation stops at this token.
std::string_view TurnEndToken(TemplateFamily family);

}  // namespace pith
