// Byte-level BPE tokenizer, from a Hugging Face tokenizer.json or from GGUF metadata.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace pith {

class GgufFile;

// A half-open byte range of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

struct EncodeOptions {
  // Whether added tokens marked "special" are recognised in the text. Off for text that comes from a user.
  bool parse_special = false;
  // With parse_special: special tokens are recognised only when they lie wholly inside one of these byte ranges of the
  // text. Empty = everywhere. The chat template passes the ranges that the template itself wrote.
  std::span<const TextRange> special_ranges = {};
  // Whether the post-processor's BOS (if the tokenizer has one, e.g. Llama 3) is put in front.
  bool add_bos = false;
};

// Thread-safe after construction. Ids are those of transformers' fast tokenizers.
class Tokenizer {
 public:
  // Text of a tokenizer.json. `what` names the file in errors.
  static Result<std::shared_ptr<const Tokenizer>> FromJson(std::string_view json, const std::string& what);
  static Result<std::shared_ptr<const Tokenizer>> FromGguf(const GgufFile& gguf);

  virtual ~Tokenizer() = default;

  // Linear time in the length of the text. Invalid UTF-8 is encoded as U+FFFD, as Python's errors="replace" does.
  virtual Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const = 0;

  // Bytes that a token stands for (a token may hold a part of a character). Out-of-range ids give an empty string.
  virtual std::string_view TokenBytes(int32_t id) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  // Id of a token by its text ("<|im_end|>", "<think>"), or -1. Added tokens first, then the vocabulary (text form).
  virtual int32_t FindToken(std::string_view text) const = 0;
  virtual int32_t size() const = 0;    // highest id + 1
  virtual int32_t bos_id() const = 0;  // -1 = none

  // Bytes of all tokens; special tokens are skipped when asked. May end in a partial character.
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;
};

// Turns tokens into text one at a time without ever emitting a part of a UTF-8 character. Bytes that can never become a
// valid character come out as U+FFFD after at most 4 bytes.
class IncrementalDetokenizer {
 public:
  explicit IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  std::string Push(int32_t id);  // text that became complete with this token (may be empty)
  std::string Flush();           // whatever is left, invalid bytes as U+FFFD

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace pith
