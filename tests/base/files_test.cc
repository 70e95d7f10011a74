#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/durable_file.h"
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

size_t FilesIn(const std::string& dir) {
  const auto begin = std::filesystem::directory_iterator(dir);
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

TEST(DurableFileTest, IsWholeOrNotThere) {
  const std::string dir = testing::TempDir();
  const std::string path = dir + "/file";
  std::ofstream(path) << "before";
  {
    auto file = DurableFile::Create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->Write("half").ok());
    EXPECT_EQ(testing::ReadFile(path), "before");
    DurableFile moved = std::move(*file);
    EXPECT_FALSE(file->open());
    EXPECT_EQ(FilesIn(dir), 2U);
  }
  EXPECT_EQ(FilesIn(dir), 1U) << "what was not finished is gone";
  EXPECT_EQ(testing::ReadFile(path), "before");

  auto file = DurableFile::Create(path);
  ASSERT_TRUE(file.ok());
  const std::string text("a\0b", 3);
  ASSERT_TRUE(file->Write(text).ok());
  ASSERT_TRUE(file->Write("").ok());
  ASSERT_TRUE(file->Write("c").ok());
  ASSERT_TRUE(file->Finish().ok());
  EXPECT_EQ(testing::ReadFile(path), text + "c");
  EXPECT_EQ(FilesIn(dir), 1U);
  EXPECT_EQ(file->Write("d").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(file->Finish().error().code, ErrorCode::kInvalidArgument);

  const auto refused = WriteFileDurably(dir + "/missing/file", "x");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  EXPECT_NE(refused.error().message.find("/missing/file"), std::string::npos);
  std::filesystem::create_directories(dir + "/folder/below");
  EXPECT_EQ(WriteFileDurably(dir + "/folder", "x").error().code, ErrorCode::kIo);
  EXPECT_EQ(FilesIn(dir), 2U);
  // A full disk is an error, of the write or of the flush.
  if (std::filesystem::exists("/dev/full")) {
    std::filesystem::create_symlink("/dev/full", dir + "/full." + std::to_string(::getpid()) + ".partial");
    const auto full = WriteFileDurably(dir + "/full", "x");
    ASSERT_FALSE(full.ok());
    EXPECT_EQ(full.error().code, ErrorCode::kIo);
  }
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
