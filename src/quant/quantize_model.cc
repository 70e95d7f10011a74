#include "quant/quantize_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/json.h"
#include "base/sha256.h"
#include "engine/calibrate.h"
#include "model/safetensors.h"
#include "model/tokenizer_file.h"
#include "quant/gptq.h"
#include "quant/gram.h"
#include "quant/hadamard.h"
#include "quant/latent_file.h"
#include "quant/merged_model.h"
#include "quant/teacher.h"
#include "quant/vector_file.h"
#include "train/train_model.h"

namespace pith::quant {

namespace fs = std::filesystem;

namespace {

const Method kMethods[] = {
    {"minmax", false, false, false, ScalingKind::kNone, QuantMethod::kMinMax},
    {"l2", false, false, false, ScalingKind::kNone, QuantMethod::kLp},
    {"best", false, false, false, ScalingKind::kNone, QuantMethod::kBest},
    {"smoothquant", false, false, false, ScalingKind::kSmooth, QuantMethod::kBest},
    {"awq", false, false, false, ScalingKind::kAwq, QuantMethod::kBest},
    {"gptq", false, false, true, ScalingKind::kNone, QuantMethod::kBest},
    {"hadamard", true, false, false, ScalingKind::kNone, QuantMethod::kBest},
    {"hadamard+gptq", true, false, true, ScalingKind::kNone, QuantMethod::kBest},
    {"fptquant", true, true, false, ScalingKind::kNone, QuantMethod::kBest},
    {"fptquant+gptq", true, true, true, ScalingKind::kNone, QuantMethod::kBest},
};

class Quantization {
 public:
  Quantization(std::string out_dir, const QuantizeOptions& options)
      : out_dir_(std::move(out_dir)), work_(out_dir_ + ".work"), options_(options), pool_(options.threads) {}

  Result<QuantizeReport> Run(const std::string& model_path) {
    std::error_code error;
    if (fs::exists(out_dir_, error)) {
      return Error{ErrorCode::kInvalidArgument, "'" + out_dir_ + "' is there already"};
    }
    PITH_ASSIGN(source_, Checkpoint::Open(model_path));
    if (source_->quantization()) return Error{ErrorCode::kUnsupported, "'" + model_path + "' is packed already"};
    if (options_.method.needs_text() && options_.tokens.empty()) {
      return Error{ErrorCode::kInvalidArgument, options_.method.name + " needs a calibration text"};
    }
    PITH_RETURN_IF_ERROR(ClaimWorkFolder());
    PITH_RETURN_IF_ERROR(Merge());
    if (Training().steps > 0) PITH_RETURN_IF_ERROR(TrainTransforms());
    if (Training().tune_steps > 0) {
      PITH_RETURN_IF_ERROR(ChooseIntegers());
      PITH_RETURN_IF_ERROR(Tune());
    } else {
      PITH_RETURN_IF_ERROR(LoadFeedback());
      PITH_RETURN_IF_ERROR(Pack(out_dir_, [this](const std::string& module, const QuantFormat& format, int64_t cols) {
        return RoundingOf(module, format, cols);
      }));
    }
    if (options_.outliers && CheckpointTokenizer(*source_).ok()) PITH_RETURN_IF_ERROR(MeasureOutliers());
    PITH_RETURN_IF_ERROR(WriteRecord());
    engine_.reset();
    merged_.reset();
    fs::remove_all(work_, error);
    return std::move(report_);
  }

