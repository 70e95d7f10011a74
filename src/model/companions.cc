#include "model/companions.h"

#include <filesystem>
#include <fstream>

#include "model/gguf.h"
#include "model/hf_export.h"

namespace pith {

namespace fs = std::filesystem;

Status WriteCompanions(const Checkpoint& checkpoint, const std::string& folder) {
  if (checkpoint.format() == CheckpointFormat::kGguf) {
    const auto write = [&](const char* name, const std::string& text) -> Status {
      const fs::path path = fs::path(folder) / name;
      std::ofstream file(path, std::ios::binary);
      file << text;
      file.close();
      return file ? Status() : Status(Error{ErrorCode::kIo, "cannot write '" + path.string() + "'"});
    };
    const ModelConfig& config = checkpoint.config();
    PITH_ASSIGN(const HfTokenizerFiles files, HfTokenizerOfGguf(*checkpoint.gguf(), config.max_position));
    PITH_RETURN_IF_ERROR(write("tokenizer.json", files.tokenizer));
    PITH_RETURN_IF_ERROR(write("tokenizer_config.json", files.tokenizer_config));
    return write("generation_config.json", HfGenerationConfigText(config));
  }
  for (const char* name : kCompanionFiles) {
    const fs::path source = fs::path(checkpoint.path()) / name;
    std::error_code error;
    if (!fs::exists(source, error)) continue;
    fs::copy_file(source, fs::path(folder) / name, fs::copy_options::overwrite_existing, error);
    if (error) return Error{ErrorCode::kIo, "cannot copy '" + source.string() + "': " + error.message()};
  }
  return {};
}

}  // namespace pith
