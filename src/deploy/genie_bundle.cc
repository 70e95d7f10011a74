#include "deploy/genie_bundle.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "deploy/matrix_reader.h"
#include "model/chat_template.h"
#include "model/hf_export.h"
#include "model/hf_names.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSampleQuestion = "Mia has 3 boxes of 12 pencils and gives 5 pencils away. How many are left?";

Status WriteText(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  return file ? Status() : Status(Error{ErrorCode::kIo, "cannot write '" + path.string() + "'"});
}

Status WriteTokenizer(const Checkpoint& checkpoint, const fs::path& path) {
  if (checkpoint.gguf() != nullptr) {
    PITH_ASSIGN(const HfTokenizerFiles files, HfTokenizerOfGguf(*checkpoint.gguf(), checkpoint.config().max_position));
    return WriteText(path, files.tokenizer);
  }
  std::error_code error;
  const fs::path source = fs::path(checkpoint.path()) / "tokenizer.json";
  if (fs::copy_file(source, path, error)) return {};
  return Error{ErrorCode::kNotFound, "cannot copy '" + source.string() + "': " + error.message()};
}

std::string PreflightText(const std::vector<Finding>& findings, const Chip& chip, const GenieSizes& sizes) {
  std::string text = "For " + std::string(chip.full_name) + " (Hexagon v" + std::to_string(chip.hexagon) + ")\n\n";
  const auto line = [&text](const char* what, uint64_t bytes) {
    text += std::string(what) + ": " + HumanBytes(bytes) + "\n";
  };
  const auto of_bits = [](const char* what, int bits) {
    return std::string(what) + ", " + std::to_string(bits) + " bits";
  };
  line(of_bits("embedding", sizes.bits.embedding).c_str(), sizes.embedding_bytes);
  line(of_bits("layers", sizes.bits.linears).c_str(), sizes.layer_bytes);
  line(of_bits("LM head", sizes.bits.head).c_str(), sizes.head_bytes);
  if (sizes.adapter_bytes > 0) line("adapter, 8 bits", sizes.adapter_bytes);
  line("keys and values of a full context, 8 bits", sizes.kv_bytes);
  for (size_t i = 0; i < sizes.part_bytes.size(); ++i) {
    line(("weights of part " + std::to_string(i + 1)).c_str(), sizes.part_bytes[i]);
  }
  text += "\n";
  for (const Finding& finding : findings) text += (finding.blocks ? "WILL NOT FIT: " : "note: ") + finding.text + "\n";
  if (std::ranges::none_of(findings, &Finding::blocks)) text += "nothing stands against it\n";
  return text;
}

// Packed matrices keep their bits, others get those of the options.
Result<GenieWeightBits> BitsOf(const Checkpoint& checkpoint, const EncodingOptions& options) {
  GenieWeightBits bits{0, 0, options.head_bits};
  for (const ModelModule& module : ModulesOf(checkpoint.config())) {
    if (module.kind != ModuleKind::kLinear && module.kind != ModuleKind::kEmbedding) continue;
    PITH_ASSIGN(const MatrixReader reader,
                MatrixReader::Open(checkpoint, module.name, module.shape[0], module.shape[1]));
    const bool head = module.name == "lm_head", embedding = module.kind == ModuleKind::kEmbedding;
    const int own = reader.format()     ? reader.format()->bits
                    : head || embedding ? options.head_bits
                                        : options.linear_bits;
    int& most = head ? bits.head : embedding ? bits.embedding : bits.linears;
    most = std::max(most, own);
  }
  if (bits.head == 0) bits.head = bits.embedding;  // tied
  return bits;
}

// Adds the chip, the scheme and the hashes of all files to the manifest.
Status FinishManifest(const fs::path& folder, const Chip& chip, const GenieWeightBits& bits) {
  const fs::path path = folder / kExportManifest;
  PITH_ASSIGN(const Json read, ReadJsonFile(path.string()));
  OrderedJson json = read;
  json["kind"] = "genie";
  json["chip"] = {{"name", chip.name}, {"soc_model", chip.soc_model}, {"hexagon", chip.hexagon}};
  json["scheme"] = "w" + std::to_string(bits.linears) + "a16";
  json["kv_bits"] = 8;
  OrderedJson files = OrderedJson::object();
  std::vector<fs::path> all;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    all.push_back(it->path());
  std::ranges::sort(all);
  for (const fs::path& file : all) {
    if (file.filename() == kExportManifest) continue;
    PITH_ASSIGN(const auto mapped, MappedFile::Open(file.string()));
    Digest digest;
    digest.Update(mapped->bytes());
    files[file.filename().string()] = digest.Finish();
  }
  json["sha256"] = files;
  return WriteText(path, json.dump(2) + "\n");
}

