#include "heads/feature_set.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/json.h"
#include "model/safetensors.h"

namespace pith::heads {
namespace {

namespace fs = std::filesystem;

// What all shards of a set have to agree in, by name.
using Traits = std::vector<std::pair<std::string, std::string>>;

Error Malformed(const std::string& path, const std::string& why) { return {ErrorCode::kMalformed, path + ": " + why}; }

Result<std::vector<std::string>> ShardsOf(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("features-") && name.ends_with(".safetensors")) paths.push_back(entry.path().string());
  }
  if (paths.empty()) {
    return Error{ErrorCode::kNotFound,
                 "'" + folder + "': no features-*.safetensors there ('pith features' writes them)"};
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The metadata of one shard.
struct ShardHeader {
  Traits traits;
  std::string prompt;
  int64_t hidden = 0;
  int64_t first_question = 0;
  std::vector<std::string> ids;
  Json json;
};

Result<ShardHeader> ReadHeader(const SafetensorsFile& file, const std::string& path) {
  const auto found = file.metadata().find(kFeaturesMetadata);
  if (found == file.metadata().end()) return Malformed(path, "not written by 'pith features'");
  ShardHeader header;
  PITH_ASSIGN(header.json, ParseJson(found->second, path + ": " + kFeaturesMetadata));
  const Json& json = header.json;
  if (!json.is_object()) return Malformed(path, "the metadata is not an object");
  const auto take = [&](const char* name) {
    const auto value = json.find(name);
    header.traits.emplace_back(name,
                               value == json.end() ? "" : value->dump(-1, ' ', false, Json::error_handler_t::replace));
    return value == json.end() ? Json() : *value;
  };
  if (take("version") != 1) return Error{ErrorCode::kUnsupported, path + ": another version of the format"};
  const Json kind = take("kind");
  if (kind != "switcher" && kind != "verifier") return Malformed(path, "\"kind\" is neither switcher nor verifier");
  const Json hidden = take("hidden_size");
  if (!hidden.is_number_integer() || hidden < 1 || hidden > (1 << 20)) return Malformed(path, "bad \"hidden_size\"");
  header.hidden = hidden.get<int64_t>();
  if (!take("provenance").is_string()) return Malformed(path, "no \"provenance\"");
  if (kind == "switcher") {
    const Json chunk = take("chunk");
    const Json alpha = take("alpha");
    if (!chunk.is_number_integer() || !alpha.is_number()) return Malformed(path, "no \"chunk\" or \"alpha\"");
  } else {
    const Json adapter = take("verification_adapter");
    if (!adapter.is_boolean()) return Malformed(path, "no \"verification_adapter\"");
    const Json prompt = take("verification_prompt");
    if (prompt.is_string()) header.prompt = prompt.get<std::string>();
    take("verification_tokens");
    take("reason");
  }
  const auto first = json.find("first_question");
  const auto ids = json.find("ids");
  if (first == json.end() || !first->is_number_integer() || *first < 0 || *first > INT32_MAX) {
    return Malformed(path, "bad \"first_question\"");
  }
  header.first_question = first->get<int64_t>();
  if (ids == json.end() || !ids->is_array()) return Malformed(path, "no \"ids\"");
  for (const Json& id : *ids) {
    if (!id.is_string()) return Malformed(path, "\"ids\" are not texts");
    header.ids.push_back(id.get<std::string>());
  }
  return header;
}

class Reader {
 public:
  Status Read(const std::string& path) {
    PITH_ASSIGN(const auto file, SafetensorsFile::Open(path));
    PITH_ASSIGN(const ShardHeader header, ReadHeader(*file, path));
    PITH_RETURN_IF_ERROR(Agree(header, path));
    const Tensor* states = file->Find("states");
    const Tensor* labels = file->Find("labels");
    const Tensor* questions = file->Find("questions");
    if (states == nullptr || labels == nullptr || questions == nullptr) {
      return Malformed(path, "there must be tensors states, labels and questions");
    }
    const auto rows = labels->shape.size() == 1 ? labels->shape[0] : -1;
    if (rows < 0 || states->shape != std::vector<int64_t>{rows, header.hidden} ||
        questions->shape != std::vector<int64_t>{rows}) {
      return Malformed(path, "states " + ShapeText(states->shape) + ", labels " + ShapeText(labels->shape) +
                                 " and questions " + ShapeText(questions->shape) + " do not go together");
    }
    if (states->type != DType::kF32 || labels->type != DType::kF32 || questions->type != DType::kI32) {
      return Malformed(path, "states and labels must be F32, questions I32");
    }
    PITH_ASSIGN(const auto values, ToFloats(*states));
    PITH_ASSIGN(const auto marks, ToFloats(*labels));
    std::vector<int32_t> indices(static_cast<size_t>(rows));
    if (rows > 0) std::memcpy(indices.data(), questions->data.data(), indices.size() * sizeof(int32_t));
    for (int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<size_t>(row);
      const int64_t local = indices[at] - header.first_question;
      if (local < 0 || local >= static_cast<int64_t>(header.ids.size())) {
        return Malformed(path, "row " + std::to_string(row) + ": question " + std::to_string(indices[at]) +
                                   " is not one of this shard's");
      }
      const std::string& id = header.ids[static_cast<size_t>(local)];
      if (marks[at] != 0.0F && marks[at] != 1.0F) {
        return Malformed(path, "row " + std::to_string(row) + " (question '" + id + "'): the label is not 0 or 1");
      }
      const auto* begin = values.data() + row * header.hidden;
      if (!std::all_of(begin, begin + header.hidden, [](float value) { return std::isfinite(value); })) {
        return Error{ErrorCode::kNumeric, path + ": row " + std::to_string(row) + " (question '" + id +
                                              "'): the state holds NaN or infinite values"};
      }
      const auto [entry, fresh] = index_.try_emplace(id, static_cast<int32_t>(set_.questions.size()));
      if (fresh) set_.questions.push_back(id);
      set_.question.push_back(entry->second);
    }
    set_.states.insert(set_.states.end(), values.begin(), values.end());
    set_.labels.insert(set_.labels.end(), marks.begin(), marks.end());
    return {};
  }

  FeatureSet Take() { return std::move(set_); }

 private:
  Status Agree(const ShardHeader& header, const std::string& path) {
    if (first_path_.empty()) {
      first_path_ = path;
      traits_ = header.traits;
      set_.kind = header.json["kind"] == "switcher" ? FeatureKind::kSwitcher : FeatureKind::kVerifier;
      set_.hidden = header.hidden;
      set_.provenance = header.json["provenance"].get<std::string>();
      if (set_.kind == FeatureKind::kSwitcher) {
        set_.pooling = {header.json["chunk"].get<int64_t>(), header.json["alpha"].get<double>()};
      } else {
        set_.adapter = header.json["verification_adapter"].get<bool>();
        set_.prompt = header.prompt;
      }
      return {};
    }
    // The kind comes early: sets of different kinds have other traits after it.
    for (size_t i = 0; i < traits_.size() && i < header.traits.size(); ++i) {
      if (traits_[i] == header.traits[i]) continue;
      return Error{ErrorCode::kMismatch, path + ": " + header.traits[i].first + " is " + header.traits[i].second +
                                             ", " + traits_[i].second + " in " + first_path_};
    }
    return {};
  }

  FeatureSet set_;
  std::map<std::string, int32_t> index_;
  std::string first_path_;
  Traits traits_;
};

}  // namespace

Result<FeatureSet> ReadFeatures(const std::vector<std::string>& folders) {
  Reader reader;
  for (const std::string& folder : folders) {
    PITH_ASSIGN(const auto shards, ShardsOf(folder));
    for (const std::string& path : shards) PITH_RETURN_IF_ERROR(reader.Read(path));
  }
  FeatureSet set = reader.Take();
  if (set.rows() == 0) return Error{ErrorCode::kInvalidArgument, "the features have no rows"};
  return set;
}

}  // namespace pith::heads
