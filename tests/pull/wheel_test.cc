#include "pull/wheel.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/data.h"
#include "wheel_maker.h"

namespace pith {
namespace {

using ::pith::testing::ReadFile;
using ::pith::testing::TempDir;
using ::pith::testing::WriteZip;

Result<std::string> ReadAll(const std::string& path, const std::string& entry, uint64_t max_bytes) {
  std::string text;
  const Status status = ReadZipEntry(path, entry, max_bytes, [&](std::span<const std::byte> piece) -> Status {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return {};
  });
  if (!status.ok()) return status.error();
  return text;
}

ErrorCode CodeOf(const Result<std::string>& result) { return result.ok() ? ErrorCode::kInternal : result.error().code; }

class WheelTest : public ::testing::Test {
 protected:
  const std::string path_ = TempDir() + "/a.whl";
};

TEST_F(WheelTest, StoredAndDeflatedEntries) {
  std::string big;
  for (int i = 0; big.size() < 3000000; ++i) big += std::to_string(i);
  for (const bool compress : {false, true}) {
    WriteZip(path_, {{"a/small.bin", "hello"}, {"a/big.bin", big}, {"a/empty.bin", ""}}, compress);
    EXPECT_EQ(*ReadAll(path_, "a/small.bin", 5), "hello");
    EXPECT_EQ(*ReadAll(path_, "a/big.bin", big.size()), big);
    EXPECT_EQ(*ReadAll(path_, "a/empty.bin", 0), "");
  }
}

TEST_F(WheelTest, MissingThings) {
  WriteZip(path_, {{"a/small.bin", "hello"}}, true);
  EXPECT_EQ(CodeOf(ReadAll(path_, "small.bin", 100)), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(ReadAll(path_ + ".no", "a/small.bin", 100)), ErrorCode::kNotFound);
}

TEST_F(WheelTest, EntryLongerThanAllowed) {
  // 50 MB of zeros in a few kilobytes: the size is refused before anything is unpacked.
  std::string zeros;
  zeros.resize(50000000);
  WriteZip(path_, {{"bomb", zeros}}, true);
  EXPECT_LT(ReadFile(path_).size(), 100000u);
  EXPECT_EQ(CodeOf(ReadAll(path_, "bomb", 1000)), ErrorCode::kMismatch);
}

TEST_F(WheelTest, EntryThatLiesAboutItsSize) {
  WriteZip(path_, {{"bomb", std::string(5000000, 'a')}}, true);
  std::string bytes = ReadFile(path_);
  // The uncompressed size is at offset 22 of the local header and at 24 of the central one.
  const size_t central = bytes.rfind("PK\x01\x02");
  ASSERT_NE(central, std::string::npos);
  for (const size_t at : {size_t{22}, central + 24}) bytes.replace(at, 4, std::string("\x10\0\0\0", 4));
  std::ofstream(path_, std::ios::binary) << bytes;
  const auto result = ReadAll(path_, "bomb", 1000);
  ASSERT_FALSE(result.ok());
  EXPECT_TRUE(result.error().code == ErrorCode::kMismatch || result.error().code == ErrorCode::kMalformed);
}

TEST_F(WheelTest, DamagedArchives) {
  const std::string content(1000, 'x');
  WriteZip(path_, {{"data.bin", content}}, false);
  const std::string good = ReadFile(path_);
  // A byte of the stored data differs: the checksum tells.
  std::string damaged = good;
  damaged[damaged.find("xxxx") + 500] = 'y';
  std::ofstream(path_, std::ios::binary) << damaged;
  EXPECT_EQ(CodeOf(ReadAll(path_, "data.bin", 1000)), ErrorCode::kMalformed);
  // Cut anywhere, it is not an archive any more (the directory is at the end).
  for (size_t length = 0; length < good.size(); length += 37) {
    std::ofstream(path_, std::ios::binary) << good.substr(0, length);
    EXPECT_EQ(CodeOf(ReadAll(path_, "data.bin", 1000)), ErrorCode::kMalformed) << length;
  }
  std::ofstream(path_, std::ios::binary) << "<html>not a wheel</html>";
  EXPECT_EQ(CodeOf(ReadAll(path_, "data.bin", 1000)), ErrorCode::kMalformed);
}

TEST_F(WheelTest, ErrorOfTheSinkIsReturned) {
  WriteZip(path_, {{"data.bin", "hello"}}, false);
  const Status status = ReadZipEntry(path_, "data.bin", 5, [](std::span<const std::byte>) -> Status {
    return Error{ErrorCode::kIo, "disk full"};
  });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "disk full");
}

}  // namespace
}  // namespace pith
