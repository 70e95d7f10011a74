// An HTTP server on the loopback interface that answers as a test tells it to, faults included.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pith::testing {

struct ServedRequest {
  std::string method;
  std::string path;                            // with the query
  std::map<std::string, std::string> headers;  // names in lower case
  uint64_t range_begin = 0;                    // of "Range: bytes=N-"; 0 without one

  std::string Header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct ServedReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
  std::optional<uint64_t> claimed_length = {};  // Content-Length, when it is a lie
  bool send_length = true;                      // false: the end of the connection is the end of the body
  std::optional<size_t> cut_after = {};         // close the connection after so many bytes of the body
};

// A well-behaved answer with (the wanted range of) a file.
ServedReply ServeFile(const std::string& content, const ServedRequest& request);

class HttpServer {
 public:
  using Handler = std::function<ServedReply(const ServedRequest&)>;

  // Listens on 127.0.0.1 with a port of the system's choice; answers one connection at a time, one request each.
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<ServedRequest> requests() const;  // so far

 private:
  void Serve();
  void Answer(int connection);
  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  int stop_[2] = {-1, -1};
  mutable std::mutex mutex_;
  std::vector<ServedRequest> requests_;
  std::thread thread_;
};

}  // namespace pith::testing
