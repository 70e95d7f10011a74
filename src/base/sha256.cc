#include "base/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

namespace pith {

struct Digest::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

namespace {

const EVP_MD* Algorithm(DigestKind kind) { return kind == DigestKind::kSha1 ? EVP_sha1() : EVP_sha256(); }

}  // namespace

Digest::Digest(DigestKind kind) : kind_(kind), state_(std::make_unique<State>()) {
  EVP_DigestInit_ex(state_->context, Algorithm(kind_), nullptr);
}

Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::Update(std::span<const std::byte> bytes) { EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()); }

std::string Digest::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> raw{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(state_->context, raw.data(), &size);
  EVP_DigestInit_ex(state_->context, Algorithm(kind_), nullptr);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += kDigits[raw[i] >> 4];
    hex += kDigits[raw[i] & 15];
  }
  return hex;
}

std::string Sha256Hex(std::span<const std::byte> bytes) {
  Digest digest;
  digest.Update(bytes);
  return digest.Finish();
}

Result<std::string> Sha256OfFile(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
    return Error{code, "cannot open '" + path + "': " + std::strerror(errno)};
  }
  Digest digest;
  std::vector<std::byte> buffer(size_t{1} << 20);
  size_t count;
  while ((count = std::fread(buffer.data(), 1, buffer.size(), file)) > 0) digest.Update({buffer.data(), count});
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return Error{ErrorCode::kIo, "cannot read '" + path + "'"};
  return digest.Finish();
}

}  // namespace pith
