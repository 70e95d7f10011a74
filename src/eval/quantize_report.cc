#include "eval/quantize_report.h"

#include <filesystem>

#include "base/durable_file.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "eval/html_page.h"

namespace pith {

namespace fs = std::filesystem;

Result<std::string> RenderQuantizeReport(std::string_view title, std::string_view record) {
  PITH_ASSIGN(const Json json, ParseJson(record, "pith-quantize.json"));
  if (!json.is_object()) return Error{ErrorCode::kMalformed, "pith-quantize.json is not a JSON object"};
  return HtmlPage(title, "The numbers are also in pith-quantize.json; charts need JavaScript.",
                  json.dump(-1, ' ', false, Json::error_handler_t::replace), QuantizeReportScript());
}

Result<std::string> WriteQuantizeReport(const std::string& directory) {
  const fs::path folder = fs::path(directory).lexically_normal();
  PITH_ASSIGN(const auto record, MappedFile::Open((folder / "pith-quantize.json").string()));
  const std::string name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  const std::string_view text(reinterpret_cast<const char*>(record->bytes().data()), record->size());
  PITH_ASSIGN(const std::string page, RenderQuantizeReport("pith quantize: " + name, text));
  const std::string path = (folder / "report.html").string();
  PITH_RETURN_IF_ERROR(WriteFileDurably(path, page));
  return path;
}

}  // namespace pith
