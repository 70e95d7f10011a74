#include "heads/head_training.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/json.h"
#include "base/random.h"
#include "heads/head_net.h"

namespace pith::heads {
namespace {

// Streams of random numbers, apart from those of the net's initial weights.
constexpr uint64_t kSplitStream = 0x51;
constexpr uint64_t kOrderStream = 0x52;
constexpr uint64_t kDropoutStream = 0x53;
constexpr uint64_t kNoiseStream = 0x54;

Error BadOption(const std::string& why) { return {ErrorCode::kInvalidArgument, why}; }

Status CheckOptions(const HeadTrainingOptions& o) {
  if (o.inner < 1 || o.inner > 1024) return BadOption("the hidden layer must have 1 to 1024 units");
  if (!(o.dropout >= 0 && o.dropout < 1)) return BadOption("dropout must be from 0 to below 1");
  if (!(o.noise >= 0 && o.noise <= 100)) return BadOption("noise must be 0 to 100");
  if (!(o.learning_rate > 0 && o.learning_rate <= 1)) return BadOption("the learning rate must be above 0, at most 1");
  if (!(o.weight_decay >= 0 && o.weight_decay <= 10)) return BadOption("the weight decay must be 0 to 10");
  if (o.batch_size < 1) return BadOption("a batch must have at least one row");
  if (o.epochs < 1 || o.epochs > 100000) return BadOption("there must be 1 to 100000 epochs");
  if (o.patience < 1) return BadOption("the patience must be at least 1 epoch");
  if (!(o.validation_split > 0 && o.validation_split < 1))
    return BadOption("the validation split must be between 0 and 1");
  if (!(o.test_split >= 0 && o.test_split + o.validation_split < 1)) {
    return BadOption("validation and test split must leave something to train on");
  }
  if (o.threshold && !(*o.threshold >= 0 && *o.threshold <= 1)) return BadOption("the threshold must be 0 to 1");
  if (o.target_recall && !(*o.target_recall > 0 && *o.target_recall <= 1)) {
    return BadOption("the target recall must be above 0, at most 1");
  }
  return {};
}

uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

// Standard normal values for one row, two at a time (Box & Muller).
void AddNoise(double deviation, uint64_t seed, uint64_t row_key, std::span<float> x) {
  const uint64_t stream = Mix64(row_key ^ kNoiseStream);
  for (size_t i = 0; i < x.size(); i += 2) {
    const double radius = deviation * std::sqrt(-2 * std::log(1 - RandomUniform(seed, stream, i)));
    const double angle = 2 * std::numbers::pi * RandomUniform(seed, stream, i + 1);
    x[i] += static_cast<float>(radius * std::cos(angle));
    if (i + 1 < x.size()) x[i + 1] += static_cast<float>(radius * std::sin(angle));
  }
}

// A head for raw states.
struct Folded {
  std::vector<float> w1, b1, w2;  // linear: w1 alone
  float b2 = 0;
};

class Trainer {
 public:
  Trainer(const FeatureSet& set, const HeadTrainingOptions& options, int64_t inner)
      : set_(set), options_(options), inner_(inner), net_(set.hidden, inner, options.seed) {}

  Result<Folded> Run(HeadReport* report) {
    PITH_RETURN_IF_ERROR(Split());
    Standardise();
    PITH_RETURN_IF_ERROR(Train(report));
    return Calibrated(report);
  }

  // Scores by the head as it is written; what remains of the report.
  void Measure(const std::function<double(std::span<const float>)>& score, HeadReport* report) const {
    struct Part {
      const std::vector<int64_t>& rows;
      SideReport& side;
    };
    for (const Part& part :
         {Part{train_, report->train}, Part{validation_, report->validation}, Part{test_, report->test}}) {
      std::vector<double> scores;
      for (const int64_t row : part.rows) scores.push_back(score(set_.State(row)));
      const auto labels = LabelsOf(part.rows);
      part.side.calibrated = MeasureScores(scores, labels);
      part.side.questions = QuestionsOf(part.rows);
      const bool table = &part.rows == &HeldOut();
      if (&part.rows == &validation_ && options_.target_recall) {
        report->threshold = ThresholdForRecall(scores, labels, *options_.target_recall);
      }
      if (!table) continue;
      report->thresholds_on = &part.rows == &test_ ? "test" : "validation";
      report->thresholds = ThresholdTable(scores, labels);
      if (set_.kind == FeatureKind::kVerifier) report->selection = Select(part.rows, scores);
    }
    if (!options_.target_recall) report->threshold = options_.threshold.value_or(0.5);
  }

