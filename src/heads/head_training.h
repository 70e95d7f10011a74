// Training the switcher and the verifier on cached features: seconds on one core, no libtorch. The result is a function
// of the features, the options and the seed alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "heads/feature_set.h"
#include "heads/head_metrics.h"
#include "model/heads.h"

namespace pith::heads {

enum class CalibrationKind { kNone, kTemperature, kPlatt };

struct HeadTrainingOptions {
  int64_t inner = 8;     // width of the switcher's hidden layer, 1..1024; a verifier has none
  double dropout = 0.2;  // of the hidden layer while training, [0, 1)
  double noise = 0.5;    // deviation of the noise on standardised inputs while training, >= 0
  double learning_rate = 1e-3;
  double weight_decay = 0.01;  // AdamW, of matrices
  int64_t batch_size = 64;
  int64_t epochs = 50;            // at most
  int64_t patience = 10;          // epochs without a better validation loss before it ends
  bool balance = false;           // weigh rows so that both classes count the same
  double validation_split = 0.1;  // share of the questions for early stopping and calibration, (0, 1)
  double test_split = 0.1;        // and for measuring only, [0, 1)
  CalibrationKind calibration = CalibrationKind::kPlatt;
  std::optional<double> threshold = {};  // of the switcher, 0..1; nothing = 0.5
  // Instead: the highest threshold with this recall on the validation side, (0, 1].
  std::optional<double> target_recall = {};
  uint64_t seed = 42;
  std::function<void(int64_t epoch, double train_loss, double validation_loss)> on_epoch = {};
};

enum class Side : uint8_t { kTrain, kValidation, kTest };

// The side of every question: all rows of a question are on one. Questions are taken in the order of a hash of
// (seed, id), apart for those with mostly label 1 and the others, so that both sides get some of each. Adding rows to a
// question moves nothing as long as its majority stays.
std::vector<Side> SplitQuestions(const FeatureSet& set, double validation, double test, uint64_t seed);

// Verifier: choosing one response of each question that has several.
struct Selection {
  int64_t questions = 0;
  double random = 0;  // share of right responses, the mean over questions
  double scored = 0;  // share of questions whose highest-scored response is right
  double oracle = 0;  // that have a right response at all
};

struct SideReport {
  int64_t questions = 0;
  ScoreMetrics raw;         // before calibration
  ScoreMetrics calibrated;  // of the head as it is written
};

struct HeadReport {
  int64_t epochs = 0;  // that were run
  int64_t best_epoch = 0;
  double train_loss = 0;               // of the best epoch, with noise, dropout and class weights
  double validation_loss = 0;          // without noise and dropout
  SideReport train, validation, test;  // test: rows = 0 without one
  Calibration calibration;
  // On the test side, or without one on the validation side.
  std::string thresholds_on;  // "test", "validation"
  std::vector<ThresholdRow> thresholds;
  std::optional<Selection> selection;
  double threshold = 0.5;  // switcher
};

// kMismatch: features of the other kind. kInvalidArgument names an option out of range, a class without rows (in all,
// or on the train or validation side), too few questions to split. kNumeric: the loss is not finite, with the epoch.
Result<SwitcherHead> TrainSwitcher(const FeatureSet& set, const HeadTrainingOptions& options, HeadReport* report);
// The same; kInvalidArgument also when the features do not say what was asked.
Result<VerifierHead> TrainVerifier(const FeatureSet& set, const HeadTrainingOptions& options, HeadReport* report);

// One JSON object: options, provenance, report.
std::string HeadReportJson(const FeatureSet& set, const HeadTrainingOptions& options, const HeadReport& report);

}  // namespace pith::heads
