#include "pull/model_cache.h"

#include <algorithm>
#include <filesystem>

namespace pith {

namespace fs = std::filesystem;

namespace {

// The folder name of a hub reference: a repository and a revision, without a path separator.
std::string FolderName(const HubReference& reference) {
  std::string name = reference.repo;
  name.replace(name.find('/'), 1, "--");
  if (reference.revision != "main") name += "@" + reference.revision;
  return name;
}

Error NotPulled(const std::string& name) {
  return {ErrorCode::kNotFound, "model '" + name + "' is not on this machine; fetch it with: pith pull " + name};
}

Result<std::string> PulledFile(const std::string& name, const fs::path& path, uint64_t expected_bytes) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) return NotPulled(name);
  if (expected_bytes != 0 && bytes != expected_bytes) {
    return Error{ErrorCode::kMismatch, "'" + path.string() + "' has " + std::to_string(bytes) + " bytes, not " +
                                           std::to_string(expected_bytes) + "; fetch it again with: pith pull " + name};
  }
  return path.string();
}

Result<std::string> PulledDirectory(const std::string& name, const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kPullRecord, error)) return NotPulled(name);
  return folder.string();
}

std::string CatalogueNames() {
  std::string names;
  for (const auto& entry : Catalogue()) names += (names.empty() ? "" : ", ") + entry.name;
  return names;
}

}  // namespace

Result<std::string> ModelFolder(std::string_view name) {
  std::string folder(name);
  if (IsHubReference(name)) {
    PITH_ASSIGN(const HubReference reference, ParseHubReference(name));
    folder = FolderName(reference);
  }
  PITH_ASSIGN(const std::string root, CacheRoot());
  return root + "/models/" + folder;
}

Result<std::string> ResolveModel(const std::string& name_or_path) {
  if (name_or_path.empty()) return Error{ErrorCode::kInvalidArgument, "the model name is empty"};
  if (const CatalogueEntry* entry = FindInCatalogue(name_or_path)) {
    PITH_ASSIGN(const std::string folder, ModelFolder(entry->name));
    if (entry->file) return PulledFile(entry->name, fs::path(folder) / entry->file->name, entry->file->bytes);
    return PulledDirectory(entry->name, folder);
  }
  if (IsHubReference(name_or_path)) {
    PITH_ASSIGN(const HubReference reference, ParseHubReference(name_or_path));
    PITH_ASSIGN(const std::string folder, ModelFolder(name_or_path));
    if (reference.file) return PulledFile(name_or_path, fs::path(folder) / *reference.file, 0);
    return PulledDirectory(name_or_path, folder);
  }
  std::error_code error;
  if (fs::exists(name_or_path, error)) return name_or_path;
  return Error{ErrorCode::kNotFound, "no model '" + name_or_path +
                                         "': neither a file, a directory nor a name of the catalogue (" +
                                         CatalogueNames() + ")"};
}

}  // namespace pith