 private:
  const std::vector<int64_t>& HeldOut() const { return test_.empty() ? validation_ : test_; }

  std::vector<float> LabelsOf(const std::vector<int64_t>& rows) const {
    std::vector<float> labels;
    for (const int64_t row : rows) labels.push_back(set_.labels[static_cast<size_t>(row)]);
    return labels;
  }

  int64_t QuestionsOf(const std::vector<int64_t>& rows) const {
    std::vector<uint8_t> seen(set_.questions.size(), 0);
    for (const int64_t row : rows) seen[static_cast<size_t>(set_.question[static_cast<size_t>(row)])] = 1;
    return std::count(seen.begin(), seen.end(), 1);
  }

  Status Split() {
    const auto sides = SplitQuestions(set_, options_.validation_split, options_.test_split, options_.seed);
    for (int64_t row = 0; row < set_.rows(); ++row) {
      const Side side = sides[static_cast<size_t>(set_.question[static_cast<size_t>(row)])];
      (side == Side::kTrain ? train_ : side == Side::kValidation ? validation_ : test_).push_back(row);
    }
    std::vector<int64_t> all(static_cast<size_t>(set_.rows()));
    std::iota(all.begin(), all.end(), int64_t{0});
    PITH_RETURN_IF_ERROR(BothClasses(all, "in the features"));
    PITH_RETURN_IF_ERROR(BothClasses(train_, "to train on after the split by question"));
    return BothClasses(validation_,
                       "on the validation side of the split by question (give more questions, or a larger share)");
  }

  Status BothClasses(const std::vector<int64_t>& rows, const std::string& where) const {
    const auto labels = LabelsOf(rows);
    const auto ones = std::count(labels.begin(), labels.end(), 1.0F);
    if (ones > 0 && ones < static_cast<int64_t>(labels.size())) return {};
    return BadOption(std::string("there are no rows with label ") + (ones == 0 ? "1 " : "0 ") + where + " (" +
                     std::to_string(labels.size()) + " rows, " + std::to_string(ones) + " with label 1)");
  }

  // Mean and deviation of each input over the training rows. An input that does not vary says nothing and is left out.
  void Standardise() {
    const auto hidden = static_cast<size_t>(set_.hidden);
    mean_.assign(hidden, 0.0);
    scale_.assign(hidden, 0.0);
    const auto count = static_cast<double>(train_.size());
    for (const int64_t row : train_) {
      const auto state = set_.State(row);
      for (size_t i = 0; i < hidden; ++i) mean_[i] += static_cast<double>(state[i]) / count;
    }
    for (const int64_t row : train_) {
      const auto state = set_.State(row);
      for (size_t i = 0; i < hidden; ++i) {
        const double d = static_cast<double>(state[i]) - mean_[i];
        scale_[i] += d * d / count;
      }
    }
    for (size_t i = 0; i < hidden; ++i) {
      const double deviation = std::sqrt(scale_[i]);
      scale_[i] = deviation > 1e-6 * (1e-6 + std::abs(mean_[i])) ? 1 / deviation : 0;
    }
  }

  void Input(int64_t row, std::vector<float>* x) const {
    const auto state = set_.State(row);
    x->resize(state.size());
    for (size_t i = 0; i < state.size(); ++i) {
      (*x)[i] = static_cast<float>((static_cast<double>(state[i]) - mean_[i]) * scale_[i]);
    }
  }

  // Weights of the classes, with mean 1 over the training rows.
  std::pair<double, double> ClassWeights() const {
    if (!options_.balance) return {1, 1};
    const auto labels = LabelsOf(train_);
    const auto n = static_cast<double>(labels.size());
    const auto ones = static_cast<double>(std::count(labels.begin(), labels.end(), 1.0F));
    return {n / (2 * (n - ones)), n / (2 * ones)};
  }

  double WeightOf(int64_t row) const {
    return set_.labels[static_cast<size_t>(row)] == 1.0F ? weights_.second : weights_.first;
  }

  double ValidationLoss() const {
    double loss = 0;
    double weight = 0;
    std::vector<float> x;
    for (const int64_t row : validation_) {
      Input(row, &x);
      loss += WeightOf(row) * BinaryCrossEntropy(net_.Logit(x), set_.labels[static_cast<size_t>(row)] == 1.0F);
      weight += WeightOf(row);
    }
    return loss / weight;
  }

