#include "command.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "json_output.h"

namespace pith {

namespace {

// --json must be known even when the rest of the line cannot be parsed.
bool WantsJson(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--") return false;
    if (std::string_view(argv[i]) == "--json") return true;
  }
  return false;
}

void ReportError(const Error& error, bool json) {
  if (json) {
    PrintJson({{"error", {{"code", ErrorCodeName(error.code)}, {"message", error.message}}}});
  } else {
    std::fprintf(stderr, "pith: %s: %s\n", ErrorCodeName(error.code), error.message.c_str());
  }
}

std::map<const CLI::Option*, CompletionHint>& Hints() {
  static std::map<const CLI::Option*, CompletionHint> hints;
  return hints;
}

}  // namespace

Cli::Cli() : root_("A language model on this machine that reasons only when a question needs it.", "pith") {
  root_.set_version_flag("--version", "pith " PITH_VERSION);
  root_.require_subcommand(1);
  root_.footer(
      "Example:\n  pith ask -m qwen2.5-coder-0.5b \"How many legs do three spiders have?\"\n\n"
      "Each subcommand has --help, and --json for one JSON object on standard output.");
  root_.get_formatter()->column_width(34);
}

CLI::App* Cli::AddCommand(const std::string& name, const std::string& description, const std::string& example) {
  return AddCommand(&root_, name, description, example);
}

CLI::App* Cli::AddCommand(CLI::App* parent, const std::string& name, const std::string& description,
                          const std::string& example) {
  if (parent != &root_) parent->require_subcommand(1);
  CLI::App* app = parent->add_subcommand(name, description);
  app->footer("Example:\n  " + example);
  app->add_flag("--json", json_, "Write one JSON object to standard output, errors too");
  return app;
}

void Cli::OnRun(CLI::App* app, std::function<Status()> run) {
  // The callback only notes what to run: errors of the run must not pass through the parser.
  app->callback([this, run = std::move(run)] { run_ = run; });
}

Status Cli::ParseAndRun(int argc, const char* const* argv) {
  try {
    root_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      root_.exit(error);
      return {};
    }
    return Error{ErrorCode::kInvalidArgument, error.what()};
  }
  return run_();
}

int Cli::Main(int argc, const char* const* argv) {
  json_ = WantsJson(argc, argv);
  const bool json = json_;
  Status status;
  try {
    status = ParseAndRun(argc, argv);
  } catch (const std::bad_alloc&) {
    status = Error{ErrorCode::kIo, "out of memory"};
  } catch (const std::exception& exception) {
    status = Error{ErrorCode::kInternal, exception.what()};
  }
  if (status.ok() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    status = Error{ErrorCode::kIo, std::string("cannot write to standard output: ") + std::strerror(errno)};
  }
  if (status.ok()) return 0;
  ReportError(status.error(), json);
  return ExitCode(status.error().code);
}

CLI::Option* AddModelOption(CLI::App* app, std::string& model) {
  CLI::Option* option = app->add_option(
      "-m,--model", model, "Model: a name of the catalogue, hf:org/name[:file], a directory or a GGUF file");
  option->type_name("MODEL");
  SetCompletion(option, {CompletionHint::Kind::kModel, {}});
  return option;
}

CLI::Option* AddThreadsOption(CLI::App* app, int& threads) {
  return app->add_option("-t,--threads", threads, "Threads to compute with; all cores when not given")
      ->check(CLI::Range(1, 256))
      ->type_name("N");
}

CLI::Option* AddSeedOption(CLI::App* app, uint64_t& seed) {
  // The parser alone would take -1 and numbers beyond 64 bits for the largest one.
  const auto check = [](const std::string& text) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? "" : "'" + text + "' is not 0 to 2^64 - 1";
  };
  return app->add_option("-s,--seed", seed, "Seed of the random numbers; the same seed gives the same text")
      ->check(CLI::Validator(check, ""))
      ->type_name("N");
}

CLI::Option* AddChoiceOption(CLI::App* app, const std::string& names, std::string& value,
                             const std::vector<std::string>& choices, const std::string& description) {
  std::string list;
  for (const auto& choice : choices) list += (list.empty() ? "" : "|") + choice;
  CLI::Option* option =
      app->add_option(names, value, description)->check(CLI::IsMember(choices).description(""))->type_name(list);
  SetCompletion(option, {CompletionHint::Kind::kWords, choices});
  return option;
}

Result<std::string> ReadStdin(uint64_t max_bytes) {
  std::string text;
  char buffer[1 << 16];
  size_t count;
  while ((count = std::fread(buffer, 1, sizeof(buffer), stdin)) > 0) {
    if (text.size() + count > max_bytes) {
      return Error{ErrorCode::kInvalidArgument,
                   "standard input is longer than " + std::to_string(max_bytes) + " bytes"};
    }
    text.append(buffer, count);
  }
  if (std::ferror(stdin) != 0) return Error{ErrorCode::kIo, "cannot read standard input"};
  return text;
}

void SetCompletion(CLI::Option* option, CompletionHint hint) { Hints()[option] = std::move(hint); }

CompletionHint CompletionOf(const CLI::Option* option) {
  const auto found = Hints().find(option);
  return found == Hints().end() ? CompletionHint{} : found->second;
}

}  // namespace pith
