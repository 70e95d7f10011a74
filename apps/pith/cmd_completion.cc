// pith completion: print a shell's completion script.
#include <cstdio>
#include <memory>

#include "command.h"
#include "json_output.h"

namespace pith {

void AddCompletionCommand(Cli& cli) {
  auto shell = std::make_shared<std::string>();
  CLI::App* app =
      cli.AddCommand("completion", "Print the completion script of a shell.", "source <(pith completion bash)");
  AddChoiceOption(app, "shell", *shell, {"bash", "zsh", "fish"}, "Which shell")->required();
  cli.OnRun(app, [&cli, shell]() -> Status {
    const std::string script = CompletionScript(cli.root(), *shell);
    if (cli.json()) {
      PrintJson({{"shell", *shell}, {"script", script}});
    } else {
      std::fputs(script.c_str(), stdout);
    }
    return {};
  });
}

}  // namespace pith
