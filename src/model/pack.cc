#include "model/pack.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "base/cache_folder.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "model/companions.h"
#include "model/hf_export.h"
#include "model/hf_names.h"
#include "model/pack_config.h"
#include "model/repack.h"
#include "model/safetensors.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

// What the kernels need of a matrix (kernels/qmatmul.h): whole blocks of 32 inputs, and no more than their sums can
// hold.
constexpr int64_t kColsMultiple = 32;
constexpr int64_t kMaxCols = 32768;
constexpr float kMaxF16 = 65504.0f;

constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kChunkBytes = int64_t{4} << 20;  // packed bytes held before they are written

// One matrix to be written.
struct Matrix {
  ModelModule module;
  const Tensor* source = nullptr;
  MatrixFormat format;  // never kKeep
  bool exact_repack = false;
  bool permuted = false;  // rows in GGUF's order for interleaved RoPE
};

// A vector (norm or bias) to be written.
struct Vector {
  std::string name;
  const Tensor* source = nullptr;
  bool permuted = false;
  const std::vector<float>* replacement = nullptr;  // written in its place
};

std::span<const std::byte> AsBytes(const void* data, size_t size) {
  return {static_cast<const std::byte*>(data), size};
}

std::optional<double> Decibels(double signal, double noise) {
  if (noise == 0.0) return std::nullopt;
  return 10.0 * std::log10(std::max(signal, 1e-300) / noise);
}

uint64_t PeakRss() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

Status WriteTextFile(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) return Error{ErrorCode::kIo, "cannot write '" + path.string() + "'"};
  return {};
}

// Drops the pages of rows [begin, end) of a tensor from the resident set.
void ReleaseRows(const Tensor& tensor, int64_t begin, int64_t end) {
  if (tensor.file == nullptr) return;
  const auto offset = static_cast<uint64_t>(tensor.data.data() - tensor.file->bytes().data());
  const auto row_bytes = static_cast<uint64_t>(tensor.row_bytes());
  tensor.file->Release(offset + static_cast<uint64_t>(begin) * row_bytes,
                       static_cast<uint64_t>(end - begin) * row_bytes);
}

// Whether a directory holds what PackCheckpoint wrote and nothing beside it, so that it may be removed.
bool IsPackedModel(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kPackRecord, error)) return false;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool known = name == "config.json" || name == "model.safetensors" || name.rfind("pith-", 0) == 0 ||
                       std::find(kCompanionFiles.begin(), kCompanionFiles.end(), name) != kCompanionFiles.end();
    if (!known) return false;
  }
  return !error;
}

class Packer {
 public:
  Packer(const Checkpoint& checkpoint, const PackRecipe& recipe, const PackOptions& options)
      : checkpoint_(checkpoint), recipe_(recipe), options_(options), pool_(options.threads) {}

  Result<PackReport> Run(const std::string& out_dir) {
    const auto start = std::chrono::steady_clock::now();
    PITH_RETURN_IF_ERROR(Plan());
    PITH_ASSIGN(const std::string config_text, ConfigText());
    PITH_ASSIGN(const fs::path folder, TemporaryFolder(out_dir));
    Status status = GetMoments(BesideOutput(out_dir, "calibration.").string());
    if (status.ok()) status = WriteAll(folder, config_text);
    if (status.ok()) status = Publish(folder, out_dir);
    if (!status.ok()) {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
      return status.error();
    }
    report_.path = out_dir;
    report_.recipe = recipe_.Canonical();
    report_.source_bytes = checkpoint_.file_bytes();
    report_.sqnr_db = Decibels(signal_, noise_);
    report_.bits_per_weight = weights_ == 0.0 ? 0.0 : weight_bits_ / weights_;
    report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    report_.peak_rss_bytes = PeakRss();
    return std::move(report_);
  }

 private:
  // --- what is to be written ---