// What belongs to the graphs in `folder`.
Status FillBundle(const Checkpoint& checkpoint, const fs::path& folder, const OnnxExportOptions& onnx,
                  const EncodingOptions& encodings, const GenieOptions& options, const Chip& chip,
                  const std::string& prompt, GenieBundleReport* report) {
  const ModelConfig& config = checkpoint.config();
  PITH_ASSIGN(report->encodings, AddEncodings(checkpoint, report->graphs, onnx, encodings));
  const std::string genie = GenieConfigText(config, options, onnx.adapter);
  const std::string htp = HtpConfigText(chip);
  PITH_RETURN_IF_ERROR(ValidateGenieConfig(genie, "genie_config.json"));
  PITH_RETURN_IF_ERROR(ValidateHtpConfig(htp, "htp_backend_ext_config.json"));
  PITH_RETURN_IF_ERROR(WriteText(folder / "genie_config.json", genie));
  if (onnx.adapter != nullptr) {  // runs before the adapter's binaries are made
    PITH_RETURN_IF_ERROR(WriteText(folder / "genie_config_base.json", GenieConfigText(config, options, nullptr)));
  }
  PITH_RETURN_IF_ERROR(WriteText(folder / "htp_backend_ext_config.json", htp));
  const OrderedJson compile = {
      {"backend_extensions",
       {{"shared_library_path", "libQnnHtpNetRunExtensions.so"}, {"config_file_path", "htp_backend_ext_config.json"}}}};
  PITH_RETURN_IF_ERROR(WriteText(folder / "htp_compile_config.json", compile.dump(2) + "\n"));
  PITH_RETURN_IF_ERROR(WriteTokenizer(checkpoint, folder / "tokenizer.json"));
  PITH_RETURN_IF_ERROR(WriteText(folder / "sample_prompt.txt", prompt));
  if (onnx.adapter != nullptr) {
    std::string list;
    for (const LoraModule& module : onnx.adapter->modules) {
      const std::string name = LinearName(module.layer, module.kind);
      list += name + ".lora_A\n" + name + ".lora_B\n";
    }
    PITH_RETURN_IF_ERROR(WriteText(folder / "updatable_tensors.txt", list));
  }
  PITH_RETURN_IF_ERROR(WriteText(folder / "commands.sh", GenieCommands(report->graphs, chip, options)));
  PITH_RETURN_IF_ERROR(WriteText(folder / "preflight.txt", PreflightText(report->findings, chip, report->sizes)));
  PITH_RETURN_IF_ERROR(FinishManifest(folder, chip, report->sizes.bits));
  return {};
}

}  // namespace

bool GenieBundleReport::fits() const { return std::ranges::none_of(findings, &Finding::blocks); }

Result<GenieBundleReport> ExportGenie(const Checkpoint& checkpoint, const std::string& out_dir,
                                      const OnnxExportOptions& graphs, const EncodingOptions& encodings,
                                      const GenieOptions& options) {
  PITH_ASSIGN(const Chip chip, FindChip(options.chip));
  // It becomes names of files, also in commands.sh.
  if (options.adapter_name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") !=
      std::string::npos) {
    return Error{ErrorCode::kInvalidArgument,
                 "the adapter's name '" + options.adapter_name + "' has more than letters, digits, '.', '_' and '-'"};
  }
  const ModelConfig& config = checkpoint.config();
  // What the host is to send as a prompt; a model without a known template cannot be bundled.
  PITH_ASSIGN(const TemplateFamily family, CheckpointTemplate(checkpoint));
  PITH_ASSIGN(const RenderedPrompt prompt, RenderChat(family, {{"user", kSampleQuestion}}, {}));
  PITH_ASSIGN(const std::vector<GraphPart> parts, PlanParts(config, options.parts));
  OnnxExportOptions onnx = graphs;
  onnx.qnn = true;
  onnx.lora_inputs = false;
  onnx.context = options.context;
  onnx.parts = options.parts;
  GenieBundleReport report;
  PITH_ASSIGN(const GenieWeightBits bits, BitsOf(checkpoint, encodings));
  report.sizes = ComputeGenieSizes(config, parts, options.context, onnx.adapter, bits);
  GenieOptions checked = options;
  checked.switcher = onnx.switcher != nullptr;
  checked.decodes = std::ranges::find(onnx.tokens, 1) != onnx.tokens.end();
  report.findings = Preflight(config, chip, checked, report.sizes);
  PITH_ASSIGN(report.graphs, ExportOnnx(checkpoint, out_dir, onnx));
  const Status status = FillBundle(checkpoint, out_dir, onnx, encodings, options, chip, prompt.text, &report);
  if (!status.ok()) {
    // Half a bundle would only be in the way of the next try.
    std::error_code error;
    fs::remove_all(out_dir, error);
    return status.error();
  }
  return report;
}

}  // namespace pith
