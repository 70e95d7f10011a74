#include "reason/features.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "grade/grade.h"
#include "model/safetensors.h"
#include "reason/batch_runner.h"

namespace pith {
namespace {

constexpr int64_t kMaxShardRows = 65536;

Error BadLine(const std::string& path, size_t line, const std::string& why) {
  return {ErrorCode::kMalformed, path + ": line " + std::to_string(line) + ": " + why};
}

std::optional<bool> LabelOf(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value == 0) return false;
  if (value == 1) return true;
  return std::nullopt;
}

Status ParseResponses(const Json& list, const std::string& path, size_t line, FeatureRow* row) {
  if (!list.is_array()) return BadLine(path, line, "\"responses\" is not a list");
  for (const Json& entry : list) {
    GivenResponse response;
    const Json* text = &entry;
    if (entry.is_object()) {
      const auto found = entry.find("text");
      if (found == entry.end()) return BadLine(path, line, "a response without \"text\"");
      text = &*found;
      if (const auto label = entry.find("label"); label != entry.end()) {
        response.label = LabelOf(*label);
        if (!response.label) return BadLine(path, line, "the label of a response is not 0 or 1");
      }
    }
    if (!text->is_string()) return BadLine(path, line, "a response that is no text");
    response.text = text->get<std::string>();
    row->responses.push_back(std::move(response));
  }
  return {};
}

// What is asked in a row, in the forms that public sets have.
std::optional<std::string> ProblemOf(const Json& row) {
  for (const char* name : {"problem", "prompt"}) {
    const auto found = row.find(name);
    if (found == row.end()) continue;
    return found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
  }
  if (const auto turns = row.find("turns"); turns != row.end()) {
    if (!turns->is_array() || turns->empty() || !turns->front().is_string()) return std::nullopt;
    return turns->front().get<std::string>();
  }
  const auto instruction = row.find("instruction");
  if (instruction == row.end() || !instruction->is_string()) return std::nullopt;
  auto text = instruction->get<std::string>();
  const auto instances = row.find("instances");
  if (instances == row.end() || !instances->is_array() || instances->empty() || !instances->front().is_object()) {
    return text;
  }
  const auto input = instances->front().find("input");
  if (input != instances->front().end() && input->is_string() && !input->get_ref<const std::string&>().empty()) {
    text += "\n\n" + input->get<std::string>();
  }
  return text;
}

Result<FeatureRow> ParseRow(std::string_view text, const std::string& path, size_t line,
                            const FeatureRowOptions& options) {
  PITH_ASSIGN(const Json json, ParseJson(text, path + ": line " + std::to_string(line)));
  if (!json.is_object()) return BadLine(path, line, "not an object");
  FeatureRow row;
  const auto id = json.find("id");
  if (id == json.end()) {
    row.id = std::to_string(line);
  } else if (id->is_string()) {
    row.id = id->get<std::string>();
  } else if (id->is_number_integer()) {
    row.id = id->dump();
  } else {
    return BadLine(path, line, "\"id\" is neither text nor an integer");
  }
  row.id = options.id_prefix + row.id;
  auto problem = ProblemOf(json);
  if (!problem) return BadLine(path, line, "no text under \"problem\" or \"prompt\"");
  row.problem = std::move(*problem);
  if (const auto label = json.find("label"); label != json.end()) {
    row.label = LabelOf(*label);
    if (!row.label) return BadLine(path, line, "\"label\" is not 0, 1, true or false");
  }
  if (options.label) row.label = options.label;
  if (const auto answer = json.find("answer"); answer != json.end()) {
    if (!answer->is_string()) return BadLine(path, line, "\"answer\" is no text");
    row.answer = answer->get<std::string>();
  }
  if (const auto responses = json.find("responses"); responses != json.end()) {
    PITH_RETURN_IF_ERROR(ParseResponses(*responses, path, line, &row));
  }
  if (options.kind == FeatureKind::kSwitcher && !row.label) {
    if (!options.grade_labels) return BadLine(path, line, "no \"label\"");
    if (row.answer.empty()) return BadLine(path, line, "neither a \"label\" nor an \"answer\"");
  }
  if (options.kind == FeatureKind::kVerifier && row.answer.empty()) {
    const bool labelled =
        !row.responses.empty() && std::all_of(row.responses.begin(), row.responses.end(),
                                              [](const GivenResponse& r) { return r.label.has_value(); });
    if (!labelled) return BadLine(path, line, "neither an \"answer\" nor responses with labels");
  }
  return row;
}

// The features of one shard, in order of question and response.
struct Features {
  std::vector<float> states;
  std::vector<float> labels;
  std::vector<int32_t> questions;  // index of the row
  std::vector<int32_t> streams;    // index of the response
  // What does not fit the context.
  std::vector<std::string> too_long_questions;
  int64_t too_long_responses = 0;

