#include "eval/generations.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/durable_file.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "eval/settings.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRunFile = "run.json";
constexpr const char* kProblemsFile = "problems.jsonl";
constexpr const char* kGenerationsFile = "generations.jsonl";
constexpr const char* kTimingFile = "timing.jsonl";

Error IoError(const std::string& verb, const std::string& path) {
  return {ErrorCode::kIo, "cannot " + verb + " '" + path + "': " + std::strerror(errno)};
}

std::string Dump(const OrderedJson& json) { return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

template <class T>
OrderedJson OrNull(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

// Reads the fields of one object; the first that is missing or wrong is remembered.
class Fields {
 public:
  Fields(const Json& json, const std::string& where) : json_(json), where_(where) {}

  std::string Text(const char* name) {
    const Json* value = Find(name);
    if (value == nullptr || !value->is_string()) return Wrong(name), "";
    return value->get<std::string>();
  }
  int64_t Count(const char* name) {
    const Json* value = Find(name);
    if (value == nullptr || !value->is_number_integer() || *value < 0 || *value > (int64_t{1} << 40)) {
      return Wrong(name), 0;
    }
    return value->get<int64_t>();
  }
  bool Flag(const char* name) {
    const Json* value = Find(name);
    if (value == nullptr || !value->is_boolean()) return Wrong(name), false;
    return value->get<bool>();
  }
  double Number(const char* name) {
    const Json* value = Find(name);
    if (value == nullptr || !value->is_number()) return Wrong(name), 0;
    return value->get<double>();
  }
  bool IsNull(const char* name) {
    const Json* value = Find(name);
    return value == nullptr || value->is_null();
  }
  std::optional<double> MaybeNumber(const char* name) {
    if (IsNull(name)) return std::nullopt;
    return Number(name);
  }
  // One of `values` by its name.
  template <class T, size_t N>
  T Choice(const char* name, const std::array<T, N>& values, const char* (*name_of)(T)) {
    const std::string text = Text(name);
    for (const T value : values) {
      if (text == name_of(value)) return value;
    }
    return Wrong(name), values[0];
  }

  Status status() const {
    if (wrong_.empty()) return {};
    return Error{ErrorCode::kMalformed, where_ + ": the field '" + wrong_ + "' is missing or wrong"};
  }

 private:
  const Json* Find(const char* name) const {
    const auto found = json_.find(name);
    return found == json_.end() ? nullptr : &*found;
  }
  void Wrong(const char* name) {
    if (wrong_.empty()) wrong_ = name;
  }

  const Json& json_;
  const std::string& where_;
  std::string wrong_;
};

constexpr std::array kModes = {ReasonMode::kOff, ReasonMode::kOn, ReasonMode::kAuto};
constexpr std::array kRoutes = {Route::kDirect, Route::kReason};
constexpr std::array kFinishes = {FinishReason::kStop, FinishReason::kLength, FinishReason::kContext,
                                  FinishReason::kCancelled, FinishReason::kDecided};
constexpr std::array kVerdicts = {Verdict::kEqual, Verdict::kDifferent, Verdict::kTooHard, Verdict::kNoAnswer};
constexpr std::array kSources = {AnswerSource::kBox, AnswerSource::kStated, AnswerSource::kWhole, AnswerSource::kLast};
constexpr std::array kCodes = {ErrorCode::kInvalidArgument, ErrorCode::kNotFound,    ErrorCode::kIo,
                               ErrorCode::kMalformed,       ErrorCode::kUnsupported, ErrorCode::kMismatch,
                               ErrorCode::kContextOverflow, ErrorCode::kCancelled,   ErrorCode::kNumeric,
                               ErrorCode::kUnavailable,     ErrorCode::kInternal};

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return IoError("write", path);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return {};
}

Status SyncFolder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return IoError("open", path);
  const bool synced = ::fsync(fd) == 0;
  ::close(fd);
  return synced ? Status() : Status(IoError("flush", path));
}

Result<std::string> ReadText(const std::string& path) {
  PITH_ASSIGN(const auto file, MappedFile::Open(path));
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
}

std::string ProblemLines(const std::vector<Problem>& problems) {
  std::string lines;
  for (const Problem& problem : problems) {
    lines += Dump({{"id", problem.id}, {"problem", problem.problem}, {"answer", problem.answer}}) + "\n";
  }
  return lines;
}

