#include "eval/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <set>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/random.h"

namespace pith {

namespace {

constexpr std::string_view kProblemMark = "{problem}";
constexpr int64_t kMostCap = int64_t{1} << 20;
constexpr int64_t kMostStreams = 256;  // of AnswerOptions
constexpr int64_t kMostRepeats = 1000;
constexpr std::array kSources = {AnswerSource::kBox, AnswerSource::kStated, AnswerSource::kWhole, AnswerSource::kLast};
constexpr std::array kModes = {ReasonMode::kAuto, ReasonMode::kOn, ReasonMode::kOff};

size_t Count(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// Calls `take` with each part between commas, until it fails.
template <class Take>
Status ForEachPart(std::string_view text, const Take& take) {
  while (true) {
    const size_t comma = text.find(',');
    PITH_RETURN_IF_ERROR(take(text.substr(0, comma)));
    if (comma == std::string_view::npos) return {};
    text.remove_prefix(comma + 1);
  }
}

Status CheckFormat(const PromptFormat& format, const std::string& what) {
  const auto refuse = [&](const std::string& why) { return Error{ErrorCode::kInvalidArgument, what + ": " + why}; };
  if (Count(format.user, kProblemMark) != 1) return refuse("'user' does not hold {problem} exactly once");
  if (format.accept.empty()) return refuse("'accept' is empty");
  const bool asks_for_box = format.user.find("\\boxed") != std::string::npos ||
                            (format.system && format.system->find("\\boxed") != std::string::npos);
  const bool takes_boxes = std::count(format.accept.begin(), format.accept.end(), AnswerSource::kBox) > 0;
  if (asks_for_box && !takes_boxes) return refuse("the prompt asks for \\boxed, but 'accept' lacks \"box\"");
  if (!asks_for_box && takes_boxes && format.accept.size() == 1) {
    return refuse("only boxes are accepted, but the prompt does not ask for \\boxed");
  }
  return {};
}

Result<std::vector<AnswerSource>> ParseAccept(const Json& json, const Error& malformed) {
  if (!json.is_array()) return malformed;
  std::vector<AnswerSource> accept;
  for (const Json& item : json) {
    if (!item.is_string()) return malformed;
    const auto name = item.get<std::string>();
    const auto* found = std::find_if(kSources.begin(), kSources.end(),
                                     [&](AnswerSource source) { return name == AnswerSourceName(source); });
    if (found == kSources.end() || std::count(accept.begin(), accept.end(), *found) > 0) return malformed;
    accept.push_back(*found);
  }
  return accept;
}

// {"a":{"b":1}} as "a.b": 1.
void Flatten(const OrderedJson& json, const std::string& prefix,
             std::vector<std::pair<std::string, std::string>>& out) {
  for (const auto& [key, value] : json.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object() && prefix.empty()) {
      Flatten(value, name, out);
    } else {
      out.emplace_back(name, value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    }
  }
}

}  // namespace

std::vector<ChatMessage> PromptFormat::Messages(std::string_view problem) const {
  std::vector<ChatMessage> messages;
  if (system) messages.push_back({"system", *system});
  std::string content = user;
  if (const size_t at = content.find(kProblemMark); at != std::string::npos) {
    content.replace(at, kProblemMark.size(), problem);
  }
  messages.push_back({"user", std::move(content)});
  return messages;
}

std::optional<ExtractedAnswer> PromptFormat::Extract(std::string_view text, bool truncated) const {
  auto answer = ExtractAnswer(text, {.truncated = truncated});
  if (answer && std::count(accept.begin(), accept.end(), answer->source) == 0) answer.reset();
  return answer;
}

Result<PromptFormat> ParsePromptFormat(std::string_view text, const std::string& what) {
  PITH_ASSIGN(const Json json, ParseJson(text, what));
  const auto malformed = [&](const std::string& why) { return Error{ErrorCode::kMalformed, what + ": " + why}; };
  if (!json.is_object()) return malformed("not a JSON object");
  PromptFormat format;
  format.name = what;
  for (const auto& [key, value] : json.items()) {
    if (key == "user" || key == "system") {
      if (!value.is_string()) return malformed("'" + key + "' is not a string");
      (key == "user" ? format.user : format.system.emplace()) = value.get<std::string>();
    } else if (key == "accept") {
      PITH_ASSIGN(
          format.accept,
          ParseAccept(value, malformed("'accept' is not an array of \"box\", \"stated\", \"whole\", \"last\"")));
    } else {
      return malformed("unknown field '" + key + "'");
    }
  }
  PITH_RETURN_IF_ERROR(CheckFormat(format, what));
  return format;
}

Result<PromptFormat> LoadPromptFormat(const std::string& name_or_path) {
  if (name_or_path == "boxed") return PromptFormat{};
  if (name_or_path == "plain") {
    PromptFormat format;
    format.name = "plain";
    format.user = kProblemMark;
    return format;
  }
  if (name_or_path.find('/') == std::string::npos && name_or_path.find('.') == std::string::npos) {
    return Error{ErrorCode::kInvalidArgument,
                 "no prompt format '" + name_or_path + "': boxed, plain, or the path of a JSON file"};
  }
  PITH_ASSIGN(const auto file, MappedFile::Open(name_or_path));
  PITH_ASSIGN(
      PromptFormat format,
      ParsePromptFormat({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()}, name_or_path));
  format.name = std::filesystem::path(name_or_path).stem().string();
  return format;
}

const char* ReasonModeName(ReasonMode mode) {
  switch (mode) {
    case ReasonMode::kAuto: return "auto";
    case ReasonMode::kOn: return "on";
    case ReasonMode::kOff: break;
  }
  return "off";
}

Result<ReasonMode> ParseReasonMode(std::string_view name) {
  for (const ReasonMode mode : kModes) {
    if (name == ReasonModeName(mode)) return mode;
  }
  return Error{ErrorCode::kInvalidArgument, "'" + std::string(name) + "' is not a mode: auto, on, off"};
}

Result<std::vector<int64_t>> ParseCaps(std::string_view text) {
  std::set<int64_t> caps;
  PITH_RETURN_IF_ERROR(ForEachPart(text, [&](std::string_view part) -> Status {
    int64_t value = 0;
    const char* last = part.data() + part.size();
    const auto [end, error] = std::from_chars(part.data(), last, value);
    const bool thousands = end + 1 == last && (*end == 'K' || *end == 'k');
    if (error != std::errc() || (end != last && !thousands) || value < 1 || value > kMostCap / (thousands ? 1024 : 1)) {
      return Error{ErrorCode::kInvalidArgument,
                   "'" + std::string(part) + "' is not a budget: a number of tokens such as 512 or 2K, at most 1024K"};
    }
    caps.insert(thousands ? value * 1024 : value);
    return {};
  }));
  return std::vector<int64_t>(caps.begin(), caps.end());
}

Result<std::vector<double>> ParseThresholds(std::string_view text) {
  std::set<double> thresholds;
  PITH_RETURN_IF_ERROR(ForEachPart(text, [&](std::string_view part) -> Status {
    double value = 0;
    const char* last = part.data() + part.size();
    const auto [end, error] = std::from_chars(part.data(), last, value);
    if (error != std::errc() || end != last || !(value >= 0 && value <= 1)) {
      return Error{ErrorCode::kInvalidArgument, "'" + std::string(part) + "' is not a threshold: a number in 0..1"};
    }
    thresholds.insert(value);
    return {};
  }));
  return std::vector<double>(thresholds.begin(), thresholds.end());
}

Status ValidateSettings(const EvalSettings& settings) {
  const auto refuse = [](const std::string& why) { return Error{ErrorCode::kInvalidArgument, why}; };
  PITH_RETURN_IF_ERROR(ValidateSampling(settings.sampling));
  PITH_RETURN_IF_ERROR(CheckFormat(settings.prompt, "prompt '" + settings.prompt.name + "'"));
  if (settings.problems < 1) return refuse("there is no problem to run");
  if (settings.parallel < 1 || settings.parallel > kMostStreams) return refuse("streams of a question: 1..256");
  if (settings.repeats < 1 || settings.repeats > kMostRepeats) return refuse("repeats: 1..1000");
  if (settings.modes.empty()) return refuse("no mode to run in");
  if (settings.caps.empty()) return refuse("no budget to run with");
  if (settings.sampling.temperature == 0 && settings.parallel > 1) {
    return refuse("several streams at temperature 0 would all be the same");
  }
  if (settings.sampling.temperature == 0 && settings.repeats > 1) {
    return refuse("repeats at temperature 0 would all be the same");
  }
  if (settings.adapter_on_prompt && settings.modes != std::vector{ReasonMode::kOn}) {
    return refuse("the adapter on the prompt goes with reasoning on, and with no other mode");
  }
  if (settings.threshold && !(*settings.threshold >= 0 && *settings.threshold <= 1)) return refuse("threshold: 0..1");
  return {};
}

std::string SettingsJson(const EvalSettings& settings) {
  OrderedJson model = OrderedJson::object();
  for (const auto& [name, value] : settings.model) model[name] = value;
  OrderedJson prompt{{"name", settings.prompt.name}, {"user", settings.prompt.user}};
  prompt["system"] = settings.prompt.system ? OrderedJson(*settings.prompt.system) : OrderedJson(nullptr);
  prompt["accept"] = OrderedJson::array();
  for (const AnswerSource source : settings.prompt.accept) prompt["accept"].push_back(AnswerSourceName(source));
  OrderedJson modes = OrderedJson::array();
  for (const ReasonMode mode : settings.modes) modes.push_back(ReasonModeName(mode));
  const SamplingParams& sampling = settings.sampling;
  OrderedJson json{
      {"format", 1},
      {"suite", {{"name", settings.suite}, {"sha256", settings.suite_sha256}, {"problems", settings.problems}}},
      {"model", model},
      {"prompt", prompt},
      {"sampling",
       {{"temperature", sampling.temperature},
        {"top_k", sampling.top_k},
        {"top_p", sampling.top_p},
        {"min_p", sampling.min_p},
        {"repetition_penalty", sampling.repetition_penalty},
        {"seed", sampling.seed}}},
      {"reason", modes},
      {"threshold", settings.threshold ? OrderedJson(*settings.threshold) : OrderedJson(nullptr)},
      {"budgets", settings.caps},
      {"parallel", settings.parallel},
      {"repeats", settings.repeats},
      {"force_answer", settings.force_answer}};
  // Only when it is: runs of before have no such line.
  if (settings.adapter_on_prompt) json["adapter_on_prompt"] = true;
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

Result<PromptFormat> PromptFormatOfSettings(const std::string& settings_json) {
  PITH_ASSIGN(const Json json, ParseJson(settings_json, "run.json"));
  const Error malformed{ErrorCode::kMalformed, "run.json: there is no 'prompt' as this program writes it"};
  if (!json.is_object() || !json.contains("prompt")) return malformed;
  Json prompt = json["prompt"];
  if (!prompt.is_object() || !prompt.contains("name") || !prompt["name"].is_string()) return malformed;
  const auto name = prompt["name"].get<std::string>();
  prompt.erase("name");
  if (prompt.contains("system") && prompt["system"].is_null()) prompt.erase("system");
  PITH_ASSIGN(PromptFormat format, ParsePromptFormat(prompt.dump(), "run.json: prompt"));
  format.name = name;
  return format;
}

Result<std::vector<std::string>> SettingsDifferences(const std::string& stored, const std::string& now,
                                                     const std::string& what) {
  std::vector<std::pair<std::string, std::string>> there;
  std::vector<std::pair<std::string, std::string>> here;
  PITH_ASSIGN(const Json stored_json, ParseJson(stored, what));
  if (!stored_json.is_object()) return Error{ErrorCode::kMalformed, what + ": not a JSON object"};
  PITH_ASSIGN(const Json now_json, ParseJson(now, "settings"));
  Flatten(OrderedJson(stored_json), "", there);
  Flatten(OrderedJson(now_json), "", here);
  std::vector<std::string> differences;
  const auto value_of = [](const auto& list, const std::string& name) -> std::string {
    for (const auto& [key, value] : list) {
      if (key == name) return value;
    }
    return "nothing";
  };
  for (const auto& [name, value] : here) {
    const std::string before = value_of(there, name);
    if (before != value) differences.push_back(name + ": " + before + " there, " + value + " here");
  }
  for (const auto& [name, value] : there) {
    if (value_of(here, name) == "nothing") differences.push_back(name + ": " + value + " there, nothing here");
  }
  return differences;
}

uint64_t QuestionSeed(uint64_t seed, std::string_view id, int64_t repeat) {
  uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return RandomBits(seed, hash, static_cast<uint64_t>(repeat));
}

}  // namespace pith
