#include "deploy/compare_models.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/calibrate.h"
#include "engine/engine.h"
#include "model/tokenizer_file.h"

namespace pith {

namespace {

struct Run {
  std::vector<int32_t> ids;
  std::vector<float> logits;  // [tokens, vocab]
  int64_t vocab = 0;
};

Result<Run> RunModel(const std::string& path, const std::string& adapter_path, int64_t tokens, int threads) {
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(path));
  Run run;
  const auto tokenizer = CheckpointTokenizer(*checkpoint);
  if (tokenizer.ok()) {
    PITH_ASSIGN(run.ids, (*tokenizer)->Encode(CalibrationText(), {}));
  } else if (tokenizer.error().code == ErrorCode::kNotFound) {
    // A model without a tokenizer (a toy): ids that stay inside any vocabulary.
    for (int64_t i = 0; i < tokens; ++i) {
      run.ids.push_back(static_cast<int32_t>((i * 37 + 11) % checkpoint->config().vocab));
    }
  } else {
    return tokenizer.error();
  }
  EngineOptions options;
  options.weights = WeightFormat::kF32;
  options.kv = KvType::kF32;
  options.adapters = LoraFormat::kF32;
  options.threads = threads;
  PITH_ASSIGN(const auto engine, Engine::Load(checkpoint, options));
  std::shared_ptr<const Adapter> adapter;
  if (!adapter_path.empty()) {
    PITH_ASSIGN(adapter, engine->LoadAdapter(adapter_path));
  }
  const int64_t length = std::min({tokens, static_cast<int64_t>(run.ids.size()), engine->context()});
  run.ids.resize(static_cast<size_t>(length));
  Sequence sequence = engine->NewSequence();
  const StepItem item{&sequence, run.ids, adapter.get(), Rows::kAll, Rows::kNone};
  PITH_ASSIGN(const StepOutput output, engine->Step({&item, 1}));
  run.logits.assign(output.logits.begin(), output.logits.end());
  run.vocab = output.vocab;
  return run;
}

}  // namespace

Result<ModelComparison> CompareModels(const std::string& reference, const std::string& adapter,
                                      const std::string& exported, int64_t tokens, int threads) {
  PITH_ASSIGN(const Run before, RunModel(reference, adapter, tokens, threads));
  PITH_ASSIGN(const Run after, RunModel(exported, "", tokens, threads));
  ModelComparison comparison;
  comparison.same_tokenizer = before.ids == after.ids;
  if (!comparison.same_tokenizer || before.vocab != after.vocab) return comparison;
  comparison.tokens = static_cast<int64_t>(before.ids.size());
  double signal = 0, noise = 0;
  int64_t same = 0;
  for (int64_t t = 0; t < comparison.tokens; ++t) {
    const float* a = before.logits.data() + t * before.vocab;
    const float* b = after.logits.data() + t * before.vocab;
    double mean = 0;
    for (int64_t v = 0; v < before.vocab; ++v) mean += static_cast<double>(a[v]);
    mean /= static_cast<double>(before.vocab);
    for (int64_t v = 0; v < before.vocab; ++v) {
      const double difference = static_cast<double>(b[v]) - static_cast<double>(a[v]);
      const double centred = static_cast<double>(a[v]) - mean;
      signal += centred * centred;
      noise += difference * difference;
      comparison.max_difference = std::max(comparison.max_difference, std::fabs(difference));
    }
    same += std::max_element(a, a + before.vocab) - a == std::max_element(b, b + before.vocab) - b ? 1 : 0;
  }
  const double count = static_cast<double>(comparison.tokens) * static_cast<double>(before.vocab);
  comparison.rms = std::sqrt(signal / count);
  comparison.relative = std::sqrt(noise / std::max(signal, 1e-300));
  comparison.same_choice = static_cast<double>(same) / static_cast<double>(comparison.tokens);
  return comparison;
}

double AllowedDifference(bool exact, bool low_bits) { return exact ? 1e-4 : low_bits ? 0.6 : 0.05; }

}  // namespace pith
