#include "model/tokenizer_file.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/mapped_file.h"
#include "model/checkpoint.h"
#include "model/gguf.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;

Result<std::shared_ptr<const Tokenizer>> FromJsonFile(const std::string& path) {
  PITH_ASSIGN(const auto file, MappedFile::Open(path));
  if (file->size() > kMaxTokenizerBytes)
    return Error{ErrorCode::kMalformed, "'" + path + "' is too large for a tokenizer"};
  return Tokenizer::FromJson({reinterpret_cast<const char*>(file->bytes().data()), file->size()}, "'" + path + "'");
}

}  // namespace

bool LooksLikeGguf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  char magic[4] = {};
  return in.read(magic, sizeof(magic)) && std::memcmp(magic, "GGUF", sizeof(magic)) == 0;
}

Result<std::shared_ptr<const Tokenizer>> OpenTokenizer(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return FromJsonFile((fs::path(path) / "tokenizer.json").string());
  if (!LooksLikeGguf(path)) return FromJsonFile(path);
  PITH_ASSIGN(const auto gguf, GgufFile::Open(path));
  return Tokenizer::FromGguf(*gguf);
}

Result<std::shared_ptr<const Tokenizer>> CheckpointTokenizer(const Checkpoint& checkpoint) {
  if (checkpoint.gguf() != nullptr) return Tokenizer::FromGguf(*checkpoint.gguf());
  return FromJsonFile((fs::path(checkpoint.path()) / "tokenizer.json").string());
}

}  // namespace pith
