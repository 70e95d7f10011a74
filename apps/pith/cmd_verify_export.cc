// pith verify-export: exported graphs in ONNX Runtime against the engine.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "deploy/verify_export.h"
#include "export_options.h"
#include "json_output.h"
#include "pull/model_cache.h"

namespace pith {

namespace {

struct Options {
  std::string folder;
  std::string model;
  std::string adapter;
  VerifyOptions verify;
};

OrderedJson ComparisonJson(const std::optional<LogitComparison>& comparison) {
  if (!comparison) return nullptr;
  return {{"steps", comparison->steps},
          {"same_choice", comparison->same_choice},
          {"max_difference", comparison->max_difference},
          {"relative", comparison->relative}};
}

void Print(const char* name, const std::optional<LogitComparison>& comparison) {
  if (!comparison) return;
  std::printf("%-9s %3lld of %lld tokens the same, logits differ by %.2e relative, %.2e at most\n", name,
              static_cast<long long>(comparison->same_choice), static_cast<long long>(comparison->steps),
              comparison->relative, comparison->max_difference);
}

void PrintReport(const VerifyReport& report) {
  std::printf("ONNX Runtime %s, %.1f s\n", report.onnxruntime.c_str(), report.seconds);
  for (size_t i = 0; i < report.layers.size(); ++i) {
    std::printf("layer %-3zu keys and values of the prompt differ by %.2e relative", i, report.layers[i]);
    if (i < report.layers_allowed.size()) std::printf(" (%.2e allowed)", report.layers_allowed[i]);
    std::printf("\n");
  }
  Print("prefill", report.prefill);
  Print("base", report.base);
  Print("adapter", report.adapter);
  if (report.base || report.adapter) {
    std::printf("the prompt's keys and values are %s\n", report.prompt_kv_reused ? "reused as they are" : "CHANGED");
  }
  if (report.alpha_0_is_base) {
    std::printf("alpha 0 gives %s\n", *report.alpha_0_is_base ? "the base's bits" : "OTHER BITS than the base");
  }
  if (report.streams) {
    std::printf("%lld streams in one graph differ from streams alone by %.2e relative, text %s\n",
                static_cast<long long>(report.streams->streams), report.streams->relative,
                report.streams->same_text ? "the same" : "ANOTHER");
  }
  if (report.switcher) std::printf("switcher  %.6f, engine %.6f\n", report.switcher->graph, report.switcher->engine);
  if (report.verifier) std::printf("verifier  %.6f, engine %.6f\n", report.verifier->graph, report.verifier->engine);
  for (const std::string& part : report.unchecked) std::printf("NOT CHECKED: %s\n", part.c_str());
  if (report.static_ranges) {
    std::printf("verdict: %s (against the static mode; the same token at 19 of 20 steps)\n",
                report.ok() ? "the graphs compute the model's integers" : "NOT the model");
    return;
  }
  if (report.quantized) {
    std::printf("verdict: %s (quantized graphs: the same token at 9 of 10 steps)\n",
                report.ok() ? "the graphs do what the model does" : "NOT the model");
    return;
  }
  std::printf("verdict: %s (allowed: %.0e relative)\n", report.ok() ? "the graphs are the model" : "NOT the model",
              report.allowed);
}

Status Run(const Cli& cli, const Options& options) {
  PITH_ASSIGN(const std::string model, ResolveModel(options.model));
  PITH_ASSIGN(const VerifyReport report, VerifyExport(options.folder, model, options.adapter, options.verify));
  if (cli.json()) {
    OrderedJson json = {{"ok", report.ok()},
                        {"onnxruntime", report.onnxruntime},
                        {"seconds", report.seconds},
                        {"allowed", report.allowed},
                        {"quantized", report.quantized},
                        {"layers", report.layers},
                        {"prefill", ComparisonJson(report.prefill)},
                        {"base", ComparisonJson(report.base)},
                        {"adapter", ComparisonJson(report.adapter)},
                        {"prompt_kv_reused", report.prompt_kv_reused},
                        {"unchecked", report.unchecked},
                        {"failures", report.failures}};
    if (!report.layers_allowed.empty()) json["layers_allowed"] = report.layers_allowed;
    if (report.streams) {
      json["streams"] = {{"streams", report.streams->streams},
                         {"relative", report.streams->relative},
                         {"same_text", report.streams->same_text}};
    }
    if (report.alpha_0_is_base) json["alpha_0_is_base"] = *report.alpha_0_is_base;
    if (report.switcher) json["switcher"] = {report.switcher->graph, report.switcher->engine};
    if (report.verifier) json["verifier"] = {report.verifier->graph, report.verifier->engine};
    if (report.ok()) PrintJson(json);
  } else {
    PrintReport(report);
  }
  if (report.ok()) return {};
  std::string all;
  for (const std::string& failure : report.failures) all += (all.empty() ? "" : "; ") + failure;
  return Error{ErrorCode::kMismatch, all};
}

}  // namespace

void AddVerifyExportCommand(Cli& cli) {
  auto options = std::make_shared<Options>();
  CLI::App* app =
      cli.AddCommand("verify-export", "Run exported ONNX graphs in ONNX Runtime and compare with the engine.",
                     "pith verify-export ./coder-onnx -m qwen2.5-coder-0.5b --adapter ./reason");
  AddExportPath(app, "folder", options->folder, "Folder that pith export onnx wrote", "DIR")->required();
  AddModelOption(app, options->model)->required();
  AddExportPath(app, "--adapter", options->adapter, "Adapter that the graphs were made with", "DIR");
  AddExportPath(app, "--base-export", options->verify.base_export,
                "Folder of the same export without the adapter: alpha 0 must give its bits", "DIR");
  app->add_option("--python", options->verify.python, "Python with onnxruntime and numpy (python3)")->type_name("FILE");
  app->add_option("--text", options->verify.text, "Text of the prompt (default: a page of prose and code)")
      ->type_name("TEXT");
  app->add_option("--prompt-tokens", options->verify.prompt_tokens, "Tokens of the prompt (200)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20).description(""))
      ->type_name("N");
  app->add_option("--new-tokens", options->verify.new_tokens, "Tokens to decode (64)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20).description(""))
      ->type_name("N");
  AddThreadsOption(app, options->verify.threads);
  cli.OnRun(app, [&cli, options] { return Run(cli, *options); });
}

}  // namespace pith
