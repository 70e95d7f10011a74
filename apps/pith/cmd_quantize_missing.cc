// pith quantize in a build without libtorch: it says what is missing.
#include "command.h"

namespace pith {

void AddQuantizeCommand(Cli& cli) {
  CLI::App* app = cli.AddCommand(
      "quantize", "Shrink a model: transforms, range search, error feedback (needs the build with libtorch).",
      "scripts/setup.sh train && scripts/build.sh full");
  app->allow_extras();
  cli.OnRun(app, [] {
    return Status(Error{ErrorCode::kUnsupported,
                        "this program was built without 'quantize': run 'scripts/setup.sh train' and "
                        "'scripts/build.sh full', which leaves one with it at bin/pith"});
  });
}

}  // namespace pith
