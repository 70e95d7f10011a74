#include "support/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace pith::testing {

namespace {

void SendAll(int connection, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = ::send(connection, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;  // the client has gone; tests see that on their side
    sent += static_cast<size_t>(count);
  }
}

ServedRequest ParseRequest(const std::string& head) {
  ServedRequest request;
  const size_t line_end = head.find("\r\n");
  const std::string line = head.substr(0, line_end);
  const size_t first = line.find(' ');
  const size_t second = line.find(' ', first + 1);
  request.method = line.substr(0, first);
  request.path = line.substr(first + 1, second - first - 1);
  for (size_t begin = line_end + 2; begin < head.size();) {
    const size_t end = std::min(head.find("\r\n", begin), head.size());
    const std::string header = head.substr(begin, end - begin);
    if (const size_t colon = header.find(':'); colon != std::string::npos) {
      std::string name = header.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      const size_t value = header.find_first_not_of(' ', colon + 1);
      request.headers[name] = value == std::string::npos ? "" : header.substr(value);
    }
    begin = end + 2;
  }
  const std::string range = request.Header("range");
  if (range.rfind("bytes=", 0) == 0) {
    uint64_t first = 0;
    const auto [end, error] = std::from_chars(range.data() + 6, range.data() + range.size(), first);
    if (error == std::errc() && *end == '-') request.range_begin = first;
  }
  return request;
}

}  // namespace

ServedReply ServeFile(const std::string& content, const ServedRequest& request) {
  if (request.range_begin == 0) return {.body = content};
  if (request.range_begin >= content.size()) {
    return {.status = 416, .headers = {{"Content-Range", "bytes */" + std::to_string(content.size())}}};
  }
  return {.status = 206,
          .headers = {{"Content-Range", "bytes " + std::to_string(request.range_begin) + "-" +
                                            std::to_string(content.size() - 1) + "/" + std::to_string(content.size())}},
          .body = content.substr(request.range_begin)};
}

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool listening =
      ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && ::listen(listener_, 16) == 0 &&
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0 && ::pipe(stop_) == 0;
  EXPECT_TRUE(listening) << "no loopback server";
  ::setenv("no_proxy", "127.0.0.1", 1);  // a proxy of the environment has no business here
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Serve(); });
}

HttpServer::~HttpServer() {
  ::close(stop_[1]);
  thread_.join();
  ::close(stop_[0]);
  ::close(listener_);
}

std::vector<ServedRequest> HttpServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void HttpServer::Serve() {
  while (true) {
    pollfd waiting[2] = {{listener_, POLLIN, 0}, {stop_[0], POLLIN, 0}};
    if (::poll(waiting, 2, -1) < 0) continue;
    if (waiting[1].revents != 0) return;
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    Answer(connection);
    ::close(connection);
  }
}

void HttpServer::Answer(int connection) {
  std::string head;
  char buffer[4096];
  while (head.find("\r\n\r\n") == std::string::npos) {
    const ssize_t count = ::recv(connection, buffer, sizeof(buffer), 0);
    if (count <= 0) return;
    head.append(buffer, static_cast<size_t>(count));
  }
  const ServedRequest request = ParseRequest(head);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  const ServedReply reply = handler_(request);
  std::string out = "HTTP/1.1 " + std::to_string(reply.status) + " x\r\nConnection: close\r\n";
  for (const auto& [name, value] : reply.headers) out += name + ": " + value + "\r\n";
  if (reply.send_length) {
    out += "Content-Length: " + std::to_string(reply.claimed_length.value_or(reply.body.size())) + "\r\n";
  }
  SendAll(connection, out + "\r\n" + reply.body.substr(0, reply.cut_after.value_or(reply.body.size())));
  // Let the client read what was sent: closing with unread input would reset the connection.
  ::shutdown(connection, SHUT_WR);
  while (::recv(connection, buffer, sizeof(buffer), 0) > 0) {
  }
}

}  // namespace pith::testing
