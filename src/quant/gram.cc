#include "quant/gram.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "train/blas.h"

namespace pith::quant {

namespace {

constexpr std::string_view kLayers = "model.layers.";

// The layer that a module's name names; -1 for the head.
int64_t LayerOf(const std::string& module) {
  int64_t layer = -1;
  if (module.starts_with(kLayers)) {
    std::from_chars(module.data() + kLayers.size(), module.data() + module.size(), layer);
  }
  return layer;
}

}  // namespace

GramMatrices::GramMatrices(Engine& engine, std::vector<int32_t> tokens, int64_t window, uint64_t memory_bytes)
    : engine_(engine), tokens_(std::move(tokens)), window_(std::min(window, engine.context())) {
  const ModelConfig& config = engine.config();
  const int64_t query = config.heads * config.head_dim;
  const auto elements = static_cast<uint64_t>(2 * config.hidden * config.hidden + query * query +
                                              config.intermediate * config.intermediate);
  layers_per_run_ = static_cast<int64_t>(std::max<uint64_t>(memory_bytes / (elements * sizeof(float)), 1));
}

std::string GramMatrices::InputOf(const std::string& module) {
  const size_t dot = module.rfind('.');
  const std::string name = dot == std::string::npos ? module : module.substr(dot + 1);
  if (name == "k_proj" || name == "v_proj") return module.substr(0, dot + 1) + "q_proj";
  if (name == "up_proj") return module.substr(0, dot + 1) + "gate_proj";
  return module;
}

Result<const std::vector<float>*> GramMatrices::Of(const std::string& module) {
  const std::string input = InputOf(module);
  auto found = grams_.find(input);
  if (found == grams_.end()) {
    const int64_t layer = LayerOf(input);
    PITH_RETURN_IF_ERROR(Measure(layer < 0 ? engine_.config().layers : layer));
    found = grams_.find(input);
  }
  if (found == grams_.end()) return Error{ErrorCode::kNotFound, "'" + module + "' is not a linear that the model runs"};
  return &found->second;
}

void GramMatrices::Add(const std::string& module, const float* x, int64_t rows, int64_t cols) {
  std::vector<float>& gram = grams_[module];
  gram.resize(static_cast<size_t>(cols * cols));
  train::Gemm(engine_.pool(), cols, cols, rows, 1.0f, {x, cols, train::Op::kTransposed}, {x, cols}, 1.0f, gram.data(),
              cols);
}

Status GramMatrices::Measure(int64_t first_layer) {
  grams_.clear();
  const int64_t end = first_layer + layers_per_run_;
  InputSums sums([&](const std::string& module, const float* x, int64_t rows, int64_t cols) {
    const int64_t layer = LayerOf(module);
    if (layer >= first_layer && layer < end && InputOf(module) == module) Add(module, x, rows, cols);
  });
  const bool head = end >= engine_.config().layers;
  engine_.SumInputs(&sums);
  const auto total = static_cast<int64_t>(tokens_.size());
  Status status;
  for (int64_t begin = 0; begin < total && status.ok(); begin += window_) {
    const int64_t count = std::min(window_, total - begin);
    Sequence sequence = engine_.NewSequence();
    PrefillOptions options;
    options.logits = Rows::kNone;
    if (head) {
      options.on_states = [&](std::span<const float> states, int64_t rows) {
        Add("lm_head", states.data(), rows, engine_.config().hidden);
      };
    }
    if (on_tokens) options.on_progress = [&](int64_t done) { on_tokens(begin + done, total); };
    const auto window = std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    const auto output = engine_.Prefill(sequence, window, nullptr, options);
    if (!output.ok()) status = output.error().Wrap("calibration");
  }
  engine_.SumInputs(nullptr);
  return status;
}

}  // namespace pith::quant
