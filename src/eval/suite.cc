#include "eval/suite.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxLineBytes = size_t{1} << 20;
constexpr uint64_t kMaxSuiteBytes = uint64_t{1} << 30;

std::string Where(const std::string& what, int64_t line) { return what + ":" + std::to_string(line); }

Error BadRow(const std::string& where, const std::string& why) { return {ErrorCode::kMalformed, where + ": " + why}; }

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// A field as text: a string, or a number in its own spelling.
Result<std::string> TextField(const Json& row, const std::string& field, bool may_be_number, const std::string& where) {
  const auto found = row.find(field);
  if (found == row.end()) return BadRow(where, "there is no field '" + field + "'");
  if (found->is_string()) {
    auto text = found->get<std::string>();
    if (IsBlank(text)) return BadRow(where, "the field '" + field + "' is empty");
    return text;
  }
  if (may_be_number && found->is_number()) return found->dump();
  return BadRow(where, "the field '" + field + "' is not a string" + (may_be_number ? " or a number" : ""));
}

// The lettered options of a multiple-choice row, one a line.
Result<std::string> OptionLines(const Json& row, const std::string& where) {
  const auto found = row.find("options");
  if (found == row.end() || found->is_null()) return std::string();
  if (!found->is_array()) return BadRow(where, "the field 'options' is not an array of strings");
  std::string lines;
  for (const Json& option : *found) {
    if (!option.is_string()) return BadRow(where, "the field 'options' is not an array of strings");
    lines += "\n" + option.get<std::string>();
  }
  return lines.empty() ? lines : "\n\nOptions:" + lines;
}

Result<Problem> ParseRow(std::string_view line, int64_t number, const std::string& what, const SuiteFields& fields) {
  const std::string where = Where(what, number);
  if (line.size() > kMaxLineBytes) return BadRow(where, "the line is longer than 1 MiB");
  PITH_ASSIGN(const Json row, ParseJson(line, where));
  if (!row.is_object()) return BadRow(where, "the line is not a JSON object");
  Problem problem;
  if (fields.id == "#") {
    problem.id = std::to_string(number);
  } else {
    PITH_ASSIGN(problem.id, TextField(row, fields.id, true, where));
  }
  PITH_ASSIGN(problem.problem, TextField(row, fields.problem, false, where));
  PITH_ASSIGN(problem.answer, TextField(row, fields.answer, true, where));
  PITH_ASSIGN(const std::string options, OptionLines(row, where));
  problem.problem += options;
  return problem;
}

// Where a file of the data folder is, or nothing.
std::string FindInData(const std::string& data, const std::string& file) {
  if (data.empty()) return "";
  std::error_code error;
  for (const fs::path& folder : {fs::path(data) / "eval", fs::path(data)}) {
    if (fs::is_regular_file(folder / file, error)) return (folder / file).string();
  }
  return "";
}

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name.find('/') == std::string_view::npos && name.front() != '.';
}

}  // namespace

Result<SuiteFields> ParseSuiteFields(std::string_view text) {
  SuiteFields fields;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const size_t equals = part.find('=');
    const std::string_view field = part.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : part.substr(equals + 1);
    std::string* target = field == "id"        ? &fields.id
                          : field == "problem" ? &fields.problem
                          : field == "answer"  ? &fields.answer
                                               : nullptr;
    if (target == nullptr || value.empty() || (value == "#" && field != "id")) {
      return Error{ErrorCode::kInvalidArgument, "'" + std::string(part) +
                                                    "' is not id=FIELD, problem=FIELD or answer=FIELD (id=# takes the "
                                                    "number of the line)"};
    }
    *target = value;
  }
  return fields;
}

Result<std::vector<Problem>> ParseSuite(std::string_view text, const std::string& what, const SuiteFields& fields) {
  std::vector<Problem> problems;
  std::unordered_map<std::string, int64_t> line_of;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (IsBlank(line)) continue;
    PITH_ASSIGN(Problem problem, ParseRow(line, number, what, fields));
    const auto [first, fresh] = line_of.try_emplace(problem.id, number);
    if (!fresh) {
      return BadRow(Where(what, number),
                    "the id '" + problem.id + "' is also that of line " + std::to_string(first->second));
    }
    problems.push_back(std::move(problem));
  }
  if (problems.empty()) return Error{ErrorCode::kMalformed, what + ": there is no problem in it"};
  return problems;
}