  Status Plan() {
    if (checkpoint_.quantization()) {
      return Error{ErrorCode::kUnsupported, "'" + checkpoint_.path() + "' is packed already"};
    }
    config_ = checkpoint_.config();
    const bool tied = config_.tied_embeddings;
    // One matrix serves both when it is asked for in one format.
    config_.tied_embeddings = tied && recipe_.head == recipe_.embedding;
    for (const ModelModule& module : ModulesOf(config_)) {
      const std::string weight = module.name + ".weight";
      if (module.kind == ModuleKind::kNorm) {
        PITH_RETURN_IF_ERROR(PlanVector(weight, module.shape, false));
        continue;
      }
      Matrix matrix;
      matrix.module = module;
      PITH_ASSIGN(
          matrix.source,
          checkpoint_.Get(module.name == "lm_head" && tied ? "model.embed_tokens.weight" : weight, module.shape));
      matrix.permuted = checkpoint_.RowsInterleaved(weight);
      PITH_RETURN_IF_ERROR(ChooseFormat(&matrix));
      source_total_ += matrix.source->data.size();
      matrices_.push_back(std::move(matrix));
      if (module.bias)
        PITH_RETURN_IF_ERROR(PlanVector(module.name + ".bias", {module.shape[0]}, matrices_.back().permuted));
    }
    return {};
  }

  Status PlanVector(const std::string& name, const std::vector<int64_t>& shape, bool permuted) {
    Vector vector;
    vector.name = name;
    vector.permuted = permuted;
    PITH_ASSIGN(vector.source, checkpoint_.Get(name, shape));
    if (options_.vectors != nullptr) {
      const auto found = options_.vectors->find(name);
      if (found != options_.vectors->end()) vector.replacement = &found->second;
    }
    if (vector.replacement != nullptr &&
        static_cast<int64_t>(vector.replacement->size()) != vector.source->elements()) {
      return Error{ErrorCode::kMismatch, "the values for '" + name + "' have another size"};
    }
    vectors_.push_back(std::move(vector));
    return {};
  }

  Status ChooseFormat(Matrix* matrix) const {
    const ModelModule& module = matrix->module;
    matrix->format = module.kind == ModuleKind::kEmbedding ? recipe_.embedding
                     : module.name == "lm_head"            ? recipe_.head
                                                           : recipe_.linear;
    MatrixFormat& format = matrix->format;
    if (format.kind == MatrixFormat::Kind::kFloat) return {};
    const std::optional<QuantFormat> exact = ExactFormat(matrix->source->type);
    if (format.kind == MatrixFormat::Kind::kKeep) {
      format.kind = MatrixFormat::Kind::kQuantized;
      format.quant = exact ? *exact : QuantFormat{8, 32, ZeroForm::kSymmetric, recipe_.scale_type};
    } else {
      format.quant.scale_type = recipe_.scale_type;
    }
    matrix->exact_repack = options_.keep_exact && exact && *exact == format.quant;

    const int64_t cols = module.shape[1];
    const auto unfit = [&](const std::string& message) {
      return Error{ErrorCode::kInvalidArgument, "'" + module.name + "' cannot be packed as " +
                                                    MatrixFormatText(format) + ": it has " + std::to_string(cols) +
                                                    " inputs, " + message};
    };
    if (cols % kColsMultiple != 0) return unfit("no multiple of 32");
    if (cols > kMaxCols) return unfit("more than " + std::to_string(kMaxCols));
    if (format.quant.group != 0 && cols % format.quant.group != 0) {
      const int64_t fitting = cols % 64 == 0 && format.quant.group > 64 ? 64 : 32;
      return unfit("no multiple of the group; groups of " + std::to_string(fitting) + " fit");
    }
    return {};
  }

