// pith ppl: perplexity of a model on a text file.
#include <cstdio>
#include <memory>

#include "base/mapped_file.h"
#include "base/progress.h"
#include "command.h"
#include "engine/perplexity.h"
#include "engine_options.h"
#include "json_output.h"

namespace pith {

namespace {

struct PplOptions {
  EngineFlags engine;
  std::string file;
  PerplexityOptions perplexity;
};

Status RunPpl(const Cli& cli, const PplOptions& options) {
  PITH_ASSIGN(const auto file, MappedFile::Open(options.file));
  PITH_ASSIGN(const auto model, LoadTextModel(options.engine));
  const auto bytes = file->bytes();
  PITH_ASSIGN(auto tokens, model->tokenizer()->Encode({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, {}));
  PerplexityOptions perplexity = options.perplexity;
  perplexity.window = std::min(perplexity.window, model->engine().context());
  const auto all = static_cast<int64_t>(tokens.size());
  ProgressBar bar("ppl", static_cast<uint64_t>(perplexity.max_tokens > 0 ? std::min(all, perplexity.max_tokens) : all),
                  ProgressUnit::kItems);
  perplexity.on_progress = [&](int64_t done, int64_t) { bar.Update(static_cast<uint64_t>(done)); };
  PITH_ASSIGN(const PerplexityResult result, Perplexity(model->engine(), tokens, perplexity));
  bar.Clear();
  const double speed = static_cast<double>(result.tokens) / result.seconds;
  if (cli.json()) {
    PrintJson({{"ppl", result.perplexity},
               {"tokens", result.tokens},
               {"scored", result.scored},
               {"late_ppl", result.late_perplexity},
               {"late_scored", result.late_scored},
               {"nll", result.nll},
               {"nll_error", result.nll_error},
               {"window", perplexity.window},
               {"weights", model->engine().weights().description},
               {"seconds", result.seconds},
               {"tokens_per_second", speed}});
  } else {
    std::printf("perplexity %.4f (+/- %.4f) over %lld tokens, windows of %lld, weights %s, %.1f tokens/s\n",
                result.perplexity, result.perplexity * result.nll_error, static_cast<long long>(result.tokens),
                static_cast<long long>(perplexity.window), model->engine().weights().description.c_str(), speed);
  }
  return {};
}

}  // namespace

void AddPplCommand(Cli& cli) {
  auto options = std::make_shared<PplOptions>();
  CLI::App* app = cli.AddCommand("ppl", "Measure the perplexity of a model on a text file.",
                                 "pith ppl -m smollm2-135m --file wiki.test.raw.txt --ctx 2048");
  AddEngineOptions(app, options->engine);
  CLI::Option* file = app->add_option("-f,--file", options->file, "Text file")->required();
  SetCompletion(file, {.kind = CompletionHint::Kind::kFile, .words = {}});
  // Here --ctx is the window, as in llama.cpp's perplexity tool.
  app->remove_option(app->get_option("--ctx"));
  app->add_option("-c,--ctx,--ctx-size", options->perplexity.window, "Tokens per window")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  app->add_option("--tokens", options->perplexity.max_tokens, "Only the first so many tokens of the file; 0 = all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  cli.OnRun(app, [&cli, options] { return RunPpl(cli, *options); });
}

}  // namespace pith
