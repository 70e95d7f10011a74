#include "deploy/hf_directory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "base/cache_folder.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "deploy/lora_factors.h"
#include "deploy/matrix_reader.h"
#include "model/companions.h"
#include "model/hf_export.h"
#include "model/hf_names.h"
#include "model/safetensors.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kChunkBytes = int64_t{16} << 20;

const char* TorchName(DType type) {
  return type == DType::kF32 ? "float32" : type == DType::kF16 ? "float16" : "bfloat16";
}

Status WriteText(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) return Error{ErrorCode::kIo, "cannot write '" + path.string() + "'"};
  return {};
}

float Rounded(float value, DType type) {
  if (type == DType::kF32) return value;
  return type == DType::kF16 ? F16ToF32(F32ToF16(value)) : BF16ToF32(F32ToBF16(value));
}

void Store(float value, DType type, std::byte* out) {
  if (type == DType::kF32) {
    std::copy_n(reinterpret_cast<const std::byte*>(&value), sizeof(value), out);
    return;
  }
  const uint16_t word = type == DType::kF16 ? F32ToF16(value) : F32ToBF16(value);
  std::copy_n(reinterpret_cast<const std::byte*>(&word), sizeof(word), out);
}

class Exporter {
 public:
  Exporter(const Checkpoint& checkpoint, const HfExportOptions& options)
      : checkpoint_(checkpoint), config_(checkpoint.config()), options_(options), pool_(options.threads) {}

  Result<HfExportReport> Run(const std::string& out_dir) {
    PITH_RETURN_IF_ERROR(Plan());
    std::error_code error;
    if (fs::exists(out_dir, error) && !(fs::is_directory(out_dir, error) && fs::is_empty(out_dir, error))) {
      return Error{ErrorCode::kInvalidArgument, "'" + out_dir + "' is there already"};
    }
    fs::path target = fs::path(out_dir).lexically_normal();
    if (!target.has_filename()) target = target.parent_path();
    const fs::path folder = target.string() + "." + std::to_string(::getpid()) + ".partial";
    fs::remove_all(folder, error);
    if (!fs::create_directories(folder, error)) {
      return Error{ErrorCode::kIo, "cannot create '" + folder.string() + "': " + error.message()};
    }
    Status status = WriteAll(folder);
    if (status.ok()) {
      fs::rename(folder, target, error);
      if (error) status = Error{ErrorCode::kIo, "cannot move the model to '" + out_dir + "': " + error.message()};
    }
    if (!status.ok()) {
      fs::remove_all(folder, error);
      return status.error();
    }
    report_.path = out_dir;
    if (change_ > 0.0) report_.adapter_loss = std::sqrt(merge_noise_ / change_);
    return std::move(report_);
  }

 private:
  struct Matrix {
    std::string module;
    std::unique_ptr<MatrixReader> reader;
    const LoraModule* lora = nullptr;
  };
  struct RowSums {
    double signal = 0, noise = 0, change = 0;
  };

  Status Plan() {
    std::map<std::string, const LoraModule*> adapted;
    if (options_.adapter != nullptr) {
      if (!options_.adapter->invocation.empty()) {
        return Error{ErrorCode::kUnsupported, "'" + options_.adapter->path +
                                                  "' acts from its invocation tokens on; merged, it would act "
                                                  "everywhere"};
      }
      for (const LoraModule& module : options_.adapter->modules) {
        adapted[LinearName(module.layer, module.kind)] = &module;
      }
      if (adapted.count("lm_head") != 0) config_.tied_embeddings = false;
    }
    for (const ModelModule& module : ModulesOf(config_)) {
      if (module.kind == ModuleKind::kNorm || module.bias) vectors_.push_back(module);
      if (module.kind == ModuleKind::kNorm) continue;
      Matrix matrix;
      matrix.module = module.name;
      PITH_ASSIGN(MatrixReader reader, MatrixReader::Open(checkpoint_, module.name, module.shape[0], module.shape[1]));
      matrix.reader = std::make_unique<MatrixReader>(std::move(reader));
      if (const auto found = adapted.find(module.name); found != adapted.end()) matrix.lora = found->second;
      weights_ += static_cast<uint64_t>(matrix.reader->rows() * matrix.reader->cols());
      matrices_.push_back(std::move(matrix));
    }
    return {};
  }

