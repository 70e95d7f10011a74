// Downloads against a local server that redirects, breaks, stalls and lies.
#include "pull/hub.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "base/sha256.h"
#include "pull/http.h"
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

std::string Sha256Of(const std::string& text) { return Sha256Hex(std::as_bytes(std::span(text.data(), text.size()))); }

// 300,000 bytes without a short period, so that a piece in the wrong place shows.
std::string Content() {
  std::string content;
  for (uint32_t i = 0; content.size() < 300000; ++i) content += std::to_string(i * 2654435761u) + "\n";
  content.resize(300000);
  return content;
}

class HubTest : public ::testing::Test {
 protected:
  HubOptions Options(const HttpServer& server) const {
    HubOptions options;
    options.endpoint = server.url();
    options.backoff_ms = 1;
    options.retries = 3;
    return options;
  }
  HubFile File() const { return {"model.gguf", content_.size(), Sha256Of(content_), ""}; }
  Status Download(const HttpServer& server, const HubFile& file) const { return Download(Options(server), file); }
  Status Download(const HubOptions& options, const HubFile& file) const {
    return DownloadHubFile("org/name", "main", file, path_, options);
  }
  void WritePart(const std::string& bytes) const { std::ofstream(path_ + ".part", std::ios::binary) << bytes; }
  bool HasPart() const { return fs::exists(path_ + ".part"); }
  void ExpectWhole() const {
    EXPECT_EQ(ReadFile(path_), content_);
    EXPECT_FALSE(HasPart());
  }

  const std::string content_ = Content();
  const std::string path_ = pith::testing::TempDir() + "/model.gguf";
};

TEST_F(HubTest, WholeFile) {
  HttpServer server([&](const ServedRequest& request) { return ServeFile(content_, request); });
  HubOptions options = Options(server);
  uint64_t last = 0;
  options.progress = [&](uint64_t done) {
    EXPECT_GE(done, last);
    last = done;
  };
  const Status status = Download(options, File());
  ASSERT_TRUE(status.ok()) << status.error().message;
  ExpectWhole();
  EXPECT_EQ(last, content_.size());
  ASSERT_EQ(server.requests().size(), 1u);
  EXPECT_EQ(server.requests()[0].path, "/org/name/resolve/main/model.gguf");
}

TEST_F(HubTest, EmptyFile) {
  HttpServer server([](const ServedRequest&) { return ServedReply{}; });
  ASSERT_TRUE(Download(server, {"empty", 0, Sha256Of(""), ""}).ok());
  EXPECT_EQ(ReadFile(path_), "");
}

TEST_F(HubTest, TokenDoesNotFollowARedirectToAnotherHost) {
  HttpServer storage([&](const ServedRequest& request) { return ServeFile(content_, request); });
  HttpServer hub([&](const ServedRequest&) {
    return ServedReply{.status = 302, .headers = {{"Location", storage.url() + "/blob"}}, .body = "moved"};
  });
  HubOptions options = Options(hub);
  options.token = "secret";
  const Status status = Download(options, File());
  ASSERT_TRUE(status.ok()) << status.error().message;
  ExpectWhole();
  EXPECT_EQ(hub.requests().at(0).Header("authorization"), "Bearer secret");
  EXPECT_EQ(storage.requests().at(0).headers.count("authorization"), 0u);
}

TEST_F(HubTest, RelativeRedirectKeepsTheToken) {
  HttpServer hub([&](const ServedRequest& request) {
    if (request.path != "/moved/model.gguf")
      return ServedReply{.status = 307, .headers = {{"Location", "/moved/model.gguf"}}};
    return ServeFile(content_, request);
  });
  HubOptions options = Options(hub);
  options.token = "secret";
  ASSERT_TRUE(Download(options, File()).ok());
  ExpectWhole();
  EXPECT_EQ(hub.requests().at(1).Header("authorization"), "Bearer secret");
}

