#include "pull/hub.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/json.h"
#include "base/sha256.h"
#include "pull/http.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxRedirects = 8;
constexpr int kMaxAttempts = 200;  // in all, so that a server that gives a byte at a time does not hold us for ever
constexpr size_t kMaxListingBytes = size_t{32} << 20;
constexpr long kLongestRetryAfterSeconds = 60;

// Why a request failed, and whether the same request may go better later.
struct Attempt {
  Error error;
  bool transient = false;
  long retry_after_s = 0;
};

bool IsRedirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

Attempt StatusError(const HttpResponse& response, const std::string& url) {
  const long status = response.status;
  const std::string what = url + " answers " + std::to_string(status);
  const std::string hub_code = response.Header("x-error-code");
  if (status == 404 || status == 410 || hub_code == "RepoNotFound") return {{ErrorCode::kNotFound, what}};
  if (status == 401 || status == 403) {
    return {{ErrorCode::kUnavailable, what + " (no such repository, or it wants an access token in HF_TOKEN)"}};
  }
  const bool transient = status == 408 || status == 429 || status >= 500;
  const auto wait = response.HeaderNumber("retry-after");
  return {{ErrorCode::kUnavailable, what},
          transient,
          wait ? static_cast<long>(std::min<uint64_t>(*wait, kLongestRetryAfterSeconds)) : 0};
}

// Follows redirects from `request.url`. The token goes only to the origin of the endpoint. `first_hop` (if given) sees
// the headers of the hub's own answer, which describe the file that a redirect leads to.
std::optional<Attempt> FetchFollowing(HttpRequest request, const std::string& token, const HttpOrigin& endpoint,
                                      const BodySink& sink, const std::function<Status(const HttpResponse&)>& first_hop,
                                      HttpResponse* final_response) {
  const bool token_is_safe = endpoint.scheme == "https" || endpoint.loopback();
  const BodySink body_of_answer = [&](const HttpResponse& response, std::span<const std::byte> piece) {
    return IsRedirect(response.status) ? Status() : sink(response, piece);
  };
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    const auto origin = OriginOf(request.url);
    if (!origin.ok()) return Attempt{origin.error()};
    if (endpoint.scheme == "https" && origin->scheme != "https") {
      return Attempt{{ErrorCode::kUnavailable, "refusing a redirect from https to '" + request.url + "'"}};
    }
    request.bearer_token = token_is_safe && *origin == endpoint ? token : "";
    auto response = Fetch(request, body_of_answer);
    if (!response.ok()) return Attempt{response.error(), response.error().code == ErrorCode::kUnavailable};
    if (hop == 0 && first_hop && (response->status < 400)) {
      if (const Status status = first_hop(*response); !status.ok()) return Attempt{status.error()};
    }
    if (!IsRedirect(response->status)) {
      *final_response = std::move(*response);
      return std::nullopt;
    }
    if (response->redirect_url.empty()) {
      return Attempt{{ErrorCode::kUnavailable, request.url + " redirects to nowhere"}};
    }
    request.url = response->redirect_url;
  }
  return Attempt{
      {ErrorCode::kUnavailable, request.url + ": more than " + std::to_string(kMaxRedirects) + " redirects"}};
}

// Waits before attempt number `failures` (1, 2, ...) in a row.
void BackOff(const HubOptions& options, int failures, long retry_after_s) {
  const long factor = 1L << std::min(failures - 1, 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(std::max(options.backoff_ms * factor, retry_after_s * 1000)));
}

std::string WithoutTrailingSlashes(std::string url) {
  while (!url.empty() && url.back() == '/') url.pop_back();
  return url;
}

HttpRequest MakeRequest(const HubOptions& options, std::string url) {
  HttpRequest request;
  request.url = std::move(url);
  request.connect_timeout_ms = options.connect_timeout_ms;
  request.stall_timeout_s = options.stall_timeout_s;
  return request;
}

std::string StripQuotes(std::string text) {
  if (text.rfind("W/", 0) == 0) text.erase(0, 2);
  text.erase(std::remove(text.begin(), text.end(), '"'), text.end());
  return text;
}

