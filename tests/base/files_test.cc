#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/json.h"
#include "base/mapped_file.h"
#include "support/data.h"

namespace pith {
namespace {

TEST(MappedFileTest, MapsBytesAndRefusesWhatIsNoFile) {
  const std::string dir = testing::TempDir();
  std::ofstream(dir + "/file", std::ios::binary) << std::string("a\0b", 3);
  const auto file = MappedFile::Open(dir + "/file");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->size(), 3u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>((*file)->bytes().data()), 3), std::string("a\0b", 3));
  std::ofstream(dir + "/empty").close();
  const auto empty = MappedFile::Open(dir + "/empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE((*empty)->bytes().empty());
  (*empty)->Release(0, 100);  // nothing to release

  ASSERT_EQ(::mkfifo((dir + "/pipe").c_str(), 0600), 0);
  const auto code = [&](const std::string& path) {
    const auto opened = MappedFile::Open(path);
    EXPECT_FALSE(opened.ok()) << path;
    if (opened.ok()) return ErrorCode::kInternal;
    EXPECT_NE(opened.error().message.find(path), std::string::npos);
    return opened.error().code;
  };
  EXPECT_EQ(code(dir + "/missing"), ErrorCode::kNotFound);
  EXPECT_EQ(code(dir + "/file/below"), ErrorCode::kNotFound);
  EXPECT_EQ(code(dir), ErrorCode::kIo);
  EXPECT_EQ(code(dir + "/pipe"), ErrorCode::kIo) << "must not wait for a writer";
}

TEST(JsonTest, DepthAndSizeAreBounded) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_TRUE(ParseJson(nested(100), "it").ok());
  for (const int depth : {200, 1000, 1000000}) {
    const auto json = ParseJson(nested(depth), "it");
    ASSERT_FALSE(json.ok()) << depth;
    EXPECT_EQ(json.error().code, ErrorCode::kMalformed);
    EXPECT_EQ(json.error().message.rfind("it: ", 0), 0u);
  }
  for (const char* text : {"", "{", "nul", "NaN", "1e999", "\"\xff\"", "{\"a\":1}x"}) {
    EXPECT_FALSE(ParseJson(text, "it").ok()) << text;
  }
  const std::string path = testing::TempDir() + "/large.json";
  std::ofstream(path) << "[" << std::string(1000, ' ') << "]";
  EXPECT_TRUE(ReadJsonFile(path, 1002).ok());
  EXPECT_FALSE(ReadJsonFile(path, 1001).ok());
}

}  // namespace
}  // namespace pith