  Status GetMoments(const std::string& scratch) {
    if (!recipe_.weigh_inputs) return {};
    if (options_.moments != nullptr) {
      moments_ = *options_.moments;
    } else if (options_.measure_moments) {
      PITH_ASSIGN(moments_, options_.measure_moments(scratch));
    } else {
      return Error{ErrorCode::kInvalidArgument, "the recipe weighs inputs, but there are no input moments"};
    }
    // Of a matrix that is the embedding table too; 8 bits and floats gain nothing from them.
    if (config_.tied_embeddings) moments_.erase("lm_head");
    for (const auto& [name, values] : moments_) {
      const auto found = std::find_if(matrices_.begin(), matrices_.end(),
                                      [&name = name](const Matrix& m) { return m.module.name == name; });
      if (found == matrices_.end()) {
        return Error{ErrorCode::kInvalidArgument, "input moments name '" + name + "', which is no matrix of the model"};
      }
      if (static_cast<int64_t>(values.size()) != found->module.shape[1]) {
        return Error{ErrorCode::kMismatch, "input moments of '" + name + "' have " + std::to_string(values.size()) +
                                               " values for " + std::to_string(found->module.shape[1]) + " inputs"};
      }
      for (const float value : values) {
        if (!(value >= 0.0f && std::isfinite(value))) {
          return Error{ErrorCode::kNumeric, "input moments of '" + name + "' hold a value that is not >= 0"};
        }
      }
    }
    return {};
  }

  Result<std::string> ConfigText() const {
    std::string source;
    const std::string what = "'" + checkpoint_.path() + "'";
    if (checkpoint_.format() == CheckpointFormat::kGguf) {
      PITH_ASSIGN(source, HfConfigText(config_));
    } else {
      PITH_ASSIGN(const auto file, MappedFile::Open((fs::path(checkpoint_.path()) / "config.json").string()));
      source.assign(reinterpret_cast<const char*>(file->bytes().data()), file->size());
    }
    std::vector<StoredModule> modules;
    for (const Matrix& matrix : matrices_) {
      StoredModule& stored = modules.emplace_back(StoredModule{matrix.module, std::nullopt});
      if (matrix.format.kind == MatrixFormat::Kind::kQuantized) stored.format = matrix.format.quant;
    }
    return PackedConfigText(source, modules, config_.tied_embeddings, recipe_.kv_bits, what);
  }

  // Matrices first, in the order of the forward pass, each with its scales: their sizes are multiples of 64 bytes in
  // real models, so the packed bytes stay aligned. Vectors and shapes follow.
  std::vector<SafetensorsEntry> Entries() const {
    std::vector<SafetensorsEntry> entries;
    for (const Matrix& matrix : matrices_) {
      const std::string& name = matrix.module.name;
      const int64_t rows = matrix.module.shape[0];
      const int64_t cols = matrix.module.shape[1];
      if (matrix.format.kind == MatrixFormat::Kind::kFloat) {
        entries.push_back({name + ".weight", matrix.format.float_type, matrix.module.shape});
        continue;
      }
      const QuantFormat& format = matrix.format.quant;
      const int64_t groups = format.group == 0 ? 1 : cols / format.group;
      const int64_t per_word = 32 / format.bits;
      entries.push_back({name + ".weight_packed", DType::kI32, {rows, cols / per_word}});
      if (format.zero == ZeroForm::kZeroPoint) {
        entries.push_back({name + ".weight_zero_point", DType::kI32, {(rows + per_word - 1) / per_word, groups}});
      }
      entries.push_back({name + ".weight_scale", format.scale_type, {rows, groups}});
      if (format.zero == ZeroForm::kMinimum)
        entries.push_back({name + ".weight_min", format.scale_type, {rows, groups}});
    }
    for (const Matrix& matrix : matrices_) {
      if (matrix.format.kind != MatrixFormat::Kind::kQuantized) continue;
      entries.push_back({matrix.module.name + ".weight_shape", DType::kI64, {2}});
    }
    for (const Vector& vector : vectors_) {
      const bool keep = !IsBlockType(vector.source->type) && vector.replacement == nullptr;
      entries.push_back({vector.name, keep ? vector.source->type : DType::kF32, vector.source->shape});
    }
    return entries;
  }