Result<Suite> LoadSuite(const std::string& name, const std::string& path, const SuiteFields& fields) {
  PITH_ASSIGN(const auto file, MappedFile::Open(path));
  if (file->size() > kMaxSuiteBytes) return Error{ErrorCode::kMalformed, "'" + path + "' is larger than 1 GiB"};
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  if (text.substr(0, 4) == "PAR1") {
    return Error{ErrorCode::kUnsupported, "'" + path + "' is a Parquet file; suites are JSON Lines"};
  }
  Suite suite;
  suite.name = name;
  suite.path = path;
  PITH_ASSIGN(suite.problems, ParseSuite(text, path, fields));
  Digest digest(DigestKind::kSha256);
  digest.Update(text);
  suite.sha256 = digest.Finish();
  return suite;
}

const std::vector<KnownSuite>& KnownSuites() {
  static const std::vector<KnownSuite> suites = {
      {"aime24", "aime_2024.jsonl", 10, "AIME 2024, 30 problems"},
      {"aime25", "aime_2025.jsonl", 10, "AIME 2025, 30 problems"},
      {"amc23", "amc_2023.jsonl", 10, "AMC 2023, 40 problems"},
      {"aqua", "aqua_test.jsonl", 1, "AQuA-RAT test, 254 multiple-choice problems"},
      {"gsm8k", "gsm8k_test.jsonl", 1, "GSM8K test, 1,319 problems"},
      {"math500", "math500.jsonl", 1, "MATH-500, 500 problems"},
      {"minerva", "minerva_math.jsonl", 1, "Minerva Math, 272 problems"},
      {"multiarith", "multiarith.jsonl", 1, "MultiArith, 600 problems"},
      {"svamp", "svamp.jsonl", 1, "SVAMP, 1,000 problems"},
  };
  return suites;
}

const KnownSuite* FindKnownSuite(std::string_view name) {
  for (const KnownSuite& suite : KnownSuites()) {
    if (suite.name == name) return &suite;
  }
  return nullptr;
}

Result<std::string> ResolveSuite(const std::string& name_or_path, const std::string& data) {
  if (name_or_path.empty()) return Error{ErrorCode::kInvalidArgument, "which suite? 'pith eval --list' shows them"};
  const KnownSuite* known = FindKnownSuite(name_or_path);
  if (known != nullptr) {
    if (std::string path = FindInData(data, known->file); !path.empty()) return path;
  } else if (IsPlainFileName(name_or_path)) {
    if (std::string path = FindInData(data, name_or_path + ".jsonl"); !path.empty()) return path;
  }
  std::error_code error;
  if (fs::is_regular_file(name_or_path, error)) return name_or_path;
  const std::string where =
      data.empty() ? "no folder of data was named: --data or PITH_DATA" : "looked in '" + data + "'";
  if (known != nullptr) {
    return Error{ErrorCode::kNotFound, "the file " + std::string(known->file) + " of the suite '" + name_or_path +
                                           "' is not here (" + where + ")"};
  }
  return Error{ErrorCode::kNotFound,
               "no suite '" + name_or_path + "': neither a name of 'pith eval --list' nor a file (" + where + ")"};
}

std::vector<ListedSuite> ListSuites(const std::string& data) {
  std::vector<ListedSuite> listed;
  std::vector<std::string> files;
  for (const KnownSuite& suite : KnownSuites()) {
    listed.push_back({suite.name, FindInData(data, suite.file), suite.about, suite.repeats});
    files.emplace_back(suite.file);
  }
  if (data.empty()) return listed;
  std::vector<ListedSuite> others;
  std::error_code error;
  for (const fs::path& folder : {fs::path(data) / "eval", fs::path(data)}) {
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const fs::path& path = entry.path();
      const bool known = std::find(files.begin(), files.end(), path.filename().string()) != files.end();
      if (path.extension() != ".jsonl" || known || !IsPlainFileName(path.filename().string())) continue;
      others.push_back({path.stem().string(), path.string(), "", 1});
    }
  }
  std::sort(others.begin(), others.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  listed.insert(listed.end(), others.begin(), others.end());
  return listed;
}

}  // namespace pith