std::string TimingLine(const PhaseTiming& timing) {
  return Dump({{"session", timing.session},
               {"mode", ReasonModeName(timing.mode)},
               {"cap", timing.cap},
               {"questions", timing.questions},
               {"tokens", timing.tokens},
               {"seconds", timing.seconds},
               {"steps", timing.steps},
               {"max_streams", timing.max_streams}}) +
         "\n";
}

Result<PhaseTiming> ParseTiming(std::string_view line, const std::string& where) {
  PITH_ASSIGN(const Json json, ParseJson(line, where));
  if (!json.is_object()) return Error{ErrorCode::kMalformed, where + ": not a JSON object"};
  Fields fields(json, where);
  PhaseTiming timing;
  timing.session = fields.Count("session");
  timing.mode = fields.Choice("mode", kModes, ReasonModeName);
  timing.cap = fields.Count("cap");
  timing.questions = fields.Count("questions");
  timing.tokens = fields.Count("tokens");
  timing.seconds = fields.Number("seconds");
  if (!fields.IsNull("steps")) timing.steps = fields.Count("steps");
  if (!fields.IsNull("max_streams")) timing.max_streams = fields.Count("max_streams");
  PITH_RETURN_IF_ERROR(fields.status());
  return timing;
}

// Opens for appending after cutting the file to `bytes`.
Result<int> OpenCut(const std::string& path, uint64_t bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return IoError("open", path);
  const off_t end = ::lseek(fd, 0, SEEK_END);
  const bool longer = end != static_cast<off_t>(bytes);
  if (end < 0 || (longer && (::ftruncate(fd, static_cast<off_t>(bytes)) != 0 || ::fsync(fd) != 0))) {
    const Error error = IoError("cut", path);
    ::close(fd);
    return error;
  }
  return fd;
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string joined;
  for (const auto& part : parts) joined += (joined.empty() ? "" : "; ") + part;
  return joined;
}

}  // namespace

std::string WriteGeneration(const Generation& generation) {
  OrderedJson json{{"id", generation.key.id},
                   {"repeat", generation.key.repeat},
                   {"cap", generation.key.cap},
                   {"mode", ReasonModeName(generation.key.mode)},
                   {"stream", generation.stream},
                   {"streams", generation.streams},
                   {"route", RouteName(generation.route)},
                   {"tokens", generation.tokens},
                   {"reasoning_tokens", generation.reasoning_tokens},
                   {"answer_tokens", generation.tokens - generation.reasoning_tokens},
                   {"prompt_tokens", generation.prompt_tokens},
                   {"finish", FinishReasonName(generation.finish)},
                   {"forced", generation.forced},
                   {"truncated", generation.truncated}};
  json["answer"] = generation.answer ? OrderedJson(generation.answer->text) : OrderedJson(nullptr);
  json["source"] = generation.answer ? OrderedJson(AnswerSourceName(generation.answer->source)) : OrderedJson(nullptr);
  json["verdict"] = VerdictName(generation.verdict);
  json["verifier_score"] = OrNull(generation.verifier_score);
  json["switcher_score"] = OrNull(generation.switcher_score);
  json["seconds"] = generation.seconds;
  json["reused_from"] = generation.reused_from > 0 ? OrderedJson(generation.reused_from) : OrderedJson(nullptr);
  json["error"] = nullptr;
  if (generation.error) {
    json["error"] = {{"code", ErrorCodeName(generation.error->code)}, {"message", generation.error->message}};
  }
  json["reasoning"] = generation.reasoning;
  json["text"] = generation.text;
  return Dump(json);
}