 private:
  OrderedJson Record() const {
    const Method& method = options_.method;
    OrderedJson json = {{"source", source_->path()},
                        {"fingerprint", source_->fingerprint()},
                        {"method", method.name},
                        {"recipe", options_.recipe.Canonical()}};
    if (method.rotate) json["seed"] = options_.seed;
    if (method.optimize) {
      json["local"] = {{"keys", options_.local.keys},
                       {"values", options_.local.values},
                       {"up", options_.local.up},
                       {"p", options_.local.p},
                       {"learning_rate", options_.local.learning_rate},
                       {"iterations", options_.local.iterations}};
    }
    if (method.needs_text()) {
      const auto bytes = std::as_bytes(std::span(options_.tokens));
      json["calibration"] = {{"text", options_.tokens_of},
                             {"tokens", options_.tokens.size()},
                             {"sha256", Sha256Hex(bytes)},
                             {"window", options_.window},
                             {"damping", options_.damping}};
    }
    const TrainingOptions& training = Training();
    if (training.steps > 0 || training.tune_steps > 0) {
      const auto bytes = std::as_bytes(std::span(training.tokens));
      json["training"] = {{"text", options_.tokens_of},
                          {"tokens", training.tokens.size()},
                          {"sha256", Sha256Hex(bytes)},
                          {"window", training.window},
                          {"windows_per_step", training.windows_per_step},
                          {"held_out", training.held_out},
                          {"device", training.device},
                          {"seed", options_.seed}};
    }
    if (training.steps > 0) {
      const TransformTrainables& t = training.transforms;
      json["training"]["steps"] = training.steps;
      json["training"]["learning_rate"] = training.learning_rate;
      json["training"]["trained"] = {
          {"rotation", t.rotation}, {"keys", t.keys}, {"values", t.values}, {"up", t.up}, {"ranges", t.ranges}};
    }
    if (training.tune_steps > 0) {
      const IntegerTrainables& t = training.integers;
      json["training"]["tune_steps"] = training.tune_steps;
      json["training"]["tune_learning_rate"] = training.tune_learning_rate;
      json["training"]["tuned"] = {{"scales", t.scales}, {"norms", t.norms}, {"integers", t.integers}};
    }
    return json;
  }

  const TrainingOptions& Training() const { return options_.training; }

  static std::string Text(const OrderedJson& json) {
    return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  }

  static Status WriteText(const fs::path& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (!file) return Error{ErrorCode::kIo, "cannot write '" + path.string() + "'"};
    return {};
  }

  Status ClaimWorkFolder() {
    const fs::path record = work_ / "options.json";
    std::error_code error;
    if (fs::exists(record, error)) {
      PITH_ASSIGN(const Json before, ReadJsonFile(record.string()));
      if (before != Json::parse(Text(Record()))) {
        return Error{ErrorCode::kMismatch, "'" + work_.string() +
                                               "' belongs to an interrupted run with other options; remove it or give "
                                               "the same options"};
      }
      report_.resumed = true;
      return {};
    }
    if (fs::exists(work_, error)) {
      return Error{ErrorCode::kInvalidArgument, "'" + work_.string() + "' is there and is no work folder of pith"};
    }
    fs::create_directories(work_ / "transforms", error);
    if (error) return Error{ErrorCode::kIo, "cannot create '" + work_.string() + "': " + error.message()};
    return WriteText(record, Text(Record()));
  }

  void Progress(const std::string& stage, uint64_t done, uint64_t total) const {
    if (options_.on_progress) options_.on_progress(stage, done, total);
  }

  // The float model that is packed: the source, or one with the transforms merged.
  Status Merge() {
    const Method& method = options_.method;
    // Training wants the gains folded.
    if (!method.rotate && !method.optimize && method.scaling == ScalingKind::kNone && Training().steps == 0) {
      merged_ = source_;
      return {};
    }
    std::vector<float> rotation;
    if (method.rotate) {
      Rotation made = MakeRotation(source_->config().hidden, options_.seed);
      rotation = std::move(made.matrix);
      report_.rotation = made.description;
    }
    MergeOptions merge;
    if (method.optimize) {
      merge.layer_transforms = [this](int64_t layer, const LayerWeights& weights) { return Optimize(layer, weights); };
    }
    merge.on_layer = [this](int64_t done, int64_t total) {
      Progress("transforms", static_cast<uint64_t>(done), static_cast<uint64_t>(total));
    };
    const std::string folder = (work_ / "merged").string();
    std::error_code error;
    if (!fs::exists(folder, error)) {
      PITH_RETURN_IF_ERROR(WriteMergedModel(*source_, rotation, pool_, folder, merge));
    } else if (method.optimize) {
      for (int64_t layer = 0; layer < source_->config().layers; ++layer) {
        PITH_RETURN_IF_ERROR(Optimize(layer, {}));  // the files are there
      }
    }
    PITH_ASSIGN(merged_, Checkpoint::Open(folder));
    return method.scaling == ScalingKind::kNone ? Status() : ScaleInputs();
  }

