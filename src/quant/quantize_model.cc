#include "quant/quantize_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "base/json.h"
#include "base/sha256.h"
#include "engine/calibrate.h"
#include "model/safetensors.h"
#include "quant/gptq.h"
#include "quant/gram.h"
#include "quant/hadamard.h"
#include "quant/merged_model.h"

namespace pith::quant {

namespace fs = std::filesystem;

namespace {

const Method kMethods[] = {
    {"minmax", false, false, false, QuantMethod::kMinMax}, {"l2", false, false, false, QuantMethod::kLp},
    {"best", false, false, false, QuantMethod::kBest},     {"gptq", false, false, true, QuantMethod::kBest},
    {"hadamard", true, false, false, QuantMethod::kBest},  {"hadamard+gptq", true, false, true, QuantMethod::kBest},
    {"fptquant", true, true, false, QuantMethod::kBest},   {"fptquant+gptq", true, true, true, QuantMethod::kBest},
};

// The transforms of one layer and what optimizing them gave, as a safetensors file.
Status SaveLayer(const std::string& path, const LayerTransforms& transforms, const LayerReport& report) {
  const std::vector<float> losses = {static_cast<float>(report.loss_before), static_cast<float>(report.loss_after)};
  const std::pair<const char*, const std::vector<float>*> parts[] = {{"key_angle", &transforms.key_angle},
                                                                     {"key_scale", &transforms.key_scale},
                                                                     {"value", &transforms.value},
                                                                     {"up", &transforms.up},
                                                                     {"losses", &losses}};
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, values] : parts) {
    entries.push_back({name, DType::kF32, {static_cast<int64_t>(values->size())}});
  }
  PITH_ASSIGN(const auto writer, SafetensorsWriter::Create(path, entries));
  for (const auto& [name, values] : parts) {
    PITH_RETURN_IF_ERROR(writer->Write(name, std::as_bytes(std::span(*values))));
  }
  return writer->Finish();
}

Status LoadLayer(const std::string& path, LayerTransforms* transforms, LayerReport* report) {
  PITH_ASSIGN(const auto file, SafetensorsFile::Open(path));
  std::vector<float> losses;
  const std::pair<const char*, std::vector<float>*> parts[] = {{"key_angle", &transforms->key_angle},
                                                               {"key_scale", &transforms->key_scale},
                                                               {"value", &transforms->value},
                                                               {"up", &transforms->up},
                                                               {"losses", &losses}};
  for (const auto& [name, values] : parts) {
    const Tensor* tensor = file->Find(name);
    if (tensor == nullptr) return Error{ErrorCode::kMalformed, "'" + path + "' has no tensor '" + name + "'"};
    PITH_ASSIGN(*values, ToFloats(*tensor));
  }
  if (losses.size() != 2) return Error{ErrorCode::kMalformed, "'" + path + "': losses has another size than 2"};
  report->loss_before = static_cast<double>(losses[0]);
  report->loss_after = static_cast<double>(losses[1]);
  return {};
}

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
    if (options_.method.feedback && options_.tokens.empty()) {
      return Error{ErrorCode::kInvalidArgument, options_.method.name + " needs a calibration text"};
    }
    PITH_RETURN_IF_ERROR(ClaimWorkFolder());
    PITH_RETURN_IF_ERROR(Merge());
    PITH_RETURN_IF_ERROR(Pack());
    PITH_RETURN_IF_ERROR(WriteRecord());
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
    if (method.feedback) {
      const auto bytes = std::as_bytes(std::span(options_.tokens));
      json["calibration"] = {{"text", options_.tokens_of},
                             {"tokens", options_.tokens.size()},
                             {"sha256", Sha256Hex(bytes)},
                             {"window", options_.window},
                             {"damping", options_.damping}};
    }
    return json;
  }

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
    if (!method.rotate && !method.optimize) {
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

  Result<RowRounding> RoundingOf(const std::string& module, const QuantFormat& format, int64_t cols) {
    if (module == "model.embed_tokens") return RowRounding();  // looked up, not multiplied
    PITH_ASSIGN(const std::vector<float>* gram, grams_->Of(module));
    const std::string input = GramMatrices::InputOf(module);
    if (input != feedback_of_) {
      const auto made = ErrorFeedback::Make(*gram, cols, options_.damping);
      if (!made.ok()) return made.error().Wrap(module);
      feedback_ = *made;
      feedback_of_ = input;
    }
    return RowRounding([feedback = feedback_, format](const float* row, const QuantizedRow& out) {
      feedback->Round(format, row, out);
    });
  }

  Status Pack() {
    PackOptions pack;
    pack.threads = options_.threads;
    pack.on_progress = [this](uint64_t done, uint64_t total) { Progress("packing", done, total); };
    pack.measure_moments = [&](const std::string& scratch) {
      return MeasureMomentsForPacking(*merged_, scratch, options_.threads, [this](uint64_t done, uint64_t total) {
        Progress("input moments", done, total);
      });
    };
    if (options_.method.feedback) {
      PITH_RETURN_IF_ERROR(LoadCalibrationEngine());
      pack.rounding = [this](const std::string& module, const QuantFormat& format, int64_t cols) {
        return RoundingOf(module, format, cols);
      };
    }
    PITH_ASSIGN(report_.pack, PackCheckpoint(*merged_, options_.recipe, out_dir_, pack));
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
