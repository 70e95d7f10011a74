// The subcommands of `pith train`. Those that need libtorch do their work in pith-train (training_program.h).
#pragma once

#include <CLI/App.hpp>

#include "command.h"

namespace pith {

void AddTrainSftCommand(Cli& cli, CLI::App* parent);
void AddTrainGrpoCommand(Cli& cli, CLI::App* parent);
void AddTrainSwitcherCommand(Cli& cli, CLI::App* parent);
void AddTrainVerifierCommand(Cli& cli, CLI::App* parent);
void AddTrainReportCommand(Cli& cli, CLI::App* parent);

}  // namespace pith