bool IsHex(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The .part file of a download: bytes on disk and the running digest of exactly those bytes.
class PartFile {
 public:
  PartFile(std::string path, const HubFile& file)
      : path_(std::move(path)), file_(file), digest_(file.sha256.empty() ? DigestKind::kSha1 : DigestKind::kSha256) {}
  ~PartFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  // Opens or creates the file and digests what is already in it. More bytes than the file should have: starts over.
  Status Open() {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) return Failed("create");
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return Failed("read");
    if (static_cast<uint64_t>(info.st_size) > file_.bytes) return Restart();
    StartDigest();
    std::vector<std::byte> buffer(size_t{1} << 20);
    while (true) {
      const ssize_t count = ::read(fd_, buffer.data(), buffer.size());
      if (count < 0) return Failed("read");
      if (count == 0) break;
      digest_.Update({buffer.data(), static_cast<size_t>(count)});
      size_ += static_cast<uint64_t>(count);
    }
    resumed_ = size_ > 0;
    return {};
  }

  Status Restart() {
    if (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) return Failed("empty");
    size_ = 0;
    resumed_ = false;
    StartDigest();
    return {};
  }

  Status Append(std::span<const std::byte> bytes) {
    if (bytes.size() > file_.bytes - size_) {
      return Error{ErrorCode::kMismatch,
                   "'" + file_.path + "' is longer than " + std::to_string(file_.bytes) + " bytes"};
    }
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Failed("write");
      const auto written = static_cast<size_t>(count);
      digest_.Update(bytes.first(written));
      size_ += written;
      bytes = bytes.subspan(written);
    }
    return {};
  }

  // Checks the digest of a complete file.
  Status Check() {
    const std::string expected = file_.sha256.empty() ? file_.git_blob : file_.sha256;
    const std::string actual = digest_.Finish();
    if (actual == expected) return {};
    return Error{ErrorCode::kMismatch, "'" + file_.path + "' has the digest " + actual + ", not " + expected};
  }

  Status MoveTo(const std::string& destination) {
    if (::fsync(fd_) != 0) return Failed("flush");
    if (std::rename(path_.c_str(), destination.c_str()) != 0) return Failed("rename");
    return {};
  }
  void Remove() { ::unlink(path_.c_str()); }

  uint64_t size() const { return size_; }
  bool complete() const { return size_ == file_.bytes; }
  bool resumed() const { return resumed_; }  // holds bytes of an earlier run

 private:
  // A git blob id covers a header in front of the content.
  void StartDigest() {
    digest_ = Digest(file_.sha256.empty() ? DigestKind::kSha1 : DigestKind::kSha256);
    if (file_.sha256.empty()) {
      const std::string header = "blob " + std::to_string(file_.bytes);
      digest_.Update(header);
      digest_.Update(std::string_view("\0", 1));
    }
  }
  Error Failed(const std::string& verb) const {
    return {ErrorCode::kIo, "cannot " + verb + " '" + path_ + "': " + std::strerror(errno)};
  }

  std::string path_;
  const HubFile& file_;
  Digest digest_;
  int fd_ = -1;
  uint64_t size_ = 0;
  bool resumed_ = false;
};

