// pith train grpo: budget forcing by reinforcement learning.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include "base/progress.h"
#include "cmd_train.h"
#include "command.h"
#include "eval/settings.h"
#include "eval/suite.h"
#include "json_output.h"
#include "train/comm.h"
#include "train/grpo.h"
#include "train_options.h"

namespace pith {

namespace {

using train::GrpoOptions;
using train::GrpoProblem;
using train::GrpoProgress;
using train::GrpoResult;

// Put at the end of a question where neither the option nor the start adapter says anything else.
constexpr const char* kDefaultBudgetTemplate = "\n\nAnswer within {budget} tokens in total.";

std::atomic<bool> interrupted{false};

struct GrpoFlags {
  CLI::App* app = nullptr;
  TrainFlags model;
  std::string dataset;
  std::string fields;
  std::string prompt = "boxed";
  int64_t limit = 0;
  std::string budget_template;
  std::string schedule = "cosine";
  std::string loss_type = "dapo";
  std::string scale_rewards = "group";
  double epsilon_high = 0;
  GrpoOptions grpo;

  bool Given(const char* name) const { return app->get_option(name)->count() > 0; }
};

// The engine that runs the very weights that are trained on.
Result<std::unique_ptr<TextModel>> LoadRolloutModel(const LoadedForTraining& loaded, const GrpoFlags& flags) {
  TextModelOptions options;
  options.weights = loaded.checkpoint->quantization() ? "stored" : "f32";
  options.chat_template = flags.model.chat_template;
  options.engine.threads = flags.model.threads;
  options.engine.kv = flags.model.kv == "f32" ? KvType::kF32 : flags.model.kv == "bf16" ? KvType::kBF16 : KvType::kInt8;
  return TextModel::Load(loaded.checkpoint->path(), options);
}

Result<ReasoningTexts> TextsOf(const GrpoFlags& flags) {
  ReasoningTexts texts;
  bool found = false;
  if (!flags.model.init_adapter.empty()) {
    PITH_ASSIGN(const auto read, ReadReasoningTexts(flags.model.init_adapter));
    found = read.has_value();
    if (read) texts = *read;
  }
  if (!found) texts.default_budget = *std::max_element(flags.grpo.budgets.begin(), flags.grpo.budgets.end());
  if (flags.Given("--budget-template")) {
    texts.budget_template = flags.budget_template;
  } else if (texts.budget_template.empty()) {
    texts.budget_template = kDefaultBudgetTemplate;
  }
  // As it will be read again.
  return ParseReasoningTexts(WriteReasoningTexts(texts), "--budget-template");
}

void PrintStep(const GrpoProgress& p) {
  const auto number = [](const std::optional<double>& value, const char* format) {
    char text[32] = "-";
    if (value) std::snprintf(text, sizeof(text), format, *value);
    return std::string(text);
  };
  std::fprintf(stderr,
               "step %lld/%lld  reward %.3f  right %.1f %%  length %.0f (cut %.0f %%)  equal groups %.0f %%  kl %s  "
               "entropy %s  norm %s  %.1f s\n",
               static_cast<long long>(p.step), static_cast<long long>(p.total_steps), p.reward, 100 * p.accuracy,
               p.mean_length, 100 * p.truncated, 100 * p.frac_reward_zero_std, number(p.kl, "%.2e").c_str(),
               number(p.entropy, "%.3f").c_str(), number(p.gradient_norm, "%.3f").c_str(), p.seconds);
}

Status RunGrpo(const Cli& cli, GrpoFlags& flags) {
  GrpoOptions& grpo = flags.grpo;
  grpo.seed = flags.model.seed;
  PITH_ASSIGN(grpo.schedule, train::ParseSchedule(flags.schedule));
  PITH_ASSIGN(grpo.loss.type, train::ParseGrpoLossType(flags.loss_type));
  PITH_ASSIGN(grpo.scale_rewards, train::ParseScaleRewards(flags.scale_rewards));
  if (flags.Given("--epsilon-high")) grpo.loss.epsilon_high = flags.epsilon_high;
  const int64_t largest = *std::max_element(grpo.budgets.begin(), grpo.budgets.end());
  if (!flags.Given("--max-completion-length")) {
    // Beyond the widest window nothing more can be lost.
    grpo.loss.max_completion_length =
        static_cast<int64_t>((1.0 + grpo.window.half_width) * static_cast<double>(largest)) + 1;
  }
  PITH_ASSIGN(const SuiteFields fields, ParseSuiteFields(flags.fields));
  PITH_ASSIGN(const PromptFormat format, LoadPromptFormat(flags.prompt));
  PITH_ASSIGN(const Suite suite, LoadSuite("train", flags.dataset, fields));
  PITH_ASSIGN(const ReasoningTexts texts, TextsOf(flags));
  std::vector<GrpoProblem> problems;
  for (const Problem& problem : suite.problems) {
    if (flags.limit > 0 && static_cast<int64_t>(problems.size()) == flags.limit) break;
    problems.push_back({problem.id, format.Messages(problem.problem), problem.answer});
  }
  PITH_ASSIGN(auto comm, train::CommFromEnvironment());
  PITH_ASSIGN(LoadedForTraining loaded, LoadForTraining(flags.model));
  grpo.base_model = loaded.base_model;
  PITH_ASSIGN(const auto text_model, LoadRolloutModel(loaded, flags));
  if (!cli.json() && comm->rank() == 0) {
    std::fprintf(stderr, "%zu problems; %lld trained parameters, base %s; the budget in a prompt: %s\n",
                 problems.size(), static_cast<long long>(loaded.model->TrainedElements()),
                 loaded.model->base() == train::BaseFormat::kPacked ? "packed" : "float32",
                 OrderedJson(texts.budget_template).dump().c_str());
  }

  // Where the prompt format looks for answers, the reward does.
  const train::Grader grader = [&format](const GrpoProblem& problem, const train::Rollout& rollout) {
    if (rollout.answer && std::count(format.accept.begin(), format.accept.end(), rollout.answer->source) == 0) {
      return Verdict::kNoAnswer;
    }
    return train::GradeRollout(problem, rollout);
  };
  std::signal(SIGINT, [](int) { interrupted = true; });
  std::optional<ProgressBar> bar;
  const auto on_step = [&](const GrpoProgress& progress) {
    if (comm->rank() != 0) return;
    if (bar) bar->Clear();
    for (const auto& warning : progress.warnings) std::fprintf(stderr, "pith: WARNING: %s\n", warning.c_str());
    if (cli.json()) return;
    if (!bar) bar.emplace("training", static_cast<uint64_t>(progress.total_steps), ProgressUnit::kItems);
    PrintStep(progress);
    bar->Update(static_cast<uint64_t>(progress.step));
  };
  PITH_ASSIGN(const GrpoResult result, train::TrainGrpo(*loaded.model, *text_model, texts, problems, grpo, *comm,
                                                        on_step, &interrupted, grader));
  bar.reset();
  if (comm->rank() == 0) WriteReport(grpo.output_dir);
  if (cli.json()) {
    PrintJson(OrderedJson{{"output_dir", grpo.output_dir},
                          {"steps", result.steps},
                          {"problems", result.problems},
                          {"problems_too_long", result.too_long},
                          {"first_reward", result.first_reward},
                          {"last_reward", result.last_reward},
                          {"tokens", result.tokens},
                          {"seconds", result.seconds},
                          {"trained_parameters", loaded.model->TrainedElements()},
                          {"base", loaded.model->base() == train::BaseFormat::kPacked ? "packed" : "f32"}});
  } else {
    std::printf("%s: %lld steps, reward %.3f at the first and %.3f at the last, %s\n", grpo.output_dir.c_str(),
                static_cast<long long>(result.steps), result.first_reward, result.last_reward,
                HumanSeconds(result.seconds).c_str());
    if (result.too_long > 0) {
      std::printf("%lld problems were left out: their prompts leave no room for a response\n",
                  static_cast<long long>(result.too_long));
    }
  }
  return {};
}

void AddRewardOptions(CLI::App* app, GrpoFlags& flags) {
  GrpoOptions& grpo = flags.grpo;
  app->add_option("--budgets", grpo.budgets, "Token budgets, one of which is drawn for each prompt")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option(
         "--budget-window", grpo.window.half_width,
         "Half the width of the window around a budget in which the reward falls from 1 to 0, as a share of it")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--budget-floor", grpo.window.floor, "What is left of the reward above the window")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--budget-template", flags.budget_template,
                  "What is put at the end of the question, with {budget} in it (default: the start adapter's); empty: "
                  "the policy is not told")
      ->type_name("TEXT");
  app->add_flag("--cap-at-window", grpo.cap_at_window, "Cut responses where the window of their budget ends");
}

void AddAlgorithmOptions(CLI::App* app, GrpoFlags& flags) {
  GrpoOptions& grpo = flags.grpo;
  app->add_option("--num-generations", grpo.num_generations, "Responses to each prompt")
      ->check(CLI::Range(2, 256))
      ->capture_default_str();
  app->add_option("--max-completion-length", grpo.loss.max_completion_length,
                  "Most tokens of a response (default: up to the end of the widest budget window)")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--temperature", grpo.temperature, "Of the rollouts")->capture_default_str();
  app->add_option("--beta", grpo.loss.beta, "Weight of the KL term to the start adapter; 0 = none")
      ->capture_default_str();
  app->add_option("--epsilon", grpo.loss.epsilon, "Clip range of the ratio: 1 - epsilon")->capture_default_str();
  app->add_option("--epsilon-high", flags.epsilon_high, "to 1 + epsilon-high (default: epsilon)");
  AddChoiceOption(app, "--loss-type", flags.loss_type, {"grpo", "dapo", "dr_grpo"},
                  "How token losses are averaged: per response, over all tokens, by a constant");
  AddChoiceOption(app, "--scale-rewards", flags.scale_rewards, {"group", "none"},
                  "Whether advantages are divided by the deviation of their group");
  app->add_option("--num-iterations", grpo.num_iterations, "Updates on the rollouts of a step")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_flag("--mask-truncated-completions", grpo.mask_truncated_completions, "Learn nothing from cut responses");
  app->add_flag("--keep-zero-std-groups", grpo.keep_zero_std_groups,
                "Groups whose rewards are equal take part: the KL term acts on them, and they count in the mean");
  app->add_option("--rollout-importance-cap", grpo.rollout_importance_cap,
                  "Most weight that corrects for the engine's rounding in the rollouts; 0 = no correction")
      ->capture_default_str();
  app->add_option("--max-streams", grpo.max_streams, "Responses that are generated at the same time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
}

void AddLoopOptions(CLI::App* app, GrpoFlags& flags) {
  GrpoOptions& grpo = flags.grpo;
  app->add_option("--per-device-train-batch-size", grpo.per_device_train_batch_size, "Responses of one pass")
      ->capture_default_str();
  app->add_option("--gradient-accumulation-steps", grpo.gradient_accumulation_steps,
                  "Passes of one step; the responses of both are a multiple of --num-generations")
      ->capture_default_str();
  app->add_option("--num-train-epochs", grpo.num_train_epochs, "Times that each problem is asked")
      ->capture_default_str();
  app->add_option("--max-steps", grpo.max_steps, "Steps; overrides the epochs");
  app->add_option("--learning-rate", grpo.learning_rate, "Peak learning rate")->capture_default_str();
  AddChoiceOption(app, "--lr-scheduler-type", flags.schedule, {"cosine", "linear", "constant", "constant_with_warmup"},
                  "How it falls");
  app->add_option("--warmup-ratio", grpo.warmup_ratio, "Share of the steps over which it rises")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--warmup-steps", grpo.warmup_steps, "The same in steps; overrides the ratio");
  AddAdamWOptions(app, grpo.adamw);
  app->add_option("--max-grad-norm", grpo.max_grad_norm, "Gradients are clipped to this norm; 0 = never")
      ->capture_default_str();
  app->add_option("--save-steps", grpo.save_steps, "Steps between checkpoints; 0 = at the end only")
      ->capture_default_str();
  app->add_option("--save-total-limit", grpo.save_total_limit, "Checkpoints that are kept; 0 = all")
      ->capture_default_str();
  app->add_flag("--resume", grpo.resume, "Go on from the last checkpoint in --output-dir, if there is one");
  app->add_option("--stuck-steps", grpo.stuck_steps,
                  "Steps in a row in which nothing can be learned before there is a warning; 0 = never")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_flag("--stop-when-stuck", grpo.stop_when_stuck, "End the run then, with a checkpoint");
}

}  // namespace

void AddTrainGrpoCommand(Cli& cli, CLI::App* parent) {
  auto flags = std::make_shared<GrpoFlags>();
  CLI::App* app = cli.AddCommand(
      parent, "grpo", "Budget forcing: reinforcement learning with accuracy and length as reward.",
      "pith train grpo -m qwen2.5-coder-0.5b --adapter ./reason --dataset gsm8k.jsonl --output-dir ./forced");
  flags->app = app;
  flags->model.lora_of_adapter = true;
  AddTrainModelOptions(app, flags->model);
  CLI::Option* data = app->add_option("--dataset", flags->dataset, "JSONL of problems: id, problem, answer");
  data->required()->type_name("FILE");
  SetCompletion(data, {CompletionHint::Kind::kFile, {}});
  app->add_option("--fields", flags->fields, "Names of these fields in it, such as problem=question,answer=final,id=#");
  SetCompletion(app->add_option("--prompt", flags->prompt, "boxed, plain, or a JSON file (user, system, accept)")
                    ->capture_default_str(),
                {CompletionHint::Kind::kFile, {}});
  app->add_option("--limit", flags->limit, "Only the first so many problems")->check(CLI::Range(1, 1 << 30));
  CLI::Option* out =
      app->add_option("--output-dir", flags->grpo.output_dir, "Where the adapter, checkpoints, metrics and samples go");
  out->required()->type_name("DIR");
  SetCompletion(out, {CompletionHint::Kind::kFile, {}});
  AddRewardOptions(app, *flags);
  AddAlgorithmOptions(app, *flags);
  AddLoopOptions(app, *flags);
  cli.OnRun(app, [&cli, flags] { return RunGrpo(cli, *flags); });
}

}  // namespace pith
