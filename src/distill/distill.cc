#include "distill/distill.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/durable_file.h"
#include "base/json.h"
#include "base/random.h"
#include "distill/recheck.h"
#include "reason/think_tags.h"

namespace pith {
namespace {

constexpr int64_t kMaxKeep = 256;

Status CheckOptions(const DistillOptions& options) {
  const auto bad = [](const std::string& why) { return Error{ErrorCode::kInvalidArgument, why}; };
  if (!options.plain && !options.recheck) return bad("there must be a style");
  if (options.keep < 1 || options.keep > kMaxKeep) {
    return bad("derivations of a problem: 1 to " + std::to_string(kMaxKeep));
  }
  if (options.max_tokens < 0) return bad("the limit of tokens must not be negative");
  if (options.prompts.empty()) return bad("there must be a prompt");
  if (!options.budgets.empty() && options.texts.budget_template.empty()) {
    return bad("budgets are stated by a budget template, and there is none");
  }
  if (!std::is_sorted(options.budgets.begin(), options.budgets.end())) return bad("the budgets must ascend");
  return {};
}

class Composer {
 public:
  Composer(const DistillOptions& options, const Tokenizer& tokenizer, DurableFile& out)
      : options_(options), tokenizer_(tokenizer), out_(out) {}

  Status Add(const Problem& problem, std::span<const Generation> streams) {
    ++report_.problems;
    const int64_t right_before = report_.samples.right;
    const Derivations derivations = SelectDerivations(streams, options_.keep, &report_.samples);
    if (report_.samples.right > right_before) ++report_.solved;
    for (const Generation& generation : streams) report_.sample_tokens += generation.tokens;
    const int64_t rows_before = report_.plain.rows + report_.recheck.rows;
    const uint64_t draw = QuestionSeed(options_.seed, problem.id, 0);
    for (size_t i = 0; i < derivations.right.size(); ++i) {
      const bool turn = (RandomBits(draw, 1, 0) + i) % 2 == 0;
      const bool recheck = options_.recheck && (!options_.plain || turn);
      PITH_RETURN_IF_ERROR(Write(problem, derivations, i, recheck, draw));
    }
    if (report_.plain.rows + report_.recheck.rows > rows_before) ++report_.used;
    return {};
  }

  const DistillReport& report() const { return report_; }

