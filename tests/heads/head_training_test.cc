#include "heads/head_training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/json.h"
#include "support/data.h"
#include "toy_features.h"

namespace pith::heads {
namespace {

using testing::ReadFile;
using testing::TempDir;

TEST(HeadTrainingTest, SeparableDataIsSeparated) {
  const FeatureSet set = ToySet(FeatureKind::kSwitcher, 600, 1, 3);
  HeadReport report;
  const auto head = TrainSwitcher(set, {}, &report);
  ASSERT_TRUE(head.ok()) << head.error().message;
  EXPECT_GT(*report.test.calibrated.auc, 0.99);
  EXPECT_GT(*report.validation.calibrated.auc, 0.99);
  EXPECT_GT(report.test.calibrated.accuracy, 0.95);
  EXPECT_EQ(head->pooling, set.pooling);
  EXPECT_EQ(head->inner, 8);
  EXPECT_EQ(head->threshold, 0.5);
  // The constant input says nothing.
  for (int64_t j = 0; j < head->inner; ++j) EXPECT_EQ(head->w1[static_cast<size_t>(j * 6 + 5)], 0.0F);
  // The table is of the head as it is written.
  EXPECT_EQ(report.thresholds_on, "test");
  const HeadReport& r = report;
  std::vector<double> scores;
  std::vector<float> labels;
  const auto sides = SplitQuestions(set, 0.1, 0.1, 42);
  for (int64_t row = 0; row < set.rows(); ++row) {
    if (sides[static_cast<size_t>(set.question[static_cast<size_t>(row)])] != Side::kTest) continue;
    scores.push_back(head->Score(set.State(row)));
    labels.push_back(set.labels[static_cast<size_t>(row)]);
  }
  ASSERT_EQ(static_cast<int64_t>(scores.size()), r.test.calibrated.rows);
  EXPECT_EQ(AtThreshold(scores, labels, 0.25).share, r.thresholds[4].share);
  EXPECT_EQ(*AreaUnderCurve(scores, labels), *r.test.calibrated.auc);

  const FeatureSet answers = ToySet(FeatureKind::kVerifier, 200, 4, 3);
  const auto verifier = TrainVerifier(answers, {.learning_rate = 1e-2}, &report);
  ASSERT_TRUE(verifier.ok()) << verifier.error().message;
  EXPECT_GT(*report.test.calibrated.auc, 0.99);
  EXPECT_EQ(verifier->prompt, "Right?");
  ASSERT_TRUE(report.selection.has_value());
  EXPECT_EQ(report.selection->questions, report.test.questions);
  EXPECT_GT(report.selection->scored, report.selection->random + 0.2);
  EXPECT_LE(report.selection->scored, report.selection->oracle);
}

TEST(HeadTrainingTest, LabelsThatNothingExplainsAreNotLearned) {
  const FeatureSet set = ToySet(FeatureKind::kVerifier, 400, 4, 0);
  HeadReport report;
  ASSERT_TRUE(TrainVerifier(set, {.validation_split = 0.2, .test_split = 0.3}, &report).ok());
  EXPECT_NEAR(*report.test.calibrated.auc, 0.5, 0.1);
  EXPECT_LT(report.test.calibrated.ece, 0.15);
}

// Every question has a mark of its own in its states, and one label for all of its rows. Were rows split, the mark
// would tell the label on the other side; split by question it tells nothing.
TEST(HeadTrainingTest, QuestionsDoNotLeakOverTheSplit) {
  constexpr int64_t kQuestions = 60;
  constexpr int64_t kStreams = 8;
  FeatureSet set = ToySet(FeatureKind::kVerifier, kQuestions, kStreams, 0, 7, kQuestions);
  for (int64_t row = 0; row < set.rows(); ++row) {
    const int64_t question = row / kStreams;
    set.labels[static_cast<size_t>(row)] = RandomUniform(3, 3, static_cast<uint64_t>(question)) < 0.5 ? 1.0F : 0.0F;
    for (int64_t i = 0; i < kQuestions; ++i) {
      set.states[static_cast<size_t>(row * kQuestions + i)] = i == question ? 1.0F : 0.0F;
    }
  }
  const HeadTrainingOptions options{.learning_rate = 1e-2, .validation_split = 0.25, .test_split = 0.25};
  HeadReport report;
  ASSERT_TRUE(TrainVerifier(set, options, &report).ok());
  EXPECT_GT(*report.train.calibrated.auc, 0.99);        // the mark is enough to learn the rows by heart
  EXPECT_NEAR(*report.test.calibrated.auc, 0.5, 1e-9);  // an input that did not vary in training has no weight

  // The same rows, each a question of its own: now the test side has been seen.
  FeatureSet leaking = set;
  leaking.questions.clear();
  for (int64_t row = 0; row < set.rows(); ++row) {
    leaking.questions.push_back("r" + std::to_string(row));
    leaking.question[static_cast<size_t>(row)] = static_cast<int32_t>(row);
  }
  ASSERT_TRUE(TrainVerifier(leaking, options, &report).ok());
  EXPECT_GT(*report.test.calibrated.auc, 0.99);
}

TEST(SplitTest, ByQuestionAndIndependentOfOrder) {
  const FeatureSet set = ToySet(FeatureKind::kSwitcher, 500, 1, 1);
  const auto sides = SplitQuestions(set, 0.2, 0.1, 42);
  ASSERT_EQ(sides.size(), set.questions.size());
  EXPECT_NEAR(static_cast<double>(std::count(sides.begin(), sides.end(), Side::kValidation)), 100, 1);
  EXPECT_NEAR(static_cast<double>(std::count(sides.begin(), sides.end(), Side::kTest)), 50, 1);
  // Another order of the questions, the same sides by id.
  FeatureSet turned = set;
  std::reverse(turned.questions.begin(), turned.questions.end());
  std::reverse(turned.labels.begin(), turned.labels.end());
  const auto other = SplitQuestions(turned, 0.2, 0.1, 42);
  for (size_t q = 0; q < sides.size(); ++q) EXPECT_EQ(sides[q], other[sides.size() - 1 - q]);
  EXPECT_NE(SplitQuestions(set, 0.2, 0.1, 43), sides);
  // Both classes are on every side, also of a few questions.
  FeatureSet few = ToySet(FeatureKind::kSwitcher, 8, 1, 1);
  few.labels = {0, 1, 0, 0, 0, 1, 0, 1};
  const auto small = SplitQuestions(few, 0.1, 0.1, 42);
  std::map<Side, std::set<float>> classes;
  for (size_t q = 0; q < small.size(); ++q) classes[small[q]].insert(few.labels[q]);
  EXPECT_EQ(classes.size(), 3U);
  for (const auto& [side, labels] : classes) EXPECT_EQ(labels.size(), 2U);
}

TEST(HeadTrainingTest, IsAFunctionOfTheSeed) {
  const FeatureSet set = ToySet(FeatureKind::kSwitcher, 200, 1, 1);
  const auto file = [&](uint64_t seed) {
    HeadReport report;
    HeadTrainingOptions options{.seed = seed};
    const auto head = TrainSwitcher(set, options, &report);
    EXPECT_TRUE(head.ok());
    const std::string path = TempDir() + "/switcher.safetensors";
    EXPECT_TRUE(WriteSwitcher(path, *head, HeadReportJson(set, options, report)).ok());
    return ReadFile(path);
  };
  EXPECT_EQ(file(1), file(1));
  EXPECT_NE(file(1), file(2));
}

TEST(HeadTrainingTest, CalibrationIsInTheWeights) {
  // Overlapping classes and a high learning rate on few rows: overconfident without calibration.
  const FeatureSet set = ToySet(FeatureKind::kVerifier, 2000, 1, 0.5, 3, 40);
  HeadTrainingOptions options{.learning_rate = 0.05, .validation_split = 0.45, .test_split = 0.45};
  HeadReport report;
  options.calibration = CalibrationKind::kNone;
  const auto plain = TrainVerifier(set, options, &report);
  const HeadReport before = report;
  report = {};
  options.calibration = CalibrationKind::kPlatt;
  const auto calibrated = TrainVerifier(set, options, &report);
  ASSERT_TRUE(plain.ok() && calibrated.ok());
  EXPECT_EQ(before.calibration.scale, 1);
  EXPECT_LT(report.calibration.scale, 0.8);
  EXPECT_EQ(*before.test.calibrated.auc, *report.test.calibrated.auc);  // the order is the same
  EXPECT_LT(report.test.calibrated.ece, before.test.calibrated.ece);
  EXPECT_LT(report.test.calibrated.log_loss, before.test.calibrated.log_loss);
  EXPECT_NEAR(report.test.raw.ece, before.test.calibrated.ece, 1e-4);
  for (const int64_t row : {0, 7, 99}) {
    const double p = plain->Score(set.State(row));
    const double logit = std::log(p / (1 - p));
    const double expected = 1 / (1 + std::exp(-(report.calibration.scale * logit + report.calibration.offset)));
    EXPECT_NEAR(calibrated->Score(set.State(row)), expected, 1e-5);
  }
}

TEST(HeadTrainingTest, ClassBalance) {
  FeatureSet set = ToySet(FeatureKind::kVerifier, 1500, 1, 0.4, 4);
  // One in ten rows of label 1 stays.
  FeatureSet rare = set;
  rare.states.clear();
  rare.labels.clear();
  rare.question.clear();
  for (int64_t row = 0; row < set.rows(); ++row) {
    const auto at = static_cast<size_t>(row);
    if (set.labels[at] == 1.0F && row % 10 != 0) continue;
    const auto state = set.State(row);
    rare.states.insert(rare.states.end(), state.begin(), state.end());
    rare.labels.push_back(set.labels[at]);
    rare.question.push_back(set.question[at]);
  }
  HeadTrainingOptions options{.learning_rate = 1e-2, .calibration = CalibrationKind::kNone};
  HeadReport report;
  ASSERT_TRUE(TrainVerifier(rare, options, &report).ok());
  const double before = report.thresholds[9].share;
  options.balance = true;
  ASSERT_TRUE(TrainVerifier(rare, options, &report).ok());
  EXPECT_GT(report.thresholds[9].share, before + 0.1);
}

TEST(HeadTrainingTest, TargetRecall) {
  const FeatureSet set = ToySet(FeatureKind::kSwitcher, 1000, 1, 1);
  HeadReport report;
  const auto head = TrainSwitcher(set, {.validation_split = 0.3, .target_recall = 0.98}, &report);
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(head->threshold, report.threshold);
  EXPECT_LT(head->threshold, 0.5);
  const auto sides = SplitQuestions(set, 0.3, 0.1, 42);
  double ones = 0;
  double routed = 0;
  for (int64_t row = 0; row < set.rows(); ++row) {
    if (sides[static_cast<size_t>(row)] != Side::kValidation || set.labels[static_cast<size_t>(row)] != 1.0F) continue;
    ++ones;
    if (head->Score(set.State(row)) >= head->threshold) ++routed;
  }
  EXPECT_GE(routed / ones, 0.98);
  EXPECT_LT((routed - 1) / ones, 0.98);
}

TEST(HeadTrainingTest, Errors) {
  const auto expect = [](const FeatureSet& set, const HeadTrainingOptions& options, ErrorCode code,
                         const std::string& part) {
    HeadReport report;
    const auto head = TrainVerifier(set, options, &report);
    ASSERT_FALSE(head.ok()) << part;
    EXPECT_EQ(head.error().code, code);
    EXPECT_NE(head.error().message.find(part), std::string::npos) << head.error().message;
  };
  FeatureSet set = ToySet(FeatureKind::kVerifier, 20, 2, 1);
  expect(ToySet(FeatureKind::kSwitcher, 20, 1, 1), {}, ErrorCode::kMismatch, "for a switcher, not for a verifier");
  FeatureSet one_class = set;
  std::fill(one_class.labels.begin(), one_class.labels.end(), 1.0F);
  expect(one_class, {}, ErrorCode::kInvalidArgument, "no rows with label 0");
  std::fill(one_class.labels.begin(), one_class.labels.end(), 0.0F);
  expect(one_class, {}, ErrorCode::kInvalidArgument, "no rows with label 1");
  one_class.labels[5] = 1;  // a question with both
  one_class.labels[4] = 0;
  expect(one_class, {}, ErrorCode::kInvalidArgument, "label 1");
  FeatureSet single = ToySet(FeatureKind::kVerifier, 1, 8, 1);
  expect(single, {}, ErrorCode::kInvalidArgument, "validation side");
  FeatureSet silent = set;
  silent.prompt.clear();
  expect(silent, {}, ErrorCode::kInvalidArgument, "what was asked");
  expect(set, {.dropout = 1}, ErrorCode::kInvalidArgument, "dropout");
  expect(set, {.noise = -1}, ErrorCode::kInvalidArgument, "noise");
  expect(set, {.learning_rate = std::numeric_limits<double>::quiet_NaN()}, ErrorCode::kInvalidArgument,
         "learning rate");
  expect(set, {.batch_size = 0}, ErrorCode::kInvalidArgument, "batch");
  expect(set, {.epochs = 0}, ErrorCode::kInvalidArgument, "epochs");
  expect(set, {.validation_split = 0}, ErrorCode::kInvalidArgument, "validation split");
  expect(set, {.validation_split = 0.5, .test_split = 0.5}, ErrorCode::kInvalidArgument, "train on");
  expect(set, {.inner = 0}, ErrorCode::kInvalidArgument, "hidden layer");
  HeadReport report;
  FeatureSet switcher = ToySet(FeatureKind::kSwitcher, 20, 1, 1);
  EXPECT_FALSE(TrainSwitcher(switcher, {.threshold = 2}, &report).ok());
  EXPECT_FALSE(TrainSwitcher(switcher, {.target_recall = 0}, &report).ok());
}

TEST(HeadTrainingTest, ReportIsInTheFile) {
  const FeatureSet set = ToySet(FeatureKind::kSwitcher, 100, 1, 2);
  HeadReport report;
  const HeadTrainingOptions options{.test_split = 0};
  const auto head = TrainSwitcher(set, options, &report);
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(report.thresholds_on, "validation");
  const std::string json = HeadReportJson(set, options, report);
  const std::string path = TempDir() + "/s.safetensors";
  ASSERT_TRUE(WriteSwitcher(path, *head, json).ok());
  ASSERT_TRUE(ReadSwitcher(path, set.hidden).ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->metadata().at(kHeadTrainingKey), json);
  const auto parsed = ParseJson(json, "report");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE((*parsed)["test"].is_null());
  EXPECT_EQ((*parsed)["thresholds"].size(), 19U);
  EXPECT_EQ((*parsed)["thresholds"][0]["threshold"], 0.05);
  EXPECT_TRUE((*parsed)["thresholds"][0].contains("routed_share"));
  EXPECT_EQ((*parsed)["options"]["noise"], 0.5);
  EXPECT_EQ((*parsed)["provenance"], "toy");
}

}  // namespace
}  // namespace pith::heads
