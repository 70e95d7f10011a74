#include "train/dataset.h"

#include <algorithm>
#include <fstream>
#include <numeric>

#include "base/json.h"
#include "base/random.h"
#include "model/adapter_mask.h"

namespace pith::train {

namespace {

constexpr size_t kMaxLineBytes = size_t{64} << 20;

// A line as messages, or as a plain text.
struct Line {
  std::vector<ChatMessage> messages;
  std::string text;
  bool plain = false;
};

Error Malformed(const std::string& what, const std::string& problem) {
  return {ErrorCode::kMalformed, what + ": " + problem};
}

// Role names of ShareGPT beside the usual ones.
std::string CanonicalRole(const std::string& role) {
  if (role == "human") return "user";
  if (role == "gpt" || role == "model") return "assistant";
  return role;
}

Status AddMessages(const Json& list, const char* role_key, const char* content_key, const std::string& what,
                   std::vector<ChatMessage>* messages) {
  for (const Json& item : list) {
    if (!item.is_object() || !item.contains(role_key) || !item[role_key].is_string() || !item.contains(content_key) ||
        !item[content_key].is_string()) {
      return Malformed(what, std::string("a message needs the strings '") + role_key + "' and '" + content_key + "'");
    }
    messages->push_back({CanonicalRole(item[role_key].get<std::string>()), item[content_key].get<std::string>()});
  }
  return {};
}

// A side of prompt/response: a text, or a list of messages.
Status AddSide(const Json& side, const char* role, const std::string& what, std::vector<ChatMessage>* messages) {
  if (side.is_string()) {
    messages->push_back({role, side.get<std::string>()});
    return {};
  }
  if (side.is_array()) return AddMessages(side, "role", "content", what, messages);
  return Malformed(what, "prompt and response are texts or lists of messages");
}

Result<Line> ParseLine(const std::string& text, const std::string& what) {
  PITH_ASSIGN(const Json json, ParseJson(text, what));
  if (!json.is_object()) return Malformed(what, "not a JSON object");
  Line line;
  if (json.contains("messages")) {
    if (!json["messages"].is_array()) return Malformed(what, "'messages' is not a list");
    PITH_RETURN_IF_ERROR(AddMessages(json["messages"], "role", "content", what, &line.messages));
    return line;
  }
  if (json.contains("conversations")) {
    if (!json["conversations"].is_array()) return Malformed(what, "'conversations' is not a list");
    PITH_RETURN_IF_ERROR(AddMessages(json["conversations"], "from", "value", what, &line.messages));
    return line;
  }
  const char* response = json.contains("response") ? "response" : "completion";
  if (json.contains("prompt") && json.contains(response)) {
    PITH_RETURN_IF_ERROR(AddSide(json["prompt"], "user", what, &line.messages));
    PITH_RETURN_IF_ERROR(AddSide(json[response], "assistant", what, &line.messages));
    return line;
  }
  if (json.contains("text") && json["text"].is_string()) {
    line.text = json["text"].get<std::string>();
    line.plain = true;
    return line;
  }
  return Malformed(what, "has none of messages, conversations, prompt with response or completion, text");
}

// Inputs and labels of a token sequence whose tokens t with learned[t] are to be predicted. The last token is only a
// label; inputs behind the last label compute nothing that is learned.
Sample MakeSample(const std::vector<int32_t>& tokens, const std::vector<uint8_t>& learned, int64_t response) {
  Sample sample;
  sample.response = response;
  size_t end = 0;
  for (size_t t = 1; t < tokens.size(); ++t) {
    if (learned[t] != 0) end = t;
  }
  sample.tokens.assign(tokens.begin(), tokens.begin() + static_cast<int64_t>(end));
  for (size_t t = 0; t < end; ++t) sample.labels.push_back(learned[t + 1] != 0 ? tokens[t + 1] : kNoLabel);
  return sample;
}

Result<Sample> TextSample(const Tokenizer& tokenizer, const std::string& text, const std::vector<int32_t>& eos_ids) {
  EncodeOptions encode;
  encode.add_bos = true;
  PITH_ASSIGN(std::vector<int32_t> tokens, tokenizer.Encode(text, encode));
  if (!eos_ids.empty()) tokens.push_back(eos_ids[0]);
  return MakeSample(tokens, std::vector<uint8_t>(tokens.size(), 1), 0);
}

int64_t LabelsOf(const Sample& sample) {
  return std::count_if(sample.labels.begin(), sample.labels.end(), [](int32_t l) { return l != kNoLabel; });
}

}  // namespace

Result<Sample> ChatSample(const Tokenizer& tokenizer, TemplateFamily family, const std::vector<ChatMessage>& messages,
                          bool all_turns) {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learned;
  int64_t response = 0;
  size_t last = messages.size();
  while (last > 0 && messages[last - 1].role != "assistant") --last;
  for (size_t turn = 0; turn < last; ++turn) {
    if (messages[turn].role != "assistant" || (!all_turns && turn + 1 != last)) continue;
    // The prompt of this turn is what the runtime would have; the response is its text and the end of the turn.
    const std::vector<ChatMessage> before(messages.begin(), messages.begin() + static_cast<int64_t>(turn));
    PITH_ASSIGN(const RenderedPrompt rendered, RenderChat(family, before, {}));
    PITH_ASSIGN(const std::vector<int32_t> prompt, EncodePrompt(tokenizer, rendered));
    if (tokens.size() > prompt.size() || !std::equal(tokens.begin(), tokens.end(), prompt.begin())) {
      return Error{ErrorCode::kUnsupported,
                   std::string("the template ") + TemplateFamilyName(family) +
                       " changes earlier turns of a chat: all turns cannot be learned in one sequence"};
    }
    learned.resize(prompt.size(), 0);
    tokens = prompt;
    response = AdapterStart(prompt);
    PITH_ASSIGN(const std::vector<int32_t> content, tokenizer.Encode(messages[turn].content, {}));
    tokens.insert(tokens.end(), content.begin(), content.end());
    if (!content.empty()) {
      const int32_t end = tokenizer.FindToken(TurnEndToken(family));
      if (end < 0) {
        return Error{ErrorCode::kMismatch, "the tokenizer has no '" + std::string(TurnEndToken(family)) +
                                               "', which ends a turn of the template " + TemplateFamilyName(family)};
      }
      tokens.push_back(end);
    }
    learned.resize(tokens.size(), 1);
  }
  // With several learned turns the adapter would have to be on from the first of them.
  return MakeSample(tokens, learned, response);
}

Result<Dataset> ReadDataset(const std::string& path, const Tokenizer& tokenizer, const DatasetOptions& options) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{ErrorCode::kNotFound, "cannot open '" + path + "'"};
  Dataset dataset;
  DatasetReport& report = dataset.report;
  std::string text;
  int64_t number = 0;
  while (std::getline(file, text)) {
    ++number;
    const std::string what = "'" + path + "' line " + std::to_string(number);
    if (text.size() > kMaxLineBytes) return Malformed(what, "longer than 64 MiB");
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    ++report.lines;
    PITH_ASSIGN(const Line line, ParseLine(text, what));
    if (!line.plain && !options.family) {
      return Error{ErrorCode::kInvalidArgument, what + ": a chat needs a template (--template)"};
    }
    Result<Sample> made = line.plain ? TextSample(tokenizer, line.text, options.eos_ids)
                                     : ChatSample(tokenizer, *options.family, line.messages, options.all_turns);
    if (!made.ok()) return made.error().Wrap(what);
    Sample& sample = *made;
    const int64_t labels = LabelsOf(sample);
    if (labels == 0) {
      ++report.no_labels;
    } else if (static_cast<int64_t>(sample.tokens.size()) > options.max_length) {
      ++report.too_long;
    } else {
      report.tokens += static_cast<int64_t>(sample.tokens.size());
      report.labels += labels;
      dataset.samples.push_back(std::move(sample));
    }
  }
  if (file.bad()) return Error{ErrorCode::kIo, "cannot read '" + path + "'"};
  report.samples = static_cast<int64_t>(dataset.samples.size());
  if (dataset.samples.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + path + "' has nothing to learn: of " + std::to_string(report.lines) + " samples " +
                     std::to_string(report.too_long) + " are longer than " + std::to_string(options.max_length) +
                     " tokens and " + std::to_string(report.no_labels) + " have no response"};
  }
  return dataset;
}

