#include "deploy/verify_export.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "base/json.h"
#include "deploy/onnx_export.h"
#include "deploy/verify_onnx_script.h"
#include "engine/calibrate.h"
#include "engine/engine.h"
#include "model/heads.h"
#include "model/safetensors.h"
#include "model/tokenizer_file.h"

extern char** environ;  // NOLINT

namespace pith {

namespace fs = std::filesystem;

namespace {

// Both compute in float32, in other orders; the bound.
constexpr double kAllowed = 1e-3;
// Quantized graphs compute other numbers: they pass when they would choose the engine's token at 9 of 10 steps.
constexpr double kQuantizedSameChoice = 0.9;
// Against the static mode the integers are the same but where float sums in another order fall on the other side of a
// rounding: then a key or value is off by one step of its quantizer, and not by two.
constexpr double kStaticSteps = 1.5;
constexpr double kStaticSameChoice = 0.95;
constexpr const char* kInstall =
    "python3 -m venv ~/.local/share/pith/onnx && ~/.local/share/pith/onnx/bin/pip install onnxruntime numpy, then "
    "--python ~/.local/share/pith/onnx/bin/python";

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "pith-verify-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Named tensors of a task, F32 or I32.
class Task {
 public:
  void Floats(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    floats_[name] = {std::move(shape), std::move(values)};
  }
  void Ints(const std::string& name, std::vector<int32_t> values) { ints_[name] = std::move(values); }

  Status Write(const std::string& path) const {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, item] : floats_) entries.push_back({name, DType::kF32, item.first});
    for (const auto& [name, values] : ints_) {
      entries.push_back({name, DType::kI32, {static_cast<int64_t>(values.size())}});
    }
    PITH_ASSIGN(const auto writer, SafetensorsWriter::Create(path, entries));
    for (const auto& [name, item] : floats_) {
      PITH_RETURN_IF_ERROR(writer->Write(name, std::as_bytes(std::span(item.second))));
    }
    for (const auto& [name, values] : ints_)
      PITH_RETURN_IF_ERROR(writer->Write(name, std::as_bytes(std::span(values))));
    return writer->Finish();
  }

 private:
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> floats_;
  std::map<std::string, std::vector<int32_t>> ints_;
};

// What the engine does with the task.
class Reference {
 public:
  explicit Reference(Engine& engine) : engine_(engine) {}

  Status Prefill(std::span<const int32_t> prompt, Task* task) {
    StepOutput output;
    const StepItem item{&prompt_, prompt, nullptr, Rows::kLast, Rows::kAll};
    PITH_ASSIGN(output, engine_.Step({&item, 1}));
    logits_.assign(output.logits.begin(), output.logits.end());
    states_.assign(output.states.begin(), output.states.end());
    task->Ints("prompt", {prompt.begin(), prompt.end()});
    for (int64_t layer = 0; layer < engine_.config().layers; ++layer) AddKv(layer, task);
    return {};
  }

