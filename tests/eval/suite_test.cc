#include "eval/suite.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "support/data.h"

namespace pith {
namespace {

using testing::TempDir;

void Write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

TEST(SuiteTest, RowsAndOptions) {
  const auto problems = ParseSuite(
      "{\"id\":\"a\",\"problem\":\"1+1?\",\"answer\":\"2\",\"level\":3}\r\n"
      "\n"
      "{\"id\":7,\"problem\":\"pick\",\"answer\":2.5,\"options\":[\"A) 1\",\"B) 2\"]}",
      "x.jsonl", {});
  ASSERT_TRUE(problems.ok()) << problems.error().message;
  ASSERT_EQ(problems->size(), 2U);
  EXPECT_EQ((*problems)[0].id, "a");
  EXPECT_EQ((*problems)[0].problem, "1+1?");
  EXPECT_EQ((*problems)[0].answer, "2");
  EXPECT_EQ((*problems)[1].id, "7");
  EXPECT_EQ((*problems)[1].problem, "pick\n\nOptions:\nA) 1\nB) 2");
  EXPECT_EQ((*problems)[1].answer, "2.5");
}

TEST(SuiteTest, OtherFieldNamesAndLineNumbersAsIds) {
  const auto fields = ParseSuiteFields("problem=question,id=#");
  ASSERT_TRUE(fields.ok());
  const auto problems =
      ParseSuite("\n{\"question\":\"q\",\"answer\":\"1\"}\n{\"question\":\"r\",\"answer\":\"2\"}\n", "x", *fields);
  ASSERT_TRUE(problems.ok()) << problems.error().message;
  EXPECT_EQ((*problems)[0].id, "2");
  EXPECT_EQ((*problems)[1].id, "3");
  for (const char* bad : {"question", "text=a", "problem=", "problem=#", "id=a,,answer=b"}) {
    EXPECT_EQ(ParseSuiteFields(bad).error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(SuiteTest, MalformedRowsNameFileAndLine) {
  const std::string good = "{\"id\":\"a\",\"problem\":\"p\",\"answer\":\"1\"}\n";
  const struct {
    std::string row;
    std::string why;
  } cases[] = {
      {"{\"id\":\"b\",\"problem\":\"p\"}", "'answer'"},
      {"{\"id\":\"b\",\"answer\":\"1\"}", "'problem'"},
      {"{\"problem\":\"p\",\"answer\":\"1\"}", "'id'"},
      {"{\"id\":\"b\",\"problem\":5,\"answer\":\"1\"}", "'problem'"},
      {"{\"id\":\"b\",\"problem\":\" \",\"answer\":\"1\"}", "'problem'"},
      {"{\"id\":\"b\",\"problem\":\"p\",\"answer\":[1]}", "'answer'"},
      {"{\"id\":\"b\",\"problem\":\"p\",\"answer\":null}", "'answer'"},
      {"{\"id\":\"b\",\"problem\":\"p\",\"answer\":\"1\",\"options\":\"A\"}", "'options'"},
      {"{\"id\":\"b\",\"problem\":\"p\",\"answer\":\"1\",\"options\":[1]}", "'options'"},
      {"[1]", "not a JSON object"},
      {"{\"id\":\"b\"", "x.jsonl:3"},
      {"{\"id\":\"\xff\",\"problem\":\"p\",\"answer\":\"1\"}", "x.jsonl:3"},
      {std::string((size_t{1} << 20) + 1, 'x'), "longer than 1 MiB"},
  };
  for (const auto& test : cases) {
    const auto problems = ParseSuite(good + "\n" + test.row + "\n", "x.jsonl", {});
    ASSERT_FALSE(problems.ok()) << test.row.substr(0, 100);
    EXPECT_EQ(problems.error().code, ErrorCode::kMalformed);
    EXPECT_EQ(problems.error().message.rfind("x.jsonl:3: ", 0), 0U) << problems.error().message;
    EXPECT_NE(problems.error().message.find(test.why), std::string::npos) << problems.error().message;
  }
  const auto twice = ParseSuite(good + "\n" + good, "x.jsonl", {});
  EXPECT_EQ(twice.error().message, "x.jsonl:3: the id 'a' is also that of line 1");
  EXPECT_EQ(ParseSuite("", "x.jsonl", {}).error().code, ErrorCode::kMalformed);
  EXPECT_EQ(ParseSuite("\n \n", "x.jsonl", {}).error().code, ErrorCode::kMalformed);
}

TEST(SuiteTest, NamesAreFoundInTheDataFolder) {
  const std::string data = TempDir();
  std::filesystem::create_directories(data + "/eval");
  const std::string row = "{\"id\":\"a\",\"problem\":\"p\",\"answer\":\"1\"}\n";
  Write(data + "/eval/aime_2024.jsonl", row);
  Write(data + "/mine.jsonl", row);
  EXPECT_EQ(*ResolveSuite("aime24", data), data + "/eval/aime_2024.jsonl");
  EXPECT_EQ(*ResolveSuite("mine", data), data + "/mine.jsonl");
  EXPECT_EQ(*ResolveSuite(data + "/mine.jsonl", ""), data + "/mine.jsonl");
  const auto missing = ResolveSuite("math500", data);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("math500.jsonl"), std::string::npos);
  EXPECT_NE(missing.error().message.find(data), std::string::npos);
  EXPECT_EQ(ResolveSuite("nothing-like-it", data).error().code, ErrorCode::kNotFound);
  EXPECT_NE(ResolveSuite("math500", "").error().message.find("PITH_DATA"), std::string::npos);
  EXPECT_EQ(ResolveSuite("", data).error().code, ErrorCode::kInvalidArgument);

  std::set<std::string> here;
  for (const auto& suite : ListSuites(data)) {
    if (!suite.path.empty()) here.insert(suite.name);
  }
  EXPECT_EQ(here, (std::set<std::string>{"aime24", "mine"}));

  const auto suite = LoadSuite("mine", data + "/mine.jsonl", {});
  ASSERT_TRUE(suite.ok());
  // sha256sum of the row above.
  EXPECT_EQ(suite->sha256, "f2053c627ae0e01ae6db650cca2301056331e482923642aa443bc78b8a90fb62");
  Write(data + "/mine.jsonl", "PAR1 and so on");
  EXPECT_EQ(LoadSuite("mine", data + "/mine.jsonl", {}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(LoadSuite("mine", data + "/none.jsonl", {}).error().code, ErrorCode::kNotFound);
}

TEST(SuiteTest, PublicSuites) {
  PITH_REQUIRE_DATA(folder, "eval");
  const std::string data = std::filesystem::path(folder).parent_path().string();
  const std::pair<const char*, size_t> sizes[] = {{"math500", 500}, {"gsm8k", 1319},     {"aime24", 30},
                                                  {"aime25", 30},   {"amc23", 40},       {"minerva", 272},
                                                  {"svamp", 1000},  {"multiarith", 600}, {"aqua", 254}};
  ASSERT_EQ(std::size(sizes), KnownSuites().size());
  for (const auto& [name, size] : sizes) {
    const auto path = ResolveSuite(name, data);
    ASSERT_TRUE(path.ok()) << path.error().message;
    const auto suite = LoadSuite(name, *path, {});
    ASSERT_TRUE(suite.ok()) << suite.error().message;
    EXPECT_EQ(suite->problems.size(), size) << name;
  }
}

}  // namespace
}  // namespace pith
