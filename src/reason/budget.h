// The budget of a response: one number for all of its generated tokens, thoughts and answer, forced ones too (rule 4 of
// the design). One state machine by token id, used for generating, streaming, parsing and evaluation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/stop_strings.h"
#include "model/tokenizer.h"
#include "reason/think_tags.h"

namespace pith {

enum class FinishReason {
  kStop,       // it ended by itself: end token, stop string
  kLength,     // the budget was reached
  kContext,    // the context was full before the budget was reached
  kCancelled,  // by the caller
  kDecided,    // the vote was decided without it
};
const char* FinishReasonName(FinishReason reason);  // "stop", "length", "context", "cancelled", "decided"

// What is forced, as token ids.
struct ForcedTokens {
  std::vector<int32_t> open;    // at the beginning in reasoning mode: "<think>\n"
  std::vector<int32_t> close;   // at the cap in thoughts: "\n</think>\n\n" and the answer prefix
  std::vector<int32_t> answer;  // at the cap in the answer: "\n\n" and the answer prefix
  std::string marker;           // an answer that holds this text is under way: nothing is forced into it
  bool operator==(const ForcedTokens&) const = default;
};

struct BudgetPlan {
  // Never more than so many tokens; 0 gives an empty response.
  int64_t cap = 512;
  FinishReason at_cap = FinishReason::kLength;  // or kContext
  // Make it answer: when only `reserve` tokens and what is to be forced still fit, thoughts are closed and the answer
  // prefix is forced; the reserve is for the rest of the answer. Where the cap is too small for all that, the reserve
  // shrinks first (never above a quarter of the cap), then what is forced is cut at the cap. Also when a response ends
  // inside its thoughts.
  bool force_answer = false;
  int64_t reserve = 32;
};

struct ResponseOptions {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ForcedTokens> forced;  // null = nothing is ever forced
  BudgetPlan plan;
  bool force_open = false;        // reasoning mode: forced->open comes first
  bool thinking = false;          // the prompt has opened the thoughts already
  std::vector<int32_t> stop_ids;  // end tokens; empty = none ends it
  std::vector<std::string> stop;  // stop strings; they act on the visible answer, and not on forced text
  // Text as it comes; `thought` tells which part it belongs to. Tags are not passed on. Never a part of a character.
  std::function<void(std::string_view text, bool thought)> on_text;
};

// One response under way. The caller asks forced() first; only when that is empty and it is not done() does it sample.
//
//   while (!response.done()) {
//     if (!response.forced().empty()) feed(response.TakeForced());
//     else response.Push({&token, 1});
//   }
class Response {
 public:
  explicit Response(ResponseOptions options);
  Response(const Response&) = delete;
  Response& operator=(const Response&) = delete;

  // Tokens that come next whatever the model wants; they bypass sampler, penalties and stop strings.
  std::span<const int32_t> forced() const { return next_forced_; }
  std::vector<int32_t> TakeForced();

  // Takes sampled tokens, one after the other, until something is to be forced or it is done; returns how many were
  // taken. An end token is taken but is no part of the response. Nothing is taken while forced() is not empty.
  size_t Push(std::span<const int32_t> tokens);

  // Ends it from outside (kCancelled, kDecided). Nothing happens when it is done.
  void Finish(FinishReason reason);

  bool done() const { return done_; }
  FinishReason finish() const { return finish_; }         // when done
  bool thinking() const { return splitter_.thinking(); }  // ends inside thoughts
  bool answer_forced() const { return answer_forced_; }   // the answer prefix was forced
  // When done: the visible answer did not come to its own end (end token, stop string, closed box).
  bool truncated() const { return truncated_; }

  const std::vector<int32_t>& tokens() const { return tokens_; }  // all, forced ones too, without the end token
  const std::string& text() const { return text_; }               // the visible answer
  const std::string& reasoning() const { return reasoning_; }     // the thoughts
  int64_t reasoning_tokens() const { return reasoning_tokens_; }  // tags included
  int64_t answer_tokens() const { return static_cast<int64_t>(tokens_.size()) - reasoning_tokens_; }

 private:
  void Append(int32_t token);
  void Show(std::string_view text, bool thought);
  void Force();
  void CheckBudget();
  bool AnswerUnderWay() const;
  void End(FinishReason reason, bool truncated);
  // How many tokens may be sampled before something has to be forced.
  int64_t FreeTokens() const;

  ResponseOptions options_;
  IncrementalDetokenizer detokenizer_;
  ThinkSplitter splitter_;
  StopMatcher stops_;
  int32_t open_id_ = -1;  // ids of the tags, where the vocabulary has them
  int32_t close_id_ = -1;
  std::vector<int32_t> next_forced_;
  bool forcing_ = false;    // text that comes now was forced
  bool in_cap_ = false;     // the budget has fired
  bool may_force_ = false;  // an answer may still be forced
  bool answer_forced_ = false;
  int open_braces_ = 0;   // of the forced prefix: the response ends when they are closed
  bool closed_ = false;   // they are
  bool escaped_ = false;  // after a backslash
  bool done_ = false;
  bool truncated_ = false;
  FinishReason finish_ = FinishReason::kStop;
  std::vector<int32_t> tokens_;
  std::string text_;
  std::string reasoning_;
  int64_t reasoning_tokens_ = 0;
  int64_t waiting_tokens_ = 0;  // the last tokens, all of whose text may become an opening tag
};

// Thoughts and answer of a stored response, by the same machine.
struct ParsedResponse {
  std::string text;
  std::string reasoning;
  int64_t reasoning_tokens = 0;
  bool thinking = false;  // it ends inside its thoughts
};
ParsedResponse ParseResponse(const std::shared_ptr<const Tokenizer>& tokenizer, std::span<const int32_t> tokens,
                             bool thinking = false);

// True when a prompt ends with an opened think tag (a template may write it): the response begins inside thoughts.
bool PromptOpensThinking(const Tokenizer& tokenizer, std::span<const int32_t> prompt);

}  // namespace pith
