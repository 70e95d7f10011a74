#include "model/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <mutex>

namespace pith {

namespace {

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using CodePtr = std::unique_ptr<pcre2_code, CodeDeleter>;

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

// `shown` is the pattern as the user knows it, for errors.
Result<CodePtr> CompileCode(std::string_view pattern, bool literal, std::string_view shown) {
  uint32_t flags = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
  flags = literal ? PCRE2_UTF | PCRE2_LITERAL : flags | PCRE2_UCP;
  int error = 0;
  PCRE2_SIZE offset = 0;
  CodePtr code(pcre2_compile(Units(pattern), pattern.size(), flags, &error, &offset, nullptr));
  if (code == nullptr) {
    PCRE2_UCHAR message[128] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return Error{ErrorCode::kMalformed, "the pre-tokenizer pattern '" + std::string(shown.substr(0, 200)) +
                                            "' does not compile: " + reinterpret_cast<const char*>(message)};
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return Error{ErrorCode::kUnsupported,
                 "the pre-tokenizer pattern '" + std::string(shown.substr(0, 200)) + "' can match nothing at all"};
  }
  // Where the processor or the system allows no JIT, the interpreter gives the same matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

}  // namespace

struct SplitRegex::Code {
  CodePtr usual;
  // The slower pattern for texts with characters newer than PCRE2's tables; compiled when the first such text comes.
  std::string recent_pattern;
  mutable std::once_flag recent_once;
  mutable CodePtr recent;

  const pcre2_code* ForText(std::string_view text) const {
    if (recent_pattern.empty() || !HasRecentLetters(text)) return usual.get();
    std::call_once(recent_once, [&] {
      auto compiled = CompileCode(recent_pattern, false, recent_pattern);
      if (compiled.ok()) recent = std::move(compiled).value();
    });
    return recent != nullptr ? recent.get() : usual.get();
  }
};

SplitRegex::SplitRegex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SplitRegex::~SplitRegex() = default;

Result<std::shared_ptr<const SplitRegex>> SplitRegex::Make(std::string_view pattern, bool literal) {
  auto code = std::make_unique<Code>();
  if (literal) {
    if (pattern.empty()) return Error{ErrorCode::kUnsupported, "a pre-tokenizer splits at the empty string"};
    PITH_ASSIGN(code->usual, CompileCode(pattern, true, pattern));
  } else {
    PITH_ASSIGN(const std::string usual, TranslatePattern(pattern, false));
    PITH_ASSIGN(code->recent_pattern, TranslatePattern(pattern, true));
    if (code->recent_pattern == usual) code->recent_pattern.clear();
    PITH_ASSIGN(code->usual, CompileCode(usual, false, pattern));
  }
  return std::shared_ptr<const SplitRegex>(new SplitRegex(std::move(code)));
}

Result<std::shared_ptr<const SplitRegex>> SplitRegex::Compile(std::string_view pattern) { return Make(pattern, false); }

Result<std::shared_ptr<const SplitRegex>> SplitRegex::CompileLiteral(std::string_view text) { return Make(text, true); }

struct SplitRegex::Searcher::State {
  const pcre2_code* code = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

SplitRegex::Searcher::Searcher(const SplitRegex& regex, std::string_view whole_text)
    : state_(std::make_unique<State>()) {
  state_->code = regex.code_->ForText(whole_text);
  state_->data = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  if (state_->context == nullptr) return;
  // Real patterns need a few steps per byte; these limits stop patterns made to explode.
  constexpr uint32_t kMatchLimit = 50'000'000;
  constexpr uint32_t kHeapLimitKib = 256 << 10;
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_heap_limit(state_->context, kHeapLimitKib);
}

SplitRegex::Searcher::~Searcher() = default;

Result<bool> SplitRegex::Searcher::Find(std::string_view piece, size_t from, size_t* begin, size_t* end) {
  if (state_->data == nullptr || state_->context == nullptr) {
    return Error{ErrorCode::kInternal, "no memory for a regular expression search"};
  }
  int found =
      pcre2_match(state_->code, Units(piece), piece.size(), from, PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT && state_->stack == nullptr) {
    constexpr size_t kStackStart = 64 << 10;
    constexpr size_t kStackMax = 64 << 20;
    state_->stack = pcre2_jit_stack_create(kStackStart, kStackMax, nullptr);
    pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
    found =
        pcre2_match(state_->code, Units(piece), piece.size(), from, PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  }
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    PCRE2_UCHAR message[128] = {};
    pcre2_get_error_message(found, message, sizeof(message));
    return Error{ErrorCode::kUnsupported, std::string("a pre-tokenizer pattern is too costly on this text: ") +
                                              reinterpret_cast<const char*>(message)};
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state_->data);
  *begin = range[0];
  *end = range[1];
  return true;
}

}  // namespace pith
