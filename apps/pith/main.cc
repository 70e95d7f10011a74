// The command line: one file per subcommand, no logic of its own.
#include "command.h"
#include "training_program.h"

int main(int argc, char** argv) {
  pith::BecomeTrainingProgram(argc, argv);
  pith::Cli cli;
  pith::AddAllCommands(cli);
  return cli.Main(argc, argv);
}