  // --- files ---

  // What a killed packing leaves behind has a name that the next one can recognize (see pack_cache.cc).
  static fs::path BesideOutput(const std::string& out_dir, const std::string& purpose) {
    fs::path target = fs::path(out_dir).lexically_normal();
    if (!target.has_filename()) target = target.parent_path();
    return target.string() + "." + purpose + std::to_string(::getpid()) + ".partial";
  }

  Result<fs::path> TemporaryFolder(const std::string& out_dir) const {
    std::error_code error;
    if (fs::exists(out_dir, error) && !(fs::is_directory(out_dir, error) && fs::is_empty(out_dir, error))) {
      if (!options_.overwrite) {
        return Error{ErrorCode::kInvalidArgument, "'" + out_dir + "' is there already"};
      }
      if (!IsPackedModel(out_dir)) {
        return Error{ErrorCode::kInvalidArgument,
                     "'" + out_dir + "' is there and holds something else than a packed model; it is not replaced"};
      }
    }
    const fs::path folder = BesideOutput(out_dir, "");
    fs::remove_all(folder, error);
    if (!fs::create_directories(folder, error)) {
      return Error{ErrorCode::kIo, "cannot create '" + folder.string() + "': " + error.message()};
    }
    return folder;
  }

  Status WriteAll(const fs::path& folder, const std::string& config_text) {
    PITH_RETURN_IF_ERROR(WriteTextFile(folder / "config.json", config_text));
    PITH_RETURN_IF_ERROR(WriteCompanions(checkpoint_, folder.string()));
    const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"pith_recipe", recipe_.Canonical()}};
    std::vector<SafetensorsEntry> entries = Entries();
    uint64_t bytes = 0;
    for (const SafetensorsEntry& entry : entries) {
      bytes += static_cast<uint64_t>(TensorBytes(entry.type, entry.shape).value_or(0));
    }
    PITH_RETURN_IF_ERROR(CheckFreeSpace(folder.string(), bytes));
    PITH_ASSIGN(writer_,
                SafetensorsWriter::Create((folder / "model.safetensors").string(), std::move(entries), metadata));
    for (const Matrix& matrix : matrices_) {
      PITH_RETURN_IF_ERROR(matrix.format.kind == MatrixFormat::Kind::kFloat ? WriteFloats(matrix)
                                                                            : WriteQuantized(matrix));
      ReleaseRows(*matrix.source, 0, matrix.source->rows());
    }
    for (const Matrix& matrix : matrices_) {
      if (matrix.format.kind != MatrixFormat::Kind::kQuantized) continue;
      const int64_t shape[2] = {matrix.module.shape[0], matrix.module.shape[1]};
      PITH_RETURN_IF_ERROR(writer_->Write(matrix.module.name + ".weight_shape", AsBytes(shape, sizeof(shape))));
    }
    for (const Vector& vector : vectors_) PITH_RETURN_IF_ERROR(WriteVector(vector));
    report_.file_bytes = writer_->file_bytes();
    PITH_RETURN_IF_ERROR(writer_->Finish());
    return WriteRecord(folder);
  }

  Status WriteRecord(const fs::path& folder) const {
    const OrderedJson json = {{"version", kPackVersion},
                              {"source", checkpoint_.path()},
                              {"fingerprint", checkpoint_.fingerprint()},
                              {"recipe", recipe_.Canonical()},
                              {"bytes", report_.file_bytes}};
    return WriteTextFile(folder / kPackRecord, json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  }

  Status Publish(const fs::path& folder, const std::string& out_dir) const {
    std::error_code error;
    if (options_.overwrite && fs::exists(out_dir, error)) fs::remove_all(out_dir, error);
    fs::rename(folder, out_dir, error);
    if (error) return Error{ErrorCode::kIo, "cannot move the packed model to '" + out_dir + "': " + error.message()};
    return {};
  }

  // --- tensors ---

  int64_t SourceRow(const Matrix& matrix, int64_t row) const {
    return matrix.permuted ? InterleavedRow(row, config_.head_dim) : row;
  }

  void Progress(uint64_t done) const {
    if (options_.on_progress) options_.on_progress(source_done_ + done, source_total_);
  }

  // Runs body(row, thread) for rows [begin, end).
  template <class Body>
  void ForRows(int64_t begin, int64_t end, const Body& body) {
    pool_.Run((end - begin + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int thread) {
      const int64_t first = begin + task * kRowsPerTask;
      for (int64_t row = first; row < std::min(first + kRowsPerTask, end); ++row) body(row, thread);
    });
  }

  // Notes one finished matrix.
  void Report(const Matrix& matrix, bool exact, double bits_per_weight, const std::vector<double>& signal,
              const std::vector<double>& noise) {
    double signal_sum = 0.0, noise_sum = 0.0;
    for (const double value : signal) signal_sum += value;
    for (const double value : noise) noise_sum += value;
    PackedTensorReport& tensor = report_.tensors.emplace_back();
    tensor.module = matrix.module.name;
    tensor.rows = matrix.module.shape[0];
    tensor.cols = matrix.module.shape[1];
    tensor.source = DTypeName(matrix.source->type);
    tensor.format = MatrixFormatText(matrix.format);
    tensor.exact = exact || noise_sum == 0.0;
    tensor.bits_per_weight = bits_per_weight;
    tensor.sqnr_db = Decibels(signal_sum, noise_sum);
    const auto count = static_cast<double>(tensor.rows) * static_cast<double>(tensor.cols);
    weights_ += count;
    weight_bits_ += count * bits_per_weight;
    signal_ += signal_sum;
    noise_ += noise_sum;
    source_done_ += matrix.source->data.size();
    Progress(0);
  }

  Status WriteQuantized(const Matrix& matrix) {
    const QuantFormat& format = matrix.format.quant;
    const Tensor& source = *matrix.source;
    const std::string& name = matrix.module.name;
    const int64_t rows = matrix.module.shape[0];
    const int64_t cols = matrix.module.shape[1];
    const int64_t groups = format.group == 0 ? 1 : cols / format.group;
    const int64_t row_bytes = cols * format.bits / 8;
    const Quantizer quantizer{format, recipe_.method, recipe_.p};
    const auto moments = moments_.find(name);
    const float* importance = moments == moments_.end() ? nullptr : moments->second.data();
    const float largest_allowed = format.scale_type == DType::kF16
                                      ? kMaxF16 * static_cast<float>((1 << (format.bits - 1)) - 1)
                                      : std::numeric_limits<float>::max() / 256.0f;
    const float minimum_allowed =
        format.scale_type == DType::kF16 && format.zero == ZeroForm::kMinimum ? kMaxF16 : largest_allowed;

    RowRounding rounding;
    if (options_.rounding && !matrix.exact_repack) {
      PITH_ASSIGN(rounding, options_.rounding(name, format, cols));
    }

    const auto scale_count = static_cast<size_t>(rows * groups);
    std::vector<float> scales(scale_count);
    std::vector<uint8_t> zeros(format.zero == ZeroForm::kZeroPoint ? scale_count : 0);
    std::vector<float> minimums(format.zero == ZeroForm::kMinimum ? scale_count : 0);
    std::vector<double> signal(static_cast<size_t>(rows)), noise(static_cast<size_t>(rows));
    struct Scratch {
      std::vector<float> values, approximation;
      std::vector<uint8_t> codes;
    };
    std::vector<Scratch> scratch(static_cast<size_t>(pool_.threads()));
    for (Scratch& s : scratch) {
      s.values.resize(static_cast<size_t>(cols));
      s.approximation.resize(static_cast<size_t>(cols));
      s.codes.resize(static_cast<size_t>(cols));
    }
    std::atomic<int64_t> bad_row{-1};

    const int64_t chunk_rows =
        std::clamp(kChunkBytes / row_bytes / kRowsPerTask * kRowsPerTask, kRowsPerTask, rows + kRowsPerTask);
    std::vector<uint8_t> chunk(static_cast<size_t>(std::min(chunk_rows, rows) * row_bytes));
    for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
      const int64_t end = std::min(begin + chunk_rows, rows);
      ForRows(begin, end, [&](int64_t row, int thread) {
        Scratch& s = scratch[static_cast<size_t>(thread)];
        const int64_t source_row = SourceRow(matrix, row);
        // Cannot fail: the row is there, and Checkpoint::Open admits only types that dequantize.
        (void)DequantizeRows(source, source_row, source_row + 1, s.values.data());
        QuantizedRow out;
        out.codes = s.codes.data();
        out.scales = scales.data() + row * groups;
        if (!zeros.empty()) out.zeros = zeros.data() + row * groups;
        if (!minimums.empty()) out.minimums = minimums.data() + row * groups;
        double row_signal = 0.0;
        float largest = 0.0f;
        bool finite = true;
        for (const float value : s.values) {
          finite = finite && std::isfinite(value);
          largest = std::max(largest, std::fabs(value));
          row_signal += static_cast<double>(value) * static_cast<double>(value);
        }
        if (!finite || largest > minimum_allowed) {
          bad_row = row;
          return;
        }
        if (matrix.exact_repack) {
          const auto* bytes = reinterpret_cast<const uint8_t*>(source.data.data()) + source_row * source.row_bytes();
          RepackRow(source.type, bytes, cols, out);
        } else {
          QuantizeRow(quantizer, s.values.data(), cols, importance, out);
          if (rounding) rounding(row, s.values.data(), out);
        }
        DequantizeRow(format, cols, out, s.approximation.data());
        signal[static_cast<size_t>(row)] = row_signal;
        noise[static_cast<size_t>(row)] = WeightedError(s.values.data(), s.approximation.data(), cols, nullptr, 2.0);
        PackCodes(s.codes.data(), cols, format.bits, chunk.data() + (row - begin) * row_bytes);
      });
      if (bad_row >= 0) {
        return Error{ErrorCode::kNumeric, "'" + source.name + "' row " + std::to_string(bad_row.load()) +
                                              " holds a weight that is not finite or too large for " +
                                              DTypeName(format.scale_type) + " scales"};
      }
      const auto bytes = static_cast<size_t>((end - begin) * row_bytes);
      PITH_RETURN_IF_ERROR(writer_->Write(name + ".weight_packed", AsBytes(chunk.data(), bytes)));
      if (!matrix.permuted) ReleaseRows(source, begin, end);
      Progress(static_cast<uint64_t>(end) * source.data.size() / static_cast<uint64_t>(rows));
    }
    if (!zeros.empty()) PITH_RETURN_IF_ERROR(WriteZeroPoints(name, zeros, rows, groups, format.bits));
    PITH_RETURN_IF_ERROR(WriteScales(name + ".weight_scale", scales, format.scale_type));
    if (!minimums.empty()) PITH_RETURN_IF_ERROR(WriteScales(name + ".weight_min", minimums, format.scale_type));
    Report(matrix, matrix.exact_repack, format.BitsPerWeight(cols), signal, noise);
    return {};
  }

  Status WriteScales(const std::string& name, const std::vector<float>& values, DType type) {
    if (type == DType::kF32) return writer_->Write(name, AsBytes(values.data(), values.size() * sizeof(float)));
    std::vector<uint16_t> halves(values.size());
    for (size_t i = 0; i < values.size(); ++i) halves[i] = F32ToF16(values[i]);
    return writer_->Write(name, AsBytes(halves.data(), halves.size() * sizeof(uint16_t)));
  }

  // Zero points are packed along the rows, 32 / bits of them to a word, the last word padded with zeros.
  Status WriteZeroPoints(const std::string& name, const std::vector<uint8_t>& zeros, int64_t rows, int64_t groups,
                         int bits) {
    const int64_t per_word = 32 / bits;
    std::vector<uint32_t> words(static_cast<size_t>((rows + per_word - 1) / per_word * groups));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t g = 0; g < groups; ++g) {
        words[static_cast<size_t>(row / per_word * groups + g)] |=
            static_cast<uint32_t>(zeros[static_cast<size_t>(row * groups + g)]) << (row % per_word * bits);
      }
    }
    return writer_->Write(name + ".weight_zero_point", AsBytes(words.data(), words.size() * sizeof(uint32_t)));
  }

  Status WriteFloats(const Matrix& matrix) {
    const Tensor& source = *matrix.source;
    const DType type = matrix.format.float_type;
    const int64_t rows = matrix.module.shape[0];
    const int64_t cols = matrix.module.shape[1];
    const int64_t width = type == DType::kF32 ? 4 : 2;
    const int64_t chunk_rows = std::clamp(kChunkBytes / (cols * width), int64_t{1}, rows);
    std::vector<uint8_t> chunk(static_cast<size_t>(chunk_rows * cols * width));
    std::vector<std::vector<float>> values(static_cast<size_t>(pool_.threads()),
                                           std::vector<float>(static_cast<size_t>(cols)));
    std::vector<double> signal(static_cast<size_t>(rows)), noise(static_cast<size_t>(rows));
    for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
      const int64_t end = std::min(begin + chunk_rows, rows);
      ForRows(begin, end, [&](int64_t row, int thread) {
        std::vector<float>& x = values[static_cast<size_t>(thread)];
        const int64_t source_row = SourceRow(matrix, row);
        (void)DequantizeRows(source, source_row, source_row + 1, x.data());
        uint8_t* out = chunk.data() + (row - begin) * cols * width;
        double row_signal = 0.0, row_noise = 0.0;
        for (int64_t i = 0; i < cols; ++i) {
          const float value = x[static_cast<size_t>(i)];
          float stored = value;
          if (type == DType::kF32) {
            std::memcpy(out + i * 4, &value, 4);
          } else {
            const uint16_t bits = type == DType::kF16 ? F32ToF16(value) : F32ToBF16(value);
            std::memcpy(out + i * 2, &bits, 2);
            stored = type == DType::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
          }
          const double error = static_cast<double>(stored) - static_cast<double>(value);
          row_signal += static_cast<double>(value) * static_cast<double>(value);
          row_noise += error * error;
        }
        signal[static_cast<size_t>(row)] = row_signal;
        noise[static_cast<size_t>(row)] = row_noise;
      });
      const auto bytes = static_cast<size_t>((end - begin) * cols * width);
      PITH_RETURN_IF_ERROR(writer_->Write(matrix.module.name + ".weight", AsBytes(chunk.data(), bytes)));
      if (!matrix.permuted) ReleaseRows(source, begin, end);
      Progress(static_cast<uint64_t>(end) * source.data.size() / static_cast<uint64_t>(rows));
    }
    Report(matrix, false, static_cast<double>(8 * width), signal, noise);
    return {};
  }

  Status WriteVector(const Vector& vector) {
    const Tensor& source = *vector.source;
    if (vector.replacement != nullptr) {
      return writer_->Write(vector.name,
                            AsBytes(vector.replacement->data(), vector.replacement->size() * sizeof(float)));
    }
    if (IsBlockType(source.type)) {
      PITH_ASSIGN(const std::vector<float> values, ToFloats(source));
      return writer_->Write(vector.name, AsBytes(values.data(), values.size() * sizeof(float)));
    }
    if (!vector.permuted) return writer_->Write(vector.name, source.data);
    const auto width = static_cast<size_t>(DTypeBlock(source.type).bytes);
    std::vector<std::byte> permuted(source.data.size());
    for (int64_t i = 0; i < source.elements(); ++i) {
      const auto from = static_cast<size_t>(InterleavedRow(i, config_.head_dim));
      std::memcpy(permuted.data() + static_cast<size_t>(i) * width, source.data.data() + from * width, width);
    }
    return writer_->Write(vector.name, permuted);
  }

  const Checkpoint& checkpoint_;
  const PackRecipe& recipe_;
  const PackOptions& options_;
  ThreadPool pool_;
  ModelConfig config_;    // of the packed model
  InputMoments moments_;  // empty unless the recipe weighs inputs
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  std::unique_ptr<SafetensorsWriter> writer_;
  PackReport report_;
  uint64_t source_total_ = 0;
  uint64_t source_done_ = 0;
  double weights_ = 0.0, weight_bits_ = 0.0, signal_ = 0.0, noise_ = 0.0;
};

}  // namespace