  // The baselines: scales of inputs from the calibration text, merged.
  Status ScaleInputs() {
    const std::string folder = (work_ / "scaled").string();
    std::error_code error;
    if (!fs::exists(folder, error)) {
      PITH_RETURN_IF_ERROR(LoadCalibrationEngine());
      Quantizer quantizer;
      quantizer.format = options_.recipe.linear.quant;
      quantizer.format.scale_type = options_.recipe.scale_type;
      NormScales norms;
      MergeOptions merge;
      merge.layer_transforms = [&](int64_t layer, const LayerWeights& weights) -> Result<LayerTransforms> {
        const GramOf gram = [&](const std::string& linear) {
          return grams_->Of("model.layers." + std::to_string(layer) + "." + linear);
        };
        PITH_ASSIGN(LayerScaling scaling,
                    ScaleLayer(source_->config(), weights, options_.method.scaling, quantizer, gram, pool_));
        PITH_RETURN_IF_ERROR(CheckTransforms(source_->config(), scaling.transforms));
        norms = {std::move(scaling.attention), std::move(scaling.mlp)};
        return std::move(scaling.transforms);
      };
      merge.norm_scales = [&](int64_t) { return norms; };
      merge.on_layer = [this](int64_t done, int64_t total) {
        Progress("scales of inputs", static_cast<uint64_t>(done), static_cast<uint64_t>(total));
      };
      PITH_RETURN_IF_ERROR(WriteMergedModel(*merged_, {}, pool_, folder, merge));
      grams_.reset();
      engine_.reset();
    }
    PITH_ASSIGN(merged_, Checkpoint::Open(folder));
    return {};
  }

  Result<LayerTransforms> Optimize(int64_t layer, const LayerWeights& weights) {
    const std::string path = (work_ / "transforms" / ("layer-" + std::to_string(layer) + ".safetensors")).string();
    LayerReport& report = report_.layers.emplace_back();
    LayerTransforms transforms;
    std::error_code error;
    if (fs::exists(path, error)) {
      PITH_RETURN_IF_ERROR(LoadLayer(path, &transforms, &report));
    } else {
      const auto result = OptimizeLayer(source_->config(), weights, options_.local);
      if (!result.ok()) return result.error().Wrap("layer " + std::to_string(layer));
      transforms = result->transforms;
      report.loss_before = result->loss_before;
      report.loss_after = result->loss_after;
      PITH_RETURN_IF_ERROR(SaveLayer(path, transforms, report));
    }
    PITH_RETURN_IF_ERROR(CheckTransforms(source_->config(), transforms));
    report.value_condition = ValueCondition(source_->config(), transforms);
    return transforms;
  }

  // An engine on the float model in 8 bits: its activations are the float model's to a few parts in a thousand, at a
  // quarter of the memory.
  Status LoadCalibrationEngine() {
    const std::string folder = (work_ / "w8").string();
    std::error_code error;
    if (!fs::exists(folder, error)) {
      PITH_ASSIGN(const PackRecipe recipe, ParseRecipe("w8g32,head=w8g32,embed=w8g32,method=minmax,kv=none"));
      PackOptions pack;
      pack.threads = options_.threads;
      pack.on_progress = [this](uint64_t done, uint64_t total) { Progress("8-bit model", done, total); };
      PITH_RETURN_IF_ERROR(PackCheckpoint(*merged_, recipe, folder, pack));
    }
    PITH_ASSIGN(auto checkpoint, Checkpoint::Open(folder));
    EngineOptions engine;
    engine.threads = options_.threads;
    engine.kv = KvType::kF32;
    PITH_ASSIGN(engine_, Engine::Load(std::move(checkpoint), engine));
    grams_ = std::make_unique<GramMatrices>(*engine_, options_.tokens, options_.window, options_.gram_bytes);
    grams_->on_tokens = [this](int64_t done, int64_t total) {
      Progress("calibration", static_cast<uint64_t>(done), static_cast<uint64_t>(total));
    };
    return {};
  }

