// A model that speaks text: engine, tokenizer and chat template together.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace pith {

struct TextModelOptions {
  // "auto" (a packed checkpoint as it is; any other packed once into the cache folder by the default recipe), "stored"
  // (the checkpoint's own numbers: floats stay, GGUF blocks become bf16), "bf16", "f32", or a packing recipe such as
  // "w4g32" (see model/recipe.h).
  std::string weights = "auto";
  std::string chat_template = "auto";  // or a family name (ParseTemplateFamily)
  EngineOptions engine;
  // Called while a model is made ready: the phase ("measuring", "packing", "loading"), and how much of it is done.
  std::function<void(const char* phase, uint64_t done, uint64_t total)> on_progress;
};

class TextModel {
 public:
  // `path` is a directory or a GGUF file. A model without a chat template opens; Render then fails.
  static Result<std::unique_ptr<TextModel>> Load(const std::string& path, const TextModelOptions& options);

  Engine& engine() { return *engine_; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  const std::string& path() const { return path_; }  // what was asked for
  const std::shared_ptr<const Checkpoint>& checkpoint() const {
    return checkpoint_;
  }  // what runs (maybe from the cache)

  // Messages to prompt tokens, with the generation prompt.
  Result<std::vector<int32_t>> Render(const std::vector<ChatMessage>& messages) const;
  Result<TemplateFamily> family() const { return family_; }
  // True when the token ends the generation: the model's end-of-text tokens and the template's end-of-turn token.
  bool IsStop(int32_t token) const;
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }

 private:
  TextModel() = default;
  std::string path_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Result<TemplateFamily> family_ = Error{ErrorCode::kUnsupported, "no chat template"};
  std::vector<int32_t> stop_ids_;
};

}  // namespace pith