  void Add(std::span<const float> state, bool label, size_t question, size_t stream) {
    states.insert(states.end(), state.begin(), state.end());
    labels.push_back(label ? 1.0F : 0.0F);
    questions.push_back(static_cast<int32_t>(question));
    streams.push_back(static_cast<int32_t>(stream));
  }
};

class FeatureWriter {
 public:
  FeatureWriter(const ReasonModel& model, const std::vector<FeatureRow>& rows, const FeatureOptions& options,
                std::string dir)
      : model_(model), rows_(rows), options_(options), dir_(std::move(dir)) {}

  Result<FeatureReport> Run() {
    FeatureReport report;
    report.questions = static_cast<int64_t>(rows_.size());
    const auto size = static_cast<size_t>(options_.shard_rows);
    for (size_t begin = 0; begin < rows_.size(); begin += size, ++report.shards) {
      const size_t end = std::min(rows_.size(), begin + size);
      char name[64];
      std::snprintf(name, sizeof(name), "/features-%05zu.safetensors", begin / size);
      const std::string path = dir_ + name;
      const std::string metadata = Metadata(begin, end);
      std::error_code error;
      if (std::filesystem::exists(path, error)) {
        PITH_RETURN_IF_ERROR(Count(path, metadata, &report));
        ++report.shards_found;
      } else {
        Features features;
        PITH_RETURN_IF_ERROR(Compute(begin, end, &features));
        PITH_RETURN_IF_ERROR(Write(path, metadata, features));
        NoteLeftOut(features.too_long_questions, features.too_long_responses, &report);
        report.states += static_cast<int64_t>(features.labels.size());
        report.positives += std::count(features.labels.begin(), features.labels.end(), 1.0F);
      }
      if (options_.on_progress) options_.on_progress(static_cast<int64_t>(end), report.questions);
    }
    return report;
  }

 private:
  // Everything that the shard depends on, so that a run goes on only with its own shards.
  std::string Metadata(size_t begin, size_t end) const {
    Digest digest;
    const auto add = [&digest](std::string_view text) {
      digest.Update(std::to_string(text.size()) + ":");
      digest.Update(text);
    };
    OrderedJson ids = OrderedJson::array();
    for (size_t i = begin; i < end; ++i) {
      const FeatureRow& row = rows_[i];
      ids.push_back(row.id);
      add(row.id);
      add(row.problem);
      add(row.answer);
      add(row.label ? (*row.label ? "1" : "0") : "");
      for (const GivenResponse& response : row.responses) {
        add(response.text);
        add(response.label ? (*response.label ? "1" : "0") : "");
      }
    }
    const StatePooling pooling = model_.switcher ? model_.switcher->pooling : StatePooling{};
    const SamplingParams& sampling = options_.answer.sampling;
    OrderedJson json{{"version", 1},
                     {"kind", FeatureKindName(options_.kind)},
                     {"hidden_size", model_.engine->hidden()},
                     {"provenance", options_.provenance},
                     {"prompts", options_.prompts},
                     {"first_question", begin},
                     {"ids", std::move(ids)},
                     {"rows_sha256", digest.Finish()}};
    bool generates = options_.kind == FeatureKind::kVerifier;
    if (options_.kind == FeatureKind::kSwitcher) {
      json["chunk"] = pooling.chunk;
      json["alpha"] = pooling.alpha;
      generates =
          std::any_of(rows_.begin() + static_cast<std::ptrdiff_t>(begin),
                      rows_.begin() + static_cast<std::ptrdiff_t>(end), [](const auto& row) { return !row.label; });
    } else {
      json["verification_prompt"] = options_.verification_prompt;
      json["verification_tokens"] = model_.verification;
      json["verification_adapter"] = model_.verification_adapter;
    }
    if (generates) {
      json["reason"] = options_.answer.mode == ReasonMode::kOn;
      json["budget"] = options_.answer.budget;
      json["parallel"] = options_.answer.parallel;
      json["sampling"] = {sampling.temperature,        sampling.top_k, sampling.top_p, sampling.min_p,
                          sampling.repetition_penalty, sampling.seed};
    }
    return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }

