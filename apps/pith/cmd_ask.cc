// pith ask: one question, one answer, and what it cost.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>

#include "command.h"
#include "engine/generate.h"
#include "engine_options.h"
#include "json_output.h"
#include "run_stats.h"

namespace pith {

namespace {

struct AskOptions {
  EngineFlags engine;
  GenerateOptions generate;
  std::string question;
  std::string system;
  std::string adapter;
  std::string reason = "off";
  bool reason_given = false;
  bool stats = false;
  bool raw = false;
};

std::atomic<bool> interrupted{false};

Status RunAsk(const Cli& cli, const AskOptions& options) {
  const RunClock clock;
  std::string question = options.question;
  if (question.empty() || question == "-") {
    PITH_ASSIGN(question, ReadStdin());
  }
  PITH_ASSIGN(const auto model, LoadTextModel(options.engine));
  std::shared_ptr<const Adapter> adapter;
  if (!options.adapter.empty()) {
    PITH_ASSIGN(adapter, model->engine().LoadAdapter(options.adapter));
    for (const auto& warning : adapter->file().warnings) std::fprintf(stderr, "pith: %s\n", warning.c_str());
  }
  std::vector<int32_t> prompt;
  if (options.raw) {
    PITH_ASSIGN(prompt,
                model->tokenizer()->Encode(question, {.parse_special = true, .special_ranges = {}, .add_bos = true}));
  } else {
    std::vector<ChatMessage> messages;
    if (!options.system.empty()) messages.push_back({"system", options.system});
    messages.push_back({"user", question});
    PITH_ASSIGN(prompt, model->Render(messages));
  }
  GenerateOptions generate = options.generate;
  // An adapter is there to be used: with one, reasoning is on unless it is switched off.
  generate.reason = options.reason_given ? options.reason == "on" : adapter != nullptr;
  generate.adapter = generate.reason ? adapter.get() : nullptr;
  generate.cancel = &interrupted;
  std::signal(SIGINT, [](int) { interrupted = true; });
  const bool color = isatty(STDOUT_FILENO) != 0;
  bool dim = false;
  if (!cli.json()) {
    generate.on_text = [&](std::string_view text, bool thought) {
      if (color && thought != dim) std::fputs(thought ? "\033[2m" : "\033[0m\n", stdout);
      dim = thought;
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    };
  }
  Sequence sequence = model->engine().NewSequence();
  const double ready = clock.SecondsSinceProgramStart();
  PITH_ASSIGN(const GenerateResult result, Generate(*model, sequence, prompt, generate));
  if (!cli.json()) {
    if (dim && color) std::fputs("\033[0m", stdout);
    std::fputs("\n", stdout);
    std::fflush(stdout);
  }
  const RunStats stats{*model, result, ready};
  if (cli.json()) {
    OrderedJson json{{"text", result.text},
                     {"reasoning", result.reasoning},
                     {"route", generate.reason ? "reason" : "direct"},
                     {"finish_reason", FinishReasonName(result.finish)},
                     {"usage", stats.Usage()},
                     {"timings", stats.Timings()},
                     {"model", options.engine.model},
                     {"weights", model->engine().weights().description}};
    if (adapter != nullptr) json["adapter"] = options.adapter;
    PrintJson(json);
  } else if (options.stats) {
    std::fprintf(stderr, "%s\n", stats.Line().c_str());
  }
  // With --json the object says finish_reason "cancelled"; a second one would not be JSON any more.
  if (result.finish == FinishReason::kCancelled && !cli.json()) return Error{ErrorCode::kCancelled, "interrupted"};
  return {};
}

}  // namespace

void AddAskCommand(Cli& cli) {
  auto options = std::make_shared<AskOptions>();
  CLI::App* app = cli.AddCommand("ask", "Ask one question.",
                                 "pith ask --stats \"A farmer has 17 sheep. All but 9 run away. How many are left?\"");
  AddEngineOptions(app, options->engine);
  app->add_option("question", options->question, "The question; '-' or nothing: standard input");
  app->add_option("--system", options->system, "System prompt (default: the model's own)");
  CLI::Option* adapter =
      app->add_option("--adapter,--lora", options->adapter, "Reasoning adapter: a PEFT LoRA directory");
  SetCompletion(adapter, {.kind = CompletionHint::Kind::kFile, .words = {}});
  CLI::Option* reason = AddChoiceOption(
      app, "--reason", options->reason, {"on", "off"},
      "Reasoning mode: <think> is forced and the adapter is on for the response (default: on with an adapter)");
  app->add_option("-n,--max-tokens,--n-predict", options->generate.max_tokens,
                  "Most generated tokens, thoughts included")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app->add_option("--stop", options->generate.stop, "Stop at this text in the answer (may be given several times)");
  app->add_flag("--ignore-eos", options->generate.ignore_eos, "Do not stop at the model's end token");
  app->add_flag("--raw", options->raw, "The question is the whole prompt: no chat template, special tokens are parsed");
  app->add_flag("--stats", options->stats, "Tokens, tokens per second and time to first token on standard error");
  AddSamplingOptions(app, options->generate.sampling);
  cli.OnRun(app, [&cli, options, reason] {
    options->reason_given = reason->count() > 0;
    return RunAsk(cli, *options);
  });
}

}  // namespace pith