// A decimal number at the front of `text`, which loses it; nothing when there is none or it is too large.
std::optional<uint64_t> TakeNumber(std::string_view& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// The total size in "bytes 100-199/1000", if the range begins where it was asked to.
std::optional<uint64_t> RangeTotal(std::string_view content_range, uint64_t begin) {
  if (!TakePrefix(content_range, "bytes ")) return std::nullopt;
  const auto first = TakeNumber(content_range);
  if (!first || !TakePrefix(content_range, "-")) return std::nullopt;
  const auto last = TakeNumber(content_range);
  if (!last || !TakePrefix(content_range, "/")) return std::nullopt;
  const auto total = TakeNumber(content_range);
  if (!total || !content_range.empty() || *first != begin || *last < *first || *last >= *total) return std::nullopt;
  return total;
}

// Decides what to do with the body of a download's answer, before its first byte is written.
Status BeginBody(const HttpResponse& response, const HubFile& file, PartFile& part) {
  uint64_t total = 0;
  if (response.status == 206) {
    const auto range_total = RangeTotal(response.Header("content-range"), part.size());
    if (!range_total) {
      return Error{ErrorCode::kMismatch, "'" + file.path + "': the server sent another range (" +
                                             response.Header("content-range") + ") than asked for"};
    }
    total = *range_total;
  } else {
    // The server sends the whole, whatever was asked for.
    PITH_RETURN_IF_ERROR(part.Restart());
    const auto length = response.HeaderNumber("content-length");
    total = length.value_or(file.bytes);
  }
  if (total != file.bytes) {
    return Error{ErrorCode::kMismatch, "'" + file.path + "' has " + std::to_string(total) +
                                           " bytes on the server, not " + std::to_string(file.bytes)};
  }
  return {};
}

// What the hub itself says of the file must agree with what we expect, before any of it is fetched.
Status CheckLinkedHeaders(const HttpResponse& response, const HubFile& file) {
  const auto size = response.HeaderNumber("x-linked-size");
  if (size && *size != file.bytes) {
    return Error{ErrorCode::kMismatch, "the hub's '" + file.path + "' has " + std::to_string(*size) + " bytes, not " +
                                           std::to_string(file.bytes)};
  }
  const std::string etag = StripQuotes(response.Header("x-linked-etag"));
  if (IsHex(etag, 64) && !file.sha256.empty() && etag != file.sha256) {
    return Error{ErrorCode::kMismatch,
                 "the hub's '" + file.path + "' has the SHA-256 " + etag + ", not " + file.sha256};
  }
  return {};
}

// One attempt to get the rest of the file. Nothing returned = the transfer ended without an error.
std::optional<Attempt> DownloadRest(const std::string& url, const HubFile& file, const HubOptions& options,
                                    const HttpOrigin& endpoint, PartFile& part) {
  HttpRequest request = MakeRequest(options, url);
  request.range_begin = part.size();
  bool begun = false;
  const BodySink sink = [&](const HttpResponse& response, std::span<const std::byte> piece) -> Status {
    if (response.status != 200 && response.status != 206) return {};  // an error page
    if (!begun) PITH_RETURN_IF_ERROR(BeginBody(response, file, part));
    begun = true;
    PITH_RETURN_IF_ERROR(part.Append(piece));
    if (options.progress) options.progress(part.size());
    return {};
  };
  HttpResponse response;
  auto failed = FetchFollowing(
      std::move(request), options.token, endpoint, sink,
      [&](const HttpResponse& first) { return CheckLinkedHeaders(first, file); }, &response);
  if (failed) return failed;
  if (response.status == 416) {
    // The server has nothing beyond what we hold: what we hold is not a beginning of its file.
    if (const Status status = part.Restart(); !status.ok()) return Attempt{status.error()};
    return Attempt{{ErrorCode::kMismatch, "'" + file.path + "' is shorter on the server than the part on disk"}, true};
  }
  if (response.status != 200 && response.status != 206) return StatusError(response, url);
  if (!part.complete()) {
    return Attempt{{ErrorCode::kMismatch, "'" + file.path + "' ended after " + std::to_string(part.size()) + " of " +
                                              std::to_string(file.bytes) + " bytes"},
                   true};
  }
  return std::nullopt;
}

Result<HubFile> ParseSibling(const Json& entry, const std::string& what) {
  const Error malformed{ErrorCode::kMalformed, what + ": a file entry lacks rfilename, size or a digest"};
  if (!entry.is_object() || !entry.contains("rfilename") || !entry["rfilename"].is_string()) return malformed;
  HubFile file;
  file.path = entry["rfilename"].get<std::string>();
  if (!entry.contains("size") || !entry["size"].is_number_unsigned()) return malformed;
  file.bytes = entry["size"].get<uint64_t>();
  if (entry.contains("lfs") && entry["lfs"].is_object() && entry["lfs"].contains("sha256") &&
      entry["lfs"]["sha256"].is_string()) {
    file.sha256 = entry["lfs"]["sha256"].get<std::string>();
  } else if (entry.contains("blobId") && entry["blobId"].is_string()) {
    file.git_blob = entry["blobId"].get<std::string>();
  }
  if (!IsHex(file.sha256, 64) && !IsHex(file.git_blob, 40)) return malformed;
  return file;
}

}  // namespace

