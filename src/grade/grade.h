// Grading: takes the final answer out of a response and decides whether two answers are the same answer.
//
// The written policy (which text is the answer, what counts as equal, in which direction) is docs/grading.md. In short:
// an answer is parsed into a small expression tree, numbers are exact rationals, symbolic expressions are compared by
// evaluating both at several points with a tracked error bound, and no tolerance ever makes two exact numbers equal.
//
// Every function here is thread-safe, never throws, and does bounded work whatever the input (limits on text length,
// tree size, depth, bits of a number and evaluation steps). Where a limit stops the decision the verdict is kTooHard,
// which is not the same as kDifferent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pith {

enum class Verdict : uint8_t {
  kEqual,
  kDifferent,
  kTooHard,   // a limit on work was met before a decision
  kNoAnswer,  // one of the two sides holds no answer
};
// "equal", "different", "too_hard", "no_answer".
const char* VerdictName(Verdict verdict);

// By which rule of the policy an answer was found.
enum class AnswerSource : uint8_t {
  kBox,     // \boxed{...} or \fbox{...}, or several of them joined by "and" or commas
  kStated,  // "the answer is ...", "Final answer: ...", "#### ...", <answer>...</answer> and their like
  kWhole,   // the whole text is one expression or one short phrase
  kLast,    // the last formula or number of the text
};
// "box", "stated", "whole", "last".
const char* AnswerSourceName(AnswerSource source);

struct ExtractedAnswer {
  std::string text;  // as written, without its markup (box, dollar signs, bold)
  AnswerSource source = AnswerSource::kLast;
};

struct ExtractOptions {
  // The response was cut off (token cap): only a closed box or a stated answer counts, never the last number.
  bool truncated = false;
};

// The final answer of a response, or nothing. Text inside a think block is never an answer: of a response with </think>
// only what follows the last one is read; an unclosed <think> leaves nothing.
std::optional<ExtractedAnswer> ExtractAnswer(std::string_view response, const ExtractOptions& options = {});

// True when a response ends in the middle of something that an answer could be in: an unclosed <think> or an unclosed
// box.
bool LooksTruncated(std::string_view response);

// An answer text, parsed once. Immutable and cheap to copy; may be shared between threads.
class Answer {
 public:
  Answer() = default;                      // no answer
  explicit Answer(std::string_view text);  // an answer as ExtractAnswer gives it, not a whole response
  bool empty() const { return form_ == nullptr; }
  const std::string& text() const;  // as given; empty when there is none

 private:
  friend Verdict CompareAnswers(const Answer& gold, const Answer& predicted);
  friend bool SameAnswer(const Answer& a, const Answer& b);
  std::shared_ptr<const struct AnswerForm> form_;
};

// Whether `predicted` answers what `gold` answers. Reflexive. Symmetric but for the directed rules of docs/grading.md
// (a solved set may stand for the inequality that the key states, but not the inequality for the set).
Verdict CompareAnswers(const Answer& gold, const Answer& predicted);
// The same from texts; each must be an answer, not a whole response.
Verdict CompareAnswers(std::string_view gold, std::string_view predicted);

// Whether two answers are one candidate of a vote: symmetric; narrower than CompareAnswers where that one accepts
// several readings of one text (a percentage counts as the number before its sign). False when either is empty.
bool SameAnswer(const Answer& a, const Answer& b);

// Answers grouped into candidates. The partition does not depend on the order of the answers: two are in one class when
// a chain of SameAnswer links them.
struct AnswerClasses {
  // Per answer: its class, numbered from 0 in order of first appearance; -1 for an empty answer.
  std::vector<int> class_of;
  // Per class: the shortest text of its members, of equally short ones the first in byte order: independent of their
  // order.
  std::vector<std::string> representative;
};
AnswerClasses ClassifyAnswers(std::span<const Answer> answers);

// The answer that a key states: what stands in the box or statement of a solution, else all of it. A key is never cut
// down to its last number. Nothing when it is blank.
std::optional<ExtractedAnswer> GoldAnswer(std::string_view gold);

struct GradeResult {
  Verdict verdict = Verdict::kNoAnswer;
  std::optional<ExtractedAnswer> gold;
  std::optional<ExtractedAnswer> predicted;
  bool truncated = false;  // ExtractOptions::truncated, or the response looks it
  bool correct() const { return verdict == Verdict::kEqual; }
};
// Extracts from both sides (the key may be a whole solution, or a bare answer) and compares.
GradeResult Grade(std::string_view gold, std::string_view response, const ExtractOptions& options = {});

}  // namespace pith
