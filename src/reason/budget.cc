#include "reason/budget.h"

#include <algorithm>
#include <utility>

namespace pith {

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kContext: return "context";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kDecided: return "decided";
  }
  return "stop";
}

Response::Response(ResponseOptions options)
    : options_(std::move(options)),
      detokenizer_(options_.tokenizer),
      splitter_(options_.thinking, [this](std::string_view text, bool thought) { Show(text, thought); }),
      stops_(options_.stop) {
  const int32_t open = options_.tokenizer->FindToken(kThinkOpenTag);
  const int32_t close = options_.tokenizer->FindToken(kThinkCloseTag);
  if (open >= 0 && close >= 0) {
    open_id_ = open;
    close_id_ = close;
    splitter_.SearchNothing();
  }
  may_force_ = options_.plan.force_answer && options_.forced != nullptr;
  if (options_.plan.cap <= 0) {
    End(options_.plan.at_cap, true);
    return;
  }
  if (options_.force_open && options_.forced != nullptr) {
    next_forced_ = options_.forced->open;
    if (static_cast<int64_t>(next_forced_.size()) > options_.plan.cap) {
      next_forced_.resize(static_cast<size_t>(options_.plan.cap));
    }
  }
  if (next_forced_.empty()) CheckBudget();
}

std::vector<int32_t> Response::TakeForced() {
  std::vector<int32_t> taken = std::exchange(next_forced_, {});
  if (taken.empty()) return taken;
  forcing_ = true;
  for (const int32_t token : taken) Append(token);
  forcing_ = false;
  CheckBudget();
  return taken;
}

size_t Response::Push(std::span<const int32_t> tokens) {
  size_t taken = 0;
  while (taken < tokens.size() && !done_ && next_forced_.empty()) {
    const int32_t token = tokens[taken++];
    if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), token) != options_.stop_ids.end()) {
      const bool thinking = splitter_.thinking();
      if (thinking && may_force_) {
        Force();
      } else {
        End(in_cap_ ? options_.plan.at_cap : FinishReason::kStop, thinking);
      }
      continue;
    }
    Append(token);
    if (stops_.stopped() || closed_) {
      End(in_cap_ ? options_.plan.at_cap : FinishReason::kStop, false);
    } else {
      CheckBudget();
    }
  }
  return taken;
}

void Response::Finish(FinishReason reason) {
  if (!done_) End(reason, true);
}

void Response::Append(int32_t token) {
  const bool before = splitter_.thinking();
  tokens_.push_back(token);
  if (open_id_ >= 0 && (token == open_id_ || token == close_id_)) {
    splitter_.Push(detokenizer_.Flush());
    splitter_.Switch(token == open_id_);
  } else {
    splitter_.Push(detokenizer_.Push(token));
  }
  // The tokens that spell a tag belong to the thoughts; those of an opening one are known as such only at its end.
  const bool after = splitter_.thinking();
  if (before || after) {
    reasoning_tokens_ += before ? 1 : 1 + waiting_tokens_;
    waiting_tokens_ = 0;
  } else {
    waiting_tokens_ = splitter_.holding() ? waiting_tokens_ + 1 : 0;
  }
}

void Response::Show(std::string_view text, bool thought) {
  std::string shown(text);
  if (!thought) {
    if (!forcing_) shown = stops_.Push(text);
    if (answer_forced_) {
      for (const char c : shown) {
        const bool literal = std::exchange(escaped_, c == '\\' && !escaped_);
        if (literal) continue;
        if (c == '{') ++open_braces_;
        if (c == '}' && open_braces_ > 0 && --open_braces_ == 0 && !forcing_) closed_ = true;
      }
    }
  }
  if (shown.empty()) return;
  (thought ? reasoning_ : text_) += shown;
  if (options_.on_text) options_.on_text(shown, thought);
}

void Response::Force() {
  next_forced_ = splitter_.thinking() ? options_.forced->close : options_.forced->answer;
  const int64_t room = options_.plan.cap - static_cast<int64_t>(tokens_.size());
  if (static_cast<int64_t>(next_forced_.size()) > room) next_forced_.resize(static_cast<size_t>(room));
  may_force_ = false;
  // What a stop string held back is shown now: forced text completes none.
  const std::string held = stops_.Flush();
  stops_ = StopMatcher(options_.stop);
  if (!held.empty()) {
    text_ += held;
    if (options_.on_text) options_.on_text(held, false);
  }
  answer_forced_ = true;
}

int64_t Response::FreeTokens() const {
  const auto& plan = options_.plan;
  const auto& forced = splitter_.thinking() ? options_.forced->close : options_.forced->answer;
  const int64_t reserve = std::min(plan.reserve, plan.cap / 4);
  return plan.cap - static_cast<int64_t>(forced.size()) - reserve;
}

bool Response::AnswerUnderWay() const {
  const std::string& marker = options_.forced->marker;
  if (splitter_.thinking() || marker.empty()) return false;
  const size_t at = text_.rfind(marker);
  if (at == std::string::npos) return false;
  // An empty box is talk about boxes.
  return at + marker.size() == text_.size() || text_[at + marker.size()] != '}';
}

void Response::CheckBudget() {
  const auto used = static_cast<int64_t>(tokens_.size());
  if (used >= options_.plan.cap) {
    in_cap_ = true;
    End(options_.plan.at_cap, true);
    return;
  }
  if (!may_force_ || used < FreeTokens()) return;
  if (AnswerUnderWay()) {
    may_force_ = false;
    return;
  }
  in_cap_ = true;
  Force();
}

void Response::End(FinishReason reason, bool truncated) {
  splitter_.Push(detokenizer_.Flush());
  splitter_.Flush();
  if (!stops_.stopped()) {
    const std::string held = stops_.Flush();
    text_ += held;
    if (!held.empty() && options_.on_text) options_.on_text(held, false);
  }
  done_ = true;
  finish_ = reason;
  truncated_ = truncated;
}

ParsedResponse ParseResponse(const std::shared_ptr<const Tokenizer>& tokenizer, std::span<const int32_t> tokens,
                             bool thinking) {
  ResponseOptions options;
  options.tokenizer = tokenizer;
  options.thinking = thinking;
  options.plan.cap = INT64_MAX;
  Response response(std::move(options));
  response.Push(tokens);
  const bool ends_thinking = response.thinking();
  response.Finish(FinishReason::kStop);
  return {response.text(), response.reasoning(), response.reasoning_tokens(), ends_thinking};
}

bool PromptOpensThinking(const Tokenizer& tokenizer, std::span<const int32_t> prompt) {
  // The tag and line breaks after it are a handful of tokens, however they are cut.
  constexpr size_t kTail = 16;
  std::string tail;
  for (const int32_t id : prompt.subspan(prompt.size() - std::min(prompt.size(), kTail)))
    tail += tokenizer.TokenBytes(id);
  const size_t end = tail.find_last_not_of(" \n\r\t");
  return end != std::string::npos && std::string_view(tail).substr(0, end + 1).ends_with(kThinkOpenTag);
}

}  // namespace pith
