#include "eval/report.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "base/json.h"
#include "eval/html_page.h"
#include "eval/settings.h"

namespace pith {

namespace {

constexpr size_t kMostTextBytes = 24 * 1024;
constexpr size_t kMostBytesInAll = size_t{32} << 20;

bool InsideCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// At most kMostTextBytes, the middle left out.
std::string Shortened(const std::string& text) {
  if (text.size() <= kMostTextBytes) return text;
  size_t head = kMostTextBytes * 2 / 3;
  while (head > 0 && InsideCharacter(text[head])) --head;
  size_t tail = text.size() - kMostTextBytes / 3;
  while (tail < text.size() && InsideCharacter(text[tail])) ++tail;
  return text.substr(0, head) + "\n\n[... " + std::to_string(tail - head) + " bytes are in generations.jsonl ...]\n\n" +
         text.substr(tail);
}

template <class T>
OrderedJson OrNull(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson RowJson(const Generation& generation, size_t problem, size_t* bytes_left) {
  OrderedJson row{{"p", problem},
                  {"repeat", generation.key.repeat},
                  {"stream", generation.stream},
                  {"mode", ReasonModeName(generation.key.mode)},
                  {"cap", generation.key.cap},
                  {"route", RouteName(generation.route)},
                  {"tokens", generation.tokens},
                  {"reasoning_tokens", generation.reasoning_tokens},
                  {"finish", FinishReasonName(generation.finish)},
                  {"forced", generation.forced},
                  {"truncated", generation.truncated},
                  {"verdict", VerdictName(generation.verdict)}};
  row["answer"] = generation.answer ? OrderedJson(generation.answer->text) : OrderedJson(nullptr);
  row["verifier"] = OrNull(generation.verifier_score);
  row["switcher"] = OrNull(generation.switcher_score);
  row["error"] = generation.error ? OrderedJson(generation.error->message) : OrderedJson(nullptr);
  std::string text = Shortened(generation.text);
  std::string reasoning = Shortened(generation.reasoning);
  const size_t bytes = text.size() + reasoning.size();
  const bool fits = bytes <= *bytes_left;
  if (fits) *bytes_left -= bytes;
  row["text"] = fits ? OrderedJson(std::move(text)) : OrderedJson(nullptr);
  row["reasoning"] = fits ? OrderedJson(std::move(reasoning)) : OrderedJson(nullptr);
  return row;
}

// Generations in one order, whatever the order in which they were made.
OrderedJson RowsJson(const EvalRecord& record) {
  std::unordered_map<std::string_view, size_t> index;
  for (size_t i = 0; i < record.problems.size(); ++i) index[record.problems[i].id] = i;
  std::vector<std::pair<size_t, const Generation*>> sorted;
  for (const Generation& generation : record.generations) {
    const auto problem = index.find(generation.key.id);
    if (problem != index.end()) sorted.emplace_back(problem->second, &generation);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    const auto key = [](const auto& item) {
      const Generation& generation = *item.second;
      const int without_first = -static_cast<int>(generation.key.mode);  // off, on, auto
      return std::make_tuple(item.first, without_first, generation.key.cap, generation.key.repeat, generation.stream);
    };
    return key(a) < key(b);
  });
  size_t bytes_left = kMostBytesInAll;
  OrderedJson rows = OrderedJson::array();
  for (const auto& [problem, generation] : sorted) rows.push_back(RowJson(*generation, problem, &bytes_left));
  return rows;
}

}  // namespace

Result<std::string> RenderReport(const EvalRecord& record, const std::string& summary_json) {
  PITH_ASSIGN(const Json summary, ParseJson(summary_json, "summary.json"));
  OrderedJson problems = OrderedJson::array();
  for (const Problem& problem : record.problems) {
    problems.push_back({{"id", problem.id}, {"problem", problem.problem}, {"answer", problem.answer}});
  }
  const OrderedJson data{{"summary", OrderedJson(summary)}, {"problems", problems}, {"rows", RowsJson(record)}};
  const std::string json = data.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  std::string title = "pith eval";
  if (summary.contains("/settings/suite/name"_json_pointer)) {
    const Json& name = summary["settings"]["suite"]["name"];
    if (name.is_string()) title += ": " + name.get<std::string>();
  }
  return HtmlPage(title, "The numbers are also in summary.json; charts and the table need JavaScript.", json,
                  ReportScript());
}

Result<std::string> WriteReport(const EvalFolder& folder, const std::vector<double>& thresholds) {
  const EvalRecord record = RecordOf(folder, thresholds);
  PITH_ASSIGN(std::string summary, SummaryJson(record));
  PITH_RETURN_IF_ERROR(folder.WriteFile("summary.json", summary + "\n"));
  PITH_ASSIGN(const std::string report, RenderReport(record, summary));
  PITH_RETURN_IF_ERROR(folder.WriteFile("report.html", report));
  return summary;
}

}  // namespace pith