PackRecipe DefaultRecipeFor(const Checkpoint& checkpoint) {
  PackRecipe recipe = DefaultRecipe();
  int64_t weights = 0;
  int64_t symmetric = 0;
  for (const ModelModule& module : ModulesOf(checkpoint.config())) {
    const Tensor* tensor = checkpoint.Find(module.name + ".weight");
    if (module.kind != ModuleKind::kLinear || tensor == nullptr) continue;
    weights += tensor->elements();
    if (tensor->type == DType::kQ4_0) symmetric += tensor->elements();
  }
  if (2 * symmetric > weights) recipe.linear.quant.zero = ZeroForm::kSymmetric;
  return recipe;
}

Result<PackReport> PackCheckpoint(const Checkpoint& checkpoint, const PackRecipe& recipe, const std::string& out_dir,
                                  const PackOptions& options) {
  return Packer(checkpoint, recipe, options).Run(out_dir);
}

std::vector<std::string> PackSourceFiles(const Checkpoint& checkpoint) {
  if (checkpoint.format() == CheckpointFormat::kGguf) return {checkpoint.path()};
  const fs::path folder = checkpoint.path();
  std::vector<std::string> paths = {(folder / "config.json").string()};
  for (const char* name : kCompanionFiles) {
    std::error_code error;
    if (fs::exists(folder / name, error)) paths.push_back((folder / name).string());
  }
  std::set<std::string> weights;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.file != nullptr) weights.insert(tensor.file->path());
  }
  paths.insert(paths.end(), weights.begin(), weights.end());
  return paths;
}

