// The folder where pulled models live, and the way from a name to a path.
#pragma once

#include <string>
#include <string_view>

#include "base/cache_folder.h"
#include "base/result.h"
#include "pull/catalogue.h"

namespace pith {

// Where a pulled model lives: <cache>/models/<name>. "hf:org/name" lives under "org--name" ("org--name@revision").
Result<std::string> ModelFolder(std::string_view name);

// A directory pulled from the hub gets this file last, when all others are complete and checked. It lists them.
inline constexpr const char* kPullRecord = "pith-pull.json";

// The path of a model that -m names: a catalogue name or hf: reference that has been pulled (the GGUF file, or the
// directory), else a path of a directory or a file. A path that exists but looks like a name is reached as "./name".
// kNotFound says what to do: `pith pull NAME`. kMismatch when a pinned file has not the pinned size.
Result<std::string> ResolveModel(const std::string& name_or_path);

}  // namespace pith