  // The training rows in the order of an epoch.
  std::vector<int64_t> Order(int64_t epoch) const {
    std::vector<int64_t> order = train_;
    const auto key = static_cast<uint64_t>(epoch);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[RandomBits(options_.seed, Mix64(kOrderStream) ^ key, i) % i]);
    }
    return order;
  }

  double Epoch(int64_t epoch, train::AdamW* optimizer) {
    const auto order = Order(epoch);
    std::vector<float> x;
    std::vector<float> keep;
    double total = 0;
    const auto batch = static_cast<size_t>(options_.batch_size);
    for (size_t begin = 0; begin < order.size(); begin += batch) {
      const size_t end = std::min(order.size(), begin + batch);
      net_.ZeroGradients();
      for (size_t k = begin; k < end; ++k) {
        const int64_t row = order[k];
        const uint64_t row_key = Mix64(static_cast<uint64_t>(epoch)) ^ static_cast<uint64_t>(row);
        Input(row, &x);
        if (options_.noise > 0 && inner_ > 0) AddNoise(options_.noise, options_.seed, row_key, x);
        if (options_.dropout > 0 && inner_ > 0) {
          keep.resize(static_cast<size_t>(inner_));
          for (size_t j = 0; j < keep.size(); ++j) {
            const bool dropped = RandomUniform(options_.seed, Mix64(row_key ^ kDropoutStream), j) < options_.dropout;
            keep[j] = dropped ? 0.0F : static_cast<float>(1 / (1 - options_.dropout));
          }
        }
        const double weight = WeightOf(row) / static_cast<double>(end - begin);
        total += net_.Accumulate(x, set_.labels[static_cast<size_t>(row)] == 1.0F, weight, keep) *
                 static_cast<double>(end - begin);
      }
      optimizer->Step(options_.learning_rate);
    }
    return total / static_cast<double>(order.size());
  }

  Status Train(HeadReport* report) {
    weights_ = ClassWeights();
    train::AdamW optimizer(net_.parameters(), {.weight_decay = options_.weight_decay});
    std::vector<std::vector<float>> best;
    double best_loss = 0;
    for (int64_t epoch = 1; epoch <= options_.epochs; ++epoch) {
      const double train_loss = Epoch(epoch, &optimizer);
      const double loss = ValidationLoss();
      if (!std::isfinite(train_loss) || !std::isfinite(loss)) {
        return Error{ErrorCode::kNumeric, "epoch " + std::to_string(epoch) + ": the loss is not finite"};
      }
      report->epochs = epoch;
      if (options_.on_epoch) options_.on_epoch(epoch, train_loss, loss);
      if (best.empty() || loss < best_loss) {
        best.clear();
        for (const auto& parameter : net_.parameters())
          best.emplace_back(parameter.value.begin(), parameter.value.end());
        best_loss = loss;
        report->best_epoch = epoch;
        report->train_loss = train_loss;
      } else if (epoch - report->best_epoch >= options_.patience) {
        break;
      }
    }
    report->validation_loss = best_loss;
    for (size_t p = 0; p < best.size(); ++p) {
      std::copy(best[p].begin(), best[p].end(), net_.parameters()[p].value.begin());
    }
    return {};
  }

  std::vector<double> Logits(const std::vector<int64_t>& rows) const {
    std::vector<double> logits;
    std::vector<float> x;
    for (const int64_t row : rows) {
      Input(row, &x);
      logits.push_back(net_.Logit(x));
    }
    return logits;
  }

  // The weights for raw states, with the calibration in them.
  Folded Calibrated(HeadReport* report) const {
    const auto raw = [&](const std::vector<int64_t>& rows) {
      auto scores = Logits(rows);
      for (double& score : scores) score = Sigmoid(score);
      return MeasureScores(scores, LabelsOf(rows));
    };
    report->train.raw = raw(train_);
    report->validation.raw = raw(validation_);
    report->test.raw = raw(test_);
    if (options_.calibration != CalibrationKind::kNone) {
      report->calibration = FitCalibration(Logits(validation_), LabelsOf(validation_),
                                           options_.calibration == CalibrationKind::kTemperature);
    }
    const double scale = report->calibration.scale;
    const double offset = report->calibration.offset;
    const auto hidden = static_cast<size_t>(set_.hidden);
    const auto& parameters = net_.parameters();
    const size_t units = inner_ == 0 ? 1 : static_cast<size_t>(inner_);
    Folded folded;
    folded.w1.resize(units * hidden);
    // The factor of the calibration goes into the last layer.
    const double last = inner_ == 0 ? scale : 1;
    for (size_t j = 0; j < units; ++j) {
      double bias = static_cast<double>(parameters[1].value[j]);
      for (size_t i = 0; i < hidden; ++i) {
        const double w = static_cast<double>(parameters[0].value[j * hidden + i]) * scale_[i];
        bias -= w * mean_[i];
        folded.w1[j * hidden + i] = static_cast<float>(last * w);
      }
      folded.b1.push_back(static_cast<float>(last * bias));
      if (inner_ == 0) {
        folded.b2 = static_cast<float>(last * bias + offset);
      } else {
        folded.w2.push_back(static_cast<float>(scale * static_cast<double>(parameters[2].value[j])));
      }
    }
    if (inner_ > 0) folded.b2 = static_cast<float>(scale * static_cast<double>(parameters[3].value[0]) + offset);
    return folded;
  }

