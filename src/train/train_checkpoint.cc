#include "train/train_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "model/safetensors.h"

namespace pith::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kStateFile = "trainer_state.json";
constexpr const char* kOptimizerFile = "optimizer.safetensors";

std::string DirOf(const std::string& out, int64_t step) { return out + "/" + kPrefix + std::to_string(step); }

Error IoError(const std::string& what) { return {ErrorCode::kIo, what + ": " + std::strerror(errno)}; }

Status SyncPath(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return IoError("cannot open '" + path + "'");
  const int failed = ::fsync(fd);
  ::close(fd);
  return failed != 0 ? Status(IoError("cannot flush '" + path + "'")) : Status();
}

Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? Status() : Status(IoError("cannot write '" + path + "'"));
}

Status WriteOptimizer(const std::string& path, const AdamW& optimizer) {
  const auto n = static_cast<int64_t>(optimizer.first().size());
  PITH_ASSIGN(const auto writer,
              SafetensorsWriter::Create(path, {{"first", DType::kF32, {n}}, {"second", DType::kF32, {n}}}));
  PITH_RETURN_IF_ERROR(writer->Write("first", std::as_bytes(std::span(optimizer.first()))));
  PITH_RETURN_IF_ERROR(writer->Write("second", std::as_bytes(std::span(optimizer.second()))));
  return writer->Finish();
}

Status WriteAll(const std::string& dir, const TrainModel& model, const AdamW& optimizer, const TrainerState& state,
                const std::string& base_model) {
  PITH_RETURN_IF_ERROR(model.is_lora() ? model.SaveAdapter(dir, AdapterStorage::kF32, base_model)
                                       : model.SaveModel(dir, DType::kF32));
  PITH_RETURN_IF_ERROR(WriteOptimizer(dir + "/" + kOptimizerFile, optimizer));
  for (const auto& [name, text] : state.files) PITH_RETURN_IF_ERROR(WriteText(dir + "/" + name, text));
  const OrderedJson json = {
      {"version", 1},           {"step", state.step},       {"optimizer_steps", optimizer.steps()},
      {"cursor", state.cursor}, {"metrics", state.metrics}, {"options", state.options}};
  return WriteText(dir + "/" + kStateFile, json.dump(2) + "\n");
}

// Parameters of a whole model by name.
Status LoadWholeModel(const std::string& dir, TrainModel* model) {
  PITH_ASSIGN(const auto file, SafetensorsFile::Open(dir + "/model.safetensors"));
  for (Parameter& parameter : model->parameters()) {
    const Tensor* tensor = file->Find(parameter.name);
    if (tensor == nullptr || tensor->type != DType::kF32 || tensor->shape != parameter.shape) {
      return Error{ErrorCode::kMismatch, "'" + dir + "': '" + parameter.name + "' is missing or has another shape"};
    }
    std::memcpy(parameter.value.data(), tensor->data.data(), tensor->data.size());
  }
  return {};
}

// The first line in which two texts differ.
std::string FirstDifference(const std::string& now, const std::string& then) {
  const auto lines = [](const std::string& text) {
    std::vector<std::string> list(1);
    for (const char c : text) {
      if (c == '\n') {
        list.emplace_back();
      } else {
        list.back() += c;
      }
    }
    return list;
  };
  const auto a = lines(now);
  const auto b = lines(then);
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() ? a[i] : "nothing";
    const std::string right = i < b.size() ? b[i] : "nothing";
    if (left != right) return "'" + left + "' now, '" + right + "' then";
  }
  return "nothing";
}

}  // namespace

Status MakeDirectoryDurable(const std::string& temporary, const std::string& dir) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(temporary, error)) {
    if (entry.is_regular_file()) PITH_RETURN_IF_ERROR(SyncPath(entry.path().string()));
  }
  if (error) return Error{ErrorCode::kIo, "cannot read '" + temporary + "': " + error.message()};
  PITH_RETURN_IF_ERROR(SyncPath(temporary));
  fs::remove_all(dir, error);
  fs::rename(temporary, dir, error);
  if (error) return Error{ErrorCode::kIo, "cannot rename '" + temporary + "' to '" + dir + "': " + error.message()};
  return SyncPath(fs::path(dir).parent_path().string());
}

