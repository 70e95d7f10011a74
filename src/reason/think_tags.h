// Where thoughts begin and end in generated text. The one definition, for streaming, budget and evaluation.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace pith {

inline constexpr std::string_view kThinkOpenTag = "<think>";
inline constexpr std::string_view kThinkCloseTag = "</think>";
// What is forced as the first response tokens in reasoning mode.
inline constexpr std::string_view kThinkOpen = "<think>\n";
// What ends thoughts, where it is forced and in training data.
inline constexpr std::string_view kThinkClose = "\n</think>\n\n";

// Splits streamed text in thoughts and answer. The result does not depend on how the text is cut into pieces.
//
// - In thoughts, "</think>" ends them, unless it is a mention: enclosed directly in a pair of equal quote marks (` " or
// ').
// - In the answer, "<think>" at the beginning of the answer or of a line opens thoughts again.
// - Line breaks right after a tag belong to neither part.
//
// A model whose vocabulary has tokens of its own for the tags means those tokens, and only those: then the text is not
// searched, and Switch tells where they were.
class ThinkSplitter {
 public:
  using Sink = std::function<void(std::string_view text, bool thought)>;

  // `thinking`: whether the text begins inside thoughts.
  ThinkSplitter(bool thinking, Sink sink) : thinking_(thinking), skip_breaks_(thinking), sink_(std::move(sink)) {}

  void Push(std::string_view text);
  // The end of the text: what was held back because it could have become a tag.
  void Flush();
  // Tags are tokens of their own: the text is not searched.
  void SearchNothing() { search_ = false; }
  // A tag came as a token of its own.
  void Switch(bool thinking);

  // Whether what was pushed so far ends inside thoughts. A closing tag after a quote mark counts as one until the same
  // mark follows it.
  bool thinking() const { return thinking_ && !HoldsClosingTag(); }
  // The answer to thinking() may still be taken back by the next character.
  bool undecided() const { return HoldsClosingTag(); }
  // Text is held back because it may become a tag.
  bool holding() const { return !held_.empty(); }

 private:
  bool HoldsClosingTag() const { return thinking_ && held_ == kThinkCloseTag; }
  void Take(char c);
  void Emit(char c);
  void SendOut();

  bool thinking_;
  bool search_ = true;
  bool skip_breaks_;  // right after a tag
  Sink sink_;
  char last_ = '\n';  // the character before held_; a line break at the beginning of a part
  std::string held_;  // a prefix of the tag that matters now, or that whole tag after a quote mark
  std::string out_;   // text of the part under way that was not sent yet
};

}  // namespace pith
