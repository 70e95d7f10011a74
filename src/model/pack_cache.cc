#include "model/pack_cache.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "base/cache_folder.h"
#include "base/durable_file.h"
#include "base/json.h"
#include "base/sha256.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr size_t kFingerprintDigits = 20;  // of 64: 80 bits tell models apart
constexpr uint64_t kMaxRecordBytes = 1 << 20;

// The record of a packed directory, when it is whole and of this version of the quantizers.
std::optional<CachedPack> ReadRecord(const fs::path& folder) {
  const Result<Json> json = ReadJsonFile((folder / kPackRecord).string(), kMaxRecordBytes);
  if (!json.ok() || !json->is_object()) return std::nullopt;
  const auto text = [&](const char* key) {
    const auto found = json->find(key);
    return found != json->end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto bytes = json->find("bytes");
  const auto version = json->find("version");
  if (bytes == json->end() || !bytes->is_number_unsigned() || version == json->end() || *version != kPackVersion) {
    return std::nullopt;
  }
  CachedPack pack{folder.string(), text("source"), text("recipe"), bytes->get<uint64_t>()};
  std::error_code error;
  if (fs::file_size(folder / "model.safetensors", error) != pack.bytes || error) return std::nullopt;
  if (!fs::exists(folder / "config.json", error)) return std::nullopt;
  return pack;
}

// What a packed directory was made of: {"files": what SourceStamps gives, "sha256": what SourceDigest gives}.
constexpr const char* kSourceRecord = "pith-source.json";

// Path, size and time of the last change of every source file.
Result<Json> SourceStamps(const Checkpoint& checkpoint) {
  Json stamps = Json::array();
  for (const std::string& path : PackSourceFiles(checkpoint)) {
    std::error_code error;
    const fs::path absolute = fs::absolute(path, error);
    const uint64_t bytes = error ? 0 : fs::file_size(absolute, error);
    const auto changed = error ? fs::file_time_type() : fs::last_write_time(absolute, error);
    if (error) return Error{ErrorCode::kIo, "cannot read '" + path + "': " + error.message()};
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(changed.time_since_epoch()).count();
    stamps.push_back({{"path", absolute.string()}, {"bytes", bytes}, {"changed", time}});
  }
  return stamps;
}

// One digest of the names and contents of all source files.
Result<std::string> SourceDigest(const Checkpoint& checkpoint) {
  Digest digest;
  for (const std::string& path : PackSourceFiles(checkpoint)) {
    PITH_ASSIGN(const std::string content, Sha256OfFile(path));
    // A GGUF file is the same model under any name.
    const bool named = checkpoint.format() != CheckpointFormat::kGguf;
    digest.Update((named ? fs::path(path).filename().string() : "") + " " + content + "\n");
  }
  return digest.Finish();
}

Json ReadSourceRecord(const fs::path& folder) {
  Result<Json> json = ReadJsonFile((folder / kSourceRecord).string(), kMaxRecordBytes);
  return json.ok() && json->is_object() ? *std::move(json) : Json::object();
}

Status WriteSourceRecord(const fs::path& folder, const Json& stamps, const std::string& digest) {
  const Json json = {{"files", stamps}, {"sha256", digest}};
  return WriteFileDurably((folder / kSourceRecord).string(),
                          json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

// Removes what packings of this directory left that were ended half-way. The caller holds the lock of the directory.
void RemoveLeftovers(const fs::path& folder) {
  const std::string begin = folder.filename().string() + ".";
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(folder.parent_path(), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(begin, 0) == 0 && it->path().extension() == ".partial") leftovers.push_back(it->path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

}  // namespace

Result<std::string> PackToCache(const Checkpoint& checkpoint, const PackRecipe& recipe, const std::string& cache_root,
                                const PackOptions& options, const std::function<void()>& on_wait) {
  const fs::path root = fs::path(cache_root) / "packed";
  std::error_code error;
  fs::create_directories(root, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + root.string() + "': " + error.message()};
  const std::string key = checkpoint.fingerprint().substr(0, kFingerprintDigits) + "-" + recipe.Canonical();
  const fs::path folder = root / key;
  PITH_ASSIGN(const Json stamps, SourceStamps(checkpoint));
  const auto unchanged = [&] {
    return ReadRecord(folder) && ReadSourceRecord(folder).value("files", Json()) == stamps;
  };
  if (unchanged()) return folder.string();

  PITH_ASSIGN(const FileLock lock, FileLock::Acquire((root / (key + ".lock")).string(), on_wait));
  if (unchanged()) return folder.string();  // the one we waited for wrote it
  PITH_ASSIGN(const std::string digest, SourceDigest(checkpoint));
  if (ReadRecord(folder) && ReadSourceRecord(folder).value("sha256", Json()) == digest) {
    PITH_RETURN_IF_ERROR(WriteSourceRecord(folder, stamps, digest));  // copied or touched, but the same bytes
    return folder.string();
  }
  RemoveLeftovers(folder);
  if (fs::exists(folder, error)) {
    fs::remove_all(folder, error);
    if (error) return Error{ErrorCode::kIo, "cannot remove '" + folder.string() + "': " + error.message()};
  }
  PITH_ASSIGN(const PackReport report, PackCheckpoint(checkpoint, recipe, folder.string(), options));
  PITH_RETURN_IF_ERROR(WriteSourceRecord(folder, stamps, digest));
  return report.path;
}

Result<std::vector<CachedPack>> ListPackCache(const std::string& cache_root) {
  std::vector<CachedPack> packs;
  const fs::path root = fs::path(cache_root) / "packed";
  std::error_code error;
  if (!fs::exists(root, error)) return packs;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (const std::optional<CachedPack> pack = ReadRecord(it->path())) packs.push_back(*pack);
  }
  if (error) return Error{ErrorCode::kIo, "cannot read '" + root.string() + "': " + error.message()};
  std::sort(packs.begin(), packs.end(), [](const CachedPack& a, const CachedPack& b) { return a.path < b.path; });
  return packs;
}

}  // namespace pith
