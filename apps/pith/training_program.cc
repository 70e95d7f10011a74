#include "training_program.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cmd_train.h"

namespace pith {

namespace {

constexpr char kProgram[] = "pith-train";

std::vector<std::string> Candidates(const std::string& called_as) {
  std::vector<std::string> folders;
  if (called_as.find('/') != std::string::npos) {
    folders.push_back(std::filesystem::path(called_as).parent_path().string());
  }
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(self.parent_path().string());
  const char* path = std::getenv("PATH");
  for (std::string rest = path == nullptr ? "" : path; !rest.empty();) {
    const size_t end = rest.find(':');
    if (end != 0) folders.push_back(rest.substr(0, end));  // an empty entry would be the folder one happens to be in
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  std::vector<std::string> candidates;
  for (const auto& folder : folders) candidates.push_back(folder + "/" + kProgram);
  return candidates;
}

Error Missing(const std::string& command) {
  return Error{ErrorCode::kUnsupported, "'" + command + "' is in the program " + kProgram +
                                            ", which is not there: 'scripts/setup.sh train' and 'scripts/build.sh "
                                            "full' make it (it needs libtorch)"};
}

void AddMissing(Cli& cli, CLI::App* app, const std::string& command) {
  app->allow_extras();
  cli.OnRun(app, [command] { return Status(Missing(command)); });
}

void AddMissingTrain(Cli& cli, CLI::App* parent, const std::string& name, const std::string& about) {
  AddMissing(
      cli,
      cli.AddCommand(parent, name, about + " (needs pith-train).", "scripts/setup.sh train && scripts/build.sh full"),
      "train " + name);
}

}  // namespace

bool IsTrainingCommand(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  for (const auto& argument : arguments) {
    if (argument.rfind('-', 0) == 0) continue;
    words.push_back(argument);
    if (words.size() == 2) break;
  }
  if (words.empty()) return false;
  if (words[0] == "quantize") return true;
  return words[0] == "train" && words.size() == 2 && (words[1] == "sft" || words[1] == "grpo");
}

void BecomeTrainingProgram(int argc, char** argv) {
  if (argc < 2 || !IsTrainingCommand({argv + 1, argv + argc})) return;
  for (const auto& candidate : Candidates(argv[0])) {
    if (::access(candidate.c_str(), X_OK) == 0) ::execv(candidate.c_str(), argv);
  }
}

void AddTrainSftCommand(Cli& cli, CLI::App* parent) {
  AddMissingTrain(cli, parent, "sft", "Supervised fine-tuning on chats or texts");
}

void AddTrainGrpoCommand(Cli& cli, CLI::App* parent) {
  AddMissingTrain(cli, parent, "grpo", "Budget forcing: reinforcement learning with accuracy and length as reward");
}

void AddQuantizeCommand(Cli& cli) {
  AddMissing(cli,
             cli.AddCommand("quantize", "Shrink a model: transforms, range search, error feedback (needs pith-train).",
                            "scripts/setup.sh train && scripts/build.sh full"),
             "quantize");
}

}  // namespace pith
