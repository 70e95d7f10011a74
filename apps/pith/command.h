// The common shape of pith's subcommands: how they are registered, how they report, which options they share.
//
// A subcommand is one file, cmd_NAME.cc, with one function void AddNameCommand(Cli&) declared at the end of this header
// and called in all_commands.cc. It describes its options and hands over what runs after parsing:
//
//   void AddFooCommand(Cli& cli) {
//     auto options = std::make_shared<FooOptions>();
//     CLI::App* app = cli.AddCommand("foo", "What it does.", "pith foo -m qwen2.5-coder-0.5b");
//     AddModelOption(app, options->model);
//     cli.OnRun(app, [&cli, options] { return RunFoo(cli, *options); });
//   }
//
// Every subcommand has --json: then standard output holds one JSON object and nothing else, an error too. Errors are
// returned; main prints them and turns the code into the exit status (docs/cli.md). Files and directories that are not
// there are found by the code that opens them, which gives typed errors; CLI::ExistingFile and the like are not used.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace pith {

class Cli {
 public:
  Cli();
  Cli(const Cli&) = delete;
  Cli& operator=(const Cli&) = delete;

  // Adds a subcommand with --json and an example under its help.
  CLI::App* AddCommand(const std::string& name, const std::string& description, const std::string& example);
  // A subcommand of a subcommand ("train sft"), which must then be given.
  CLI::App* AddCommand(CLI::App* parent, const std::string& name, const std::string& description,
                       const std::string& example);
  // What to do when `app` was chosen.
  void OnRun(CLI::App* app, std::function<Status()> run);

  // Parses, runs, reports; returns the exit status of the program.
  int Main(int argc, const char* const* argv);

  bool json() const { return json_; }  // --json was given

  CLI::App& root() { return root_; }

 private:
  Status ParseAndRun(int argc, const char* const* argv);
  CLI::App root_;
  bool json_ = false;
  std::function<Status()> run_;
};

// Options shared by subcommands, spelled the same everywhere.
CLI::Option* AddModelOption(CLI::App* app, std::string& model);  // -m, --model
CLI::Option* AddThreadsOption(CLI::App* app, int& threads);      // -t, --threads: 1..1024; 0 (not given) = all cores
CLI::Option* AddSeedOption(CLI::App* app, uint64_t& seed);       // -s, --seed
// An option with a fixed set of values; the completion knows them.
CLI::Option* AddChoiceOption(CLI::App* app, const std::string& names, std::string& value,
                             const std::vector<std::string>& choices, const std::string& description);
// Reads a whole stream (standard input) up to `max_bytes`: kIo, or kInvalidArgument when it is longer.
Result<std::string> ReadStdin(uint64_t max_bytes = uint64_t{1} << 30);

// How an option's value is completed by the shell.
struct CompletionHint {
  enum class Kind { kNothing, kFile, kModel, kWords };
  Kind kind = Kind::kNothing;
  std::vector<std::string> words;  // with kWords
};
// Marks an option (paths, mostly) for the completion.
void SetCompletion(CLI::Option* option, CompletionHint hint);
CompletionHint CompletionOf(const CLI::Option* option);

// The completion script of a shell ("bash", "zsh", "fish") for the whole tree.
std::string CompletionScript(const CLI::App& root, const std::string& shell);

void AddAllCommands(Cli& cli);

void AddAskCommand(Cli& cli);
void AddBenchCommand(Cli& cli);
void AddCalibrateCommand(Cli& cli);
void AddChatCommand(Cli& cli);
void AddDistillCommand(Cli& cli);
void AddEvalCommand(Cli& cli);
void AddExportCommand(Cli& cli);
void AddFeaturesCommand(Cli& cli);
void AddPplCommand(Cli& cli);
void AddPackCommand(Cli& cli);
void AddPullCommand(Cli& cli);
void AddQuantizeCommand(Cli& cli);
void AddGradeCommand(Cli& cli);
void AddInspectCommand(Cli& cli);
void AddTokenizeCommand(Cli& cli);
void AddTrainCommand(Cli& cli);
void AddVerifyExportCommand(Cli& cli);
void AddCompletionCommand(Cli& cli);

}  // namespace pith
