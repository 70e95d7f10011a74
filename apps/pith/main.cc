// The command line: one file per subcommand, no logic of its own.
#include "command.h"

int main(int argc, char** argv) {
  pith::Cli cli;
  pith::AddAskCommand(cli);
  pith::AddChatCommand(cli);
  pith::AddBenchCommand(cli);
  pith::AddPplCommand(cli);
  pith::AddEvalCommand(cli);
  pith::AddGradeCommand(cli);
  pith::AddInspectCommand(cli);
  pith::AddPackCommand(cli);
  pith::AddQuantizeCommand(cli);
  pith::AddPullCommand(cli);
  pith::AddExportCommand(cli);
  pith::AddVerifyExportCommand(cli);
  pith::AddTokenizeCommand(cli);
  pith::AddFeaturesCommand(cli);
  pith::AddDistillCommand(cli);
  pith::AddTrainCommand(cli);
  pith::AddCompletionCommand(cli);
  return cli.Main(argc, argv);
}
