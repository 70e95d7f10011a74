#include "model/pack_cache.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/cache_folder.h"
#include "base/json.h"

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

}  // namespace

Result<std::string> PackToCache(const Checkpoint& checkpoint, const PackRecipe& recipe, const std::string& cache_root,
                                const PackOptions& options, const std::function<void()>& on_wait) {
  const fs::path root = fs::path(cache_root) / "packed";
  std::error_code error;
  fs::create_directories(root, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + root.string() + "': " + error.message()};
  const std::string key = checkpoint.fingerprint().substr(0, kFingerprintDigits) + "-" + recipe.Canonical();
  const fs::path folder = root / key;
  if (ReadRecord(folder)) return folder.string();

  PITH_ASSIGN(const FileLock lock, FileLock::Acquire((root / (key + ".lock")).string(), on_wait));
  if (ReadRecord(folder)) return folder.string();  // the one we waited for wrote it
  if (fs::exists(folder, error)) {
    fs::remove_all(folder, error);
    if (error) return Error{ErrorCode::kIo, "cannot remove '" + folder.string() + "': " + error.message()};
  }
  PITH_ASSIGN(const PackReport report, PackCheckpoint(checkpoint, recipe, folder.string(), options));
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
