#include "train/train_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "kernels/elementwise.h"
#include "model/hf_export.h"
#include "model/safetensors.h"
#include "train/train_model_impl.h"

namespace pith::train {

using at::Tensor;

TrainModel::TrainModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainModel::~TrainModel() = default;

Result<std::unique_ptr<TrainModel>> TrainModel::Load(std::shared_ptr<const Checkpoint> checkpoint,
                                                     const TrainModelOptions& options) {
  return Guarded([&]() -> Result<std::unique_ptr<TrainModel>> {
    auto impl = std::make_unique<Impl>(options);
    const bool has_packed = checkpoint->quantization().has_value();
    if (options.base == BaseFormat::kPacked && (!has_packed || !options.lora)) {
      return Error{ErrorCode::kUnsupported, "'" + checkpoint->path() + "': a packed base needs " +
                                                (has_packed ? "an adapter to train" : "a packed model (pith pack)")};
    }
    if (options.base == BaseFormat::kPacked && options.device != "cpu") {
      return Error{ErrorCode::kUnsupported,
                   "packed integers are multiplied on the CPU only: with --device " + options.device +
                       " the base is float32 (the packed numbers dequantized, where they are what is loaded)"};
    }
    const bool packed = has_packed && options.lora && options.base != BaseFormat::kF32 && options.device == "cpu";
    impl->base = packed ? BaseFormat::kPacked : BaseFormat::kF32;
    PITH_ASSIGN(impl->weights, ModelWeights::Load(checkpoint, packed ? WeightFormat::kStored : WeightFormat::kF32));
    impl->base_fingerprint = checkpoint->fingerprint();
    impl->decoder.config = impl->weights->config;
    PITH_RETURN_IF_ERROR(impl->Build());
    return std::unique_ptr<TrainModel>(new TrainModel(std::move(impl)));
  });
}

Result<std::unique_ptr<TrainModel>> TrainModel::Random(const ModelConfig& config, const TrainModelOptions& options) {
  return Guarded([&]() -> Result<std::unique_ptr<TrainModel>> {
    if (options.lora) return BadArgument("a model from nothing is trained as a whole, without LoRA");
    auto impl = std::make_unique<Impl>(options);
    impl->decoder.config = config;
    PITH_RETURN_IF_ERROR(impl->Build());
    return std::unique_ptr<TrainModel>(new TrainModel(std::move(impl)));
  });
}

const ModelConfig& TrainModel::config() const { return impl_->config; }
const TrainModelOptions& TrainModel::options() const { return impl_->options; }
BaseFormat TrainModel::base() const { return impl_->base; }
const std::string& TrainModel::base_fingerprint() const { return impl_->base_fingerprint; }
std::vector<Parameter>& TrainModel::parameters() { return impl_->parameters; }

int64_t TrainModel::TrainedElements() const {
  int64_t elements = 0;
  for (const Parameter& parameter : impl_->parameters) elements += static_cast<int64_t>(parameter.value.size());
  return elements;
}

void TrainModel::ZeroGradients() {
  for (const Parameter& parameter : impl_->parameters) {
    std::fill(parameter.gradient.begin(), parameter.gradient.end(), 0.0F);
  }
}

Result<TokenScores> TrainModel::Accumulate(const TrainBatch& batch, std::span<const float> weights,
                                           uint64_t dropout_key) {
  return Guarded([&] { return impl_->Accumulate(batch, weights, nullptr, dropout_key); });
}

Result<TokenScores> TrainModel::AccumulateScores(const TrainBatch& batch, const ScoreGradient& gradient,
                                                 uint64_t dropout_key) {
  return Guarded([&] { return impl_->Accumulate(batch, {}, &gradient, dropout_key); });
}

Result<double> TrainModel::AccumulateLogits(const TrainBatch& batch, const LogitGradient& gradient,
                                            uint64_t dropout_key) {
  return Guarded([&] { return impl_->AccumulateLogits(batch, gradient, dropout_key); });
}

Result<TokenScores> TrainModel::Score(const TrainBatch& batch, bool adapter) {
  return Guarded([&]() -> Result<TokenScores> {
    PITH_RETURN_IF_ERROR(impl_->Check(batch));
    if (impl_->device) {
      TokenScores scores = impl_->device->Score(batch, adapter);
      PITH_RETURN_IF_ERROR(Impl::CheckFinite(scores));
      return scores;
    }
    std::vector<Impl::Run> runs = impl_->Parts(batch);
    PITH_RETURN_IF_ERROR(Impl::ForEachRun(runs, [&](Impl::Run& run) -> Status {
      impl_->RunLayers(false, adapter, 0, &run);
      Impl::ScoreRun(&run);
      return {};
    }));
    TokenScores scores = Impl::Join(runs);
    PITH_RETURN_IF_ERROR(Impl::CheckFinite(scores));
    return scores;
  });
}

Result<TrainModel::Outputs> TrainModel::Run(const TrainBatch& batch, bool adapter, bool logits) {
  return Guarded([&]() -> Result<Outputs> {
    PITH_RETURN_IF_ERROR(impl_->Check(batch));
    if (impl_->device) return impl_->device->Run(batch, adapter, logits);
    const at::AutoGradMode no_graph(false);
    Impl::Run run;
    run.decoder = &impl_->decoder;
    run.pool = &impl_->pool;
    run.batch = batch;
    impl_->RunLayers(false, adapter, 0, &run);
    const Tensor states = RmsNormOp(run.pass, run.final_x, impl_->decoder.final_norm, impl_->config.rms_eps);
    Outputs outputs;
    const auto values = Span(states);
    outputs.states.assign(values.begin(), values.end());
    if (!logits) return outputs;
    const int64_t rows = run.pass.rows;
    std::vector<float> head_input = outputs.states;
    impl_->RoundHeadInput(rows, head_input.data(), impl_->pool);
    std::vector<uint8_t> on = run.pass.adapter_rows;
    if (!run.pass.adapter) on.assign(static_cast<size_t>(rows), 0);
    outputs.logits.resize(static_cast<size_t>(rows * impl_->config.vocab));
    HeadLogits(impl_->decoder.head, head_input.data(), rows, on, outputs.logits.data(), impl_->pool);
    return outputs;
  });
}

std::vector<float> TrainModel::CopyParameters() const {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(TrainedElements()));
  for (const Parameter& parameter : impl_->parameters) {
    values.insert(values.end(), parameter.value.begin(), parameter.value.end());
  }
  return values;
}