Status SaveCheckpoint(const std::string& out, const TrainModel& model, const AdamW& optimizer,
                      const TrainerState& state, int64_t keep, std::optional<int64_t> best_step,
                      const std::string& base_model) {
  std::error_code error;
  fs::create_directories(out, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + out + "': " + error.message()};
  const std::string dir = DirOf(out, state.step);
  const std::string temporary = out + "/." + kPrefix + std::to_string(state.step) + ".partial";
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + temporary + "': " + error.message()};
  const Status written = WriteAll(temporary, model, optimizer, state, base_model);
  if (!written.ok()) {
    fs::remove_all(temporary, error);
    return written;
  }
  PITH_RETURN_IF_ERROR(MakeDirectoryDurable(temporary, dir));
  if (keep <= 0) return {};
  PITH_ASSIGN(std::vector<int64_t> steps, ListCheckpoints(out));
  steps.resize(static_cast<size_t>(std::max<int64_t>(0, static_cast<int64_t>(steps.size()) - keep)));  // but the last
  if (best_step) std::erase(steps, *best_step);
  for (const int64_t step : steps) {
    // Renamed first: a directory that is only half removed must not look whole.
    const std::string old = DirOf(out, step);
    const std::string leaving = out + "/." + kPrefix + "leaving";
    fs::remove_all(leaving, error);
    fs::rename(old, leaving, error);
    fs::remove_all(leaving, error);
    if (error) return Error{ErrorCode::kIo, "cannot remove '" + old + "': " + error.message()};
  }
  return {};
}

Result<std::vector<int64_t>> ListCheckpoints(const std::string& out) {
  std::vector<int64_t> steps;
  std::error_code error;
  if (!fs::exists(out, error)) return steps;
  for (const auto& entry : fs::directory_iterator(out, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(kPrefix, 0) != 0) continue;
    const std::string number = name.substr(std::strlen(kPrefix));
    if (number.empty() || number.size() > 15 || number.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!fs::exists(entry.path() / kStateFile, error)) continue;
    steps.push_back(std::stoll(number));
  }
  if (error) return Error{ErrorCode::kIo, "cannot read '" + out + "': " + error.message()};
  std::sort(steps.begin(), steps.end());
  return steps;
}

Status RefuseUsedFolder(const std::string& out) {
  PITH_ASSIGN(const std::vector<int64_t> steps, ListCheckpoints(out));
  if (steps.empty()) return {};
  return Error{ErrorCode::kInvalidArgument, "'" + out + "' holds checkpoints of a run (the last of step " +
                                                std::to_string(steps.back()) +
                                                "): --resume goes on with it, a new run needs another folder"};
}

Result<TrainerState> LoadCheckpoint(const std::string& dir, const std::string& options, TrainModel* model,
                                    AdamW* optimizer) {
  PITH_ASSIGN(const Json json, ReadJsonFile(dir + "/" + kStateFile));
  TrainerState state;
  int64_t optimizer_steps = 0;
  try {
    if (json.at("version").get<int>() != 1) {
      return Error{ErrorCode::kUnsupported, "'" + dir + "' is a checkpoint of another version"};
    }
    state.step = json.at("step").get<int64_t>();
    optimizer_steps = json.at("optimizer_steps").get<int64_t>();
    state.cursor = json.at("cursor").get<std::map<std::string, int64_t>>();
    state.metrics = json.at("metrics").get<std::map<std::string, double>>();
    state.options = json.at("options").get<std::string>();
  } catch (const Json::exception& exception) {
    return Error{ErrorCode::kMalformed, "'" + dir + "/" + kStateFile + "': " + exception.what()};
  }
  if (state.options != options) {
    return Error{ErrorCode::kMismatch,
                 "'" + dir + "' was made with other options: " + FirstDifference(options, state.options)};
  }
  PITH_RETURN_IF_ERROR(model->is_lora() ? model->LoadAdapter(dir) : LoadWholeModel(dir, model));
  PITH_ASSIGN(const auto file, SafetensorsFile::Open(dir + "/" + kOptimizerFile));
  const Tensor* first = file->Find("first");
  const Tensor* second = file->Find("second");
  if (first == nullptr || second == nullptr) {
    return Error{ErrorCode::kMalformed, "'" + dir + "/" + kOptimizerFile + "' lacks 'first' or 'second'"};
  }
  PITH_ASSIGN(auto first_values, ToFloats(*first));
  PITH_ASSIGN(auto second_values, ToFloats(*second));
  PITH_RETURN_IF_ERROR(optimizer->Restore(optimizer_steps, std::move(first_values), std::move(second_values)));
  return state;
}

}  // namespace pith::train
