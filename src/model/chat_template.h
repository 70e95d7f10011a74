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
  kLlama3,   // header tokens, no dates (Llama 3)
  kLlama31,  // header tokens, a system header with dates (Llama 3.1, 3.2, 3.3)
  kChatML,   // plain ChatML, no default system prompt
};

const char* TemplateFamilyName(TemplateFamily family);  // "qwen2.5", "smollm2", "qwen3", "llama3", "llama3.1", "chatml"
// Family by name, for --template. kInvalidArgument lists the names.
Result<TemplateFamily> ParseTemplateFamily(std::string_view name);

// Which family a Jinja template belongs to. An unknown one is kUnsupported and says to choose with --template.
Result<TemplateFamily> DetectTemplate(std::string_view jinja);
// The template of a checkpoint (tokenizer_config.json, chat_template.jinja or GGUF metadata), detected.
Result<TemplateFamily> CheckpointTemplate(const Checkpoint& checkpoint);
// Its text. kUnsupported when the checkpoint has none.
Result<std::string> CheckpointTemplateText(const Checkpoint& checkpoint);

struct RenderOptions {
  bool add_generation_prompt = true;
  std::optional<bool> enable_thinking;  // qwen3 only
  std::string date = "26 Jul 2024";     // llama3.1: "Today Date"
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

// Ids of a rendered prompt: those that transformers gives for the same text, except that special tokens inside the
// contents of messages stay text. The template's own BOS is in the text, so none is added.
Result<std::vector<int32_t>> EncodePrompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt);

// Text that ends an assistant turn ("<|im_end|>", "<|eot_id|>"): generation stops at this token.
std::string_view TurnEndToken(TemplateFamily family);

}  // namespace pith