TEST_F(HubTest, RedirectLoopEnds) {
  HttpServer hub([](const ServedRequest&) { return ServedReply{.status = 302, .headers = {{"Location", "/again"}}}; });
  const Status status = Download(hub, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_LE(hub.requests().size(), 10u);
}

TEST_F(HubTest, RedirectToAnotherSchemeIsRefused) {
  HttpServer hub([](const ServedRequest&) {
    return ServedReply{.status = 302, .headers = {{"Location", "file:///etc/passwd"}}};
  });
  const Status status = Download(hub, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(HubTest, CutConnectionsAreResumed) {
  // Every connection ends after 70,000 bytes of its body.
  HttpServer server([&](const ServedRequest& request) {
    ServedReply reply = ServeFile(content_, request);
    reply.cut_after = 70000;
    return reply;
  });
  const Status status = Download(server, File());
  ASSERT_TRUE(status.ok()) << status.error().message;
  ExpectWhole();
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 5u);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(requests[i].range_begin, 70000 * i);
}

TEST_F(HubTest, ResumesThePartOfAnEarlierRun) {
  WritePart(content_.substr(0, 123456));
  HttpServer server([&](const ServedRequest& request) { return ServeFile(content_, request); });
  ASSERT_TRUE(Download(server, File()).ok());
  ExpectWhole();
  ASSERT_EQ(server.requests().size(), 1u);
  EXPECT_EQ(server.requests()[0].range_begin, 123456u);
}

TEST_F(HubTest, CompletePartNeedsNoRequest) {
  WritePart(content_);
  HttpServer server([](const ServedRequest&) { return ServedReply{.status = 500}; });
  ASSERT_TRUE(Download(server, File()).ok());
  ExpectWhole();
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(HubTest, PartOfAnotherFileIsThrownAway) {
  WritePart(std::string(1000, 'x'));
  HttpServer server([&](const ServedRequest& request) { return ServeFile(content_, request); });
  const Status status = Download(server, File());
  ASSERT_TRUE(status.ok()) << status.error().message;
  ExpectWhole();
  EXPECT_EQ(server.requests().size(), 2u);  // the rest, then the whole
}

TEST_F(HubTest, PartThatIsTooLongIsThrownAway) {
  WritePart(content_ + "more");
  HttpServer server([&](const ServedRequest& request) { return ServeFile(content_, request); });
  ASSERT_TRUE(Download(server, File()).ok());
  ExpectWhole();
}

TEST_F(HubTest, ServerThatIgnoresRangesStartsOver) {
  WritePart(content_.substr(0, 5000));
  HttpServer server([&](const ServedRequest&) { return ServedReply{.body = content_}; });
  ASSERT_TRUE(Download(server, File()).ok());
  ExpectWhole();
}

TEST_F(HubTest, AnotherRangeThanAskedForIsRefused) {
  WritePart(content_.substr(0, 5000));
  HttpServer server([&](const ServedRequest& request) {
    ServedRequest other = request;
    other.range_begin = 6000;
    return ServeFile(content_, other);
  });
  const Status status = Download(server, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(HubTest, MalformedRangesAreRefused) {
  for (const char* range : {"", "bytes", "bytes 5000-299999", "bytes 5000-299999/*", "bytes 5000-299999/300000x",
                            "bytes 5000-4999/300000", "bytes 5000-300000/300000", "items 5000-299999/300000",
                            "bytes 5000-299999/99999999999999999999999", "bytes -5000-299999/300000"}) {
    WritePart(content_.substr(0, 5000));
    HttpServer server([&](const ServedRequest&) {
      return ServedReply{.status = 206, .headers = {{"Content-Range", range}}, .body = content_.substr(5000)};
    });
    const Status status = Download(server, File());
    ASSERT_FALSE(status.ok()) << range;
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << range;
    EXPECT_FALSE(fs::exists(path_));
  }
}

TEST_F(HubTest, RangeNotSatisfiableStartsOver) {
  // The part has no beginning of the server's file: the server knows only a shorter one at first.
  WritePart(content_.substr(0, 200000));
  std::atomic<int> calls = 0;
  HttpServer server([&](const ServedRequest& request) {
    return ++calls == 1 ? ServedReply{.status = 416} : ServeFile(content_, request);
  });
  const Status status = Download(server, File());
  ASSERT_TRUE(status.ok()) << status.error().message;
  ExpectWhole();
  EXPECT_EQ(server.requests().at(1).range_begin, 0u);
}

TEST_F(HubTest, EndlessRangeNotSatisfiableEnds) {
  WritePart(content_.substr(0, 200000));
  HttpServer server([](const ServedRequest&) { return ServedReply{.status = 416}; });
  const Status status = Download(server, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
}

TEST_F(HubTest, ShorterFileIsRefused) {
  HttpServer server([&](const ServedRequest& request) { return ServeFile(content_.substr(0, 1000), request); });
  const Status status = Download(server, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  EXPECT_NE(status.error().message.find("1000"), std::string::npos) << status.error().message;
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_FALSE(HasPart());
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST_F(HubTest, LongerFileIsRefusedBeforeItIsWritten) {
  HttpServer server([&](const ServedRequest& request) { return ServeFile(content_ + "x", request); });
  const Status status = Download(server, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_FALSE(HasPart());
}

TEST_F(HubTest, BodyWithoutLengthThatIsTooLongIsRefused) {
  HttpServer server(
      [&](const ServedRequest&) { return ServedReply{.body = content_ + content_, .send_length = false}; });
  const Status status = Download(server, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_FALSE(HasPart());
}

TEST_F(HubTest, BodyShorterThanItsLengthEndsAfterTheRetries) {
  // Claims the right size, never sends more than the first 1,000 bytes.
  HttpServer server([&](const ServedRequest& request) {
    if (request.range_begin > 0) {
      return ServedReply{
          .status = 206, .headers = {{"Content-Range", "bytes 1000-299999/300000"}}, .claimed_length = 299000};
    }
    return ServedReply{.body = content_.substr(0, 1000), .claimed_length = content_.size()};
  });
  const Status status = Download(server, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_TRUE(HasPart());  // for the next try
  EXPECT_EQ(server.requests().size(), 4u);
}

TEST_F(HubTest, WrongBytesAreRefused) {
  std::string wrong = content_;
  wrong[150000] ^= 1;
  HttpServer server([&](const ServedRequest& request) { return ServeFile(wrong, request); });
  const Status status = Download(server, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  EXPECT_NE(status.error().message.find("model.gguf"), std::string::npos);
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_FALSE(HasPart());
}

TEST_F(HubTest, AnotherDigestOnTheHubIsRefusedBeforeTheBody) {
  HttpServer server([&](const ServedRequest& request) {
    ServedReply reply = ServeFile(content_, request);
    reply.headers.push_back({"X-Linked-Etag", "\"" + std::string(64, 'a') + "\""});
    return reply;
  });
  HttpServer hub([&](const ServedRequest&) {
    return ServedReply{
        .status = 302,
        .headers = {{"Location", server.url() + "/blob"}, {"X-Linked-Etag", "\"" + std::string(64, 'a') + "\""}}};
  });
  const Status status = Download(hub, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(HubTest, AnotherSizeOnTheHubIsRefusedBeforeTheBody) {
  HttpServer hub([&](const ServedRequest&) {
    return ServedReply{.status = 302, .headers = {{"Location", "/blob"}, {"X-Linked-Size", "7"}}};
  });
  const Status status = Download(hub, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  EXPECT_EQ(hub.requests().size(), 1u);
}

TEST_F(HubTest, StatusesBecomeTypedErrors) {
  struct Case {
    int status;
    std::vector<std::pair<std::string, std::string>> headers;
    ErrorCode code;
    size_t requests;  // 1 = not tried again
  };
  const Case cases[] = {{404, {}, ErrorCode::kNotFound, 1},
                        {401, {}, ErrorCode::kUnavailable, 1},
                        {401, {{"X-Error-Code", "RepoNotFound"}}, ErrorCode::kNotFound, 1},
                        {403, {}, ErrorCode::kUnavailable, 1},
                        {400, {}, ErrorCode::kUnavailable, 1},
                        {500, {}, ErrorCode::kUnavailable, 4},
                        {503, {}, ErrorCode::kUnavailable, 4},
                        {429, {}, ErrorCode::kUnavailable, 4}};
  for (const Case& test : cases) {
    HttpServer server([&](const ServedRequest&) {
      return ServedReply{.status = test.status, .headers = test.headers, .body = "error page"};
    });
    const Status status = Download(server, File());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, test.code) << test.status;
    EXPECT_EQ(server.requests().size(), test.requests) << test.status;
    EXPECT_NE(status.error().message.find(std::to_string(test.status)), std::string::npos);
    EXPECT_FALSE(fs::exists(path_));
  }
}

TEST_F(HubTest, ServerThatRecoversIsAskedAgain) {
  std::atomic<int> calls = 0;
  HttpServer server([&](const ServedRequest& request) {
    return ++calls < 3 ? ServedReply{.status = 503, .body = "busy"} : ServeFile(content_, request);
  });
  ASSERT_TRUE(Download(server, File()).ok());
  ExpectWhole();
}

TEST_F(HubTest, NobodyThere) {
  HubOptions options;
  {
    HttpServer gone([](const ServedRequest&) { return ServedReply{}; });
    options = Options(gone);
  }
  const Status status = Download(options, File());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(ReachHub(options).error().code, ErrorCode::kUnavailable);
}

TEST_F(HubTest, StalledServerIsGivenUp) {
  std::atomic<bool> done = false;
  HttpServer server([&](const ServedRequest&) {
    for (int i = 0; i < 100 && !done; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return ServedReply{.status = 500};
  });
  HubOptions options = Options(server);
  options.stall_timeout_s = 1;
  options.retries = 0;
  const Status status = Download(options, File());
  done = true;
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

TEST_F(HubTest, GitBlobsAreChecked) {
  // git hash-object of "hello\n".
  const std::string blob = "ce013625030ba8dba906f756967f9e9ca394464a";
  HttpServer server([&](const ServedRequest& request) { return ServeFile("hello\n", request); });
  ASSERT_TRUE(Download(server, {"config.json", 6, "", blob}).ok());
  EXPECT_EQ(ReadFile(path_), "hello\n");
  HttpServer liar([&](const ServedRequest& request) { return ServeFile("hallo\n", request); });
  const Status status = Download(liar, {"config.json", 6, "", blob});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
}

TEST_F(HubTest, WithoutADigestNothingIsFetched) {
  HttpServer server([&](const ServedRequest& request) { return ServeFile(content_, request); });
  const Status status = Download(server, {"model.gguf", content_.size(), "", ""});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(HubTest, UnwritableFolder) {
  HttpServer server([&](const ServedRequest& request) { return ServeFile(content_, request); });
  const Status status = DownloadHubFile("org/name", "main", File(), "/proc/nowhere/model.gguf", Options(server));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
}

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

TEST_F(HubTest, Listing) {
  const std::string sha256(64, 'b');
  const std::string blob(40, 'c');
  HttpServer server([&](const ServedRequest&) {
    return ServedReply{
        .body = std::string(R"({"id":"org/name","sha":")") + kCommit +
                R"(","siblings":[{"rfilename":"model.safetensors","size":1234,"blobId":"x","lfs":{"sha256":")" +
                sha256 + R"(","size":1234,"pointerSize":130}},{"rfilename":"config.json","size":5,"blobId":")" + blob +
                R"("}]})"};
  });
  const auto listing = ListHubFiles("org/name", "v1", Options(server));
  ASSERT_TRUE(listing.ok()) << listing.error().message;
  EXPECT_EQ(server.requests().at(0).path, "/api/models/org/name/revision/v1?blobs=true");
  EXPECT_EQ(listing->commit, kCommit);
  ASSERT_EQ(listing->files.size(), 2u);
  EXPECT_EQ(listing->files[0].path, "model.safetensors");
  EXPECT_EQ(listing->files[0].bytes, 1234u);
  EXPECT_EQ(listing->files[0].sha256, sha256);
  EXPECT_EQ(listing->files[1].git_blob, blob);
}

TEST_F(HubTest, MalformedListings) {
  const std::string head = std::string(R"({"sha":")") + kCommit + R"(",)";
  for (const std::string& text :
       {std::string("<html>"), std::string("[]"), std::string("{}"), head + R"("siblings":{}})",
        head + R"("siblings":[3]})", head + R"("siblings":[{"rfilename":"a"}]})",
        head + R"("siblings":[{"rfilename":"a","size":-1,"blobId":"cccccccccccccccccccccccccccccccccccccccc"}]})",
        head + R"("siblings":[{"rfilename":7,"size":1,"blobId":"cccccccccccccccccccccccccccccccccccccccc"}]})",
        head + R"("siblings":[{"rfilename":"a","size":1,"blobId":"short"}]})",
        std::string(R"({"sha":"main","siblings":[]})")}) {
    HttpServer server([&](const ServedRequest&) { return ServedReply{.body = text}; });
    const auto listing = ListHubFiles("org/name", "main", Options(server));
    ASSERT_FALSE(listing.ok()) << text;
    EXPECT_EQ(listing.error().code, ErrorCode::kMalformed) << text;
  }
}

TEST(HttpOriginTest, DecidesWhereCredentialsGo) {
  EXPECT_TRUE(*OriginOf("https://a.example/x") == *OriginOf("https://A.example:443/y"));
  EXPECT_FALSE(*OriginOf("https://a.example/") == *OriginOf("http://a.example/"));
  EXPECT_FALSE(*OriginOf("https://a.example/") == *OriginOf("https://a.example:444/"));
  EXPECT_FALSE(*OriginOf("https://a.example/") == *OriginOf("https://a.example.evil/"));
  EXPECT_TRUE(OriginOf("http://127.0.0.1:80/")->loopback());
  EXPECT_FALSE(OriginOf("http://127.0.0.1.evil/")->loopback());
  EXPECT_FALSE(OriginOf("ftp://a.example/").ok());
  EXPECT_FALSE(OriginOf("not a url").ok());
}

}  // namespace
}  // namespace pith