  static void NoteLeftOut(const std::vector<std::string>& questions, int64_t responses, FeatureReport* report) {
    report->too_long_questions.insert(report->too_long_questions.end(), questions.begin(), questions.end());
    report->too_long_responses += responses;
  }

  // A shard of an earlier run.
  static Status Count(const std::string& path, const std::string& metadata, FeatureReport* report) {
    PITH_ASSIGN(const auto file, SafetensorsFile::Open(path));
    const auto found = file->metadata().find(kFeaturesMetadata);
    if (found == file->metadata().end() || found->second != metadata) {
      return Error{ErrorCode::kMismatch,
                   path + ": of other questions, another model or other settings; choose another folder"};
    }
    const Tensor* labels = file->Find("labels");
    if (labels == nullptr) return Error{ErrorCode::kMalformed, path + ": no tensor \"labels\""};
    PITH_ASSIGN(const auto values, ToFloats(*labels));
    report->states += static_cast<int64_t>(values.size());
    report->positives += std::count(values.begin(), values.end(), 1.0F);
    const auto left_out = file->metadata().find(kFeaturesLeftOut);
    if (left_out == file->metadata().end()) return {};
    PITH_ASSIGN(const Json json, ParseJson(left_out->second, path));
    const bool valid =
        json.is_object() && json.contains("questions") && json["questions"].is_array() && json.contains("responses") &&
        json["responses"].is_number_unsigned() &&
        std::all_of(json["questions"].begin(), json["questions"].end(), [](const Json& id) { return id.is_string(); });
    if (!valid) return Error{ErrorCode::kMalformed, path + ": the entry '" + kFeaturesLeftOut + "' is wrong"};
    NoteLeftOut(json["questions"].get<std::vector<std::string>>(), json["responses"].get<int64_t>(), report);
    return {};
  }

  Status Write(const std::string& path, const std::string& metadata, const Features& features) const {
    const auto n = static_cast<int64_t>(features.labels.size());
    std::map<std::string, std::string> entries{{kFeaturesMetadata, metadata}};
    if (!features.too_long_questions.empty() || features.too_long_responses > 0) {
      const OrderedJson left_out{{"questions", features.too_long_questions},
                                 {"responses", features.too_long_responses}};
      entries[kFeaturesLeftOut] = left_out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    }
    PITH_ASSIGN(const auto writer, SafetensorsWriter::Create(path,
                                                             {{"states", DType::kF32, {n, model_.engine->hidden()}},
                                                              {"labels", DType::kF32, {n}},
                                                              {"questions", DType::kI32, {n}},
                                                              {"streams", DType::kI32, {n}}},
                                                             entries));
    PITH_RETURN_IF_ERROR(writer->Write("states", std::as_bytes(std::span(features.states))));
    PITH_RETURN_IF_ERROR(writer->Write("labels", std::as_bytes(std::span(features.labels))));
    PITH_RETURN_IF_ERROR(writer->Write("questions", std::as_bytes(std::span(features.questions))));
    PITH_RETURN_IF_ERROR(writer->Write("streams", std::as_bytes(std::span(features.streams))));
    return writer->Finish();
  }

  Status Compute(size_t begin, size_t end, Features* features) {
    // By question, as they may finish in any order.
    std::map<size_t, Features> parts;
    BatchRunner runner(model_, {.max_streams = options_.max_streams});
    size_t next = begin;
    while (true) {
      PITH_RETURN_IF_ERROR(GoesOn());
      while (next < end && runner.HasRoom(options_.answer.parallel)) {
        const size_t i = next++;
        PITH_ASSIGN(auto prompt, Rendered(i));
        Features& part = parts[i];
        if (ReadsResponses(i)) {
          PITH_RETURN_IF_ERROR(ReadResponses(i, prompt, &part));
        } else {
          PITH_RETURN_IF_ERROR(Fits(runner.Add(i, MakeQuestion(i, std::move(prompt))), i, &part));
        }
      }
      if (runner.idle()) {
        if (next == end) break;
        continue;
      }
      for (auto& finished : runner.Step()) {
        if (finished.answer.ok()) {
          Collect(finished.id, *finished.answer, &parts[finished.id]);
        } else {
          PITH_RETURN_IF_ERROR(Fits(finished.answer.error(), finished.id, &parts[finished.id]));
        }
      }
    }
    for (const auto& [question, part] : parts) {
      features->too_long_questions.insert(features->too_long_questions.end(), part.too_long_questions.begin(),
                                          part.too_long_questions.end());
      features->too_long_responses += part.too_long_responses;
      features->states.insert(features->states.end(), part.states.begin(), part.states.end());
      features->labels.insert(features->labels.end(), part.labels.begin(), part.labels.end());
      features->questions.insert(features->questions.end(), part.questions.begin(), part.questions.end());
      features->streams.insert(features->streams.end(), part.streams.begin(), part.streams.end());
    }
    return {};
  }

