// The output folder of an evaluation: every generation as one line of JSON, appended and flushed to the disk as
// questions finish, so that a run that was killed at any moment goes on where it was.
//
//   run.json           the settings (SettingsJson)
//   problems.jsonl     the problems that are run, for reading the folder without the suite
//   generations.jsonl  one line a stream
//   timing.jsonl       what the runs cost, a line every few seconds
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/cache_folder.h"
#include "base/result.h"
#include "eval/suite.h"
#include "grade/grade.h"
#include "reason/answer.h"

namespace pith {

// One run of one question: the unit of resuming. Its generations are the streams.
struct EvalKey {
  std::string id;  // of the problem
  int64_t repeat = 0;
  int64_t cap = 0;
  ReasonMode mode = ReasonMode::kOff;

  bool operator==(const EvalKey&) const = default;
  bool operator<(const EvalKey& other) const {
    return std::tie(id, repeat, cap, mode) < std::tie(other.id, other.repeat, other.cap, other.mode);
  }
};

struct Generation {
  EvalKey key;
  int64_t stream = 0;
  int64_t streams = 1;  // of the question; those of a key are adjacent lines in order
  Route route = Route::kDirect;
  std::string text;  // the visible answer
  std::string reasoning;
  int64_t tokens = 0;  // all that were generated, forced ones too
  int64_t reasoning_tokens = 0;
  int64_t prompt_tokens = 0;
  FinishReason finish = FinishReason::kStop;
  bool forced = false;
  bool truncated = false;
  std::optional<ExtractedAnswer> answer;
  Verdict verdict = Verdict::kNoAnswer;
  std::optional<double> verifier_score;
  std::optional<double> switcher_score;
  double seconds = 0;
  // Made in the run with this larger cap: the same stream, forked where this cap made it answer.
  int64_t reused_from = 0;  // 0 = a run of its own
  // The question could not be run (its prompt does not fit, ...); then it is the only stream, and without an answer.
  std::optional<Error> error;

  bool correct() const { return verdict == Verdict::kEqual; }
};

// One line, without the line break; and back. kMalformed names `where` and the field.
std::string WriteGeneration(const Generation& generation);
Result<Generation> ParseGeneration(std::string_view line, const std::string& where);

// Generations in the order of a file. `complete_bytes` is the length of the part that holds whole questions; beyond it
// there is at most what a kill leaves: some streams of one question, the last line possibly torn. Anything else that is
// not a generation is kMalformed and names file and line: it is no trace of a kill.
struct ReadGenerations {
  std::vector<Generation> generations;
  uint64_t complete_bytes = 0;
};
Result<ReadGenerations> ParseGenerations(std::string_view text, const std::string& what);

// What a run of this program spent on one mode and cap.
struct PhaseTiming {
  int64_t session = 0;  // number of the run of the program
  ReasonMode mode = ReasonMode::kOff;
  int64_t cap = 0;
  int64_t tokens = 0;     // generated
  int64_t questions = 0;  // finished
  double seconds = 0;
  // 0 = of a program that did not write it.
  int64_t steps = 0;        // of the engine
  int64_t max_streams = 0;  // that might decode together: what the time depends on, but no result
};

class EvalFolder {
 public:
  // Creates the folder, or opens it to go on: drops what a kill left behind and holds a lock until destroyed (on_wait
  // is called when another program holds it). kMismatch when it belongs to other settings or problems (all differences
  // are named); kMalformed, kIo.
  static Result<std::unique_ptr<EvalFolder>> Open(const std::string& path, const std::string& settings_json,
                                                  const std::vector<Problem>& problems,
                                                  const std::function<void()>& on_wait = {});
  // An existing one, whatever its settings. kNotFound.
  static Result<std::unique_ptr<EvalFolder>> OpenExisting(const std::string& path,
                                                          const std::function<void()>& on_wait = {});
  ~EvalFolder();
  EvalFolder(const EvalFolder&) = delete;
  EvalFolder& operator=(const EvalFolder&) = delete;

  const std::string& path() const { return path_; }
  const std::string& settings_json() const { return settings_json_; }
  const std::vector<Problem>& problems() const { return problems_; }
  const std::vector<Generation>& generations() const { return generations_; }
  const std::vector<PhaseTiming>& timings() const { return timings_; }  // the last of each session, mode and cap
  int64_t session() const { return session_; }                          // of this run

  // All streams of one question. On the disk when it returns.
  Status Append(std::vector<Generation> question);
  Status AppendTiming(const PhaseTiming& timing);
  // Replaces generations.jsonl, at once.
  Status Rewrite(std::vector<Generation> generations);
  // Writes another file of the folder, complete or not at all.
  Status WriteFile(const std::string& name, std::string_view content) const;

 private:
  EvalFolder(std::string path, FileLock lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  static Result<std::unique_ptr<EvalFolder>> Lock(const std::string& path, const std::function<void()>& on_wait);
  Status Read();
  void NoteTiming(const PhaseTiming& timing);

  std::string path_;
  FileLock lock_;
  std::string settings_json_;
  std::vector<Problem> problems_;
  std::vector<Generation> generations_;
  std::vector<PhaseTiming> timings_;
  int64_t session_ = 0;
  int generations_fd_ = -1;
  int timing_fd_ = -1;
};

}  // namespace pith
