#include "eval/training_report.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/durable_file.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "eval/html_page.h"

namespace pith {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostSamples = 400;

struct Line {
  std::string_view text;
  size_t number;
  bool ended;  // by a line feed
};

std::vector<Line> LinesOf(std::string_view text) {
  std::vector<Line> lines;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.push_back({text.substr(0, end), number, end < text.size()});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

Result<OrderedJson> ObjectsOf(std::span<const Line> lines, const std::string& what) {
  OrderedJson objects = OrderedJson::array();
  for (const Line& line : lines) {
    const Result<Json> json = ParseJson(line.text, what);
    if (json.ok() && json->is_object()) {
      objects.push_back(OrderedJson::parse(line.text));
    } else if (line.ended) {
      return Error{ErrorCode::kMalformed, what + ", line " + std::to_string(line.number) + ": not a JSON object"};
    }
  }
  return objects;
}

}  // namespace

Result<std::string> RenderTrainingReport(std::string_view title, std::string_view metrics, std::string_view samples) {
  PITH_ASSIGN(OrderedJson steps, ObjectsOf(LinesOf(metrics), "metrics.jsonl"));
  const std::vector<Line> sample_lines = LinesOf(samples);
  const size_t first = sample_lines.size() - std::min(sample_lines.size(), kMostSamples);
  PITH_ASSIGN(OrderedJson last, ObjectsOf(std::span(sample_lines).subspan(first), "samples.jsonl"));
  const OrderedJson data{{"metrics", std::move(steps)}, {"samples", std::move(last)}};
  return HtmlPage(title, "The numbers are also in metrics.jsonl; charts need JavaScript.",
                  data.dump(-1, ' ', false, OrderedJson::error_handler_t::replace), TrainingReportScript());
}

Result<std::string> WriteTrainingReport(const std::string& output_dir) {
  const auto text_of = [&](const char* name) -> Result<std::string> {
    PITH_ASSIGN(const auto file, MappedFile::Open((fs::path(output_dir) / name).string()));
    return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->size());
  };
  PITH_ASSIGN(const std::string metrics, text_of("metrics.jsonl"));
  std::string samples;
  if (fs::exists(fs::path(output_dir) / "samples.jsonl")) {
    PITH_ASSIGN(samples, text_of("samples.jsonl"));
  }
  const fs::path folder = fs::path(output_dir).lexically_normal();
  const std::string name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  PITH_ASSIGN(const std::string page, RenderTrainingReport("pith train: " + name, metrics, samples));
  const std::string path = (folder / "report.html").string();
  PITH_RETURN_IF_ERROR(WriteFileDurably(path, page));
  return path;
}

}  // namespace pith
