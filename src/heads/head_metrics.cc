#include "heads/head_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "heads/head_net.h"

namespace pith::heads {
namespace {

int64_t CountPositives(std::span<const float> labels) { return std::count(labels.begin(), labels.end(), 1.0F); }

}  // namespace

std::optional<double> AreaUnderCurve(std::span<const double> scores, std::span<const float> labels) {
  const auto positives = static_cast<double>(CountPositives(labels));
  const double negatives = static_cast<double>(labels.size()) - positives;
  if (positives == 0 || negatives == 0) return std::nullopt;
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  double rank_sum = 0;  // of label 1; equal scores share the mean of their ranks
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    double ones = 0;
    for (; end < order.size() && scores[order[end]] == scores[order[begin]]; ++end) {
      if (labels[order[end]] == 1.0F) ++ones;
    }
    rank_sum += ones * (static_cast<double>(begin + 1) + static_cast<double>(end)) / 2;
    begin = end;
  }
  return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives);
}

ScoreMetrics MeasureScores(std::span<const double> scores, std::span<const float> labels) {
  ScoreMetrics metrics;
  metrics.rows = static_cast<int64_t>(labels.size());
  metrics.positives = CountPositives(labels);
  metrics.auc = AreaUnderCurve(scores, labels);
  if (labels.empty()) return metrics;
  constexpr size_t kBins = 10;
  std::array<double, kBins> score_sum{};
  std::array<double, kBins> label_sum{};
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto label = static_cast<double>(labels[i]);
    const bool chosen = scores[i] >= 0.5;
    metrics.accuracy += chosen == (label == 1) ? 1 : 0;
    metrics.brier += (scores[i] - label) * (scores[i] - label);
    const double p = std::clamp(label == 1 ? scores[i] : 1 - scores[i], 1e-15, 1.0);
    metrics.log_loss -= std::log(p);
    const auto bin = std::min(kBins - 1, static_cast<size_t>(scores[i] * kBins));
    score_sum[bin] += scores[i];
    label_sum[bin] += label;
  }
  for (size_t bin = 0; bin < kBins; ++bin) metrics.ece += std::abs(score_sum[bin] - label_sum[bin]);
  const auto rows = static_cast<double>(labels.size());
  metrics.accuracy /= rows;
  metrics.brier /= rows;
  metrics.log_loss /= rows;
  metrics.ece /= rows;
  return metrics;
}

ThresholdRow AtThreshold(std::span<const double> scores, std::span<const float> labels, double threshold) {
  double chosen = 0;
  double found = 0;
  double right = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const bool label = labels[i] == 1.0F;
    const bool choose = scores[i] >= threshold;
    if (choose) ++chosen;
    if (choose && label) ++found;
    if (choose == label) ++right;
  }
  const auto rows = std::max(1.0, static_cast<double>(labels.size()));
  const auto positives = static_cast<double>(CountPositives(labels));
  ThresholdRow row{
      .threshold = threshold, .share = chosen / rows, .recall = {}, .precision = {}, .accuracy = right / rows};
  if (positives > 0) row.recall = found / positives;
  if (chosen > 0) row.precision = found / chosen;
  return row;
}

std::vector<ThresholdRow> ThresholdTable(std::span<const double> scores, std::span<const float> labels) {
  std::vector<ThresholdRow> table;
  for (int i = 1; i < 20; ++i) table.push_back(AtThreshold(scores, labels, i / 20.0));
  return table;
}

double ThresholdForRecall(std::span<const double> scores, std::span<const float> labels, double recall) {
  std::vector<double> of_positives;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (labels[i] == 1.0F) of_positives.push_back(scores[i]);
  }
  if (of_positives.empty()) return 0.5;
  std::sort(of_positives.begin(), of_positives.end(), std::greater<>());
  const auto wanted = static_cast<size_t>(std::ceil(recall * static_cast<double>(of_positives.size()) - 1e-9));
  return of_positives[std::clamp<size_t>(wanted, 1, of_positives.size()) - 1];
}

Calibration FitCalibration(std::span<const double> logits, std::span<const float> labels, bool temperature_only) {
  const auto positives = static_cast<double>(CountPositives(labels));
  const double negatives = static_cast<double>(labels.size()) - positives;
  if (positives == 0 || negatives == 0) return {};
  // Platt 1999: the targets of a uniform prior over what was not seen.
  const double high = (positives + 1) / (positives + 2);
  const double low = 1 / (negatives + 2);
  const auto loss_of = [&](const Calibration& c) {
    double loss = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double z = c.scale * logits[i] + c.offset;
      const double target = labels[i] == 1.0F ? high : low;
      loss += target * BinaryCrossEntropy(z, true) + (1 - target) * BinaryCrossEntropy(z, false);
    }
    return loss;
  };
  Calibration best{.scale = 1, .offset = 0};
  double best_loss = loss_of(best);
  constexpr int kSteps = 100;
  for (int step = 0; step < kSteps; ++step) {
    double ga = 0;
    double gb = 0;
    double haa = 1e-9;
    double hab = 0;
    double hbb = 1e-9;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double p = Sigmoid(best.scale * logits[i] + best.offset);
      const double d = p - (labels[i] == 1.0F ? high : low);
      const double w = p * (1 - p);
      ga += d * logits[i];
      gb += d;
      haa += w * logits[i] * logits[i];
      hab += w * logits[i];
      hbb += w;
    }
    double da = ga / haa;
    double db = 0;
    if (!temperature_only) {
      // A little damping keeps the matrix regular when all logits are equal.
      haa += 1e-9 * haa;
      hbb += 1e-9 * hbb;
      const double det = haa * hbb - hab * hab;
      da = (hbb * ga - hab * gb) / det;
      db = (haa * gb - hab * ga) / det;
    }
    bool moved = false;
    for (double part = 1; part > 1e-10; part /= 2) {
      const Calibration next{best.scale - part * da, best.offset - part * db};
      const double loss = loss_of(next);
      if (!(loss < best_loss)) continue;
      moved = best_loss - loss > 1e-12 * best_loss;
      best = next;
      best_loss = loss;
      break;
    }
    if (!moved) break;
  }
  return best.scale > 0 ? best : Calibration{};
}

}  // namespace pith::heads
