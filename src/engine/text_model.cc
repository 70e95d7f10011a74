#include "engine/text_model.h"

#include <algorithm>

#include "model/tokenizer_file.h"

namespace pith {

Result<std::unique_ptr<TextModel>> TextModel::Load(const std::string& path, const TextModelOptions& options) {
  auto model = std::unique_ptr<TextModel>(new TextModel());
  model->path_ = path;
  PITH_ASSIGN(model->checkpoint_, Checkpoint::Open(path));
  EngineOptions engine = options.engine;
  if (options.weights == "auto" || options.weights == "stored") {
    engine.weights = WeightFormat::kStored;
  } else if (options.weights == "bf16") {
    engine.weights = WeightFormat::kBF16;
  } else if (options.weights == "f32") {
    engine.weights = WeightFormat::kF32;
  } else {
    return Error{ErrorCode::kInvalidArgument, "unknown weight format '" + options.weights + "'"};
  }
  PITH_ASSIGN(model->engine_, Engine::Load(model->checkpoint_, engine));
  PITH_ASSIGN(model->tokenizer_, CheckpointTokenizer(*model->checkpoint_));
  model->family_ = options.chat_template == "auto" ? CheckpointTemplate(*model->checkpoint_)
                                                   : ParseTemplateFamily(options.chat_template);
  if (options.chat_template != "auto") PITH_RETURN_IF_ERROR(model->family_);
  model->stop_ids_ = model->engine_->config().eos_ids;
  if (model->family_.ok()) {
    const int32_t end = model->tokenizer_->FindToken(TurnEndToken(*model->family_));
    if (end >= 0) model->stop_ids_.push_back(end);
  }
  return model;
}

Result<std::vector<int32_t>> TextModel::Render(const std::vector<ChatMessage>& messages) const {
  PITH_RETURN_IF_ERROR(family_);
  PITH_ASSIGN(const RenderedPrompt prompt, RenderChat(*family_, messages, {}));
  return EncodePrompt(*tokenizer_, prompt);
}

bool TextModel::IsStop(int32_t token) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end();
}

}  // namespace pith
