#include "train/rollout.h"

#include <cmath>
#include <utility>

#include "model/adapter_mask.h"
#include "reason/batch_runner.h"

namespace pith::train {

namespace {

Rollout MakeRollout(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt, StreamResult&& stream) {
  Rollout rollout;
  std::vector<int32_t> response = stream.tokens;
  if (stream.end_token >= 0) response.push_back(stream.end_token);
  Sample& sample = rollout.sample;
  sample.response = AdapterStart(prompt);
  sample.tokens = prompt;
  sample.tokens.insert(sample.tokens.end(), response.begin(), response.end());
  sample.labels.assign(sample.tokens.size(), kNoLabel);
  for (size_t i = 1; i < response.size(); ++i) {
    if (std::isnan(stream.drawn[i])) continue;
    sample.labels[prompt.size() + i - 1] = response[i];
    rollout.log_probs.push_back(stream.drawn[i]);
  }
  // The last token predicts nothing.
  if (!response.empty()) {
    sample.tokens.pop_back();
    sample.labels.pop_back();
  }
  rollout.length = static_cast<int64_t>(stream.tokens.size());
  rollout.reasoning_tokens = stream.reasoning_tokens;
  // Cut, that is: one that ended itself inside its thoughts was not, and is to learn that it is worth nothing.
  rollout.truncated = stream.finish != FinishReason::kStop;
  int64_t repeated = 0;
  for (size_t i = 1; i < stream.tokens.size(); ++i) repeated += stream.tokens[i] == stream.tokens[i - 1] ? 1 : 0;
  if (stream.tokens.size() > 1) {
    rollout.repetition = static_cast<double>(repeated) / static_cast<double>(stream.tokens.size() - 1);
  }
  rollout.completion = tokenizer.Decode(response, false);
  rollout.text = std::move(stream.text);
  rollout.reasoning = std::move(stream.reasoning);
  rollout.answer = std::move(stream.answer);
  return rollout;
}

}  // namespace

Result<std::unique_ptr<RolloutPolicy>> RolloutPolicy::Create(TextModel& text_model, const ReasoningTexts& texts) {
  auto policy = std::unique_ptr<RolloutPolicy>(new RolloutPolicy(text_model));
  policy->model_.engine = &policy->engine_;
  policy->model_.tokenizer = text_model.tokenizer();
  policy->model_.stop_ids = text_model.stop_ids();
  policy->model_.texts = texts;
  PITH_RETURN_IF_ERROR(policy->model_.Finish());
  return policy;
}

Status RolloutPolicy::Take(const TrainModel& model) {
  if (!model.is_lora()) return Error{ErrorCode::kInvalidArgument, "rollouts need an adapter, not a whole model"};
  const ModelConfig& config = text_model_.engine().config();
  PITH_ASSIGN(auto adapter, Adapter::Make(model.config(), model.AdapterWeights(), model.options().lora->rslora));
  if (!adapter->Fits(config) || config.vocab != model.config().vocab) {
    return Error{ErrorCode::kMismatch, "the engine of the rollouts runs a model of other sizes than the trained one"};
  }
  model_.adapter = std::move(adapter);
  return {};
}

Result<std::vector<std::vector<Rollout>>> GenerateRollouts(const ReasonModel& policy,
                                                           const std::vector<RolloutPrompt>& prompts,
                                                           const RolloutOptions& options) {
  std::vector<std::vector<Rollout>> groups(prompts.size());
  BatchRunner runner(policy, {.max_streams = options.max_streams});
  size_t next = 0;
  int64_t done = 0;
  while (true) {
    while (next < prompts.size() && runner.HasRoom(options.generations)) {
      Question question;
      question.prompt = prompts[next].tokens;
      question.options.mode = ReasonMode::kOn;
      question.options.budget = prompts[next].cap;
      question.options.force_answer = false;  // the policy is to come to its answer itself
      question.options.parallel = options.generations;
      question.options.verify = AnswerOptions::Verify::kNever;
      question.options.sampling.temperature = options.temperature;
      question.options.sampling.seed = prompts[next].seed;
      question.options.keep_log_probs = true;
      question.options.cancel = options.cancel;
      const Status added = runner.Add(next, std::move(question));
      if (!added.ok()) return added.error().Wrap("prompt " + std::to_string(next));
      ++next;
    }
    if (runner.idle()) break;
    for (auto& [id, answer] : runner.Step()) {
      if (!answer.ok()) return answer.error().Wrap("prompt " + std::to_string(id));
      for (StreamResult& stream : answer->streams) {
        groups[id].push_back(MakeRollout(*policy.tokenizer, prompts[id].tokens, std::move(stream)));
      }
      if (options.on_progress) options.on_progress(++done, static_cast<int64_t>(prompts.size()));
    }
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) {
      return Error{ErrorCode::kCancelled, "the rollouts were stopped"};
    }
  }
  return groups;
}

}  // namespace pith::train
