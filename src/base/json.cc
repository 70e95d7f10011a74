#include "base/json.h"

#include "base/mapped_file.h"

namespace pith {

Result<Json> ParseJson(std::string_view text, const std::string& what) {
  // The callback bounds the depth while parsing, so hostile nesting cannot exhaust the stack of a later destructor.
  constexpr int kMaxDepth = 128;
  bool too_deep = false;
  const auto bound_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) too_deep = true;
    return !too_deep;
  };
  try {
    Json json = Json::parse(text.begin(), text.end(), bound_depth, true);
    if (too_deep) return Error{ErrorCode::kMalformed, what + ": JSON is nested too deeply"};
    return json;
  } catch (const Json::exception& exception) {
    return Error{ErrorCode::kMalformed, what + ": " + exception.what()};
  }
}

Result<Json> ReadJsonFile(const std::string& path, uint64_t max_bytes) {
  PITH_ASSIGN(const auto file, MappedFile::Open(path));
  if (file->size() > max_bytes) {
    return Error{ErrorCode::kMalformed,
                 "'" + path + "' is too large for a JSON file (" + std::to_string(file->size()) + " bytes)"};
  }
  const auto bytes = file->bytes();
  return ParseJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "'" + path + "'");
}

}  // namespace pith