  static std::vector<std::pair<std::string, int64_t>> PartsOf(const ModelModule& module) {
    if (module.kind == ModuleKind::kNorm) return {{"weight", module.shape[0]}};
    return {{"bias", module.shape[0]}};
  }

  // Type of a vector: the source's, floats only.
  DType VectorType(const std::string& name) const {
    const Tensor* tensor = checkpoint_.Find(name);
    const bool plain = tensor != nullptr && (tensor->type == DType::kBF16 || tensor->type == DType::kF16);
    return plain ? tensor->type : DType::kF32;
  }

  Status WriteAll(const fs::path& folder) {
    PITH_ASSIGN(const std::string config, ConfigText());
    PITH_RETURN_IF_ERROR(WriteText(folder / "config.json", config));
    PITH_RETURN_IF_ERROR(WriteCompanions(checkpoint_, folder.string()));
    std::vector<SafetensorsEntry> entries;
    uint64_t bytes = 0;
    for (const Matrix& matrix : matrices_) {
      entries.push_back({matrix.module + ".weight", options_.type, {matrix.reader->rows(), matrix.reader->cols()}});
    }
    for (const ModelModule& module : vectors_) {
      for (const auto& [part, size] : PartsOf(module)) {
        const std::string name = module.name + "." + part;
        entries.push_back({name, VectorType(name), {size}});
      }
    }
    for (const SafetensorsEntry& entry : entries) {
      bytes += static_cast<uint64_t>(TensorBytes(entry.type, entry.shape).value_or(0));
    }
    PITH_RETURN_IF_ERROR(CheckFreeSpace(folder.string(), bytes));
    PITH_ASSIGN(writer_, SafetensorsWriter::Create((folder / "model.safetensors").string(), std::move(entries),
                                                   {{"format", "pt"}}));
    for (const Matrix& matrix : matrices_) PITH_RETURN_IF_ERROR(WriteMatrix(matrix));
    for (const ModelModule& module : vectors_) {
      for (const auto& [part, size] : PartsOf(module)) PITH_RETURN_IF_ERROR(WriteVector(module.name, part, size));
    }
    report_.file_bytes = writer_->file_bytes();
    return writer_->Finish();
  }

  Result<std::string> ConfigText() const {
    if (checkpoint_.format() == CheckpointFormat::kGguf) return HfConfigText(config_);
    const std::string path = (fs::path(checkpoint_.path()) / "config.json").string();
    PITH_ASSIGN(const Json parsed, ReadJsonFile(path));  // Checkpoint::Open has read it
    OrderedJson json = parsed;
    json.erase("quantization_config");
    json["tie_word_embeddings"] = config_.tied_embeddings;
    json["torch_dtype"] = TorchName(options_.type);
    if (json.contains("dtype")) json["dtype"] = TorchName(options_.type);
    return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  }

  Status WriteVector(const std::string& module, const std::string& part, int64_t size) {
    PITH_ASSIGN(const std::vector<float> values, ReadVector(checkpoint_, module, part, size));
    const std::string name = module + "." + part;
    const DType type = VectorType(name);
    const size_t width = type == DType::kF32 ? 4 : 2;
    std::vector<std::byte> bytes(values.size() * width);
    for (size_t i = 0; i < values.size(); ++i) Store(values[i], type, bytes.data() + i * width);
    return writer_->Write(name, bytes);
  }

  // Adds scaling * B A to one row. Sums in double, in order of rank.
  static void AddLora(const LoraModule& module, const LoraFloats& factors, int64_t row, std::vector<double>* change) {
    std::fill(change->begin(), change->end(), 0.0);
    const size_t cols = change->size();
    const auto rank = static_cast<size_t>(module.rank);
    for (size_t r = 0; r < rank; ++r) {
      const double b =
          static_cast<double>(factors.b[static_cast<size_t>(row) * rank + r]) * static_cast<double>(module.scaling);
      const float* a = factors.a.data() + r * cols;
      for (size_t c = 0; c < cols; ++c) (*change)[c] += b * static_cast<double>(a[c]);
    }
  }

