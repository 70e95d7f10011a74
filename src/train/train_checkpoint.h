// Checkpoints of a training run: parameters, optimizer, and where in the data it is; resume is bit-exact.
//
//   OUT/checkpoint-120/  adapter_config.json, adapter_model.safetensors (F32; or config.json and model.safetensors)
//                        optimizer.safetensors   moments, F32
//                        trainer_state.json      step, data cursor, seeds, metrics, options
//
// A directory is written beside its place, flushed to the disk and renamed: it is whole or it is not there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/optimizer.h"
#include "train/train_model.h"

namespace pith::train {

struct TrainerState {
  int64_t step = 0;                          // optimizer steps done
  std::map<std::string, int64_t> cursor;     // of the trainer: epoch, row, ...
  std::map<std::string, double> metrics;     // at this step; "best" ones too
  std::string options;                       // canonical text of what must not change on resume
  std::map<std::string, std::string> files;  // small files that belong beside the adapter, by name; not read back
};

// OUT/checkpoint-<step>. Afterwards removes all but the last `keep` (0 = none is removed); never `best_step`'s.
Status SaveCheckpoint(const std::string& out, const TrainModel& model, const AdamW& optimizer,
                      const TrainerState& state, int64_t keep, std::optional<int64_t> best_step,
                      const std::string& base_model = {});

// Steps of the checkpoints in OUT, ascending. Unfinished directories are ignored.
Result<std::vector<int64_t>> ListCheckpoints(const std::string& out);

// A run that begins anew must not write into the folder of another: kInvalidArgument when `out` has checkpoints.
Status RefuseUsedFolder(const std::string& out);

// Puts a checkpoint back. kMismatch when `options` differ from the saved ones (which field), or sizes do.
Result<TrainerState> LoadCheckpoint(const std::string& dir, const std::string& options, TrainModel* model,
                                    AdamW* optimizer);

// The small pieces, for other trainers' state: a directory made whole by one rename.
Status MakeDirectoryDurable(const std::string& temporary, const std::string& dir);

}  // namespace pith::train