  using Roundings = decltype(PackOptions::rounding);

  Status LoadFeedback() { return options_.method.feedback && engine_ == nullptr ? LoadCalibrationEngine() : Status(); }

  // How the integers of a matrix are chosen: error feedback; or the nearest for the scales that were trained; or as the
  // packer does. With a writer of latent values they are noted.
  Result<RowRounding> RoundingOf(const std::string& module, const QuantFormat& format, int64_t cols) {
    if (module == "model.embed_tokens") return RowRounding();  // looked up, not multiplied
    float* latents = nullptr;
    if (latents_ != nullptr) {
      PITH_RETURN_IF_ERROR(latents_->Begin(module));
      latents = latents_->values();
    }
    if (options_.method.feedback) {
      PITH_ASSIGN(const std::vector<float>* gram, grams_->Of(module));
      const std::string input = GramMatrices::InputOf(module);
      if (input != feedback_of_) {
        const auto made = ErrorFeedback::Make(*gram, cols, options_.damping);
        if (!made.ok()) return made.error().Wrap(module);
        feedback_ = *made;
        feedback_of_ = input;
      }
      return RowRounding(
          [feedback = feedback_, format, cols, latents](int64_t index, const float* row, const QuantizedRow& out) {
            feedback->RoundAndScale(format, row, out, latents == nullptr ? nullptr : latents + index * cols);
          });
    }
    const std::vector<float>* scales = nullptr;
    if (const auto found = trained_scales_.find(module); found != trained_scales_.end()) scales = &found->second;
    if (scales == nullptr && latents == nullptr) return RowRounding();
    return RowRounding([format, cols, scales, latents](int64_t index, const float* row, const QuantizedRow& out) {
      const int64_t size = format.group == 0 ? cols : format.group;
      const int64_t groups = cols / size;
      const auto half = static_cast<float>(1 << (format.bits - 1));
      for (int64_t g = 0; g < groups; ++g) {
        if (scales != nullptr) out.scales[g] = (*scales)[static_cast<size_t>(index * groups + g)];
        const float scale = out.scales[g];
        for (int64_t i = g * size; i < (g + 1) * size; ++i) {
          const float value = scale == 0.0f ? half : row[i] / scale + half;
          if (scales != nullptr) {
            out.codes[i] = static_cast<uint8_t>(std::clamp(std::nearbyint(value), 0.0f, 2.0f * half - 1.0f));
          }
          if (latents != nullptr) latents[index * cols + i] = value;
        }
      }
    });
  }

  Status Pack(const std::string& folder, const Roundings& rounding,
              const std::map<std::string, std::vector<float>>* vectors = nullptr) {
    PackOptions pack;
    pack.threads = options_.threads;
    pack.on_progress = [this](uint64_t done, uint64_t total) { Progress("packing", done, total); };
    if (options_.recipe.weigh_inputs) {
      if (!moments_) {
        PITH_ASSIGN(moments_, MeasureMomentsForPacking(
                                  *merged_, (work_ / "moments").string(), options_.threads,
                                  [this](uint64_t done, uint64_t total) { Progress("input moments", done, total); }));
      }
      pack.moments = &*moments_;
    }
    pack.rounding = rounding;
    pack.keep_exact = Training().steps == 0 && Training().tune_steps == 0;
    pack.vectors = vectors;
    PITH_ASSIGN(report_.pack, PackCheckpoint(*merged_, options_.recipe, folder, pack));
    return {};
  }

  // --- training (quant/end_to_end.h) ---

  EndToEndOptions TrainerOptions(int64_t steps, double learning_rate, const std::string& stage) const {
    const TrainingOptions& training = Training();
    EndToEndOptions options;
    options.steps = steps;
    options.windows_per_step = training.windows_per_step;
    options.held_out = training.held_out;
    options.learning_rate = learning_rate;
    options.seed = options_.seed;
    options.save_steps = training.save_steps;
    options.description = stage + " " + source_->fingerprint();
    return options;
  }

