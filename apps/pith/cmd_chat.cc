// pith chat: a conversation in the terminal.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>

#include "answer_printer.h"
#include "command.h"
#include "engine_options.h"
#include "json_output.h"
#include "reason/answer.h"
#include "reason_options.h"
#include "run_stats.h"

namespace pith {

namespace {

struct ChatOptions {
  EngineFlags engine;
  ReasonFlags reason;
  std::string system;
  bool stats = false;
};

std::atomic<bool> interrupted{false};

// From now on Ctrl-C sets `interrupted`. Without SA_RESTART it also breaks a system call off.
void NoteInterrupts(int flags) {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = flags;
  sigaction(SIGINT, &action, nullptr);
}

constexpr const char* kHelp =
    "/reset  forget the conversation\n"
    "/reason auto|on|off  answer with or without thinking\n"
    "/stats  show or hide what an answer cost\n"
    "/exit   leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

// One turn: the message in, the answer streamed out and put in the history.
Status Turn(const Cli& cli, TextModel& text_model, const ReasonModel& model, Sequence& sequence,
            std::vector<ChatMessage>& messages, AnswerOptions options, bool stats, double ready) {
  interrupted = false;
  options.cancel = &interrupted;
  AnswerPrinter printer(options, cli.json());
  PITH_ASSIGN(Question question, MakeQuestion(text_model, model, messages, options));
  question.sequence = &sequence;
  PITH_ASSIGN(const AnswerResult result, AnswerQuestion(model, std::move(question)));
  printer.Finish(result);
  const RunStats cost{text_model, result, ready};
  if (cli.json()) {
    PrintJson(AnswerJson(result, cost));
  } else {
    const FinishReason finish = result.best().finish;
    if (finish == FinishReason::kCancelled) std::fputs("[stopped]\n", stdout);
    if (finish == FinishReason::kLength && result.best().truncated) std::fputs("[cut: --max-tokens]\n", stdout);
    if (finish == FinishReason::kContext) std::fputs("[the context is full: /reset to go on]\n", stdout);
    if (stats) std::printf("%s\n", cost.Line().c_str());
    std::fflush(stdout);
  }
  // Thoughts are left out of the history, as the templates of reasoning models do.
  messages.push_back({"assistant", result.best().text});
  return {};
}

Status RunChat(const Cli& cli, const ChatOptions& options) {
  const RunClock clock;
  PITH_ASSIGN(const auto model, LoadTextModel(options.engine));
  PITH_RETURN_IF_ERROR(model->family());
  PITH_ASSIGN(const auto reasoner, LoadReasonModel(*model, options.reason.heads));
  PITH_ASSIGN(AnswerOptions answer, MakeAnswerOptions(options.reason, reasoner->model()));
  bool stats = options.stats;
  const double ready = clock.SecondsSinceProgramStart();
  NoteInterrupts(SA_RESTART);

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
    // Only here Ctrl-C breaks a system call off, for a new prompt; a Ctrl-C of the answer before is spent.
    interrupted = false;
    NoteInterrupts(terminal ? 0 : SA_RESTART);
    const bool read = static_cast<bool>(std::getline(std::cin, line));
    NoteInterrupts(SA_RESTART);
    if (!read) {
      if (!terminal || !interrupted) break;
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
    if (line == "/reason auto" && !reasoner->model().switcher) {
      std::fputs("pith: there is no switcher to choose\n", stderr);
      continue;
    }
    if (line == "/reason auto" || line == "/reason on" || line == "/reason off") {
      answer.mode = line == "/reason on"    ? ReasonMode::kOn
                    : line == "/reason off" ? ReasonMode::kOff
                                            : ReasonMode::kAuto;
      continue;
    }
    if (line == "/help") {
      std::fputs(kHelp, cli.json() ? stderr : stdout);
      continue;
    }
    if (line[0] == '/') {
      std::fprintf(stderr, "pith: no command '%s'; /help lists them\n", line.c_str());
      continue;
    }
    messages.push_back({"user", line});
    if (const Status status = Turn(cli, *model, reasoner->model(), sequence, messages, answer, stats, ready);
        !status.ok()) {
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
  AddReasonOptions(app, options->reason);
  app->add_flag("--stats", options->stats, "Show what each answer cost");
  cli.OnRun(app, [&cli, options] { return RunChat(cli, *options); });
}

}  // namespace pith
