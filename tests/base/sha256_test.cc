#include "base/sha256.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/data.h"

namespace pith {
namespace {

// Vectors of FIPS 180-4's examples.
TEST(Sha256Test, KnownDigests) {
  EXPECT_EQ(Sha256Hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Digest digest;
  digest.Update("a");
  digest.Update("bc");
  EXPECT_EQ(digest.Finish(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest.Finish(), Sha256Hex({}));  // starts over
  Digest sha1(DigestKind::kSha1);
  sha1.Update("abc");
  EXPECT_EQ(sha1.Finish(), "a9993e364706816aba3e25717850c26c9cd0d89d");
}

TEST(Sha256Test, Files) {
  const std::string path = testing::TempDir() + "/file";
  const std::string content(3000001, 'a');
  std::ofstream(path, std::ios::binary) << content;
  EXPECT_EQ(*Sha256OfFile(path), Sha256Hex(std::as_bytes(std::span(content.data(), content.size()))));
  EXPECT_EQ(Sha256OfFile(path + ".no").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Sha256OfFile("/").error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace pith
