// pith train: the parent of the training commands.
#include "cmd_train.h"

namespace pith {

void AddTrainCommand(Cli& cli) {
  CLI::App* app = cli.AddCommand("train", "Train an adapter, a model, or the heads.",
                                 "pith train sft -m qwen2.5-coder-0.5b --dataset traces.jsonl --output-dir ./reason");
  AddTrainSftCommand(cli, app);
  AddTrainGrpoCommand(cli, app);
  AddTrainSwitcherCommand(cli, app);
  AddTrainVerifierCommand(cli, app);
  AddTrainReportCommand(cli, app);
}

}  // namespace pith