  Status GoesOn() const {
    if (options_.cancel == nullptr || !options_.cancel->load(std::memory_order_relaxed)) return {};
    return Error{ErrorCode::kCancelled, "interrupted; the finished shards are kept"};
  }

  // A question that does not fit the context is left out; any other error is the run's.
  Status Fits(const Status& status, size_t i, Features* part) const {
    if (status.ok()) return {};
    if (status.error().code == ErrorCode::kCancelled) return status;
    if (status.error().code != ErrorCode::kContextOverflow) return Named(i, status.error());
    part->too_long_questions.push_back(rows_[i].id);
    return {};
  }

  Error Named(size_t i, const Error& error) const { return error.Wrap("question '" + rows_[i].id + "'"); }

  bool ReadsResponses(size_t i) const { return options_.kind == FeatureKind::kVerifier && !rows_[i].responses.empty(); }

  Result<std::vector<int32_t>> Rendered(size_t i) const {
    auto prompt = options_.render(rows_[i].problem);
    if (!prompt.ok()) return Named(i, prompt.error());
    return prompt;
  }

  Question MakeQuestion(size_t i, std::vector<int32_t> prompt) const {
    Question question;
    question.prompt = std::move(prompt);
    question.options = options_.answer;
    question.options.keep_states = true;
    question.options.early_stop = false;
    question.options.cancel = options_.cancel;
    if (options_.kind == FeatureKind::kSwitcher) {
      question.options.mode = ReasonMode::kOff;
      question.options.verify = AnswerOptions::Verify::kNever;
    } else {
      question.options.verify = AnswerOptions::Verify::kAlways;
    }
    if (options_.kind == FeatureKind::kSwitcher && rows_[i].label) {
      // The prompt is all that is wanted.
      question.options.budget = 0;
      question.options.parallel = 1;
    } else {
      // Each question draws its own random numbers, the same wherever it stands in the file.
      Digest digest;
      digest.Update(rows_[i].id);
      question.options.sampling.seed ^= std::stoull(digest.Finish().substr(0, 16), nullptr, 16);
    }
    return question;
  }

  void Collect(size_t i, const AnswerResult& answer, Features* part) const {
    if (options_.kind == FeatureKind::kSwitcher) {
      part->Add(answer.pooled_state, rows_[i].label ? *rows_[i].label : Hard(answer, Gold(i)), i, 0);
      return;
    }
    const Answer gold = Gold(i);
    for (size_t s = 0; s < answer.streams.size(); ++s) {
      const StreamResult& stream = answer.streams[s];
      if (stream.verification_state.empty()) {
        if (stream.finish != FinishReason::kCancelled) ++part->too_long_responses;
        continue;
      }
      part->Add(stream.verification_state, stream.answer && Right(gold, stream.answer->text), i, s);
    }
    NothingFits(i, part);
  }

  // Less than half of the direct responses are right.
  static bool Hard(const AnswerResult& answer, const Answer& gold) {
    const auto right = std::count_if(answer.streams.begin(), answer.streams.end(), [&](const StreamResult& stream) {
      return stream.answer && Right(gold, stream.answer->text);
    });
    return 2 * right < static_cast<std::ptrdiff_t>(answer.streams.size());
  }

  Answer Gold(size_t i) const {
    const auto key = GoldAnswer(rows_[i].answer);
    return key ? Answer(key->text) : Answer();
  }
  static bool Right(const Answer& gold, const std::string& text) {
    return CompareAnswers(gold, Answer(text)) == Verdict::kEqual;
  }

