// Features for training the heads: pooled prompt states (switcher) and verification states (verifier) with labels,
// written as shards of safetensors (docs/formats.md). A run that was killed goes on where it was.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "reason/answer.h"

namespace pith {

enum class FeatureKind { kSwitcher, kVerifier };
const char* FeatureKindName(FeatureKind kind);  // "switcher", "verifier"

// The metadata entry of a shard.
inline constexpr const char* kFeaturesMetadata = "pith_features";
// The one that says what of its questions was left out: {"questions":[ids],"responses":N}; absent when nothing was.
inline constexpr const char* kFeaturesLeftOut = "pith_features_left_out";

struct GivenResponse {
  std::string text;           // the whole response, think tags too
  std::optional<bool> label;  // right or wrong; else graded against the answer
};

// One line of the input.
struct FeatureRow {
  std::string id;
  std::string problem;
  std::optional<bool> label;             // switcher: to be reasoned about; nothing = by the answers (grade_labels)
  std::string answer;                    // the right answer, where responses are graded
  std::vector<GivenResponse> responses;  // verifier: to be scored; empty = they are generated
};

struct FeatureRowOptions {
  FeatureKind kind = FeatureKind::kSwitcher;
  std::optional<bool> label = {};  // of all rows, whatever they say
  bool grade_labels = false;       // switcher: an answer does instead of a label
  std::string id_prefix = {};      // put before every id, so that several files can be one set
  int64_t limit = 0;               // so many rows, spread evenly over the file; 0 = all
};

// JSON Lines with the fields id (text or number; else the line's number), problem (or prompt; or instruction, with the
// "input" of the first of its "instances"; or the first of its "turns"), label (0, 1, true or false), answer, responses
// (texts, or objects with text and label). Unknown fields are kept out. kMalformed names the line: a wrong type, no
// problem, an id that occurs twice, nothing that the kind needs (a label; an answer or labelled responses).
Result<std::vector<FeatureRow>> ReadFeatureRows(const std::string& path, const FeatureRowOptions& options);

struct FeatureOptions {
  FeatureKind kind = FeatureKind::kSwitcher;
  // A problem to prompt tokens.
  std::function<Result<std::vector<int32_t>>(const std::string& problem)> render;
  // Verifier: how responses are generated (parallel = how many of each question), and whether given ones are those of
  // the reasoning mode (then the adapter is on for them). Switcher: how rows without a label are answered; the label is
  // 1 when less than half of the responses are right.
  AnswerOptions answer;
  // What the states depend on besides the rows; a run goes on only where it agrees. `provenance`: model, weights,
  // adapter; a head is trained on features of one. `prompts`: how problems were put; may differ within a set.
  std::string provenance;
  std::string prompts;
  std::string verification_prompt;  // verifier: noted, for the head
  int64_t shard_rows = 64;          // questions of a shard, 1..65536
  int64_t max_streams = 32;         // that decode at the same time
  std::function<void(int64_t questions_done, int64_t questions)> on_progress;
  const std::atomic<bool>* cancel = nullptr;
};

struct FeatureReport {
  int64_t questions = 0;
  int64_t states = 0;     // rows of all shards
  int64_t positives = 0;  // with label 1
  int64_t shards = 0;
  int64_t shards_found = 0;  // that an earlier run had written
  // Left out because they do not fit the context: ids of questions with nothing that fits, and how many given or
  // generated responses of the others have no room for the verification. Those of shards found count too.
  std::vector<std::string> too_long_questions;
  int64_t too_long_responses = 0;
};

// Writes DIR/features-NNNNN.safetensors, one shard of questions after the other; each appears complete or not at all,
// and one that is there is not computed again. kMismatch when it is of other rows or another provenance. For the
// verifier the model's verification tokens must be set. What does not fit the context is left out and reported; any
// other error ends the run and names the question. kCancelled leaves the finished shards.
Result<FeatureReport> WriteFeatures(const ReasonModel& model, const std::vector<FeatureRow>& rows,
                                    const FeatureOptions& options, const std::string& dir);

}  // namespace pith
