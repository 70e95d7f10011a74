// The training commands that need libtorch, in a build without it: they say what is missing.
#include <string>

#include "cmd_train.h"

namespace pith {

namespace {

void AddMissing(Cli& cli, CLI::App* parent, const std::string& name, const std::string& about) {
  CLI::App* app = cli.AddCommand(parent, name, about + " (needs the build with libtorch).",
                                 "scripts/setup.sh train && scripts/build.sh full");
  app->allow_extras();
  cli.OnRun(app, [name] {
    return Status(Error{ErrorCode::kUnsupported,
                        "this program was built without 'train " + name +
                            "': run 'scripts/setup.sh train' and 'scripts/build.sh full', which leaves one with it at "
                            "bin/pith"});
  });
}

}  // namespace

void AddTrainSftCommand(Cli& cli, CLI::App* parent) {
  AddMissing(cli, parent, "sft", "Supervised fine-tuning on chats or texts");
}

void AddTrainGrpoCommand(Cli& cli, CLI::App* parent) {
  AddMissing(cli, parent, "grpo", "Budget forcing: reinforcement learning with accuracy and length as reward");
}

}  // namespace pith
