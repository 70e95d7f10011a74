// pith ask: one question, one answer, and what it cost.
#include <atomic>
#include <csignal>
#include <cstdio>
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

struct AskOptions {
  EngineFlags engine;
  ReasonFlags reason;
  std::string question;
  std::string system;
  bool stats = false;
  bool raw = false;
};

std::atomic<bool> interrupted{false};

Status RunAsk(const Cli& cli, const AskOptions& flags) {
  const RunClock clock;
  PITH_RETURN_IF_ERROR(CheckThreshold(flags.reason));
  std::string text = flags.question;
  if (text.empty() || text == "-") {
    PITH_ASSIGN(text, ReadStdin());
    if (text.empty())
      return Error{ErrorCode::kInvalidArgument, "there is no question, neither as an argument nor piped in"};
  }
  PITH_ASSIGN(const auto model, LoadTextModel(flags.engine));
  PITH_ASSIGN(const auto reasoner, LoadReasonModel(*model, flags.reason.heads));
  PITH_ASSIGN(AnswerOptions options, MakeAnswerOptions(flags.reason, reasoner->model()));
  options.cancel = &interrupted;
  AnswerPrinter printer(options, cli.json());
  Question question;
  if (flags.raw) {
    PITH_ASSIGN(question.prompt,
                model->tokenizer()->Encode(text, {.parse_special = true, .special_ranges = {}, .add_bos = true}));
    question.options = options;
  } else {
    std::vector<ChatMessage> messages;
    if (!flags.system.empty()) messages.push_back({"system", flags.system});
    messages.push_back({"user", text});
    PITH_ASSIGN(question, MakeQuestion(*model, reasoner->model(), messages, options));
  }
  std::signal(SIGINT, [](int) { interrupted = true; });
  const double ready = clock.SecondsSinceProgramStart();
  PITH_ASSIGN(const AnswerResult result, AnswerQuestion(reasoner->model(), std::move(question)));
  printer.Finish(result);
  const RunStats stats{*model, result, ready};
  if (cli.json()) {
    OrderedJson json = AnswerJson(result, stats);
    json["budget"] = options.budget;
    json["model"] = flags.engine.model;
    json["weights"] = model->engine().weights().description;
    if (!flags.reason.heads.adapter.empty()) json["adapter"] = flags.reason.heads.adapter;
    PrintJson(json);
  } else if (flags.stats) {
    std::fprintf(stderr, "%s\n", stats.Line().c_str());
  }
  // With --json the object says finish_reason "cancelled"; a second one would not be JSON any more.
  if (result.best().finish == FinishReason::kCancelled && !cli.json())
    return Error{ErrorCode::kCancelled, "interrupted"};
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
  AddReasonOptions(app, options->reason);
  app->add_option("--stop", options->reason.answer.stop,
                  "Stop at this text in the answer (may be given several times)")
      ->allow_extra_args(false);  // each takes one text: the next argument is the question
  app->add_flag("--ignore-eos", options->reason.answer.ignore_eos, "Do not stop at the model's end token");
  app->add_flag("--raw", options->raw, "The question is the whole prompt: no chat template, special tokens are parsed");
  app->add_flag("--stats", options->stats, "Tokens, tokens per second and time to first token on standard error");
  cli.OnRun(app, [&cli, options] { return RunAsk(cli, *options); });
}

}  // namespace pith
