#include "model/tokenizer.h"
#include "model/utf8.h"

namespace pith {

namespace {

// Moves everything from `pending` that is decided: whole characters, and U+FFFD for what can never become one. At most
// 3 bytes, the start of a character that may still be completed, stay.
std::string TakeDecided(std::string* pending) {
  std::string text;
  size_t at = 0;
  while (at < pending->size()) {
    const Utf8Character character = DecodeUtf8(*pending, at);
    if (character.state == Utf8State::kTruncated) break;
    if (character.state == Utf8State::kValid) {
      text.append(*pending, at, character.length);
    } else {
      text += kReplacementUtf8;
    }
    at += character.length;
  }
  pending->erase(0, at);
  return text;
}

}  // namespace

std::string IncrementalDetokenizer::Push(int32_t id) {
  if (skip_special_ && tokenizer_->IsSpecial(id)) return {};
  pending_ += tokenizer_->TokenBytes(id);
  return TakeDecided(&pending_);
}

std::string IncrementalDetokenizer::Flush() {
  std::string text = TakeDecided(&pending_);
  if (!pending_.empty()) text += kReplacementUtf8;  // the start of one character
  pending_.clear();
  return text;
}

}  // namespace pith