  Selection Select(const std::vector<int64_t>& rows, const std::vector<double>& scores) const {
    struct Tally {
      double right = 0;
      double count = 0;
      double best = -1;
      bool best_right = false;
    };
    std::vector<Tally> tallies(set_.questions.size());
    for (size_t k = 0; k < rows.size(); ++k) {
      const auto row = static_cast<size_t>(rows[k]);
      Tally& tally = tallies[static_cast<size_t>(set_.question[row])];
      const bool right = set_.labels[row] == 1.0F;
      tally.count += 1;
      tally.right += right ? 1 : 0;
      if (scores[k] > tally.best) tally.best_right = right;
      tally.best = std::max(tally.best, scores[k]);
    }
    Selection selection;
    for (const Tally& tally : tallies) {
      if (tally.count < 2) continue;
      ++selection.questions;
      selection.random += tally.right / tally.count;
      selection.scored += tally.best_right ? 1 : 0;
      selection.oracle += tally.right > 0 ? 1 : 0;
    }
    const auto n = std::max(1.0, static_cast<double>(selection.questions));
    selection.random /= n;
    selection.scored /= n;
    selection.oracle /= n;
    return selection;
  }

  const FeatureSet& set_;
  const HeadTrainingOptions& options_;
  int64_t inner_;
  HeadNet net_;
  std::vector<int64_t> train_, validation_, test_;  // rows
  std::vector<double> mean_, scale_;                // of the inputs; scale = 1 / deviation
  std::pair<double, double> weights_{1, 1};         // of label 0 and 1
};

Status CheckKind(const FeatureSet& set, FeatureKind kind) {
  if (set.kind == kind) return {};
  return Error{ErrorCode::kMismatch, std::string("these are features for a ") + FeatureKindName(set.kind) +
                                         ", not for a " + FeatureKindName(kind)};
}

OrderedJson OrNull(const std::optional<double>& value) { return value ? OrderedJson(*value) : OrderedJson(nullptr); }

OrderedJson SideJson(const SideReport& side) {
  const ScoreMetrics& m = side.calibrated;
  if (m.rows == 0) return nullptr;
  return {{"questions", side.questions},
          {"rows", m.rows},
          {"positives", m.positives},
          {"auc", OrNull(m.auc)},
          {"accuracy", m.accuracy},
          {"log_loss", m.log_loss},
          {"brier", m.brier},
          {"ece", m.ece},
          {"uncalibrated", {{"log_loss", side.raw.log_loss}, {"brier", side.raw.brier}, {"ece", side.raw.ece}}}};
}

const char* CalibrationName(CalibrationKind kind) {
  return kind == CalibrationKind::kPlatt ? "platt" : kind == CalibrationKind::kTemperature ? "temperature" : "none";
}

}  // namespace

std::vector<Side> SplitQuestions(const FeatureSet& set, double validation, double test, uint64_t seed) {
  std::vector<double> balance(set.questions.size(), 0);  // rows of label 1 less those of label 0
  for (size_t row = 0; row < set.labels.size(); ++row) {
    balance[static_cast<size_t>(set.question[row])] += set.labels[row] == 1.0F ? 1 : -1;
  }
  std::vector<Side> sides(set.questions.size(), Side::kTrain);
  for (const bool positive : {false, true}) {
    struct Ranked {
      uint64_t hash;
      size_t question;
    };
    std::vector<Ranked> ranked;
    for (size_t q = 0; q < sides.size(); ++q) {
      if ((balance[q] > 0) == positive) ranked.push_back({RandomBits(seed, kSplitStream, HashOf(set.questions[q])), q});
    }
    std::sort(ranked.begin(), ranked.end(), [&](const Ranked& a, const Ranked& b) {
      return a.hash != b.hash ? a.hash < b.hash : set.questions[a.question] < set.questions[b.question];
    });
    const auto count = static_cast<double>(ranked.size());
    // At least one question of a group where it has several, but never the last that is left to train on.
    const auto share = [&](double of, size_t taken) {
      if (of <= 0) return size_t{0};
      const auto wanted = std::max<size_t>(1, static_cast<size_t>(std::lround(of * count)));
      return std::min(wanted, ranked.size() > taken + 1 ? ranked.size() - taken - 1 : 0);
    };
    const size_t to_validation = share(validation, 0);
    const size_t to_test = share(test, to_validation);
    for (size_t i = 0; i < to_validation + to_test; ++i) {
      sides[ranked[i].question] = i < to_validation ? Side::kValidation : Side::kTest;
    }
  }
  return sides;
}

