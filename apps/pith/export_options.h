// What the subcommands of `pith export` share.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "command.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "model/heads.h"

namespace pith {

CLI::Option* AddExportModel(CLI::App* app, std::string& model);
CLI::Option* AddExportPath(CLI::App* app, const std::string& name, std::string& path, const std::string& description,
                           const std::string& type);

// An adapter with its heads.
struct AdapterParts {
  std::shared_ptr<const AdapterFile> adapter;  // null = none
  std::optional<SwitcherHead> switcher;
  std::optional<VerifierHead> verifier;
};
// Empty paths: no adapter, and the heads that lie in its directory.
Result<AdapterParts> OpenAdapterParts(const std::string& adapter, const std::string& switcher,
                                      const std::string& verifier, const ModelConfig& config);

// At most `count` tokens of a text file, or of the built-in calibration text when `path` is empty.
Result<std::vector<int32_t>> CalibrationTokens(const Checkpoint& checkpoint, const std::string& path, int64_t count);

void AddExportGenieCommand(Cli& cli, CLI::App* parent);
void AddExportOnnxCommand(Cli& cli, CLI::App* parent);

}  // namespace pith
