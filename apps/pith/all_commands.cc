#include "command.h"

namespace pith {

void AddAllCommands(Cli& cli) {
  AddAskCommand(cli);
  AddChatCommand(cli);
  AddBenchCommand(cli);
  AddPplCommand(cli);
  AddEvalCommand(cli);
  AddGradeCommand(cli);
  AddInspectCommand(cli);
  AddPackCommand(cli);
  AddQuantizeCommand(cli);
  AddCalibrateCommand(cli);
  AddPullCommand(cli);
  AddExportCommand(cli);
  AddVerifyExportCommand(cli);
  AddTokenizeCommand(cli);
  AddFeaturesCommand(cli);
  AddDistillCommand(cli);
  AddTrainCommand(cli);
  AddCompletionCommand(cli);
}

}  // namespace pith
