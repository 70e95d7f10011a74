#include "quant/teacher.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "deploy/matrix_reader.h"
#include "model/safetensors.h"
#include "train/blas.h"
#include "train/train_model.h"

namespace pith::quant {

namespace {

constexpr int64_t kPartWindows = 16;

}  // namespace

Result<std::unique_ptr<Teacher>> Teacher::Make(const std::shared_ptr<const Checkpoint>& checkpoint,
                                               std::span<const int32_t> tokens, int64_t window,
                                               const std::string& folder, const TeacherOptions& options,
                                               const std::function<void(int64_t done, int64_t total)>& on_window) {
  auto teacher = std::make_unique<Teacher>();
  const ModelConfig& config = checkpoint->config();
  teacher->window_ = window;
  teacher->vocab_ = config.vocab;
  teacher->hidden_ = config.hidden;
  teacher->folder_ = folder;
  const auto size = static_cast<int64_t>(tokens.size()) / window * window;
  if (size == 0) {
    return Error{ErrorCode::kInvalidArgument, "end-to-end training needs a text of at least " + std::to_string(window) +
                                                  " tokens; there are " + std::to_string(tokens.size())};
  }
  teacher->tokens_.assign(tokens.begin(), tokens.begin() + size);
  PITH_ASSIGN(const MatrixReader reader, MatrixReader::Open(*checkpoint, "lm_head", config.vocab, config.hidden));
  teacher->head_.resize(static_cast<size_t>(config.vocab * config.hidden));
  for (int64_t row = 0; row < config.vocab; ++row) reader.ReadRow(row, teacher->head_.data() + row * config.hidden);
  PITH_RETURN_IF_ERROR(teacher->MakeStates(checkpoint, options, on_window));
  return teacher;
}

std::string Teacher::PartPath(int64_t part) const {
  return folder_ + "/states-" + std::to_string(part) + ".safetensors";
}

Status Teacher::MakeStates(const std::shared_ptr<const Checkpoint>& checkpoint, const TeacherOptions& options,
                           const std::function<void(int64_t done, int64_t total)>& on_window) const {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + folder_ + "': " + error.message()};
  std::unique_ptr<train::TrainModel> model;
  for (int64_t part = 0; part * kPartWindows < windows(); ++part) {
    const std::string path = PartPath(part);
    if (std::filesystem::exists(path, error)) continue;
    if (model == nullptr) {
      train::TrainModelOptions load;
      load.base = train::BaseFormat::kF32;
      load.lora = train::LoraOptions{};  // a frozen base has an adapter, which is off here
      load.lora->rank = 1;
      load.lora->targets = {LinearKind::kQ};
      load.threads = options.threads;
      load.device = options.device;
      PITH_ASSIGN(model, train::TrainModel::Load(checkpoint, load));
    }
    const int64_t end = std::min((part + 1) * kPartWindows, windows());
    const int64_t count = end - part * kPartWindows;
    PITH_ASSIGN(const auto writer,
                SafetensorsWriter::Create(path, {{"states", DType::kF16, {count, window_, hidden_}}}));
    for (int64_t w = part * kPartWindows; w < end; ++w) {
      train::TrainBatch batch;
      train::Segment segment;
      segment.tokens = Tokens(w);
      segment.labels.assign(segment.tokens.size(), train::kNoLabel);
      batch.segments.push_back(std::move(segment));
      PITH_ASSIGN(const auto outputs, model->Run(batch, /*adapter=*/false, /*logits=*/false));
      std::vector<uint16_t> halves(outputs.states.size());
      std::transform(outputs.states.begin(), outputs.states.end(), halves.begin(), F32ToF16);
      PITH_RETURN_IF_ERROR(writer->Write("states", std::as_bytes(std::span(halves))));
      if (on_window) on_window(w + 1, windows());
    }
    PITH_RETURN_IF_ERROR(writer->Finish());
  }
  return {};
}

std::vector<int32_t> Teacher::Tokens(int64_t window) const {
  return {tokens_.begin() + window * window_, tokens_.begin() + (window + 1) * window_};
}

Result<std::vector<float>> Teacher::States(int64_t window) const {
  const std::string path = PartPath(window / kPartWindows);
  PITH_ASSIGN(const auto file, SafetensorsFile::Open(path));
  const Tensor* states = file->Find("states");
  const int64_t begin = window % kPartWindows * window_;
  if (states == nullptr || states->type != DType::kF16 || states->shape.size() != 3 || states->shape[2] != hidden_ ||
      states->elements() < (begin + window_) * hidden_) {
    return Error{ErrorCode::kMalformed, "'" + path + "' does not hold the teacher's states"};
  }
  std::vector<float> values(static_cast<size_t>(window_ * hidden_));
  const auto* halves = reinterpret_cast<const uint16_t*>(states->data.data()) + begin * hidden_;
  std::transform(halves, halves + values.size(), values.begin(), F16ToF32);
  return values;
}

void Teacher::Logits(const float* states, int64_t rows, float* logits, ThreadPool* pool) const {
  const train::GemmInput left{states, hidden_}, right{head_.data(), hidden_, train::Op::kTransposed};
  if (pool == nullptr) {
    train::Gemm(rows, vocab_, hidden_, 1.0F, left, right, 0.0F, logits, vocab_);
  } else {
    train::Gemm(*pool, rows, vocab_, hidden_, 1.0F, left, right, 0.0F, logits, vocab_);
  }
}

}  // namespace pith::quant