  Result<std::unique_ptr<Teacher>> MakeTeacher() {
    return Teacher::Make(source_, Training().tokens, Training().window, (work_ / "teacher").string(),
                         {options_.threads, Training().device}, [this](int64_t done, int64_t total) {
                           Progress("teacher", static_cast<uint64_t>(done), static_cast<uint64_t>(total));
                         });
  }

  // Whether the activations of a step take more than 3 GiB when all layers keep theirs for the backward pass.
  bool LongStep() const {
    const ModelConfig& config = source_->config();
    const int64_t tokens = Training().window * Training().windows_per_step;
    const int64_t width = config.heads * config.head_dim, kv_width = config.kv_heads * config.head_dim;
    const int64_t kept = 6 * config.hidden + 4 * width + 6 * kv_width + 4 * config.intermediate;
    return tokens * config.layers * kept > (int64_t{3} << 30) / static_cast<int64_t>(sizeof(float));
  }

  // A packed model as what the decoder trains: float32, with the numbers of the runtime.
  Result<std::unique_ptr<train::TrainModel>> LoadStudentModel(const std::shared_ptr<const Checkpoint>& packed) const {
    train::TrainModelOptions options;
    options.threads = options_.threads;
    options.gradient_checkpointing = LongStep();
    options.device = Training().device;
    options.round_activations = true;
    options.round_cache = options_.recipe.kv_bits.has_value();
    return train::TrainModel::Load(packed, options);
  }

  Result<EndToEndReport> TrainStage(Student& student, train::TrainModel& model, const Teacher& teacher,
                                    const EndToEndOptions& options, const std::string& stage) {
    return TrainEndToEnd(
        student, model, teacher, options, (work_ / stage).string(), pool_,
        [&](const EndToEndProgress& progress) {
          Progress(stage, static_cast<uint64_t>(progress.step), static_cast<uint64_t>(progress.total_steps));
        },
        options_.cancel);
  }

  // Transforms and ranges; afterwards merged_ has them merged, and trained_scales_ are its ranges.
  Status TrainTransforms() {
    const std::string trained = (work_ / "trained").string(), scales = (work_ / "trained-scales.safetensors").string();
    const std::string transforms = (work_ / "trained-transforms.safetensors").string();
    const std::string record = (work_ / "trained.json").string();
    std::error_code error;
    if (!fs::exists(trained, error)) {
      const std::string start = (work_ / "start").string();
      if (!fs::exists(start, error)) PITH_RETURN_IF_ERROR(Pack(start, {}));
      PITH_ASSIGN(const auto packed, Checkpoint::Open(start));
      PITH_ASSIGN(const auto teacher, MakeTeacher());
      PITH_ASSIGN(const auto model, LoadStudentModel(packed));
      PITH_ASSIGN(const auto student, TransformStudent::Make(*merged_, *packed, *model, Training().transforms));
      PITH_ASSIGN(const EndToEndReport report,
                  TrainStage(*student, *model, *teacher,
                             TrainerOptions(Training().steps, Training().learning_rate, "transforms"), "training"));
      const Transforms result = student->TrainedTransforms();
      PITH_RETURN_IF_ERROR(SaveVectors(scales, student->TrainedScales()));
      PITH_RETURN_IF_ERROR(WriteText(record, EndToEndReportText(report)));
      MergeOptions merge;
      merge.layer_transforms = [&](int64_t layer, const LayerWeights&) -> Result<LayerTransforms> {
        const LayerTransforms& of_layer = result.layers[static_cast<size_t>(layer)];
        PITH_RETURN_IF_ERROR(CheckTransforms(source_->config(), of_layer));
        return of_layer;
      };
      PITH_RETURN_IF_ERROR(SaveVectors(transforms, Described(result)));
      PITH_RETURN_IF_ERROR(WriteMergedModel(*merged_, result.rotation, pool_, trained, merge));
    }
    PITH_ASSIGN(report_.training, ReadEndToEndReport(record));
    PITH_ASSIGN(const auto measured, LoadVectors(transforms));
    const auto value = [&](const char* name, double otherwise) {
      const auto found = measured.find(name);
      return found == measured.end() || found->second.empty() ? otherwise : static_cast<double>(found->second[0]);
    };
    report_.trained = {value("orthogonality_error", 0), value("value_condition", 1), value("key_scale_spread", 1),
                       value("up_spread", 1)};
    PITH_ASSIGN(trained_scales_, LoadVectors(scales));
    PITH_ASSIGN(merged_, Checkpoint::Open(trained));
    moments_.reset();
    return {};
  }

