// pith train, in a build without libtorch: says what is missing.
#include "command.h"

namespace pith {

void AddTrainCommand(Cli& cli) {
  CLI::App* app = cli.AddCommand("train", "Train an adapter or a model (needs the build with libtorch).",
                                 "scripts/setup.sh train && scripts/build.sh full");
  app->allow_extras();
  cli.OnRun(app, [] {
    return Status(Error{ErrorCode::kUnsupported,
                        "this program was built without training: run 'scripts/setup.sh train' and "
                        "'scripts/build.sh full', which leaves one with it at bin/pith"});
  });
}

}  // namespace pith
