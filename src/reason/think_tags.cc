#include "reason/think_tags.h"

#include <utility>

namespace pith {
namespace {

bool IsQuote(char c) { return c == '`' || c == '"' || c == '\''; }

}  // namespace

void ThinkSplitter::Push(std::string_view text) {
  for (const char c : text) {
    if (search_) {
      Take(c);
    } else {
      Emit(c);
    }
  }
  SendOut();
}

void ThinkSplitter::Flush() {
  if (HoldsClosingTag()) {
    held_.clear();
    Switch(false);
  }
  for (const char c : std::exchange(held_, {})) Emit(c);
  SendOut();
}

void ThinkSplitter::Switch(bool thinking) {
  for (const char c : std::exchange(held_, {})) Emit(c);
  SendOut();
  thinking_ = thinking;
  skip_breaks_ = true;
  last_ = '\n';
}

void ThinkSplitter::Take(char c) {
  held_ += c;
  // Each round settles held_ or gives its first character away; a tag has its '<' only in front, so little is redone.
  while (!held_.empty()) {
    const std::string_view tag = thinking_ ? kThinkCloseTag : kThinkOpenTag;
    if (held_.size() < tag.size() && tag.starts_with(held_)) return;  // may still become the tag
    if (held_.starts_with(tag)) {
      const bool quoted = IsQuote(last_);
      const bool counts = thinking_ ? !quoted : last_ == '\n';
      if (held_.size() == tag.size()) {
        if (thinking_ && quoted) return;  // the next character tells
        if (counts) {
          held_.clear();
          Switch(!thinking_);
          return;
        }
      } else if (held_.back() != last_) {
        const char next = held_.back();
        held_.clear();
        Switch(false);
        held_ = next;
        continue;
      }
    }
    Emit(held_.front());
    held_.erase(0, 1);
  }
}

void ThinkSplitter::Emit(char c) {
  last_ = c;
  if (skip_breaks_ && c == '\n') return;
  skip_breaks_ = false;
  out_ += c;
}

void ThinkSplitter::SendOut() {
  if (out_.empty()) return;
  const std::string text = std::exchange(out_, {});
  if (sink_) sink_(text, thinking_);
}

}  // namespace pith
