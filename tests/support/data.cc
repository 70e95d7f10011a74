#include "support/data.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace pith::testing {

namespace fs = std::filesystem;

namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<std::string> Existing(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path, error)) return path.string();
  return std::nullopt;
}

struct TempDirs {
  std::vector<std::string> paths;
  ~TempDirs() {
    std::error_code error;
    for (const auto& path : paths) fs::remove_all(path, error);
  }
};

}  // namespace

std::string GoldenPath(const std::string& relative) {
  return std::string(PITH_SOURCE_DIR) + "/tests/golden/" + relative;
}

std::optional<std::string> DataPath(const std::string& relative) {
  if (const std::string root = Environment("PITH_DATA"); !root.empty()) return Existing(fs::path(root) / relative);
  return Existing(fs::path(PITH_SOURCE_DIR) / ".." / "shared" / "data" / relative);
}

std::optional<std::string> ModelPath(const std::string& name) {
  // The same rule as `pith pull`: <cache>/models/<name>/<one .gguf file>.
  fs::path root = Environment("PITH_CACHE");
  if (root.empty()) {
    if (const std::string xdg = Environment("XDG_CACHE_HOME"); !xdg.empty()) {
      root = fs::path(xdg) / "pith";
    } else {
      root = fs::path(Environment("HOME")) / ".cache" / "pith";
    }
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "models" / name, error)) {
    if (entry.path().extension() == ".gguf") return entry.path().string();
  }
  return std::nullopt;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << "cannot read " << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string TempDir() {
  static TempDirs dirs;
  std::string pattern = (fs::temp_directory_path() / "pith-test-XXXXXX").string();
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  dirs.paths.push_back(pattern);
  return pattern;
}

}  // namespace pith::testing