Status TrainModel::SetParameters(std::span<const float> values) {
  if (static_cast<int64_t>(values.size()) != TrainedElements()) {
    return BadArgument(std::to_string(values.size()) + " values for " + std::to_string(TrainedElements()) +
                       " trained elements");
  }
  size_t at = 0;
  for (const Parameter& parameter : impl_->parameters) {
    std::copy_n(values.begin() + static_cast<int64_t>(at), parameter.value.size(), parameter.value.begin());
    at += parameter.value.size();
  }
  return {};
}

// ------------------------------------------------------------------------------------------------------- files

Status TrainModel::LoadAdapter(const std::string& dir) {
  if (!is_lora()) return BadArgument("the model is trained as a whole: it has no adapter to load into");
  PITH_ASSIGN(const auto file, AdapterFile::Open(dir, config()));
  std::map<std::string, const LoraModule*> modules;
  for (const LoraModule& module : file->modules) modules[LinearName(module.layer, module.kind)] = &module;
  std::map<std::string, Projection*> wanted;
  for (DecoderLayer& layer : impl_->decoder.layers) {
    for (const Impl::Member& member : impl_->Members(&layer, nullptr)) {
      Projection* projection = member.projection;
      if (projection->a.defined()) wanted[LinearName(projection->layer, projection->kind)] = projection;
    }
  }
  if (impl_->decoder.head_lora.a.defined()) wanted[LinearName(-1, LinearKind::kLmHead)] = &impl_->decoder.head_lora;
  for (const auto& [name, module] : modules) {
    if (!wanted.contains(name)) {
      return Error{ErrorCode::kMismatch, "'" + dir + "' adapts '" + name + "', which is not trained"};
    }
  }
  for (const auto& [name, projection] : wanted) {
    const auto found = modules.find(name);
    if (found == modules.end()) {
      return Error{ErrorCode::kMismatch, "'" + dir + "' does not adapt '" + name + "', which is trained"};
    }
    const LoraModule& module = *found->second;
    if (module.rank != projection->a.size(0) || module.scaling != projection->scaling) {
      return Error{ErrorCode::kMismatch, "'" + dir + "': '" + name + "' has rank " + std::to_string(module.rank) +
                                             " and scaling " + std::to_string(module.scaling) + ", what is trained " +
                                             std::to_string(projection->a.size(0)) + " and " +
                                             std::to_string(projection->scaling)};
    }
    if (module.a.type == DType::kI8) {
      return Error{ErrorCode::kUnsupported, "'" + dir + "' is an INT8 adapter: training starts from float ones"};
    }
    PITH_ASSIGN(const auto a, ToFloats(module.a));
    PITH_ASSIGN(const auto b, ToFloats(module.b));
    std::copy(a.begin(), a.end(), projection->a.data_ptr<float>());
    std::copy(b.begin(), b.end(), projection->b.data_ptr<float>());
  }
  return {};
}

