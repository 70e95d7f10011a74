// SHA-256 and SHA-1 digests of data that arrives in pieces (OpenSSL's libcrypto).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pith {

enum class DigestKind {
  kSha256,
  kSha1,  // only to check git object ids; not for security
};

class Digest {
 public:
  explicit Digest(DigestKind kind = DigestKind::kSha256);
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text) { Update(std::as_bytes(std::span(text.data(), text.size()))); }
  // Lower-case hex digits of everything so far; starts over.
  std::string Finish();

 private:
  struct State;
  DigestKind kind_;
  std::unique_ptr<State> state_;
};

// Lower-case hex SHA-256 of bytes held in memory, or of a file read in pieces (kNotFound, kIo).
std::string Sha256Hex(std::span<const std::byte> bytes);
Result<std::string> Sha256OfFile(const std::string& path);

}  // namespace pith
