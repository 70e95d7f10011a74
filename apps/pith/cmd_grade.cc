// pith grade: whether answers are right.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>

#include "command.h"
#include "grade/grade.h"
#include "json_output.h"

namespace pith {

namespace {

constexpr size_t kMaxLine = size_t{64} << 20;

struct GradeOptions {
  std::string pairs;
  std::string gold;
  std::string pred;
  bool truncated = false;
};

// Time of this thread alone: a busy machine does not make a pair slower.
double CpuMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

OrderedJson AnswerJson(const std::optional<ExtractedAnswer>& answer) {
  if (!answer) return nullptr;
  return {{"text", answer->text}, {"source", AnswerSourceName(answer->source)}};
}

// Grades one pair and adds the result to `row`.
GradeResult GradeInto(std::string_view gold, std::string_view pred, bool truncated, OrderedJson* row) {
  const double begin = CpuMicroseconds();
  ExtractOptions options;
  options.truncated = truncated;
  GradeResult result = Grade(gold, pred, options);
  const double spent = CpuMicroseconds() - begin;
  (*row)["equal"] = result.correct();
  (*row)["verdict"] = VerdictName(result.verdict);
  (*row)["gold_answer"] = AnswerJson(result.gold);
  (*row)["pred_answer"] = AnswerJson(result.predicted);
  (*row)["truncated"] = result.truncated;
  (*row)["microseconds"] = std::round(spent * 10) / 10;
  return result;
}

std::string OneLine(const std::optional<ExtractedAnswer>& answer) {
  std::string text = answer ? answer->text : "(none)";
  for (char& c : text) c = c == '\n' || c == '\t' ? ' ' : c;
  return text;
}

Status GradePairs(const Cli& cli, const GradeOptions& options) {
  std::ifstream in(options.pairs, std::ios::binary);
  if (!in) return Error{ErrorCode::kNotFound, "cannot open '" + options.pairs + "'"};
  std::string line;
  uint64_t number = 0;
  uint64_t rows = 0;
  uint64_t equal = 0;
  while (std::getline(in, line)) {
    const std::string where = options.pairs + ", line " + std::to_string(++number);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line.size() > kMaxLine) return Error{ErrorCode::kMalformed, where + ": the line is too long"};
    PITH_ASSIGN(const Json json, ParseJson(line, where));
    const auto text = [&](const char* field) {
      return json.is_object() && json.contains(field) && json[field].is_string();
    };
    for (const char* field : {"gold", "pred"}) {
      if (!text(field)) return Error{ErrorCode::kMalformed, where + ": no text \"" + field + "\""};
    }
    OrderedJson row;
    if (json.contains("id")) row["id"] = json["id"];
    const bool truncated = options.truncated || (json.contains("truncated") && json["truncated"] == true);
    const GradeResult result = GradeInto(json["gold"].get_ref<const std::string&>(),
                                         json["pred"].get_ref<const std::string&>(), truncated, &row);
    ++rows;
    equal += result.correct() ? 1 : 0;
    if (cli.json()) {
      PrintJson(row);
    } else {
      std::printf("%s\t%s\t%s\n", VerdictName(result.verdict), OneLine(result.gold).c_str(),
                  OneLine(result.predicted).c_str());
    }
  }
  if (in.bad()) return Error{ErrorCode::kIo, "cannot read '" + options.pairs + "'"};
  if (!cli.json())
    std::printf("%llu of %llu equal\n", static_cast<unsigned long long>(equal), static_cast<unsigned long long>(rows));
  return {};
}

Status RunGrade(const Cli& cli, const GradeOptions& options) {
  if (!options.pairs.empty()) return GradePairs(cli, options);
  OrderedJson row;
  const GradeResult result = GradeInto(options.gold, options.pred, options.truncated, &row);
  if (cli.json()) {
    PrintJson(row);
  } else {
    std::printf("%s\n  gold: %s\n  pred: %s\n", VerdictName(result.verdict), OneLine(result.gold).c_str(),
                OneLine(result.predicted).c_str());
  }
  return {};
}

}  // namespace

void AddGradeCommand(Cli& cli) {
  auto options = std::make_shared<GradeOptions>();
  CLI::App* app = cli.AddCommand("grade", "Decide whether answers are right, mathematically.",
                                 "pith grade --gold '\\frac{1}{2}' --pred 'The answer is 0.5' --json");
  CLI::Option* pairs = app->add_option("--pairs", options->pairs,
                                       "JSON lines with \"gold\" and \"pred\"; one result a line, in their order");
  SetCompletion(pairs, {CompletionHint::Kind::kFile, {}});
  CLI::Option* gold = app->add_option("--gold", options->gold, "The right answer, or a solution that ends with it");
  CLI::Option* pred = app->add_option("--pred", options->pred, "The response to grade");
  app->add_flag("--truncated", options->truncated,
                "Responses were cut off: only a closed box or a stated answer counts, not the last number");
  gold->needs(pred);
  pred->needs(gold);
  pairs->excludes(gold);
  cli.OnRun(app, [&cli, options, pairs, gold]() -> Status {
    if (pairs->count() == 0 && gold->count() == 0) {
      return Error{ErrorCode::kInvalidArgument, "grade needs --pairs, or --gold and --pred"};
    }
    return RunGrade(cli, *options);
  });
}

}  // namespace pith