  // Greedy tokens after the prompt, with the logits in front of each and behind the last.
  Status Generate(const std::string& name, const Adapter* adapter, int64_t count, Task* task) {
    Sequence sequence = prompt_;
    std::vector<float> all = logits_;
    std::vector<float> last = logits_;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
      const StepItem item{&sequence, std::span(&ids.back(), 1), adapter, Rows::kLast, Rows::kNone};
      PITH_ASSIGN(const StepOutput output, engine_.Step({&item, 1}));
      last.assign(output.logits.begin(), output.logits.end());
      all.insert(all.end(), last.begin(), last.end());
    }
    task->Ints(name + ".ids", ids);
    task->Floats(name + ".logits", {count + 1, engine_.config().vocab}, std::move(all));
    return {};
  }

  std::span<const float> states() const { return states_; }  // of the prompt, [tokens, hidden]
  // The largest magnitudes of the prompt's keys and values in a layer, as they are in the graphs.
  const std::pair<float, float>& largest(int64_t layer) const { return largest_[static_cast<size_t>(layer)]; }

 private:
  // Keys [kv_heads, head_dim, tokens], equalized in engine and graphs alike and divided by sqrt(head_dim) in the
  // graphs (with static activations in the engine too), and values [kv_heads, tokens, head_dim] of one layer.
  void AddKv(int64_t layer, Task* task) {
    const ModelConfig& config = engine_.config();
    const int64_t d = config.head_dim, n = prompt_.length();
    const bool scaled = engine_.options().static_activations;
    const float root = scaled ? 1.0F : 1.0F / std::sqrt(static_cast<float>(d));
    std::vector<float> keys(static_cast<size_t>(config.kv_heads * d * n)), values(keys.size());
    for (int64_t h = 0; h < config.kv_heads; ++h) {
      for (int64_t t = 0; t < n; ++t) {
        const KvBlock& block = *prompt_.blocks()[static_cast<size_t>(t / kKvBlockTokens)];
        const KvBlockView view = block.At(layer, h);
        const auto* k = static_cast<const float*>(view.k);
        const auto* v = static_cast<const float*>(view.v);
        const int64_t place = t % kKvBlockTokens;
        for (int64_t j = 0; j < d; ++j) {
          keys[static_cast<size_t>((h * d + j) * n + t)] = k[j * kKvBlockTokens + place] * root;
          values[static_cast<size_t>((h * n + t) * d + j)] = v[place * d + j];
        }
      }
    }
    const auto magnitude = [](float a, float b) { return std::max(a, std::fabs(b)); };
    largest_.emplace_back(std::accumulate(keys.begin(), keys.end(), 0.0F, magnitude),
                          std::accumulate(values.begin(), values.end(), 0.0F, magnitude));
    task->Floats("keys." + std::to_string(layer), {config.kv_heads, d, n}, std::move(keys));
    task->Floats("values." + std::to_string(layer), {config.kv_heads, n, d}, std::move(values));
  }

  Engine& engine_;
  Sequence prompt_ = engine_.NewSequence();
  std::vector<float> logits_;  // of the last token
  std::vector<float> states_;
  std::vector<std::pair<float, float>> largest_;  // by layer
};

// kStaticSteps of the quantizer of a layer's keys or values, over the largest of them.
double AllowedInCache(const ActivationRanges& ranges, int64_t layer, const std::pair<float, float>& largest) {
  const auto steps = [&](ActivationSite site, float most) {
    const auto quantizer = StaticQuantizer::Cache(ranges.values.at(ActivationName(site, layer)));
    return kStaticSteps * static_cast<double>(quantizer.scale) / static_cast<double>(most);
  };
  return std::max(steps(ActivationSite::kKScaled, largest.first), steps(ActivationSite::kVProj, largest.second));
}

