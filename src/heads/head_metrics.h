// How good the scores of a head are, and what makes probabilities of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pith::heads {

// Probability that a row of label 1 has a higher score than one of label 0, ties half (the rank form of
// Mann-Whitney). Nothing when a class is empty.
std::optional<double> AreaUnderCurve(std::span<const double> scores, std::span<const float> labels);

struct ScoreMetrics {
  int64_t rows = 0;
  int64_t positives = 0;
  std::optional<double> auc;
  double accuracy = 0;  // at 0.5
  double log_loss = 0;
  double brier = 0;  // mean squared distance of score and label
  double ece = 0;    // expected calibration error: |mean score - mean label| over 10 equal bins, weighted by rows
};
// `scores` in 0..1.
ScoreMetrics MeasureScores(std::span<const double> scores, std::span<const float> labels);

// What choosing label 1 from a threshold on does.
struct ThresholdRow {
  double threshold = 0;
  double share = 0;                 // of the rows that are chosen (switcher: routed to reasoning)
  std::optional<double> recall;     // of label 1; nothing without such rows
  std::optional<double> precision;  // nothing when none is chosen
  double accuracy = 0;
};
ThresholdRow AtThreshold(std::span<const double> scores, std::span<const float> labels, double threshold);
std::vector<ThresholdRow> ThresholdTable(std::span<const double> scores,
                                         std::span<const float> labels);  // 0.05 .. 0.95
// The highest of the rows' own scores at which at least this share of label 1 is chosen; 0.5 without label 1.
double ThresholdForRecall(std::span<const double> scores, std::span<const float> labels, double recall);

// p = sigmoid(scale * logit + offset).
struct Calibration {
  double scale = 1;
  double offset = 0;
};
// Platt's fit (maximum likelihood with his smoothed targets, so that separable data has a finite optimum) by damped
// Newton steps; with `temperature_only` the offset stays 0. The identity when a class is empty or the scale would not
// be positive: then the scores do not tell the classes apart.
Calibration FitCalibration(std::span<const double> logits, std::span<const float> labels, bool temperature_only);

}  // namespace pith::heads