std::vector<int64_t> EpochOrder(int64_t samples, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), int64_t{0});
  // Fisher and Yates, drawn from (seed, epoch, position).
  for (int64_t i = samples - 1; i > 0; --i) {
    const uint64_t bits = RandomBits(seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(i));
    const auto j = static_cast<size_t>(bits % static_cast<uint64_t>(i + 1));
    std::swap(order[static_cast<size_t>(i)], order[j]);
  }
  return order;
}

std::vector<std::vector<int64_t>> PackRows(const std::vector<Sample>& samples, const std::vector<int64_t>& order,
                                           int64_t row_length, bool packing) {
  // Rows that still take samples. A row closes when more are open than this, the fullest first.
  constexpr size_t kOpenRows = 16;
  struct Open {
    size_t row;
    int64_t used;
  };
  std::vector<std::vector<int64_t>> rows;
  std::vector<Open> open;
  for (const int64_t index : order) {
    const auto length = static_cast<int64_t>(samples[static_cast<size_t>(index)].tokens.size());
    const auto fits =
        std::find_if(open.begin(), open.end(), [&](const Open& o) { return o.used + length <= row_length; });
    if (packing && fits != open.end()) {
      rows[fits->row].push_back(index);
      fits->used += length;
      continue;
    }
    open.push_back({rows.size(), length});
    rows.push_back({index});
    if (open.size() > kOpenRows) {
      open.erase(
          std::max_element(open.begin(), open.end(), [](const Open& a, const Open& b) { return a.used < b.used; }));
    }
  }
  return rows;
}

}  // namespace pith::train
