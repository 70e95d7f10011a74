// pith train: the parent of the training commands.
#include "command.h"
#include "train_options.h"

namespace pith {

void AddTrainCommand(Cli& cli) {
  CLI::App* app = cli.AddCommand("train", "Train an adapter or a model.",
                                 "pith train sft -m qwen2.5-coder-0.5b --dataset traces.jsonl --output-dir ./reason");
  AddTrainSftCommand(cli, app);
}

}  // namespace pith
