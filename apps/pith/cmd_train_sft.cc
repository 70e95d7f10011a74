// pith train sft: supervised fine-tuning on chats or texts.
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/progress.h"
#include "cmd_train.h"
#include "command.h"
#include "json_output.h"
#include "model/companions.h"
#include "train/comm.h"
#include "train/dataset.h"
#include "train/sft.h"
#include "train_options.h"

namespace pith {

namespace {

using train::Dataset;
using train::DatasetReport;
using train::SftOptions;
using train::SftProgress;
using train::SftResult;

std::atomic<bool> interrupted{false};

struct SftFlags {
  TrainFlags model;
  std::string dataset;
  std::string eval_dataset;
  double eval_split = 0;
  bool all_turns = false;
  bool no_packing = false;
  bool no_mask = false;
  std::string schedule = "cosine";
  SftOptions sft;
};

OrderedJson ReportJson(const DatasetReport& report) {
  return {{"lines", report.lines},         {"samples", report.samples}, {"too_long", report.too_long},
          {"no_labels", report.no_labels}, {"tokens", report.tokens},   {"labels", report.labels}};
}

// Takes a share of the samples away for evaluation: whole prompts, in a shuffled order, so that no other answer to a
// prompt is trained on. kInvalidArgument when nothing is left for one of the two.
Status Split(double share, uint64_t seed, Dataset* data, std::vector<train::Sample>* eval) {
  const auto samples = static_cast<int64_t>(data->samples.size());
  const auto prompt_of = [&](size_t i) {
    const train::Sample& sample = data->samples[i];
    // A plain text has no prompt: it is its own.
    const auto length = sample.response > 0 ? sample.response : static_cast<int64_t>(sample.tokens.size());
    return std::vector<int32_t>(sample.tokens.begin(), sample.tokens.begin() + length);
  };
  std::map<std::vector<int32_t>, std::vector<size_t>> by_prompt;
  for (size_t i = 0; i < data->samples.size(); ++i) by_prompt[prompt_of(i)].push_back(i);
  const auto wanted = static_cast<size_t>(std::lround(share * static_cast<double>(samples)));
  std::vector<uint8_t> chosen(data->samples.size(), 0);
  size_t count = 0;
  for (const int64_t i : train::EpochOrder(samples, ~seed, 0)) {
    if (count >= wanted) break;
    if (chosen[static_cast<size_t>(i)] != 0) continue;
    for (const size_t same : by_prompt[prompt_of(static_cast<size_t>(i))]) {
      chosen[same] = 1;
      ++count;
    }
  }
  std::vector<train::Sample> rest;
  for (size_t i = 0; i < chosen.size(); ++i) {
    (chosen[i] != 0 ? *eval : rest).push_back(std::move(data->samples[i]));
  }
  data->samples = std::move(rest);
  if (!eval->empty() && !data->samples.empty()) return {};
  return Error{ErrorCode::kInvalidArgument, "--eval-split " + std::to_string(share) + " of " + std::to_string(samples) +
                                                " samples leaves nothing to " +
                                                (eval->empty() ? "evaluate" : "train on")};
}

// A whole model needs its tokenizer beside it; a new one has that of the command line.
Status WriteTokenizer(const LoadedForTraining& loaded, const std::string& tokenizer_file, const std::string& out) {
  if (loaded.checkpoint != nullptr) return WriteCompanions(*loaded.checkpoint, out);
  namespace fs = std::filesystem;
  const fs::path from = tokenizer_file;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"}) {
    const bool itself = std::string_view(name) == "tokenizer.json";
    const fs::path source = itself ? from : from.parent_path() / name;
    std::error_code error;
    if (!itself && !fs::exists(source, error)) continue;
    fs::copy_file(source, fs::path(out) / name, fs::copy_options::overwrite_existing, error);
    if (error)
      return Error{ErrorCode::kIo, "cannot copy '" + source.string() + "' to '" + out + "': " + error.message()};
  }
  return {};
}

Status RunSft(const Cli& cli, SftFlags& flags) {
  SftOptions& sft = flags.sft;
  sft.packing = !flags.no_packing;
  sft.mask_prompt_adapter = !flags.no_mask;
  sft.seed = flags.model.seed;
  PITH_ASSIGN(sft.schedule, train::ParseSchedule(flags.schedule));
  PITH_ASSIGN(auto comm, train::CommFromEnvironment());
  PITH_ASSIGN(LoadedForTraining loaded, LoadForTraining(flags.model));
  sft.base_model = loaded.base_model;
  if (flags.all_turns && loaded.model->is_lora() && sft.mask_prompt_adapter) {
    return Error{
        ErrorCode::kInvalidArgument,
        "--all-turns: under the mask earlier answers belong to the prompt, so only the last one is learned; it "
        "goes with --no-mask-prompt-adapter or --full-parameters"};
  }

  train::DatasetOptions data_options;
  data_options.max_length = sft.max_length;
  data_options.all_turns = flags.all_turns;
  data_options.family = loaded.family;
  data_options.eos_ids = loaded.model->config().eos_ids;
  PITH_ASSIGN(Dataset data, train::ReadDataset(flags.dataset, *loaded.tokenizer, data_options));
  std::vector<train::Sample> eval;
  if (!flags.eval_dataset.empty()) {
    PITH_ASSIGN(Dataset read, train::ReadDataset(flags.eval_dataset, *loaded.tokenizer, data_options));
    eval = std::move(read.samples);
  } else if (flags.eval_split > 0) {
    PITH_RETURN_IF_ERROR(Split(flags.eval_split, sft.seed, &data, &eval));
  }
  const DatasetReport& report = data.report;
  if (!cli.json()) {
    std::fprintf(stderr,
                 "%lld samples to train on, %zu to evaluate (%lld too long, %lld without a response); %lld trained "
                 "parameters, base %s\n",
                 static_cast<long long>(data.samples.size()), eval.size(), static_cast<long long>(report.too_long),
                 static_cast<long long>(report.no_labels), static_cast<long long>(loaded.model->TrainedElements()),
                 loaded.model->base() == train::BaseFormat::kPacked ? "packed" : "float32");
  }

  std::signal(SIGINT, [](int) { interrupted = true; });
  std::optional<ProgressBar> bar;
  const auto on_step = [&](const SftProgress& progress) {
    if (cli.json() || comm->rank() != 0) return;
    if (!bar) bar.emplace("training", static_cast<uint64_t>(progress.total_steps), ProgressUnit::kItems);
    if (progress.step % std::max<int64_t>(1, sft.logging_steps) == 0) {
      bar->Clear();
      std::fprintf(stderr, "step %lld/%lld  loss %.4f  norm %.3f  lr %.2e  %.1f tokens/s\n",
                   static_cast<long long>(progress.step), static_cast<long long>(progress.total_steps), progress.loss,
                   progress.gradient_norm, progress.learning_rate,
                   static_cast<double>(progress.tokens) / progress.seconds);
    }
    bar->Update(static_cast<uint64_t>(progress.step));
  };
  PITH_ASSIGN(const SftResult result,
              train::TrainSft(*loaded.model, data.samples, eval, sft, *comm, on_step, &interrupted));
  bar.reset();
  if (comm->rank() == 0) WriteReport(sft.output_dir);
  if (!loaded.model->is_lora() && comm->rank() == 0) {
    PITH_RETURN_IF_ERROR(WriteTokenizer(loaded, flags.model.tokenizer, sft.output_dir));
  }
  OrderedJson json = {
      {"output_dir", sft.output_dir},
      {"steps", result.steps},
      {"train_loss", result.train_loss},
      {"eval_loss", nullptr},
      {"best_eval_loss", nullptr},
      {"best_step", nullptr},
      {"tokens", result.tokens},
      {"seconds", result.seconds},
      {"tokens_per_second", result.seconds > 0 ? static_cast<double>(result.tokens) / result.seconds : 0.0},
      {"trained_parameters", loaded.model->TrainedElements()},
      {"base", loaded.model->base() == train::BaseFormat::kPacked ? "packed" : "f32"},
      {"dataset", ReportJson(report)}};
  if (result.eval_loss) json["eval_loss"] = *result.eval_loss;
  if (result.best_eval_loss) {
    json["best_eval_loss"] = *result.best_eval_loss;
    json["best_step"] = result.best_step;
  }
  if (cli.json()) {
    PrintJson(json);
  } else {
    std::printf("%s: %lld steps, loss %.4f", sft.output_dir.c_str(), static_cast<long long>(result.steps),
                result.train_loss);
    if (result.best_eval_loss) {
      std::printf(", best evaluation loss %.4f at step %lld", *result.best_eval_loss,
                  static_cast<long long>(result.best_step));
    }
    std::printf(", %s\n", HumanSeconds(result.seconds).c_str());
  }
  return {};
}

}  // namespace