Result<SwitcherHead> TrainSwitcher(const FeatureSet& set, const HeadTrainingOptions& options, HeadReport* report) {
  PITH_RETURN_IF_ERROR(CheckKind(set, FeatureKind::kSwitcher));
  PITH_RETURN_IF_ERROR(CheckOptions(options));
  Trainer trainer(set, options, options.inner);
  PITH_ASSIGN(Folded folded, trainer.Run(report));
  SwitcherHead head;
  head.hidden = set.hidden;
  head.inner = options.inner;
  head.pooling = set.pooling;
  head.w1 = std::move(folded.w1);
  head.b1 = std::move(folded.b1);
  head.w2 = std::move(folded.w2);
  head.b2 = folded.b2;
  trainer.Measure([&](std::span<const float> state) { return head.Score(state); }, report);
  head.threshold = report->threshold;
  return head;
}

Result<VerifierHead> TrainVerifier(const FeatureSet& set, const HeadTrainingOptions& options, HeadReport* report) {
  PITH_RETURN_IF_ERROR(CheckKind(set, FeatureKind::kVerifier));
  PITH_RETURN_IF_ERROR(CheckOptions(options));
  if (set.prompt.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "the features do not say what was asked after the responses; write them again with 'pith features'"};
  }
  Trainer trainer(set, options, 0);
  PITH_ASSIGN(Folded folded, trainer.Run(report));
  VerifierHead head;
  head.hidden = set.hidden;
  head.prompt = set.prompt;
  head.adapter = set.adapter;
  head.w = std::move(folded.w1);
  head.b = folded.b2;
  trainer.Measure([&](std::span<const float> state) { return head.Score(state); }, report);
  return head;
}

std::string HeadReportJson(const FeatureSet& set, const HeadTrainingOptions& options, const HeadReport& report) {
  const bool switcher = set.kind == FeatureKind::kSwitcher;
  OrderedJson json{{"kind", FeatureKindName(set.kind)}, {"provenance", set.provenance}, {"hidden_size", set.hidden}};
  json["options"] = {{"learning_rate", options.learning_rate},
                     {"weight_decay", options.weight_decay},
                     {"batch_size", options.batch_size},
                     {"epochs", options.epochs},
                     {"patience", options.patience},
                     {"class_balance", options.balance},
                     {"validation_split", options.validation_split},
                     {"test_split", options.test_split},
                     {"calibration", CalibrationName(options.calibration)},
                     {"seed", options.seed}};
  if (switcher) {
    json["options"]["inner_size"] = options.inner;
    json["options"]["dropout"] = options.dropout;
    json["options"]["noise"] = options.noise;
  }
  json["epochs"] = report.epochs;
  json["best_epoch"] = report.best_epoch;
  json["train_loss"] = report.train_loss;
  json["validation_loss"] = report.validation_loss;
  json["calibration"] = {{"scale", report.calibration.scale}, {"offset", report.calibration.offset}};
  json["train"] = SideJson(report.train);
  json["validation"] = SideJson(report.validation);
  json["test"] = SideJson(report.test);
  if (switcher) json["threshold"] = report.threshold;
  OrderedJson rows = OrderedJson::array();
  for (const ThresholdRow& row : report.thresholds) {
    rows.push_back({{"threshold", row.threshold},
                    {switcher ? "routed_share" : "share", row.share},
                    {"recall", OrNull(row.recall)},
                    {"precision", OrNull(row.precision)},
                    {"accuracy", row.accuracy}});
  }
  json["thresholds_on"] = report.thresholds_on;
  json["thresholds"] = std::move(rows);
  if (report.selection) {
    json["selection"] = {{"questions", report.selection->questions},
                         {"random", report.selection->random},
                         {"scored", report.selection->scored},
                         {"oracle", report.selection->oracle}};
  }
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace pith::heads
