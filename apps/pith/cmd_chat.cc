// pith chat: a conversation in the terminal.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>

#include "command.h"
#include "engine/generate.h"
#include "engine_options.h"
#include "json_output.h"
#include "run_stats.h"

namespace pith {

namespace {

struct ChatOptions {
  EngineFlags engine;
  GenerateOptions generate;
  std::string system;
  std::string adapter;
  bool stats = false;
};

std::atomic<bool> interrupted{false};

constexpr const char* kHelp =
    "/reset  forget the conversation\n"
    "/reason on|off  answer with or without thinking\n"
    "/stats  show or hide what an answer cost\n"
    "/exit   leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

// One turn: the message in, the answer streamed out and put in the history.
Status Turn(const Cli& cli, TextModel& model, Sequence& sequence, std::vector<ChatMessage>& messages,
            GenerateOptions generate, bool stats, double ready) {
  PITH_ASSIGN(const auto prompt, model.Render(messages));
  interrupted = false;
  generate.cancel = &interrupted;
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
  PITH_ASSIGN(const GenerateResult result, Generate(model, sequence, prompt, generate));
  const RunStats cost{model, result, ready};
  if (cli.json()) {
    PrintJson({{"text", result.text},
               {"reasoning", result.reasoning},
               {"route", generate.reason ? "reason" : "direct"},
               {"finish_reason", FinishReasonName(result.finish)},
               {"usage", cost.Usage()},
               {"timings", cost.Timings()}});
  } else {
    std::fputs(dim && color ? "\033[0m\n" : "\n", stdout);
    if (result.finish == FinishReason::kCancelled) std::fputs("[stopped]\n", stdout);
    if (result.finish == FinishReason::kLength) std::fputs("[cut at --max-tokens]\n", stdout);
    if (result.finish == FinishReason::kContext) std::fputs("[the context is full: /reset to go on]\n", stdout);
    if (stats) std::printf("%s\n", cost.Line().c_str());
    std::fflush(stdout);
  }
  // Thoughts are left out of the history, as the templates of reasoning models do.
  messages.push_back({"assistant", result.text});
  return {};
}

Status RunChat(const Cli& cli, const ChatOptions& options) {
  const RunClock clock;
  PITH_ASSIGN(const auto model, LoadTextModel(options.engine));
  PITH_RETURN_IF_ERROR(model->family());
  std::shared_ptr<const Adapter> adapter;
  if (!options.adapter.empty()) {
    PITH_ASSIGN(adapter, model->engine().LoadAdapter(options.adapter));
  }
  GenerateOptions generate = options.generate;
  generate.reason = adapter != nullptr;
  generate.adapter = adapter.get();
  bool stats = options.stats;
  const double ready = clock.SecondsSinceProgramStart();
  std::signal(SIGINT, [](int) { interrupted = true; });

  std::vector<ChatMessage> messages;
  const auto reset = [&] {
    messages.clear();
    if (!options.system.empty()) messages.push_back({"system", options.system});
  };
  reset();
  Sequence sequence = model->engine().NewSequence();
  const bool terminal = isatty(STDIN_FILENO) != 0 && !cli.json();
  if (terminal)
    std::printf("%s, %s. /help for commands.\n", options.engine.model.c_str(),
                model->engine().weights().description.c_str());
  std::string line;
  while (true) {
    if (terminal) {
      std::fputs("> ", stdout);
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line)) {
      if (!terminal || !interrupted.exchange(false)) break;
      std::cin.clear();
      clearerr(stdin);
      std::fputs("\n", stdout);
      continue;
    }
    if (line.empty()) continue;
    if (line == "/exit" || line == "/quit" || line == "/bye") break;
    if (line == "/reset" || line == "/clear") {
      reset();
      continue;
    }
    if (line == "/stats") {
      stats = !stats;
      continue;
    }
    if (line == "/reason on" || line == "/reason off") {
      generate.reason = line == "/reason on";
      generate.adapter = generate.reason ? adapter.get() : nullptr;
      continue;
    }
    if (line == "/help") {
      std::fputs(kHelp, stdout);
      continue;
    }
    if (line[0] == '/') {
      std::fprintf(stderr, "pith: no command '%s'; /help lists them\n", line.c_str());
      continue;
    }
    messages.push_back({"user", line});
    if (const Status status = Turn(cli, *model, sequence, messages, generate, stats, ready); !status.ok()) {
      messages.pop_back();
      // A full context ends no conversation: the user decides what to forget.
      if (!terminal) return status;
      std::fprintf(stderr, "pith: %s\n", status.error().message.c_str());
    }
  }
  if (terminal) std::fputs("\n", stdout);
  return {};
}

}  // namespace

void AddChatCommand(Cli& cli) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* app = cli.AddCommand("chat", "Talk with a model; each line of standard input is a message.",
                                 "pith chat -m qwen2.5-coder-0.5b");
  AddEngineOptions(app, options->engine);
  app->add_option("--system", options->system, "System prompt (default: the model's own)");
  CLI::Option* adapter =
      app->add_option("--adapter,--lora", options->adapter, "Reasoning adapter: a PEFT LoRA directory");
  SetCompletion(adapter, {.kind = CompletionHint::Kind::kFile, .words = {}});
  app->add_option("-n,--max-tokens,--n-predict", options->generate.max_tokens, "Most generated tokens of an answer")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app->add_flag("--stats", options->stats, "Show what each answer cost");
  AddSamplingOptions(app, options->generate.sampling);
  cli.OnRun(app, [&cli, options] { return RunChat(cli, *options); });
}

}  // namespace pith