void AddTrainSftCommand(Cli& cli, CLI::App* parent) {
  auto flags = std::make_shared<SftFlags>();
  SftOptions& sft = flags->sft;
  CLI::App* app = cli.AddCommand(parent, "sft", "Supervised fine-tuning on chats or texts.",
                                 "pith train sft -m qwen2.5-coder-0.5b --dataset traces.jsonl --eval-split 0.05 "
                                 "--output-dir ./reason");
  AddTrainModelOptions(app, flags->model);
  CLI::Option* data = app->add_option("--dataset", flags->dataset,
                                      "JSONL: messages, conversations, prompt with response or completion, or text");
  data->required()->type_name("FILE");
  SetCompletion(data, {CompletionHint::Kind::kFile, {}});
  CLI::Option* eval = app->add_option("--eval-dataset", flags->eval_dataset, "JSONL to evaluate on");
  eval->type_name("FILE");
  SetCompletion(eval, {CompletionHint::Kind::kFile, {}});
  app->add_option("--eval-split", flags->eval_split, "Share of the data set that is kept for evaluation")
      ->check(CLI::Range(0.0, 0.9))
      ->excludes(eval);
  CLI::Option* out = app->add_option("--output-dir", sft.output_dir, "Where the adapter, checkpoints and metrics go");
  out->required()->type_name("DIR");
  SetCompletion(out, {CompletionHint::Kind::kFile, {}});
  app->add_option("--max-length", sft.max_length, "Tokens of a row; longer samples are left out")
      ->capture_default_str();
  app->add_flag("--no-packing", flags->no_packing, "One sample a row");
  app->add_flag("--all-turns", flags->all_turns, "Learn all assistant turns of a chat, not only the last");
  app->add_flag("!--mask-prompt-adapter,--no-mask-prompt-adapter", flags->no_mask,
                "Whether the adapter is off on prompts, as in the runtime (the default)");
  app->add_option("--per-device-train-batch-size", sft.per_device_train_batch_size, "Rows of one pass")
      ->capture_default_str();
  app->add_option("--gradient-accumulation-steps", sft.gradient_accumulation_steps, "Passes of one step")
      ->capture_default_str();
  app->add_option("--num-train-epochs", sft.num_train_epochs, "Epochs")->capture_default_str();
  app->add_option("--max-steps", sft.max_steps, "Steps; overrides the epochs");
  app->add_option("--learning-rate", sft.learning_rate, "Peak learning rate")->capture_default_str();
  AddChoiceOption(app, "--lr-scheduler-type", flags->schedule, {"cosine", "linear", "constant", "constant_with_warmup"},
                  "How it falls");
  app->add_option("--warmup-ratio", sft.warmup_ratio, "Share of the steps over which it rises")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--warmup-steps", sft.warmup_steps, "The same in steps; overrides the ratio");
  AddAdamWOptions(app, sft.adamw);
  app->add_option("--max-grad-norm", sft.max_grad_norm, "Gradients are clipped to this norm; 0 = never")
      ->capture_default_str();
  app->add_option("--logging-steps", sft.logging_steps, "Steps between lines of metrics")->capture_default_str();
  app->add_option("--eval-steps", sft.eval_steps, "Steps between evaluations; 0 = at the end only")
      ->capture_default_str();
  app->add_option("--save-steps", sft.save_steps, "Steps between checkpoints; 0 = at the end only")
      ->capture_default_str();
  app->add_option("--save-total-limit", sft.save_total_limit, "Checkpoints that are kept besides the best; 0 = all")
      ->capture_default_str();
  app->add_flag("--resume", sft.resume, "Go on from the last checkpoint in --output-dir, if there is one");
  cli.OnRun(app, [&cli, flags] { return RunSft(cli, *flags); });
}

}  // namespace pith