std::string PackReportText(const PackReport& report) {
  std::string text;
  char line[256];
  const auto decibels = [](const std::optional<double>& value) {
    char buffer[32];
    std::snprintf(buffer, sizeof(buffer), "%6.2f dB", value.value_or(0.0));
    return value ? std::string(buffer) : std::string("   exact");
  };
  for (const PackedTensorReport& tensor : report.tensors) {
    std::snprintf(line, sizeof(line), "%-40s %7lld x %-6lld %-5s -> %-7s %6.3f bits  %s%s\n", tensor.module.c_str(),
                  static_cast<long long>(tensor.rows), static_cast<long long>(tensor.cols), tensor.source.c_str(),
                  tensor.format.c_str(), tensor.bits_per_weight, decibels(tensor.sqnr_db).c_str(), "");
    text += line;
  }
  std::snprintf(line, sizeof(line), "%s: %.3f bits per weight, %s, %s (source %s), %.1f s, peak memory %s\n",
                report.recipe.c_str(), report.bits_per_weight, decibels(report.sqnr_db).c_str(),
                HumanBytes(report.file_bytes).c_str(), HumanBytes(report.source_bytes).c_str(), report.seconds,
                HumanBytes(report.peak_rss_bytes).c_str());
  return text + line;
}

}  // namespace pith
