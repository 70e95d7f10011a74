#include "reason/reason_model.h"

#include <algorithm>
#include <filesystem>

#include "base/json.h"

namespace pith {
namespace {

constexpr const char* kPlaceholder = "{budget}";
constexpr int64_t kMaxReserve = 4096;
constexpr int64_t kMaxBudget = int64_t{1} << 20;
constexpr size_t kMaxText = 4096;  // bytes

Error Malformed(const std::string& what, const std::string& field, const std::string& why) {
  return {ErrorCode::kMalformed, what + ": \"" + field + "\" " + why};
}

Status TakeText(Json& json, const std::string& what, const std::string& field, std::string* text) {
  const auto found = json.find(field);
  if (found == json.end()) return {};
  if (!found->is_string()) return Malformed(what, field, "is not a string");
  *text = found->get<std::string>();
  if (text->size() > kMaxText) return Malformed(what, field, "has more than " + std::to_string(kMaxText) + " bytes");
  json.erase(found);
  return {};
}

Status TakeInteger(Json& json, const std::string& what, const std::string& field, int64_t most, int64_t* number) {
  const auto found = json.find(field);
  if (found == json.end()) return {};
  if (!found->is_number_integer()) return Malformed(what, field, "is not an integer");
  // As a double first: unsigned numbers above the range of int64 would wrap.
  const auto value = found->get<double>();
  if (!(value >= 1 && value <= static_cast<double>(most))) {
    return Malformed(what, field, "must be 1 to " + std::to_string(most));
  }
  *number = found->get<int64_t>();
  json.erase(found);
  return {};
}

// The file of a head: the one that was asked for, else the adapter directory's, if it is there.
std::string HeadPath(const std::string& given, const std::string& adapter, const char* name) {
  if (!given.empty() || adapter.empty()) return given;
  const std::string path = adapter + "/" + name;
  std::error_code error;
  return std::filesystem::exists(path, error) ? path : std::string();
}

}  // namespace

std::string ReasoningTexts::BudgetText(int64_t budget) const {
  std::string text = budget_template;
  const size_t at = text.find(kPlaceholder);
  if (at != std::string::npos) text.replace(at, std::string_view(kPlaceholder).size(), std::to_string(budget));
  return text;
}

Result<ReasoningTexts> ParseReasoningTexts(std::string_view text, const std::string& what) {
  PITH_ASSIGN(Json json, ParseJson(text, what));
  if (!json.is_object()) return Error{ErrorCode::kMalformed, what + ": not an object"};
  ReasoningTexts texts;
  PITH_RETURN_IF_ERROR(TakeText(json, what, "budget_template", &texts.budget_template));
  PITH_RETURN_IF_ERROR(TakeText(json, what, "answer_prefix", &texts.answer_prefix));
  PITH_RETURN_IF_ERROR(TakeInteger(json, what, "answer_reserve", kMaxReserve, &texts.answer_reserve));
  PITH_RETURN_IF_ERROR(TakeInteger(json, what, "default_budget", kMaxBudget, &texts.default_budget));
  if (!json.empty()) return Malformed(what, json.begin().key(), "is not a known field");
  const size_t first = texts.budget_template.find(kPlaceholder);
  if (!texts.budget_template.empty() &&
      (first == std::string::npos || texts.budget_template.find(kPlaceholder, first + 1) != std::string::npos)) {
    return Malformed(what, "budget_template", "must hold {budget} exactly once");
  }
  if (texts.answer_prefix.empty()) return Malformed(what, "answer_prefix", "is empty");
  return texts;
}

std::string WriteReasoningTexts(const ReasoningTexts& texts) {
  OrderedJson json;
  if (!texts.budget_template.empty()) json["budget_template"] = texts.budget_template;
  json["answer_prefix"] = texts.answer_prefix;
  json["answer_reserve"] = texts.answer_reserve;
  json["default_budget"] = texts.default_budget;
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<std::optional<ReasoningTexts>> ReadReasoningTexts(const std::string& adapter_dir) {
  const std::string path = adapter_dir + "/" + kReasoningFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::optional<ReasoningTexts>();
  PITH_ASSIGN(const Json json, ReadJsonFile(path, uint64_t{1} << 20));
  PITH_ASSIGN(ReasoningTexts texts, ParseReasoningTexts(json.dump(), path));
  return std::optional(std::move(texts));
}

Status ReasonModel::Finish() {
  // The tags may be tokens of the vocabulary, special ones even. Each text is encoded as a whole, as it would stand in
  // training data.
  const auto encode = [this](const std::string& text) {
    return tokenizer->Encode(text, {.parse_special = true, .special_ranges = {}});
  };
  auto tokens = std::make_shared<ForcedTokens>();
  PITH_ASSIGN(tokens->open, encode(std::string(kThinkOpen)));
  PITH_ASSIGN(tokens->close, encode(std::string(kThinkClose) + texts.answer_prefix));
  PITH_ASSIGN(tokens->answer, encode("\n\n" + texts.answer_prefix));
  const size_t box = texts.answer_prefix.rfind('\\');
  tokens->marker = box == std::string::npos ? texts.answer_prefix : texts.answer_prefix.substr(box);
  forced = std::move(tokens);
  return {};
}

Result<std::unique_ptr<LoadedReasonModel>> LoadedReasonModel::Load(TextModel& text_model,
                                                                   const ReasonModelOptions& options) {
  auto loaded = std::unique_ptr<LoadedReasonModel>(new LoadedReasonModel(text_model));
  ReasonModel& model = loaded->model_;
  model.engine = &loaded->engine_;
  model.tokenizer = text_model.tokenizer();
  model.stop_ids = text_model.stop_ids();
  const int64_t hidden = text_model.engine().config().hidden;
  if (!options.adapter.empty()) {
    PITH_ASSIGN(model.adapter, text_model.engine().LoadAdapter(options.adapter));
    PITH_ASSIGN(const auto texts, ReadReasoningTexts(options.adapter));
    if (texts) model.texts = *texts;
  }
  if (const std::string path = HeadPath(options.switcher, options.adapter, kSwitcherFile); !path.empty()) {
    PITH_ASSIGN(model.switcher, ReadSwitcher(path, hidden));
  }
  if (const std::string path = HeadPath(options.verifier, options.adapter, kVerifierFile); !path.empty()) {
    PITH_ASSIGN(model.verifier, ReadVerifier(path, hidden));
    PITH_ASSIGN(model.verification, VerificationTokens(text_model, model.verifier->prompt));
    model.verification_adapter = model.verifier->adapter;
  }
  PITH_RETURN_IF_ERROR(model.Finish());
  return loaded;
}

Result<std::vector<int32_t>> VerificationTokens(const TextModel& model, const std::string& prompt) {
  const auto family = model.family();
  if (!family.ok()) return model.tokenizer()->Encode("\n\n" + prompt, {});
  // What the template puts after an answer does not depend on the answer: render one with a known text in its place.
  constexpr std::string_view kAnswer = "0f3c-the-answer-a91e";
  PITH_ASSIGN(const RenderedPrompt rendered,
              RenderChat(*family, {{"user", "?"}, {"assistant", std::string(kAnswer)}, {"user", prompt}}, {}));
  const size_t at = rendered.text.find(kAnswer);
  if (at == std::string::npos) return Error{ErrorCode::kInternal, "the chat template lost an answer"};
  const size_t begin = at + kAnswer.size();
  RenderedPrompt rest;
  rest.text = rendered.text.substr(begin);
  for (const TextRange& range : rendered.template_ranges) {
    if (range.end > begin) rest.template_ranges.push_back({std::max(range.begin, begin) - begin, range.end - begin});
  }
  return EncodePrompt(*model.tokenizer(), rest);
}

Result<Prompts> RenderPrompts(const TextModel& model, const ReasoningTexts& texts,
                              const std::vector<ChatMessage>& messages, int64_t budget) {
  Prompts prompts;
  PITH_ASSIGN(prompts.direct, model.Render(messages));
  prompts.reason = prompts.direct;
  if (budget <= 0 || texts.budget_template.empty()) return prompts;
  std::vector<ChatMessage> with_budget = messages;
  for (auto message = with_budget.rbegin(); message != with_budget.rend(); ++message) {
    if (message->role != "user") continue;
    message->content += texts.BudgetText(budget);
    break;
  }
  PITH_ASSIGN(prompts.reason, model.Render(with_budget));
  return prompts;
}

}  // namespace pith