  std::map<std::string, std::vector<float>> Described(const Transforms& transforms) const {
    const ModelConfig& config = source_->config();
    const auto spread = [](const std::vector<float>& values, size_t of) {
      double most = 1;
      for (size_t begin = 0; begin + of <= values.size() && of > 0; begin += of) {
        const auto [low, high] = std::minmax_element(values.begin() + static_cast<int64_t>(begin),
                                                     values.begin() + static_cast<int64_t>(begin + of));
        most = std::max(most, static_cast<double>(*high) / static_cast<double>(*low));
      }
      return most;
    };
    double condition = 1, keys = 1, up = 1;
    for (const LayerTransforms& layer : transforms.layers) {
      condition = std::max(condition, ValueCondition(config, layer));
      keys = std::max(keys, spread(layer.key_scale, static_cast<size_t>(config.head_dim / 2)));
      up = std::max(up, spread(layer.up, static_cast<size_t>(config.intermediate)));
    }
    return {{"orthogonality_error", {static_cast<float>(OrthogonalityError(transforms.rotation, config.hidden))}},
            {"value_condition", {static_cast<float>(condition)}},
            {"key_scale_spread", {static_cast<float>(keys)}},
            {"up_spread", {static_cast<float>(up)}}};
  }

  std::string LatentsPath() const {
    return Training().integers.integers ? (work_ / "latents.safetensors").string() : std::string();
  }

  // The model that tuning starts from, with the values that its integers were rounded from.
  Status ChooseIntegers() {
    const std::string folder = (work_ / "integers").string();
    const std::string latents = LatentsPath();
    std::error_code error;
    if (fs::exists(folder, error) && (latents.empty() || fs::exists(latents, error))) return {};
    fs::remove_all(folder, error);
    if (!latents.empty()) {
      PITH_ASSIGN(latents_, LatentWriter::Create(latents, merged_->config(), options_.recipe));
    }
    PITH_RETURN_IF_ERROR(LoadFeedback());
    PITH_RETURN_IF_ERROR(Pack(folder, [this](const std::string& module, const QuantFormat& format, int64_t cols) {
      return RoundingOf(module, format, cols);
    }));
    if (latents_ == nullptr) return {};
    const Status finished = latents_->Finish();
    latents_.reset();
    return finished;
  }

  Status Tune() {
    // What the calibration held is not needed any more.
    grams_.reset();
    engine_.reset();
    feedback_.reset();
    PITH_ASSIGN(const auto packed, Checkpoint::Open((work_ / "integers").string()));
    PITH_ASSIGN(const auto teacher, MakeTeacher());
    PITH_ASSIGN(const auto model, LoadStudentModel(packed));
    PITH_ASSIGN(const auto student, IntegerStudent::Make(*packed, *model, Training().integers, LatentsPath()));
    PITH_ASSIGN(report_.tuning,
                TrainStage(*student, *model, *teacher,
                           TrainerOptions(Training().tune_steps, Training().tune_learning_rate, "integers"), "tuning"));
    const TrainedWeights trained = student->Trained();
    return Pack(
        out_dir_,
        [&](const std::string& module, const QuantFormat&, int64_t cols) -> Result<RowRounding> {
          const auto found = trained.matrices.find(module);
          if (found == trained.matrices.end()) return RowRounding();
          const QuantizedMatrix* matrix = &found->second;
          return RowRounding([matrix, cols](int64_t index, const float*, const QuantizedRow& out) {
            std::copy_n(matrix->codes.begin() + index * cols, cols, out.codes);
            std::copy_n(matrix->scales.begin() + index * matrix->groups(), matrix->groups(), out.scales);
          });
        },
        &trained.vectors);
  }