  Status WriteMatrix(const Matrix& matrix) {
    const int64_t rows = matrix.reader->rows();
    const int64_t cols = matrix.reader->cols();
    const int64_t width = options_.type == DType::kF32 ? 4 : 2;
    const int64_t chunk = std::clamp<int64_t>(kChunkBytes / (cols * width), 1, rows);
    std::vector<std::byte> buffer(static_cast<size_t>(chunk * cols * width));
    LoraFloats factors;
    if (matrix.lora != nullptr) {
      PITH_ASSIGN(factors, ReadFactors(*matrix.lora));
    }
    std::vector<RowSums> sums(static_cast<size_t>(rows));
    std::atomic<int64_t> bad_row{-1};
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t end = std::min(begin + chunk, rows);
      pool_.Run((end - begin + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
        std::vector<float> values(static_cast<size_t>(cols));
        std::vector<double> change(matrix.lora == nullptr ? 0 : static_cast<size_t>(cols));
        const int64_t first = begin + task * kRowsPerTask;
        for (int64_t row = first; row < std::min(first + kRowsPerTask, end); ++row) {
          matrix.reader->ReadRow(row, values.data());
          if (matrix.lora != nullptr) AddLora(*matrix.lora, factors, row, &change);
          RowSums& sum = sums[static_cast<size_t>(row)];
          std::byte* out = buffer.data() + (row - begin) * cols * width;
          for (size_t c = 0; c < values.size(); ++c) {
            const double delta = change.empty() ? 0.0 : change[c];
            const double wanted = static_cast<double>(values[c]) + delta;
            const float stored = Rounded(static_cast<float>(wanted), options_.type);
            if (!std::isfinite(stored)) bad_row = row;
            const double lost = static_cast<double>(stored) - wanted;
            sum.signal += wanted * wanted;
            sum.noise += lost * lost;
            sum.change += delta * delta;
            Store(stored, options_.type, out + static_cast<int64_t>(c) * width);
          }
        }
      });
      if (bad_row >= 0) {
        return Error{ErrorCode::kNumeric, "'" + matrix.module + ".weight' row " + std::to_string(bad_row.load()) +
                                              " holds a weight that is not finite or too large for " +
                                              DTypeName(options_.type)};
      }
      PITH_RETURN_IF_ERROR(writer_->Write(matrix.module + ".weight",
                                          std::span(buffer).first(static_cast<size_t>((end - begin) * cols * width))));
      done_ += static_cast<uint64_t>((end - begin) * cols);
      if (options_.on_progress) options_.on_progress(done_, weights_);
    }
    Report(matrix, sums);
    return {};
  }

  void Report(const Matrix& matrix, const std::vector<RowSums>& rows) {
    RowSums sum;
    for (const RowSums& row : rows) {
      sum.signal += row.signal;
      sum.noise += row.noise;
      sum.change += row.change;
    }
    HfTensorReport& tensor = report_.matrices.emplace_back();
    tensor.module = matrix.module;
    tensor.exact = sum.noise == 0.0;
    if (!tensor.exact) tensor.sqnr_db = 10.0 * std::log10(std::max(sum.signal, 1e-300) / sum.noise);
    if (matrix.lora != nullptr && sum.change > 0.0) {
      tensor.adapter_loss = std::sqrt(sum.noise / sum.change);
      merge_noise_ += sum.noise;
      change_ += sum.change;
    }
  }

  const Checkpoint& checkpoint_;
  ModelConfig config_;  // of what is written
  const HfExportOptions& options_;
  ThreadPool pool_;
  std::vector<Matrix> matrices_;
  std::vector<ModelModule> vectors_;
  std::unique_ptr<SafetensorsWriter> writer_;
  HfExportReport report_;
  double merge_noise_ = 0;
  double change_ = 0;
  uint64_t weights_ = 0;
  uint64_t done_ = 0;
};

}  // namespace

Result<HfExportReport> ExportHfDirectory(const Checkpoint& checkpoint, const std::string& out_dir,
                                         const HfExportOptions& options) {
  return Exporter(checkpoint, options).Run(out_dir);
}

}  // namespace pith
