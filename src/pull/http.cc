#include "pull/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <memory>
#include <string_view>

namespace pith {

namespace {

// Headers of one response are a few kilobytes; a server that sends more is not heard out.
constexpr size_t kMaxHeaderBytes = size_t{256} << 10;

struct Transfer {
  const BodySink* sink = nullptr;
  HttpResponse response;
  size_t header_bytes = 0;
  Status sink_status;
  CURL* handle = nullptr;
};

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

size_t OnHeader(char* data, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::string_view line(data, size * count);
  transfer.header_bytes += line.size();
  if (transfer.header_bytes > kMaxHeaderBytes) return 0;
  if (line.substr(0, 5) == "HTTP/") transfer.response.headers.clear();  // an earlier 1xx response is of no interest
  if (const size_t colon = line.find(':'); colon != std::string_view::npos) {
    transfer.response.headers[Lower(line.substr(0, colon))] = std::string(Trim(line.substr(colon + 1)));
  }
  return line.size();
}

size_t OnBody(char* data, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  curl_easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &transfer.response.status);
  const auto piece = std::as_bytes(std::span(data, size * count));
  transfer.sink_status = (*transfer.sink)(transfer.response, piece);
  return transfer.sink_status.ok() ? piece.size() : 0;
}

struct CurlGlobal {
  CurlGlobal() { curl_global_init(CURL_GLOBAL_DEFAULT); }
  ~CurlGlobal() { curl_global_cleanup(); }
};

}  // namespace

std::optional<uint64_t> HttpResponse::HeaderNumber(const std::string& name) const {
  const std::string text = Header(name);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string HttpResponse::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

Result<HttpResponse> Fetch(const HttpRequest& request, const BodySink& sink) {
  static const CurlGlobal global;
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> handle(curl_easy_init(), curl_easy_cleanup);
  if (!handle) return Error{ErrorCode::kInternal, "libcurl does not start"};
  Transfer transfer;
  transfer.sink = &sink;
  transfer.handle = handle.get();

  CURL* curl = handle.get();
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "pith");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, request.connect_timeout_ms);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, request.stall_timeout_s);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  char reason[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
  // A compressed body would make sizes and ranges mean something else.
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(
      curl_slist_append(nullptr, "Accept-Encoding: identity"), curl_slist_free_all);
  if (!request.bearer_token.empty()) {
    headers.reset(curl_slist_append(headers.release(), ("Authorization: Bearer " + request.bearer_token).c_str()));
  }
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  const std::string range = std::to_string(request.range_begin) + "-";
  if (request.range_begin > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());

  const CURLcode code = curl_easy_perform(curl);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &transfer.response.status);
  if (!transfer.sink_status.ok()) return transfer.sink_status.error();
  if (code != CURLE_OK) {
    const bool bad_url = code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL;
    const std::string what = reason[0] != '\0' ? reason : curl_easy_strerror(code);
    return Error{bad_url ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable, request.url + ": " + what};
  }
  if (char* redirect = nullptr;
      curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &redirect) == CURLE_OK && redirect != nullptr) {
    transfer.response.redirect_url = redirect;
  }
  return std::move(transfer.response);
}

Result<HttpOrigin> OriginOf(const std::string& url) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parsed(curl_url(), curl_url_cleanup);
  HttpOrigin origin;
  const auto part = [&](CURLUPart which, unsigned flags, std::string& out) {
    char* text = nullptr;
    if (curl_url_get(parsed.get(), which, &text, flags) != CURLUE_OK) return false;
    out = Lower(text);
    curl_free(text);
    return true;
  };
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK ||
      !part(CURLUPART_SCHEME, 0, origin.scheme) || !part(CURLUPART_HOST, 0, origin.host) ||
      !part(CURLUPART_PORT, CURLU_DEFAULT_PORT, origin.port) || (origin.scheme != "http" && origin.scheme != "https")) {
    return Error{ErrorCode::kInvalidArgument, "'" + url + "' is not an http or https address"};
  }
  return origin;
}

}  // namespace pith