Result<Generation> ParseGeneration(std::string_view line, const std::string& where) {
  PITH_ASSIGN(const Json json, ParseJson(line, where));
  if (!json.is_object()) return Error{ErrorCode::kMalformed, where + ": not a JSON object"};
  Fields fields(json, where);
  Generation generation;
  generation.key.id = fields.Text("id");
  generation.key.repeat = fields.Count("repeat");
  generation.key.cap = fields.Count("cap");
  generation.key.mode = fields.Choice("mode", kModes, ReasonModeName);
  generation.stream = fields.Count("stream");
  generation.streams = fields.Count("streams");
  generation.route = fields.Choice("route", kRoutes, RouteName);
  generation.tokens = fields.Count("tokens");
  generation.reasoning_tokens = fields.Count("reasoning_tokens");
  generation.prompt_tokens = fields.Count("prompt_tokens");
  generation.finish = fields.Choice("finish", kFinishes, FinishReasonName);
  generation.forced = fields.Flag("forced");
  generation.truncated = fields.Flag("truncated");
  if (!fields.IsNull("answer")) {
    generation.answer = ExtractedAnswer{fields.Text("answer"), fields.Choice("source", kSources, AnswerSourceName)};
  }
  generation.verdict = fields.Choice("verdict", kVerdicts, VerdictName);
  generation.verifier_score = fields.MaybeNumber("verifier_score");
  generation.switcher_score = fields.MaybeNumber("switcher_score");
  generation.seconds = fields.Number("seconds");
  generation.reused_from = fields.IsNull("reused_from") ? 0 : fields.Count("reused_from");
  if (!fields.IsNull("error")) {
    const Json& error = json["error"];
    if (!error.is_object()) return Error{ErrorCode::kMalformed, where + ": the field 'error' is missing or wrong"};
    Fields error_fields(error, where);
    generation.error = Error{error_fields.Choice("code", kCodes, ErrorCodeName), error_fields.Text("message")};
    PITH_RETURN_IF_ERROR(error_fields.status());
  }
  generation.reasoning = fields.Text("reasoning");
  generation.text = fields.Text("text");
  PITH_RETURN_IF_ERROR(fields.status());
  return generation;
}

Result<ReadGenerations> ParseGenerations(std::string_view text, const std::string& what) {
  ReadGenerations read;
  std::vector<Generation> question;  // under way
  uint64_t offset = 0;
  for (int64_t number = 1; offset < text.size(); ++number) {
    const size_t end = text.find('\n', offset);
    if (end == std::string_view::npos) break;  // torn
    const std::string where = what + ":" + std::to_string(number);
    PITH_ASSIGN(Generation generation, ParseGeneration(text.substr(offset, end - offset), where));
    offset = end + 1;
    const auto expected = static_cast<int64_t>(question.size());
    const bool fits =
        generation.stream == expected && generation.streams > generation.stream &&
        (question.empty() || (question[0].key == generation.key && question[0].streams == generation.streams));
    if (!fits) {
      return Error{ErrorCode::kMalformed, where + ": not stream " + std::to_string(expected) +
                                              " of the question that the lines before belong to"};
    }
    question.push_back(std::move(generation));
    if (static_cast<int64_t>(question.size()) == question[0].streams) {
      std::move(question.begin(), question.end(), std::back_inserter(read.generations));
      question.clear();
      read.complete_bytes = offset;
    }
  }
  return read;
}

Result<std::unique_ptr<EvalFolder>> EvalFolder::Lock(const std::string& path, const std::function<void()>& on_wait) {
  PITH_ASSIGN(FileLock lock, FileLock::Acquire(path + "/.lock", on_wait));
  return std::unique_ptr<EvalFolder>(new EvalFolder(path, std::move(lock)));
}

Result<std::unique_ptr<EvalFolder>> EvalFolder::Open(const std::string& path, const std::string& settings_json,
                                                     const std::vector<Problem>& problems,
                                                     const std::function<void()>& on_wait) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + path + "': " + error.message()};
  PITH_ASSIGN(auto folder, Lock(path, on_wait));
  // run.json comes last: where it is, the problems are too.
  if (!fs::exists(path + "/" + kRunFile, error)) {
    if (fs::exists(path + "/" + kGenerationsFile, error)) {
      return Error{ErrorCode::kMismatch,
                   "'" + path + "' has a generations.jsonl but no run.json: it is not an evaluation's folder"};
    }
    PITH_RETURN_IF_ERROR(folder->WriteFile(kProblemsFile, ProblemLines(problems)));
    PITH_RETURN_IF_ERROR(folder->WriteFile(kRunFile, settings_json + "\n"));
  }
  PITH_RETURN_IF_ERROR(folder->Read());
  PITH_ASSIGN(const auto differences,
              SettingsDifferences(folder->settings_json_, settings_json, path + "/" + kRunFile));
  if (!differences.empty()) {
    return Error{ErrorCode::kMismatch, "'" + path + "' holds a run with other settings (" + Joined(differences) +
                                           "); choose another folder or remove this one"};
  }
  return folder;
}

