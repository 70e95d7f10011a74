#include "engine/text_model.h"

#include <unistd.h>

#include <algorithm>

#include "base/cache_folder.h"
#include "engine/calibrate.h"
#include "model/pack_cache.h"
#include "model/tokenizer_file.h"

namespace pith {

namespace {

// Packed kernels work on multiples of 32 inputs; models of other widths (toys) run on floats.
bool CanBePacked(const ModelConfig& config) {
  return config.hidden % 32 == 0 && config.intermediate % 32 == 0 && config.heads * config.head_dim % 32 == 0;
}

}  // namespace

Result<std::unique_ptr<TextModel>> TextModel::Load(const std::string& path, const TextModelOptions& options) {
  auto model = std::unique_ptr<TextModel>(new TextModel());
  model->path_ = path;
  PITH_ASSIGN(model->checkpoint_, Checkpoint::Open(path));
  EngineOptions engine = options.engine;
  engine.weights = options.weights == "f32"    ? WeightFormat::kF32
                   : options.weights == "bf16" ? WeightFormat::kBF16
                                               : WeightFormat::kStored;
  const bool packed = model->checkpoint_->quantization().has_value();
  // Static ranges lie beside the weights that they were measured on, so nothing is packed on the way.
  const bool automatic =
      options.weights == "auto" && !packed && !engine.static_activations && CanBePacked(model->checkpoint_->config());
  const bool recipe_given =
      options.weights != "auto" && options.weights != "stored" && options.weights != "bf16" && options.weights != "f32";
  if (recipe_given && packed) {
    return Error{ErrorCode::kInvalidArgument, "'" + path +
                                                  "' is packed already: it runs as it is (--weights stored), or as "
                                                  "bf16 or f32, not as " +
                                                  options.weights};
  }
  if (automatic || recipe_given) {
    PackRecipe recipe = DefaultRecipeFor(*model->checkpoint_);
    if (recipe_given) {
      PITH_ASSIGN(recipe, ParseRecipe(options.weights));
    }
    PITH_ASSIGN(const std::string cache, CacheRoot());
    PackOptions pack;
    pack.threads = options.engine.threads;
    const auto phase = [&](const char* name) -> std::function<void(uint64_t, uint64_t)> {
      if (!options.on_progress) return {};
      return [&options, name](uint64_t done, uint64_t total) { options.on_progress(name, done, total); };
    };
    pack.on_progress = phase("packing");
    pack.measure_moments = [&](const std::string& scratch) {
      return MeasureMomentsForPacking(*model->checkpoint_, scratch, options.engine.threads, phase("measuring"));
    };
    PITH_ASSIGN(const std::string dir, PackToCache(*model->checkpoint_, recipe, cache, pack));
    PITH_ASSIGN(model->checkpoint_, Checkpoint::Open(dir));
  }
  if (options.on_progress) {
    engine.on_load = [&options](int64_t done, int64_t total) {
      options.on_progress("loading", static_cast<uint64_t>(done), static_cast<uint64_t>(total));
    };
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
