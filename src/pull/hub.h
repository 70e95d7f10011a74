// Files of the Hugging Face hub (or of a mirror that speaks like it), by HTTPS.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pith {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string token;  // access token; goes only to the endpoint itself, and in clear text only to this machine
  long connect_timeout_ms = 5000;
  long stall_timeout_s = 30;
  int retries = 5;        // attempts in a row without a new byte before giving up, after the first
  long backoff_ms = 500;  // before the first retry; doubles up to 16 times this
  std::function<void(uint64_t bytes_done)> progress;  // bytes of the current file that are on disk
};

// Endpoint and token from HF_ENDPOINT and HF_TOKEN.
HubOptions HubOptionsFromEnvironment();

// Whether the endpoint answers at all, within the connect timeout. One attempt.
Status ReachHub(const HubOptions& options);

// One file of a repository with what is known of its content.
struct HubFile {
  std::string path;  // inside the repository
  uint64_t bytes = 0;
  std::string sha256;    // hex; empty when the hub has only a git id for it
  std::string git_blob;  // hex SHA-1 of the git blob; used when sha256 is empty
};

struct HubListing {
  std::string commit;  // the files below are of this commit
  std::vector<HubFile> files;
};

// Data sets are repositories whose name begins with this: "datasets/org/name".
inline constexpr std::string_view kDatasetPrefix = "datasets/";

// Files of a repository at a revision. kNotFound: no such repository or revision (or a private one). kUnavailable:
// not reachable, or access denied. kMalformed: the answer is not what a hub says.
Result<HubListing> ListHubFiles(const std::string& repo, const std::string& revision, const HubOptions& options);

// Downloads one file to `destination` through `destination`.part, which is kept when the transfer breaks and resumed
// next time; the rename comes after size and digest are checked, so `destination` is always whole. Redirects are
// followed. kMismatch: size or digest differ from `file` (the .part is removed). kNotFound, kUnavailable, kIo.
// The content must be pinned: a file without bytes and digest is kInvalidArgument.
Status DownloadHubFile(const std::string& repo, const std::string& revision, const HubFile& file,
                       const std::string& destination, const HubOptions& options);

}  // namespace pith