Result<std::unique_ptr<EvalFolder>> EvalFolder::OpenExisting(const std::string& path,
                                                             const std::function<void()>& on_wait) {
  std::error_code error;
  if (!fs::exists(path + "/" + kRunFile, error)) {
    return Error{ErrorCode::kNotFound, "'" + path + "' is not the folder of an evaluation: there is no run.json"};
  }
  PITH_ASSIGN(auto folder, Lock(path, on_wait));
  PITH_RETURN_IF_ERROR(folder->Read());
  return folder;
}

EvalFolder::~EvalFolder() {
  if (generations_fd_ >= 0) ::close(generations_fd_);
  if (timing_fd_ >= 0) ::close(timing_fd_);
}

Status EvalFolder::Read() {
  PITH_ASSIGN(settings_json_, ReadText(path_ + "/" + kRunFile));
  const std::string problems_path = path_ + "/" + kProblemsFile;
  PITH_ASSIGN(const std::string problems_text, ReadText(problems_path));
  PITH_ASSIGN(problems_, ParseSuite(problems_text, problems_path, {}));

  const std::string generations_path = path_ + "/" + kGenerationsFile;
  std::error_code error;
  uint64_t keep = 0;
  if (fs::exists(generations_path, error)) {
    PITH_ASSIGN(const std::string text, ReadText(generations_path));
    PITH_ASSIGN(ReadGenerations read, ParseGenerations(text, generations_path));
    generations_ = std::move(read.generations);
    keep = read.complete_bytes;
  }
  PITH_ASSIGN(generations_fd_, OpenCut(generations_path, keep));

  const std::string timing_path = path_ + "/" + kTimingFile;
  keep = 0;
  if (fs::exists(timing_path, error)) {
    PITH_ASSIGN(const std::string text, ReadText(timing_path));
    int64_t number = 1;
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', keep), ++number) {
      PITH_ASSIGN(const PhaseTiming timing, ParseTiming(std::string_view(text).substr(keep, end - keep),
                                                        timing_path + ":" + std::to_string(number)));
      NoteTiming(timing);
      session_ = std::max(session_, timing.session + 1);
      keep = end + 1;
    }
  }
  const bool fresh = generations_.empty() && !fs::exists(timing_path, error);
  PITH_ASSIGN(timing_fd_, OpenCut(timing_path, keep));
  return fresh ? SyncFolder(path_) : Status();
}

void EvalFolder::NoteTiming(const PhaseTiming& timing) {
  for (PhaseTiming& known : timings_) {
    if (known.session == timing.session && known.mode == timing.mode && known.cap == timing.cap) {
      known = timing;
      return;
    }
  }
  timings_.push_back(timing);
}

Status EvalFolder::Append(std::vector<Generation> question) {
  const std::string path = path_ + "/" + kGenerationsFile;
  std::string lines;
  for (Generation& generation : question) {
    const std::string line = WriteGeneration(generation);
    // What is held is what a later run will read, to the letter.
    PITH_ASSIGN(generation, ParseGeneration(line, path));
    lines += line + "\n";
  }
  PITH_RETURN_IF_ERROR(WriteAll(generations_fd_, lines, path));
  if (::fdatasync(generations_fd_) != 0) return IoError("flush", path);
  std::move(question.begin(), question.end(), std::back_inserter(generations_));
  return {};
}

Status EvalFolder::AppendTiming(const PhaseTiming& timing) {
  NoteTiming(timing);
  return WriteAll(timing_fd_, TimingLine(timing), path_ + "/" + kTimingFile);
}

Status EvalFolder::Rewrite(std::vector<Generation> generations) {
  std::string lines;
  for (const Generation& generation : generations) lines += WriteGeneration(generation) + "\n";
  PITH_RETURN_IF_ERROR(WriteFile(kGenerationsFile, lines));
  ::close(generations_fd_);
  generations_fd_ = -1;
  PITH_ASSIGN(generations_fd_, OpenCut(path_ + "/" + kGenerationsFile, lines.size()));
  generations_ = std::move(generations);
  return {};
}

Status EvalFolder::WriteFile(const std::string& name, std::string_view content) const {
  return WriteFileDurably(path_ + "/" + name, content);
}

}  // namespace pith
