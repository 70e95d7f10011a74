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

struct GivenResponse {
  std::string text;           // the whole response, think tags too
  std::optional<bool> label;  // right or wrong; else graded against the answer
};

// One line of the input.
struct FeatureRow {
  std::string id;
  std::string problem;
  std::optional<bool> label;             // switcher: to be reasoned about
  std::string answer;                    // verifier: the right answer
  std::vector<GivenResponse> responses;  // verifier: to be scored; empty = they are generated
};

// JSON Lines with the fields id (text or number; else the line's number), problem (or prompt), label (0, 1, true or
// false), answer, responses (texts, or objects with text and label). Unknown fields are kept out. kMalformed names the
// line: a wrong type, no problem, an id that occurs twice, nothing that the kind needs (a label; an answer or labelled
// responses).
Result<std::vector<FeatureRow>> ReadFeatureRows(const std::string& path, FeatureKind kind);

struct FeatureOptions {
  FeatureKind kind = FeatureKind::kSwitcher;
  // A problem to prompt tokens.
  std::function<Result<std::vector<int32_t>>(const std::string& problem)> render;
  // Verifier: how responses are generated (parallel = how many of each question), and whether given ones are those of
  // the reasoning mode (then the adapter is on for them).
  AnswerOptions answer;
  // What the states depend on besides the rows; a run goes on only where it agrees (model, weights, prompts).
  std::string provenance;
  int64_t shard_rows = 64;   // questions of a shard, 1..65536
  int64_t max_streams = 32;  // that decode at the same time
  std::function<void(int64_t questions_done, int64_t questions)> on_progress;
  const std::atomic<bool>* cancel = nullptr;
};

struct FeatureReport {
  int64_t questions = 0;
  int64_t states = 0;     // rows of all shards
  int64_t positives = 0;  // with label 1
  int64_t shards = 0;
  int64_t shards_found = 0;  // that an earlier run had written
};

// Writes DIR/features-NNNNN.safetensors, one shard of questions after the other; each appears complete or not at all,
// and one that is there is not computed again. kMismatch when it is of other rows or another provenance. For the
// verifier the model's verification tokens must be set. kCancelled leaves the finished shards.
Result<FeatureReport> WriteFeatures(const ReasonModel& model, const std::vector<FeatureRow>& rows,
                                    const FeatureOptions& options, const std::string& dir);

}  // namespace pith
