#include "base/result.h"

namespace pith {

const char* ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kMalformed: return "malformed";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kContextOverflow: return "context_overflow";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kNumeric: return "numeric";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kInternal: return "internal";
  }
  return "internal";
}

int ExitCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return 2;
    case ErrorCode::kNotFound: return 3;
    case ErrorCode::kIo: return 4;
    case ErrorCode::kMalformed: return 5;
    case ErrorCode::kUnsupported: return 6;
    case ErrorCode::kMismatch: return 7;
    case ErrorCode::kContextOverflow: return 8;
    case ErrorCode::kCancelled: return 9;
    case ErrorCode::kNumeric: return 10;
    case ErrorCode::kUnavailable: return 11;
    case ErrorCode::kInternal: return 12;
  }
  return 12;
}

}  // namespace pith
