// Problem sets: JSON Lines, one problem a line, with the fields id, problem and answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pith {

struct Problem {
  std::string id;
  std::string problem;  // with the lettered options under it, where the row has some
  std::string answer;   // the key: a bare answer, or a solution that ends with one
};

struct Suite {
  std::string name;
  std::string path;
  std::string sha256;  // of the file
  std::vector<Problem> problems;
};

// Which fields of a row are which. A number as id or answer is taken as it is written; an id of "#" means the number of
// the line (other files than ours often have none).
struct SuiteFields {
  std::string id = "id";
  std::string problem = "problem";
  std::string answer = "answer";
};
// "problem=question,answer=final,id=#"; what is not named keeps its default. kInvalidArgument names the part.
Result<SuiteFields> ParseSuiteFields(std::string_view text);

// Other fields of a row are ignored, but for "options" (an array of strings): they are put under the problem, one a
// line, since the answer is a letter. Empty lines are skipped. kMalformed names file and line: not an object, a field
// that lacks or has another type, an empty problem, answer or id, a repeated id (both lines are named), no problem at
// all, a line of more than 1 MiB.
Result<std::vector<Problem>> ParseSuite(std::string_view text, const std::string& what, const SuiteFields& fields);
Result<Suite> LoadSuite(const std::string& name, const std::string& path, const SuiteFields& fields);

// A public set that is known by name.
struct KnownSuite {
  const char* name;
  const char* file;  // in the folder of public data, or in its eval/
  int64_t repeats;   // of the paper's protocol
  const char* about;
};
const std::vector<KnownSuite>& KnownSuites();
const KnownSuite* FindKnownSuite(std::string_view name);  // null when there is none

// The path of a suite: a known name, or the name of a JSONL file in `data` (or data/eval) without its ending, else a
// path. `data` may be empty. kNotFound says where was looked.
Result<std::string> ResolveSuite(const std::string& name_or_path, const std::string& data);

// Known suites and the other JSONL files of the data folder; `path` is empty for those that are not there.
struct ListedSuite {
  std::string name;
  std::string path;
  std::string about;
  int64_t repeats = 1;
};
std::vector<ListedSuite> ListSuites(const std::string& data);

}  // namespace pith
