// Errors as values: every fallible function at an edge of the program returns Result<T> (or Status).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace pith {

// What kind of failure it is. The command line maps each code to an exit status (see ExitCode).
enum class ErrorCode {
  kInvalidArgument,  // a request, option or value that can never be right
  kNotFound,         // a file, model, tensor or key that is not there
  kIo,               // reading or writing failed
  kMalformed,        // a file or message that breaks its own format
  kUnsupported,      // well formed, but not something this program can run
  kMismatch,         // two things that must agree do not (checksum, shape, provenance)
  kContextOverflow,  // more tokens than the context holds
  kCancelled,        // stopped by the caller
  kNumeric,          // NaN or infinity where a finite number is needed
  kUnavailable,      // network or registry cannot be reached
  kInternal,         // a defect of this program
};

// Short stable name of a code ("malformed", "not_found", ...), used in JSON output.
const char* ErrorCodeName(ErrorCode code);
// Exit status of the command line for a code: 1..63, stable (docs/cli.md lists them).
int ExitCode(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // names the offending thing; one sentence, no trailing newline

  // The same error with "context: " in front of the message.
  Error Wrap(const std::string& context) const { return {code, context + ": " + message}; }
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const Error& error() const { return std::get<1>(state_); }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Error> state_;
};

// Result without a value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

// The error of a failed Result or Status, for passing on.
inline Error ErrorOf(const Status& status) { return status.error(); }
template <class T>
Error ErrorOf(const Result<T>& result) {
  return result.error();
}

}  // namespace pith

#define PITH_CONCAT_INNER(a, b) a##b
#define PITH_CONCAT(a, b) PITH_CONCAT_INNER(a, b)

// PITH_RETURN_IF_ERROR(expr): returns the error of a Status or Result from the enclosing function.
#define PITH_RETURN_IF_ERROR(expr)                      \
  do {                                                  \
    if (auto pith_status = (expr); !pith_status.ok()) { \
      return ::pith::ErrorOf(pith_status);              \
    }                                                   \
  } while (false)

// PITH_ASSIGN(auto x, expr): x = value of the Result, or returns its error from the enclosing function.
#define PITH_ASSIGN(declaration, expr) PITH_ASSIGN_IMPL(PITH_CONCAT(pith_result_, __LINE__), declaration, expr)
#define PITH_ASSIGN_IMPL(temporary, declaration, expr)    \
  auto temporary = (expr);                                \
  if (!temporary.ok()) return ::pith::ErrorOf(temporary); \
  declaration = std::move(temporary).value()
