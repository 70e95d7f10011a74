// pith train switcher, pith train verifier: the heads, on the features that `pith features` wrote. No libtorch.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cmd_train.h"
#include "command.h"
#include "heads/feature_set.h"
#include "heads/head_training.h"
#include "json_output.h"

namespace pith {

namespace {

using heads::CalibrationKind;
using heads::HeadReport;
using heads::HeadTrainingOptions;
using heads::SideReport;
using heads::ThresholdRow;

struct HeadFlags {
  FeatureKind kind = FeatureKind::kSwitcher;
  std::vector<std::string> features;
  std::string out;
  std::string calibration = "platt";
  double threshold = 0.5;
  double target_recall = 0.95;
  bool verbose = false;
  HeadTrainingOptions training;
  CLI::Option* threshold_option = nullptr;
  CLI::Option* recall_option = nullptr;
};

// A folder gets the file under the name by which it is found there. A path whose last part holds ".safetensors"
// (perhaps with more after it) is the file itself.
std::string HeadPath(const std::string& out, FeatureKind kind) {
  if (std::filesystem::path(out).filename().string().find(".safetensors") != std::string::npos) return out;
  return (std::filesystem::path(out) / (kind == FeatureKind::kSwitcher ? kSwitcherFile : kVerifierFile)).string();
}

void PrintSide(const char* name, const SideReport& side) {
  const heads::ScoreMetrics& m = side.calibrated;
  if (m.rows == 0) return;
  std::printf("%-10s %7lld questions %7lld rows (%lld with label 1)", name, static_cast<long long>(side.questions),
              static_cast<long long>(m.rows), static_cast<long long>(m.positives));
  if (m.auc) std::printf("  AUC %.4f", *m.auc);
  std::printf("  accuracy %.4f  Brier %.4f  ECE %.4f (%.4f before calibration)\n", m.accuracy, m.brier, m.ece,
              side.raw.ece);
}

void PrintReport(FeatureKind kind, const HeadReport& report) {
  std::printf("%lld epochs, the best was %lld: loss %.4f, on the validation side %.4f\n",
              static_cast<long long>(report.epochs), static_cast<long long>(report.best_epoch), report.train_loss,
              report.validation_loss);
  PrintSide("train", report.train);
  PrintSide("validation", report.validation);
  PrintSide("test", report.test);
  std::printf("thresholds, on the %s side:\n%9s %8s %8s %9s %8s\n", report.thresholds_on.c_str(), "threshold",
              kind == FeatureKind::kSwitcher ? "routed" : "chosen", "recall", "precision", "accuracy");
  const auto percent = [](const std::optional<double>& value) {
    char text[16] = "-";
    if (value) std::snprintf(text, sizeof(text), "%.1f %%", 100 * *value);
    return std::string(text);
  };
  for (const ThresholdRow& row : report.thresholds) {
    std::printf("%9.2f %8s %8s %9s %8s\n", row.threshold, percent(row.share).c_str(), percent(row.recall).c_str(),
                percent(row.precision).c_str(), percent(row.accuracy).c_str());
  }
  if (report.selection && report.selection->questions > 0) {
    std::printf("of several responses to one question (%lld): right at random %s, the highest score %s, any %s\n",
                static_cast<long long>(report.selection->questions), percent(report.selection->random).c_str(),
                percent(report.selection->scored).c_str(), percent(report.selection->oracle).c_str());
  }
  if (kind == FeatureKind::kSwitcher) std::printf("threshold of the head: %.4g\n", report.threshold);
}

Status RunHead(const Cli& cli, HeadFlags& flags) {
  HeadTrainingOptions& training = flags.training;
  training.calibration = flags.calibration == "none"          ? CalibrationKind::kNone
                         : flags.calibration == "temperature" ? CalibrationKind::kTemperature
                                                              : CalibrationKind::kPlatt;
  if (flags.threshold_option != nullptr && flags.threshold_option->count() > 0) training.threshold = flags.threshold;
  if (flags.recall_option != nullptr && flags.recall_option->count() > 0) training.target_recall = flags.target_recall;
  if (flags.verbose) {
    training.on_epoch = [](int64_t epoch, double train, double validation) {
      std::fprintf(stderr, "epoch %lld  loss %.4f  validation %.4f\n", static_cast<long long>(epoch), train,
                   validation);
    };
  }
  PITH_ASSIGN(const heads::FeatureSet set, heads::ReadFeatures(flags.features));
  const std::string path = HeadPath(flags.out, flags.kind);
  HeadReport report;
  std::string json;
  const auto make_folder = [&]() -> Status {
    const auto folder = std::filesystem::path(path).parent_path();
    std::error_code error;
    if (!folder.empty()) std::filesystem::create_directories(folder, error);
    if (error) return Error{ErrorCode::kIo, "cannot make the folder '" + folder.string() + "': " + error.message()};
    return {};
  };
  if (flags.kind == FeatureKind::kSwitcher) {
    PITH_ASSIGN(const SwitcherHead head, heads::TrainSwitcher(set, training, &report));
    json = heads::HeadReportJson(set, training, report);
    PITH_RETURN_IF_ERROR(make_folder());
    PITH_RETURN_IF_ERROR(WriteSwitcher(path, head, json));
  } else {
    PITH_ASSIGN(const VerifierHead head, heads::TrainVerifier(set, training, &report));
    json = heads::HeadReportJson(set, training, report);
    PITH_RETURN_IF_ERROR(make_folder());
    PITH_RETURN_IF_ERROR(WriteVerifier(path, head, json));
  }
  if (cli.json()) {
    OrderedJson object{{"out", path}};
    object.update(OrderedJson::parse(json));
    PrintJson(object);
  } else {
    PrintReport(flags.kind, report);
    std::printf("%s\n", path.c_str());
  }
  return {};
}

void AddHeadCommand(Cli& cli, CLI::App* parent, FeatureKind kind) {
  const bool switcher = kind == FeatureKind::kSwitcher;
  auto flags = std::make_shared<HeadFlags>();
  flags->kind = kind;
  HeadTrainingOptions& training = flags->training;
  const std::string name = FeatureKindName(kind);
  CLI::App* app = cli.AddCommand(parent, name,
                                 switcher ? "Train the head that chooses between answering directly and reasoning."
                                          : "Train the head that scores responses for the vote.",
                                 "pith train " + name + " --features features/" + name + " --out reason");
  const CompletionHint file{.kind = CompletionHint::Kind::kFile, .words = {}};
  CLI::Option* features =
      app->add_option("--features", flags->features, "Folders that 'pith features --kind " + name + "' wrote");
  features->required()->type_name("DIR");
  SetCompletion(features, file);
  CLI::Option* out =
      app->add_option("-o,--out,--output-dir", flags->out,
                      "Adapter directory that gets " + std::string(switcher ? kSwitcherFile : kVerifierFile) +
                          ", or the path of such a file");
  out->required()->type_name("PATH");
  SetCompletion(out, file);
  app->add_option("--learning-rate", training.learning_rate, "Of AdamW, constant")->capture_default_str();
  app->add_option("--weight-decay", training.weight_decay, "Decoupled weight decay of matrices")->capture_default_str();
  app->add_option("--batch-size", training.batch_size, "Rows of a step")->capture_default_str();
  app->add_option("--num-train-epochs", training.epochs, "Most epochs")->capture_default_str();
  app->add_option("--patience", training.patience, "Epochs without a better validation loss before it ends")
      ->capture_default_str();
  if (switcher) {
    app->add_option("--inner-size", training.inner, "Units of the hidden layer")->capture_default_str();
    app->add_option("--dropout", training.dropout, "Of the hidden layer")->capture_default_str();
    app->add_option("--noise", training.noise, "Deviation of the noise on the standardised inputs while training")
        ->capture_default_str();
    flags->threshold_option = app->add_option("--threshold", flags->threshold,
                                              "Score from which on to reason, stored in the head (default 0.5)");
    flags->recall_option = app->add_option("--target-recall", flags->target_recall,
                                           "Instead: the highest threshold that routes this share of the validation "
                                           "rows with label 1 to reasoning");
    flags->recall_option->excludes(flags->threshold_option);
  }
  app->add_flag("--class-balance", training.balance, "Weigh the classes so that both count the same");
  app->add_option("--validation-split", training.validation_split,
                  "Share of the questions for early stopping and calibration")
      ->capture_default_str();
  app->add_option("--test-split", training.test_split, "Share of the questions for measuring only")
      ->capture_default_str();
  AddChoiceOption(app, "--calibration", flags->calibration, {"platt", "temperature", "none"},
                  "What makes probabilities of the scores, fitted on the validation side")
      ->capture_default_str();
  AddSeedOption(app, training.seed)->capture_default_str();
  app->add_flag("--verbose", flags->verbose, "Show the losses of every epoch");
  cli.OnRun(app, [&cli, flags] { return RunHead(cli, *flags); });
}

}  // namespace

void AddTrainSwitcherCommand(Cli& cli, CLI::App* parent) { AddHeadCommand(cli, parent, FeatureKind::kSwitcher); }
void AddTrainVerifierCommand(Cli& cli, CLI::App* parent) { AddHeadCommand(cli, parent, FeatureKind::kVerifier); }

}  // namespace pith
