// One HTTP request over libcurl, with errors as values. Redirects, retries and resuming are decided by the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"

namespace pith {

struct HttpRequest {
  std::string url;           // http or https
  std::string bearer_token;  // sent as Authorization; empty = none
  uint64_t range_begin = 0;  // first byte wanted; 0 = the whole
  long connect_timeout_ms = 5000;
  long stall_timeout_s = 30;  // give up when less than one byte per second arrives for so long
};

struct HttpResponse {
  long status = 0;
  std::map<std::string, std::string> headers;  // names in lower case; the last one of equal names
  std::string redirect_url;                    // absolute; empty unless the status is a redirect with a location

  std::optional<uint64_t> HeaderNumber(const std::string& name) const;  // nothing if absent or not a plain number
  std::string Header(const std::string& name) const;                    // "" if absent
};

// Called with each piece of the body once status and headers are known. An error stops the transfer and is returned.
using BodySink = std::function<Status(const HttpResponse&, std::span<const std::byte>)>;

// Runs the request to its end. A response of any status is a success here. kUnavailable: no connection, or it broke or
// stalled before the end of the body.
Result<HttpResponse> Fetch(const HttpRequest& request, const BodySink& sink);

// Scheme, host and port, for deciding whether credentials may travel.
struct HttpOrigin {
  std::string scheme;
  std::string host;
  std::string port;
  bool operator==(const HttpOrigin&) const = default;
  bool loopback() const { return host == "127.0.0.1" || host == "localhost" || host == "[::1]"; }
};
// kInvalidArgument unless the URL is http or https and has a host.
Result<HttpOrigin> OriginOf(const std::string& url);

}  // namespace pith