  // Responses that are given: all of them on one prompt, verification after each.
  Status ReadResponses(size_t i, const std::vector<int32_t>& prompt, Features* part) const {
    const bool reason = options_.answer.mode == ReasonMode::kOn;
    const Adapter* adapter = reason ? model_.adapter.get() : nullptr;
    Sequence base = model_.engine->NewSequence();
    if (const Status fed = Feed(base, prompt, nullptr); !fed.ok()) return Fits(fed, i, part);
    const Answer gold = Gold(i);
    for (size_t s = 0; s < rows_[i].responses.size(); ++s) {
      const GivenResponse& response = rows_[i].responses[s];
      PITH_ASSIGN(const auto tokens, model_.tokenizer->Encode(response.text, {}));
      Sequence sequence = base;
      const Status fed = Feed(sequence, tokens, adapter);
      if (!fed.ok() && fed.error().code == ErrorCode::kCancelled) return fed;
      if (!fed.ok() && fed.error().code != ErrorCode::kContextOverflow) return Named(i, fed.error());
      const StepItem item{&sequence, model_.verification, model_.verification_adapter ? model_.adapter.get() : nullptr,
                          Rows::kNone, Rows::kLast};
      const auto output = fed.ok() ? model_.engine->Step({&item, 1}) : Result<StepOutput>(fed.error());
      if (!output.ok()) {
        if (output.error().code != ErrorCode::kContextOverflow) return Named(i, output.error());
        ++part->too_long_responses;
        continue;
      }
      bool label = response.label.value_or(false);
      if (!response.label) {
        const ParsedResponse parsed = ParseResponse(model_.tokenizer, tokens);
        const auto extracted = ExtractAnswer(parsed.text);
        label = extracted && Right(gold, extracted->text);
      }
      part->Add(output->StatesRow(0), label, i, s);
    }
    NothingFits(i, part);
    return {};
  }

  // A question of which nothing is left is left out itself.
  void NothingFits(size_t i, Features* part) const {
    if (part->too_long_responses == 0 || !part->labels.empty()) return;
    part->too_long_responses = 0;
    part->too_long_questions.push_back(rows_[i].id);
  }

  // kCancelled between two chunks.
  Status Feed(Sequence& sequence, std::span<const int32_t> tokens, const Adapter* adapter) const {
    constexpr size_t kChunk = 128;
    for (size_t at = 0; at < tokens.size(); at += kChunk) {
      PITH_RETURN_IF_ERROR(GoesOn());
      const StepItem item{&sequence, tokens.subspan(at, std::min(kChunk, tokens.size() - at)), adapter, Rows::kNone,
                          Rows::kNone};
      const auto output = model_.engine->Step({&item, 1});
      if (!output.ok()) return output.error();
    }
    return {};
  }

  const ReasonModel& model_;
  const std::vector<FeatureRow>& rows_;
  const FeatureOptions& options_;
  std::string dir_;
};

}  // namespace

const char* FeatureKindName(FeatureKind kind) { return kind == FeatureKind::kSwitcher ? "switcher" : "verifier"; }

Result<std::vector<FeatureRow>> ReadFeatureRows(const std::string& path, const FeatureRowOptions& options) {
  PITH_ASSIGN(const auto file, MappedFile::Open(path));
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  std::vector<FeatureRow> rows;
  std::set<std::string> ids;
  size_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view piece = text.substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (piece.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    PITH_ASSIGN(FeatureRow row, ParseRow(piece, path, line, options));
    if (!ids.insert(row.id).second) return BadLine(path, line, "the id '" + row.id + "' occurs twice");
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return Error{ErrorCode::kMalformed, path + ": no questions"};
  const auto limit = static_cast<size_t>(std::max<int64_t>(0, options.limit));
  if (limit == 0 || rows.size() <= limit) return rows;
  std::vector<FeatureRow> some;
  for (size_t i = 0; i < limit; ++i) some.push_back(std::move(rows[i * rows.size() / limit]));
  return some;
}

Result<FeatureReport> WriteFeatures(const ReasonModel& model, const std::vector<FeatureRow>& rows,
                                    const FeatureOptions& options, const std::string& dir) {
  if (options.shard_rows < 1 || options.shard_rows > kMaxShardRows) {
    return Error{ErrorCode::kInvalidArgument, "shards must have 1 to " + std::to_string(kMaxShardRows) + " questions"};
  }
  if (options.kind == FeatureKind::kVerifier && model.verification.empty()) {
    return Error{ErrorCode::kInvalidArgument, "there is no verification prompt"};
  }
  if (options.answer.mode == ReasonMode::kAuto) {
    return Error{ErrorCode::kInvalidArgument, "the mode of the responses must be on or off"};
  }
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return Error{ErrorCode::kIo, "cannot make the folder '" + dir + "': " + error.message()};
  return FeatureWriter(model, rows, options, dir).Run();
}

}  // namespace pith