HubOptions HubOptionsFromEnvironment() {
  HubOptions options;
  if (const char* endpoint = std::getenv("HF_ENDPOINT"); endpoint != nullptr && *endpoint != '\0') {
    options.endpoint = WithoutTrailingSlashes(endpoint);
  }
  if (const char* token = std::getenv("HF_TOKEN"); token != nullptr) options.token = token;
  return options;
}

Status ReachHub(const HubOptions& options) {
  HttpRequest request = MakeRequest(options, options.endpoint + "/api/models?limit=1");
  request.stall_timeout_s = std::max(1L, options.connect_timeout_ms / 1000);
  const auto response = Fetch(request, [](const HttpResponse&, std::span<const std::byte>) { return Status(); });
  return response.ok() ? Status() : Status(response.error());
}

Result<HubListing> ListHubFiles(const std::string& repo, const std::string& revision, const HubOptions& options) {
  PITH_ASSIGN(const HttpOrigin endpoint, OriginOf(options.endpoint));
  const std::string kind = repo.starts_with(kDatasetPrefix) ? "" : "models/";
  const std::string url =
      WithoutTrailingSlashes(options.endpoint) + "/api/" + kind + repo + "/revision/" + revision + "?blobs=true";
  std::string text;
  for (int failures = 0;;) {
    text.clear();
    const BodySink sink = [&](const HttpResponse& response, std::span<const std::byte> piece) -> Status {
      if (response.status != 200) return {};
      if (text.size() + piece.size() > kMaxListingBytes) {
        return Error{ErrorCode::kMalformed, url + ": the answer is longer than any list of files"};
      }
      text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      return {};
    };
    HttpResponse response;
    auto failed = FetchFollowing(MakeRequest(options, url), options.token, endpoint, sink, nullptr, &response);
    if (!failed && response.status == 200) break;
    if (!failed) failed = StatusError(response, url);
    if (!failed->transient || ++failures > options.retries) return failed->error;
    BackOff(options, failures, failed->retry_after_s);
  }
  PITH_ASSIGN(const Json json, ParseJson(text, url));
  if (!json.is_object() || !json.contains("siblings") || !json["siblings"].is_array() || !json.contains("sha") ||
      !json["sha"].is_string() || !IsHex(json["sha"].get<std::string>(), 40)) {
    return Error{ErrorCode::kMalformed, url + ": not a hub's list of files (no sha or siblings)"};
  }
  HubListing listing;
  listing.commit = json["sha"].get<std::string>();
  for (const Json& entry : json["siblings"]) {
    PITH_ASSIGN(HubFile file, ParseSibling(entry, url));
    listing.files.push_back(std::move(file));
  }
  return listing;
}

Status DownloadHubFile(const std::string& repo, const std::string& revision, const HubFile& file,
                       const std::string& destination, const HubOptions& options) {
  if (!IsHex(file.sha256, 64) && !IsHex(file.git_blob, 40)) {
    return Error{ErrorCode::kInvalidArgument, "'" + file.path + "' has no digest to check it by"};
  }
  PITH_ASSIGN(const HttpOrigin endpoint, OriginOf(options.endpoint));
  const std::string url =
      WithoutTrailingSlashes(options.endpoint) + "/" + repo + "/resolve/" + revision + "/" + file.path;
  PartFile part(destination + ".part", file);
  PITH_RETURN_IF_ERROR(part.Open());
  if (options.progress) options.progress(part.size());
  int failures = 0;
  for (int attempt = 1;; ++attempt) {
    const uint64_t before = part.size();
    std::optional<Attempt> failed;
    if (!part.complete()) failed = DownloadRest(url, file, options, endpoint, part);
    if (!failed) {
      const Status checked = part.Check();
      if (checked.ok()) return part.MoveTo(destination);
      // Bytes of an earlier run may be of an older file; fresh ones are simply not what was expected.
      const bool again = part.resumed();
      PITH_RETURN_IF_ERROR(part.Restart());
      if (again) continue;
      part.Remove();
      return checked;
    }
    if (!failed->transient) {
      if (failed->error.code == ErrorCode::kMismatch) part.Remove();
      return failed->error;
    }
    failures = part.size() > before ? 1 : failures + 1;
    if (failures > options.retries || attempt >= kMaxAttempts) return failed->error;
    BackOff(options, failures, failed->retry_after_s);
  }
}

}  // namespace pith