  Status MeasureOutliers() {
    // The memory goes to the models that are measured.
    grams_.reset();
    engine_.reset();
    const auto measure = [this](const Checkpoint& model, const char* stage) {
      return MeasureMomentsForPacking(model, (work_ / "moments").string(), options_.threads,
                                      [&](uint64_t done, uint64_t total) { Progress(stage, done, total); });
    };
    if (!moments_) {
      PITH_ASSIGN(moments_, measure(*merged_, "outliers"));
    }
    if (merged_ == source_) {
      report_.outliers = CompareOutliers(*moments_, *moments_);
      return {};
    }
    PITH_ASSIGN(const InputMoments before, measure(*source_, "outliers before"));
    report_.outliers = CompareOutliers(before, *moments_);
    return {};
  }

  Status WriteRecord() const {
    OrderedJson json = Record();
    if (!report_.rotation.empty()) json["rotation"] = report_.rotation;
    if (!report_.layers.empty()) {
      OrderedJson layers = OrderedJson::array();
      for (const LayerReport& layer : report_.layers) {
        layers.push_back({{"loss_before", layer.loss_before},
                          {"loss_after", layer.loss_after},
                          {"value_condition", layer.value_condition}});
      }
      json["layers"] = layers;
    }
    if (report_.training) {
      json["end_to_end"] = OrderedJson::parse(EndToEndReportText(*report_.training));
      json["end_to_end"]["orthogonality_error"] = report_.trained.orthogonality_error;
      json["end_to_end"]["value_condition"] = report_.trained.value_condition;
      json["end_to_end"]["key_scale_spread"] = report_.trained.key_scale_spread;
      json["end_to_end"]["up_spread"] = report_.trained.up_spread;
    }
    if (report_.tuning) json["tuning"] = OrderedJson::parse(EndToEndReportText(*report_.tuning));
    OrderedJson sqnr = OrderedJson::object();
    for (const PackedTensorReport& tensor : report_.pack.tensors) {
      sqnr[tensor.module] = tensor.sqnr_db ? OrderedJson(*tensor.sqnr_db) : OrderedJson(nullptr);
    }
    json["sqnr_db"] = sqnr;
    if (!report_.outliers.empty()) {
      OrderedJson outliers = OrderedJson::array();
      for (const InputOutliers& input : report_.outliers) {
        outliers.push_back({{"module", input.module}, {"before", input.before}, {"after", input.after}});
      }
      json["outliers"] = outliers;
    }
    return WriteText(fs::path(out_dir_) / "pith-quantize.json", Text(json));
  }

  std::string out_dir_;
  fs::path work_;
  const QuantizeOptions& options_;
  ThreadPool pool_;
  std::shared_ptr<const Checkpoint> source_, merged_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<GramMatrices> grams_;
  std::shared_ptr<const ErrorFeedback> feedback_;
  std::string feedback_of_;
  std::optional<InputMoments> moments_;  // of merged_
  std::map<std::string, std::vector<float>> trained_scales_;
  std::unique_ptr<LatentWriter> latents_;
  QuantizeReport report_;
};

}  // namespace

std::vector<std::string> MethodNames() {
  std::vector<std::string> names;
  for (const Method& method : kMethods) names.push_back(method.name);
  return names;
}

Result<Method> ParseMethod(const std::string& name) {
  std::string list;
  for (const Method& method : kMethods) {
    if (method.name == name) return method;
    list += (list.empty() ? "" : ", ") + method.name;
  }
  return Error{ErrorCode::kInvalidArgument, "unknown recipe '" + name + "'; there are " + list};
}

Result<QuantizeReport> QuantizeModel(const std::string& model_path, const std::string& out_dir,
                                     const QuantizeOptions& options) {
  fs::path target = fs::path(out_dir).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  return Quantization(target.string(), options).Run(model_path);
}

}  // namespace pith::quant