std::string LastLine(const fs::path& path) {
  std::ifstream in(path);
  std::string line, last;
  while (std::getline(in, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

Status RunScript(const VerifyOptions& options, const fs::path& folder, const std::string& graphs) {
  const std::string& python = options.python;
  const fs::path script = folder / "verify_onnx.py", errors = folder / "stderr";
  {
    std::ofstream out(script);
    out << kVerifyOnnxScript;
  }
  const std::string task = (folder / "task.safetensors").string(), result = (folder / "result.json").string();
  std::vector<std::string> arguments = {python, script.string(), graphs, task, result, std::to_string(options.threads)};
  if (!options.base_export.empty()) arguments.push_back(options.base_export);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    return Error{ErrorCode::kUnavailable, "cannot start '" + python + "': " + std::strerror(failed) +
                                              "; ONNX Runtime is run by Python: " + kInstall};
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  const std::string line = LastLine(errors);
  if (line.find("ModuleNotFoundError") != std::string::npos) {
    return Error{ErrorCode::kUnavailable, "'" + python + "' lacks what runs the graphs (" + line + "): " + kInstall};
  }
  return Error{ErrorCode::kMismatch, "ONNX Runtime could not run the graphs: " + line};
}

LogitComparison ReadComparison(const Json& json) {
  return {json.value("steps", int64_t{0}), json.value("same_choice", int64_t{0}), json.value("max_difference", 0.0),
          json.value("relative", 0.0)};
}

Result<VerifyReport> ReadResult(const fs::path& path) {
  PITH_ASSIGN(const Json json, ReadJsonFile(path.string()));
  VerifyReport report;
  try {
    report.onnxruntime = json.at("onnxruntime").get<std::string>();
    report.layers = json.at("layers").get<std::vector<double>>();
    report.prefill = ReadComparison(json.at("prefill"));
    report.seconds = json.at("seconds").get<double>();
    for (const auto& [name, slot] : {std::pair{"base", &report.base}, std::pair{"adapter", &report.adapter}}) {
      if (!json.contains(name)) continue;
      *slot = ReadComparison(json.at(name));
      report.prompt_kv_reused = report.prompt_kv_reused && json.at(name).at("prompt_kv_reused").get<bool>();
    }
    if (json.contains("streams")) {
      const Json& s = json.at("streams");
      report.streams = VerifyReport::Streams{s.at("streams").get<int64_t>(), s.at("relative").get<double>(),
                                             s.at("same_text").get<bool>()};
    }
    if (json.contains("alpha_0_is_base")) report.alpha_0_is_base = json["alpha_0_is_base"].get<bool>();
    if (json.contains("switcher_score"))
      report.switcher = VerifyReport::Scores{json["switcher_score"].get<double>(), 0};
    if (json.contains("verifier_score"))
      report.verifier = VerifyReport::Scores{json["verifier_score"].get<double>(), 0};
  } catch (const Json::exception& exception) {
    return Error{ErrorCode::kInternal, std::string("the result of verify_onnx.py: ") + exception.what()};
  }
  return report;
}

void Judge(VerifyReport* report) {
  report->allowed = kAllowed;
  const auto fail = [report](const std::string& sentence) { report->failures.push_back(sentence); };
  if (report->alpha_0_is_base && !*report->alpha_0_is_base) fail("alpha 0 gives other bits than the base's graphs");
  for (size_t layer = 0; layer < report->layers_allowed.size(); ++layer) {
    if (layer < report->layers.size() && report->layers[layer] <= report->layers_allowed[layer]) continue;
    fail("layer " + std::to_string(layer) + ": keys or values differ by more than " +
         std::to_string(report->layers_allowed[layer]) + " relative, a step of 8 bits and a half");
  }
  if (report->quantized) {
    const double wanted = report->static_ranges ? kStaticSameChoice : kQuantizedSameChoice;
    for (const auto& [what, comparison] : {std::pair{"base", &report->base}, std::pair{"adapter", &report->adapter}}) {
      if (!*comparison) continue;
      const double share = static_cast<double>((*comparison)->same_choice) / static_cast<double>((*comparison)->steps);
      if (!(share >= wanted)) {
        fail(std::string(what) + ": another token is first at " +
             std::to_string((*comparison)->steps - (*comparison)->same_choice) + " of " +
             std::to_string((*comparison)->steps) + " steps");
      }
    }
    if (!report->prompt_kv_reused) fail("the prompt's keys and values changed");
    return;
  }
  const auto logits = [&](const char* what, const LogitComparison& comparison) {
    if (!(comparison.relative <= kAllowed)) {
      fail(std::string(what) + ": logits differ by " + std::to_string(comparison.relative) + " relative");
    }
    if (comparison.same_choice != comparison.steps) {
      fail(std::string(what) + ": another token is first at " +
           std::to_string(comparison.steps - comparison.same_choice) + " of " + std::to_string(comparison.steps) +
           " steps");
    }
  };
  for (size_t layer = 0; layer < report->layers.size(); ++layer) {
    if (!(report->layers[layer] <= kAllowed)) {
      fail("layer " + std::to_string(layer) + ": keys or values differ by " + std::to_string(report->layers[layer]) +
           " relative");
    }
  }
  logits("prefill", report->prefill);
  if (report->base) logits("base", *report->base);
  if (report->adapter) logits("adapter", *report->adapter);
  if (!report->prompt_kv_reused) fail("the prompt's keys and values changed");
  if (report->streams && !(report->streams->relative <= kAllowed && report->streams->same_text)) {
    fail("streams in one graph differ from streams alone by " + std::to_string(report->streams->relative));
  }
  for (const auto& [name, scores] :
       {std::pair{"switcher", &report->switcher}, std::pair{"verifier", &report->verifier}}) {
    if (*scores && !(std::fabs((*scores)->graph - (*scores)->engine) <= kAllowed)) {
      fail(std::string(name) + ": the graph gives " + std::to_string((*scores)->graph) + ", the engine " +
           std::to_string((*scores)->engine));
    }
  }
}

bool EncodingsSay(const Json& manifest, const char* key, const Json& value) {
  const auto encodings = manifest.find("encodings");
  return encodings != manifest.end() && encodings->is_object() && encodings->contains(key) &&
         (*encodings)[key] == value;
}

// Whether the engine's static mode has the numbers of the quantized graphs: ranges beside the weights, and weights that
// were packed before.
bool HasTheEnginesIntegers(const Json& manifest) {
  return EncodingsSay(manifest, "ranges", "stored") && EncodingsSay(manifest, "exact_weights", true);
}

// The manifest of an export, with all fields that are read here in their types.
Result<Json> ReadManifest(const std::string& folder) {
  PITH_ASSIGN(const Json manifest, ReadJsonFile((fs::path(folder) / kExportManifest).string()));
  const auto is = [&manifest](const char* key, auto predicate) {
    return manifest.contains(key) && predicate(manifest[key]);
  };
  const auto object = [](const Json& value) { return value.is_object(); };
  const auto text = [](const Json& value) { return value.is_string(); };
  const auto count = [](const Json& value) { return value.is_number_unsigned() && value <= 1 << 30; };
  const auto counts = [&count](const Json& value) {
    return value.is_array() && std::all_of(value.begin(), value.end(), count);
  };
  const bool sound =
      manifest.is_object() && is("pith_export", count) && manifest["pith_export"] == kExportVersion &&
      is("model", object) && text(manifest["model"].value("fingerprint", Json())) && is("context", count) &&
      is("tokens", counts) && is("scheme", text) && is("target", text) &&
      (!manifest.contains("lora") || (is("lora", object) && text(manifest["lora"].value("fingerprint", Json()))));
  if (!sound)
    return Error{ErrorCode::kMalformed, "'" + folder + "': " + kExportManifest + " is not one of this version"};
  return manifest;
}

// Whether the folder `base` holds the graphs that those of `manifest` are at alpha 0.
Status CheckBaseExport(const Json& manifest, const std::string& base) {
  PITH_ASSIGN(const Json other, ReadManifest(base));
  if (other.contains("lora")) return Error{ErrorCode::kMismatch, "'" + base + "' was made with an adapter"};
  for (const char* key : {"model", "context", "tokens", "scheme", "target"}) {
    if (other[key] != manifest[key]) {
      return Error{ErrorCode::kMismatch, "'" + base + "' is an export with another " + key};
    }
  }
  return {};
}

// The prompt's states averaged as the switcher wants it.
std::vector<float> Pool(std::span<const float> states, int64_t hidden, const StatePooling& pooling) {
  const int64_t tokens = static_cast<int64_t>(states.size()) / hidden;
  std::vector<double> average(static_cast<size_t>(hidden));
  for (int64_t begin = 0; begin < tokens; begin += pooling.chunk) {
    const int64_t end = std::min(tokens, begin + pooling.chunk);
    for (int64_t j = 0; j < hidden; ++j) {
      double mean = 0;
      for (int64_t t = begin; t < end; ++t) mean += static_cast<double>(states[static_cast<size_t>(t * hidden + j)]);
      mean /= static_cast<double>(end - begin);
      double& value = average[static_cast<size_t>(j)];
      value = begin == 0 ? mean : pooling.alpha * mean + (1 - pooling.alpha) * value;
    }
  }
  return {average.begin(), average.end()};
}

}  // namespace

Result<VerifyReport> VerifyExport(const std::string& folder, const std::string& model, const std::string& adapter_path,
                                  const VerifyOptions& options) {
  PITH_ASSIGN(const Json manifest, ReadManifest(folder));
  if (!options.base_export.empty()) PITH_RETURN_IF_ERROR(CheckBaseExport(manifest, options.base_export));
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(model));
  const ModelConfig& config = checkpoint->config();
  if (manifest["model"].value("fingerprint", "") != checkpoint->fingerprint()) {
    return Error{ErrorCode::kMismatch, "'" + folder + "' was made of another model than '" + model + "'"};
  }
  EngineOptions engine_options;
  engine_options.weights = WeightFormat::kF32;
  engine_options.kv = KvType::kF32;
  engine_options.adapters = LoraFormat::kF32;
  const bool quantized = manifest["scheme"] == "qdq";
  ActivationRanges ranges;
  const bool fixed = quantized && HasTheEnginesIntegers(manifest);
  if (fixed) {
    PITH_ASSIGN(ranges, ReadActivationRanges(model, config, checkpoint->fingerprint()));
    if (!EncodingsSay(manifest, "ranges_digest", DigestOf(ranges))) {
      return Error{ErrorCode::kMismatch,
                   "'" + model + "' was calibrated again since '" + folder + "' was made: export it anew"};
    }
    engine_options.weights = WeightFormat::kStored;
    engine_options.static_activations = true;
  }
  engine_options.threads = options.threads;
  Task task;
  std::vector<float> pooled, last_state;
  std::vector<double> layers_allowed;
  std::optional<SwitcherHead> switcher;
  std::optional<VerifierHead> verifier;
  {
    PITH_ASSIGN(const auto engine, Engine::Load(checkpoint, engine_options));
    std::shared_ptr<const Adapter> adapter;
    if (!adapter_path.empty()) {
      PITH_ASSIGN(adapter, engine->LoadAdapter(adapter_path));
      if (!manifest.contains("lora") || manifest["lora"].value("fingerprint", "") != adapter->file().fingerprint) {
        return Error{ErrorCode::kMismatch, "'" + folder + "' was not made with the adapter '" + adapter_path + "'"};
      }
      std::error_code error;
      const fs::path dir = adapter_path;
      if (manifest.contains("switcher") && fs::exists(dir / kSwitcherFile, error)) {
        PITH_ASSIGN(switcher, ReadSwitcher((dir / kSwitcherFile).string(), config.hidden));
      }
      if (manifest.contains("verifier") && fs::exists(dir / kVerifierFile, error)) {
        PITH_ASSIGN(verifier, ReadVerifier((dir / kVerifierFile).string(), config.hidden));
      }
    }
    int64_t most = 1;
    for (const Json& tokens : manifest["tokens"]) most = std::max(most, tokens.get<int64_t>());
    const int64_t room = manifest["context"].get<int64_t>() - most;
    const int64_t prompt_tokens = std::min(options.prompt_tokens, room / 2);
    const int64_t new_tokens = std::min(options.new_tokens, room / 2);
    if (prompt_tokens < 1 || new_tokens < 1) {
      return Error{ErrorCode::kInvalidArgument, "'" + folder + "': the context is too short for a comparison"};
    }
    std::vector<int32_t> prompt;
    if (const auto tokenizer = CheckpointTokenizer(*checkpoint); tokenizer.ok()) {
      PITH_ASSIGN(prompt, (*tokenizer)->Encode(options.text.empty() ? CalibrationText() : options.text, {}));
    } else {
      for (int64_t i = 0; i < prompt_tokens; ++i) prompt.push_back(static_cast<int32_t>((i * 37 + 11) % config.vocab));
    }
    prompt.resize(std::min(prompt.size(), static_cast<size_t>(prompt_tokens)));
    Reference reference(*engine);
    PITH_RETURN_IF_ERROR(reference.Prefill(prompt, &task));
    for (int64_t layer = 0; fixed && layer < config.layers; ++layer) {
      layers_allowed.push_back(AllowedInCache(ranges, layer, reference.largest(layer)));
    }
    PITH_RETURN_IF_ERROR(reference.Generate("base", nullptr, new_tokens, &task));
    if (adapter != nullptr) PITH_RETURN_IF_ERROR(reference.Generate("adapter", adapter.get(), new_tokens, &task));
    if (switcher) pooled = Pool(reference.states(), config.hidden, switcher->pooling);
    const auto last = reference.states().last(static_cast<size_t>(config.hidden));
    last_state.assign(last.begin(), last.end());
  }  // the engine's memory goes back before the graphs need theirs
  const TemporaryFolder temporary;
  if (temporary.path().empty()) return Error{ErrorCode::kIo, "cannot create a temporary folder"};
  PITH_RETURN_IF_ERROR(task.Write((temporary.path() / "task.safetensors").string()));
  PITH_RETURN_IF_ERROR(RunScript(options, temporary.path(), folder));
  PITH_ASSIGN(VerifyReport report, ReadResult(temporary.path() / "result.json"));
  if (report.switcher && switcher) {
    report.switcher->engine = switcher->Score(pooled);
  } else {
    report.switcher.reset();
  }
  if (report.verifier && verifier) {
    report.verifier->engine = verifier->Score(last_state);
  } else {
    report.verifier.reset();
  }
  report.quantized = quantized;
  const auto unchecked = [&](const char* key, const char* what, bool checked) {
    if (!manifest.contains(key) || checked) return;
    report.unchecked.push_back(std::string("the graphs have ") + what + ", and no adapter with one was named");
  };
  unchecked("lora", "an adapter", !adapter_path.empty());
  unchecked("switcher", "a switcher", switcher.has_value());
  unchecked("verifier", "a verifier", verifier.has_value());
  report.static_ranges = fixed;
  report.layers_allowed = std::move(layers_allowed);
  Judge(&report);
  return report;
}

}  // namespace pith