 private:
  Status Write(const Problem& problem, const Derivations& derivations, size_t index, bool recheck, uint64_t draw) {
    const Derivation& right = derivations.right[index];
    Recheck composed{.thoughts = right.text, .opening = RecheckOpening::kDoubt};
    if (recheck) {
      RecheckParts parts{.right = right};
      // Another wrong attempt for each trace, as long as there are.
      if (!derivations.wrong.empty()) parts.wrong = &derivations.wrong[index % derivations.wrong.size()];
      if (derivations.right.size() > 1) parts.other = &derivations.right[(index + 1) % derivations.right.size()];
      composed = ComposeRecheck(parts, options_.seed, problem.id + "#" + std::to_string(index));
    }
    const std::string response = TraceText(composed.thoughts, right.answer, options_.texts);
    PITH_ASSIGN(const auto ids, tokenizer_.Encode(response, {.parse_special = true, .special_ranges = {}}));
    const auto tokens = static_cast<int64_t>(ids.size());
    if (options_.max_tokens > 0 && tokens > options_.max_tokens) {
      ++report_.too_long;
      return {};
    }
    const PromptFormat& prompt = options_.prompts[RandomBits(draw, 2, 0) % options_.prompts.size()];
    std::vector<ChatMessage> messages = prompt.Messages(problem.problem);
    const auto budget = std::lower_bound(options_.budgets.begin(), options_.budgets.end(), tokens);
    if (budget != options_.budgets.end()) {
      messages.back().content += options_.texts.BudgetText(*budget);
    } else if (!options_.budgets.empty()) {
      ++report_.without_budget;
    }
    messages.push_back({"assistant", response});
    OrderedJson row;
    for (const ChatMessage& message : messages) {
      row["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
    row["id"] = problem.id;
    row["style"] = TraceStyleName(recheck ? TraceStyle::kRecheck : TraceStyle::kPlain);
    row["answer"] = right.answer;
    row["tokens"] = tokens;
    if (budget != options_.budgets.end()) row["budget"] = *budget;
    PITH_RETURN_IF_ERROR(out_.Write(row.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n"));
    StyleCounts& counts = recheck ? report_.recheck : report_.plain;
    ++counts.rows;
    counts.tokens += tokens;
    if (!recheck) return {};
    switch (composed.opening) {
      case RecheckOpening::kWrongAttempt: ++report_.wrong_attempts; break;
      case RecheckOpening::kFalseStart: ++report_.false_starts; break;
      case RecheckOpening::kDoubt: ++report_.doubts; break;
    }
    return {};
  }

  const DistillOptions& options_;
  const Tokenizer& tokenizer_;
  DurableFile& out_;
  DistillReport report_;
};

double Share(int64_t part, int64_t of) { return of > 0 ? static_cast<double>(part) / static_cast<double>(of) : 0; }

OrderedJson StyleJson(const StyleCounts& counts) {
  return {{"rows", counts.rows}, {"tokens", counts.tokens}, {"mean_tokens", Share(counts.tokens, counts.rows)}};
}

}  // namespace

const char* TraceStyleName(TraceStyle style) { return style == TraceStyle::kPlain ? "plain" : "recheck"; }

std::string TraceText(std::string_view thoughts, std::string_view answer, const ReasoningTexts& texts) {
  std::string text(kThinkOpen);
  text += thoughts;
  text += kThinkClose;
  text += texts.answer_prefix;
  text += answer;
  // What the prefix has opened.
  if (texts.answer_prefix.ends_with('{')) text += '}';
  return text;
}

Result<DistillReport> WriteTraces(const std::vector<Problem>& problems, const std::vector<Generation>& generations,
                                  const DistillOptions& options, const Tokenizer& tokenizer, const std::string& path) {
  PITH_RETURN_IF_ERROR(CheckOptions(options));
  PITH_ASSIGN(DurableFile out, DurableFile::Create(path));
  // All streams of a problem, of whatever repeat; they are adjacent within one.
  std::unordered_map<std::string_view, std::vector<size_t>> of_problem;
  for (size_t i = 0; i < generations.size(); ++i) of_problem[generations[i].key.id].push_back(i);
  Composer composer(options, tokenizer, out);
  std::vector<Generation> streams;
  for (const Problem& problem : problems) {
    const auto found = of_problem.find(problem.id);
    if (found == of_problem.end()) continue;
    streams.clear();
    for (const size_t i : found->second) streams.push_back(generations[i]);
    PITH_RETURN_IF_ERROR(composer.Add(problem, streams));
  }
  PITH_RETURN_IF_ERROR(out.Finish());
  return composer.report();
}

std::string DistillReportJson(const DistillReport& report) {
  const SampleCounts& samples = report.samples;
  const int64_t rows = report.plain.rows + report.recheck.rows;
  const int64_t tokens = report.plain.tokens + report.recheck.tokens;
  const OrderedJson json{
      {"problems", report.problems},
      {"solved", report.solved},
      {"used", report.used},
      {"samples", samples.samples},
      {"right", samples.right},
      {"right_share", Share(samples.right, samples.samples)},
      {"no_answer", samples.no_answer},
      {"unfit", samples.unfit},
      {"duplicates", samples.duplicates},
      {"surplus", samples.surplus},
      {"kept", samples.kept},
      {"too_long", report.too_long},
      {"sample_tokens", report.sample_tokens},
      {"rows", rows},
      {"tokens", tokens},
      {"mean_tokens", Share(tokens, rows)},
      {"styles", {{"plain", StyleJson(report.plain)}, {"recheck", StyleJson(report.recheck)}}},
      {"openings",
       {{"wrong_attempt", report.wrong_attempts}, {"false_start", report.false_starts}, {"doubt", report.doubts}}},
      {"without_budget", report.without_budget}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace pith
