// JSON through nlohmann::json, with errors as values. Include only in .cc files: the header is heavy.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pith {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Parses UTF-8 JSON text. Nesting deeper than 128 levels, trailing text, invalid UTF-8 and syntax errors are
// kMalformed; `what` names the source in the message.
Result<Json> ParseJson(std::string_view text, const std::string& what);
// Reads and parses a file of at most `max_bytes`.
Result<Json> ReadJsonFile(const std::string& path, uint64_t max_bytes = uint64_t{256} << 20);

}  // namespace pith
