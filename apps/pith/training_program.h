// The commands that need libtorch (train sft, train grpo, quantize) are in a program of their own, pith-train, which
// the preset "full" builds beside pith. So pith itself stays small and starts at once, and there is one pith for
// everybody.
//
// In pith, these commands are what training_program.cc adds: their help, and an error that says how to get pith-train.
#pragma once

#include <string>
#include <vector>

namespace pith {

// Whether this command line is for pith-train: its first words name one of those commands.
bool IsTrainingCommand(const std::vector<std::string>& arguments);

// Becomes pith-train with the same arguments when they are for it and it is there: in the folder from which this
// program was called, in the one it is in, or on PATH. Returns otherwise.
void BecomeTrainingProgram(int argc, char** argv);

}  // namespace pith
