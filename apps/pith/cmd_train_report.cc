// pith train report: the curves of a training run, finished or under way.
#include <cstdio>
#include <memory>
#include <string>

#include "cmd_train.h"
#include "eval/training_report.h"
#include "json_output.h"

namespace pith {

void AddTrainReportCommand(Cli& cli, CLI::App* parent) {
  auto folder = std::make_shared<std::string>();
  CLI::App* app = cli.AddCommand(parent, "report", "Write report.html, the curves of a run, beside its metrics.jsonl.",
                                 "pith train report ./reason");
  SetCompletion(app->add_option("folder", *folder, "Output folder of the run")->required(),
                {.kind = CompletionHint::Kind::kFile, .words = {}});
  cli.OnRun(app, [&cli, folder]() -> Status {
    PITH_ASSIGN(const std::string path, WriteTrainingReport(*folder));
    if (cli.json()) {
      PrintJson({{"report", path}});
    } else {
      std::printf("%s\n", path.c_str());
    }
    return {};
  });
}

}  // namespace pith
