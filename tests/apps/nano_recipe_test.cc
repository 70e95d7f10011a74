// The nano recipe: its generator is deterministic and says true things, its tokenizer is ours to read, held-out
// problems are held out; and, where training is built in, all stages fit together.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "model/tokenizer.h"
#include "support/data.h"

namespace pith {
namespace {

const std::string kRecipe = std::string(PITH_SOURCE_DIR) + "/recipes/nano/";

int Shell(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string MakeData(int seed) {
  std::string dir = testing::TempDir();
  EXPECT_EQ(Shell("python3 " + kRecipe + "make_data.py --scale 0.01 --seed " + std::to_string(seed) + " --out " + dir),
            0);
  return dir;
}

// One set of data for all tests.
const std::string& Data() {
  static const std::string dir = MakeData(1);
  return dir;
}

std::vector<Json> Rows(const std::string& path) {
  std::vector<Json> rows;
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::string line;
  while (std::getline(file, line)) {
    auto row = ParseJson(line, path);
    EXPECT_TRUE(row.ok());
    if (row.ok()) rows.push_back(std::move(row).value());
  }
  return rows;
}

// All texts of a row.
std::vector<std::string> Texts(const Json& row) {
  std::vector<std::string> texts;
  for (const char* field : {"text", "problem"}) {
    if (row.contains(field)) texts.push_back(row[field].get<std::string>());
  }
  if (row.contains("messages")) {
    for (const Json& message : row["messages"]) texts.push_back(message["content"].get<std::string>());
  }
  return texts;
}

TEST(NanoRecipe, SameSeedSameFiles) {
  const std::string again = MakeData(1);
  const std::string other = MakeData(2);
  for (const char* name :
       {"base", "reason", "grpo", "switcher", "verifier", "eval_numbers", "eval_stories", "eval_mix"}) {
    const std::string file = std::string("/") + name + ".jsonl";
    const std::string text = testing::ReadFile(Data() + file);
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(text, testing::ReadFile(again + file)) << name;
    EXPECT_NE(text, testing::ReadFile(other + file)) << name;
  }
}

TEST(NanoRecipe, TextsSayTrueThings) {
  const std::regex equation(R"((\d+) ([-+*/]) (\d+) = (\d+))");
  size_t equations = 0;
  for (const Json& row : Rows(Data() + "/base.jsonl")) {
    if (!row.contains("text")) continue;
    const auto text = row["text"].get<std::string>();
    if (text.find("that is wrong") != std::string::npos) continue;  // a wrong attempt that is found
    for (std::sregex_iterator it(text.begin(), text.end(), equation), end; it != end; ++it) {
      const int a = std::stoi((*it)[1]);
      const int b = std::stoi((*it)[3]);
      const char op = (*it)[2].str()[0];
      const int result = op == '+' ? a + b : op == '-' ? a - b : op == '*' ? a * b : a / b;
      EXPECT_EQ(result, std::stoi((*it)[4])) << it->str();
      if (op == '/') {
        EXPECT_EQ(a % b, 0) << it->str();
      }
      ++equations;
    }
  }
  EXPECT_GT(equations, 2000u);
}

// The answer in the box of a trace is the result of its last step; a wrong attempt is followed by the right one.
TEST(NanoRecipe, TracesEndInTheirAnswer) {
  const std::regex step(R"((that)?(: |It is )\d+ [-+*/] \d+ = (\d+)\.)");
  int traces = 0;
  for (const Json& row : Rows(Data() + "/reason.jsonl")) {
    const auto text = row["messages"][1]["content"].get<std::string>();
    EXPECT_TRUE(text.starts_with("<think>\n")) << text;
    EXPECT_NE(text.find("\n</think>\n\n"), std::string::npos) << text;
    const size_t box = text.find("\\boxed{");
    if (box == std::string::npos) continue;  // an everyday request
    int result = -1;
    for (std::sregex_iterator it(text.begin(), text.end(), step), end; it != end; ++it) {
      if (!(*it)[1].matched) result = std::stoi((*it)[3]);  // "check that:" is followed by the inverse
    }
    EXPECT_EQ(result, std::stoi(text.substr(box + 7))) << text;
    ++traces;
  }
  EXPECT_GT(traces, 100);
}

TEST(NanoRecipe, HeldOutProblemsAreHeldOut) {
  std::set<std::string> trained;
  for (const char* name : {"base", "reason", "grpo", "switcher", "verifier"}) {
    for (const Json& row : Rows(Data() + "/" + name + ".jsonl")) {
      for (const std::string& text : Texts(row)) {
        trained.insert(text.substr(0, text.find('\n')));
        EXPECT_EQ(text.find("shop has"), std::string::npos) << text;
        EXPECT_EQ(text.find("people in the school"), std::string::npos) << text;
      }
    }
  }
  for (const char* name : {"eval_numbers", "eval_stories"}) {
    const std::vector<Json> rows = Rows(Data() + "/" + name + ".jsonl");
    EXPECT_FALSE(rows.empty());
    for (const Json& row : rows) EXPECT_FALSE(trained.contains(row["problem"].get<std::string>()));
  }
}

TEST(NanoRecipe, TokenizerRoundTripsAndSplitsDigits) {
  const std::string dir = testing::TempDir();
  ASSERT_EQ(Shell("python3 " + kRecipe + "bpe.py " + Data() + "/base.jsonl --vocab 700 --out " + dir + " > /dev/null"),
            0);
  const auto loaded = Tokenizer::FromJson(testing::ReadFile(dir + "/tokenizer.json"), "tokenizer.json");
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const Tokenizer& tokenizer = **loaded;
  EXPECT_EQ(tokenizer.size(), 700);
  for (const char* token : {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"}) {
    EXPECT_GE(tokenizer.FindToken(token), 0) << token;
  }
  std::vector<std::string> texts = {"", "h\xc3\xa9llo 123 \xe6\x97\xa5\xe6\x9c\xac", "a  b\n\n\tc",
                                    "<think>\n1\n</think>\n\n"};
  for (const Json& row : Rows(Data() + "/base.jsonl")) {
    for (const std::string& text : Texts(row)) texts.push_back(text);
  }
  size_t tokens = 0;
  size_t bytes = 0;
  for (const std::string& text : texts) {
    const auto ids = tokenizer.Encode(text, {});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(tokenizer.Decode(*ids, false), text);
    tokens += ids->size();
    bytes += text.size();
    for (const int32_t id : *ids) {
      const std::string piece(tokenizer.TokenBytes(id));
      if (piece.find_first_of("0123456789") == std::string::npos) continue;
      EXPECT_TRUE(piece.size() == 1 || (piece.size() == 2 && piece[0] == ' ')) << piece;
    }
  }
  EXPECT_GT(bytes, 3 * tokens / 2);
}

#ifdef PITH_TRAIN
// Every stage, a few steps of each; a second run finds everything done.
TEST(NanoRecipe, TinyGoesEndToEnd) {
  const std::string dir = testing::TempDir();
  const std::string command = std::string("PITH=") + PITH_BINARY + " THREADS=2 " + kRecipe + "make.sh --tiny --out " +
                              dir + " > " + dir + "/log 2>&1";
  ASSERT_EQ(Shell(command), 0) << testing::ReadFile(dir + "/log");
  for (const char* file : {"base/model.safetensors", "packed/config.json", "verbose/adapter_model.safetensors",
                           "budget/adapter_model.safetensors", "heads/switcher.safetensors",
                           "heads/verifier.safetensors", "eval/votes/summary.json", "eval/mix/report.html"}) {
    EXPECT_TRUE(std::filesystem::exists(dir + "/" + file)) << file;
  }
  const std::string table = testing::ReadFile(dir + "/eval/table.md");
  EXPECT_NE(table.find("| budget-stories | on |"), std::string::npos) << table;
  ASSERT_EQ(Shell(command), 0);
  const std::string log = testing::ReadFile(dir + "/log");
  EXPECT_NE(log.find("nano: base, first part: done"), std::string::npos) << log;
  EXPECT_NE(log.find("nano: evaluation: switcher: done"), std::string::npos) << log;
}
#endif

}  // namespace
}  // namespace pith
