// pith-train: pith with the commands that need libtorch.
#include "command.h"

int main(int argc, char** argv) {
  pith::Cli cli;
  pith::AddAllCommands(cli);
  return cli.Main(argc, argv);
}