std::vector<LoraWeights> TrainModel::AdapterWeights() const {
  std::vector<LoraWeights> modules;
  if (!is_lora()) return modules;
  const LoraOptions& lora = *options().lora;
  const auto add = [&](const Projection& projection) {
    if (!projection.a.defined()) return;
    modules.push_back(
        {projection.layer, projection.kind, lora.rank, lora.alpha, Span(projection.a), Span(projection.b)});
  };
  for (const DecoderLayer& layer : impl_->decoder.layers) {
    for (const Projection* p : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) add(*p);
  }
  add(impl_->decoder.head_lora);
  return modules;
}

Status TrainModel::SaveAdapter(const std::string& dir, AdapterStorage storage, const std::string& base_model) const {
  if (!is_lora()) return BadArgument("the model is trained as a whole: it has no adapter to save");
  const LoraOptions& lora = *options().lora;
  AdapterWriteOptions write;
  write.storage = storage;
  write.rslora = lora.rslora;
  write.dropout = lora.dropout;
  write.base_model = base_model;
  return WriteAdapter(dir, config(), AdapterWeights(), write);
}

Status TrainModel::SaveModel(const std::string& dir, DType type) const {
  if (is_lora()) return BadArgument("only an adapter is trained: there is no new model to save");
  if (type != DType::kF32 && type != DType::kBF16) return BadArgument("models are saved as F32 or BF16");
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + dir + "': " + error.message()};
  PITH_ASSIGN(const std::string config_text, HfConfigText(config()));
  std::ofstream(dir + "/config.json") << config_text;
  std::vector<SafetensorsEntry> entries;
  for (const Parameter& parameter : impl_->parameters) entries.push_back({parameter.name, type, parameter.shape});
  PITH_ASSIGN(const auto writer, SafetensorsWriter::Create(dir + "/model.safetensors", entries, {{"format", "pt"}}));
  std::vector<uint16_t> rounded;
  for (const Parameter& parameter : impl_->parameters) {
    auto bytes = std::as_bytes(std::span(parameter.value));
    if (type == DType::kBF16) {
      rounded.resize(parameter.value.size());
      ConvertToBF16(parameter.value.data(), static_cast<int64_t>(rounded.size()), rounded.data());
      bytes = std::as_bytes(std::span(rounded));
    }
    PITH_RETURN_IF_ERROR(writer->Write(parameter.name, bytes));
  }
  return writer->Finish();
}

}  // namespace pith::train
