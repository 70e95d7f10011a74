// A scripted engine and a small tokenizer: the execution policy without a model.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/tokenizer.h"
#include "reason/reason_model.h"
#include "reason/step_engine.h"

namespace pith::testing {

// Ids 0..255 are bytes, then the pieces that the test names. Encoding takes the longest piece at each place.
class PieceTokenizer final : public Tokenizer {
 public:
  // `pieces` begin at id 256; the first one is the end token and special.
  explicit PieceTokenizer(std::vector<std::string> pieces) {
    for (int byte = 0; byte < 256; ++byte) texts_.emplace_back(1, static_cast<char>(byte));
    for (auto& piece : pieces) texts_.push_back(std::move(piece));
  }
  static constexpr int32_t kEnd = 256;

  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions&) const override {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      int32_t best = static_cast<unsigned char>(text[0]);
      for (size_t id = 256; id < texts_.size(); ++id) {
        if (text.starts_with(texts_[id]) && texts_[id].size() > texts_[static_cast<size_t>(best)].size()) {
          best = static_cast<int32_t>(id);
        }
      }
      ids.push_back(best);
      text.remove_prefix(texts_[static_cast<size_t>(best)].size());
    }
    return ids;
  }
  std::string_view TokenBytes(int32_t id) const override {
    return id >= 0 && id < size() ? std::string_view(texts_[static_cast<size_t>(id)]) : std::string_view();
  }
  bool IsSpecial(int32_t id) const override { return id == kEnd; }
  int32_t FindToken(std::string_view text) const override {
    for (size_t id = 256; id < texts_.size(); ++id) {
      if (texts_[id] == text) return static_cast<int32_t>(id);
    }
    return -1;
  }
  int32_t size() const override { return static_cast<int32_t>(texts_.size()); }
  int32_t bos_id() const override { return -1; }

 private:
  std::vector<std::string> texts_;
};

inline std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text) {
  return *tokenizer.Encode(text, {});
}

// What a scripted model would say next: tokens with their logits; all others cannot be drawn.
using ScriptedLogits = std::vector<std::pair<int32_t, float>>;

// Uses real sequences (with keys and values of one byte or so), so forks, provenance and prefix reuse are the real
// ones.
class ScriptedEngine final : public StepEngine {
 public:
  ScriptedEngine(int32_t vocab, int64_t hidden) : vocab_(vocab), hidden_(hidden) {}

  // The next-token distribution after what a sequence holds, and the state of its last position.
  std::function<ScriptedLogits(std::span<const KvOrigin> so_far)> next;
  std::function<std::vector<float>(std::span<const KvOrigin> so_far)> state;
  int64_t context_limit = 4096;
  // Set: a step that holds this sequence length fails.
  std::function<bool(const StepItem& item)> fails;

  struct Step1 {
    std::vector<size_t> tokens;  // of each item
    size_t total = 0;
  };
  std::vector<Step1> steps;

  Sequence NewSequence() override { return Sequence(pool_); }
  int64_t context() const override { return context_limit; }
  int64_t hidden() const override { return hidden_; }

  Result<StepOutput> Step(std::span<const StepItem> items) override {
    if (items.empty()) return Error{ErrorCode::kInvalidArgument, "no items"};
    for (const StepItem& item : items) {
      if (item.tokens.empty()) return Error{ErrorCode::kInvalidArgument, "an item without tokens"};
      if (item.sequence->length() + static_cast<int64_t>(item.tokens.size()) > context_limit) {
        return Error{ErrorCode::kContextOverflow, "the context is full"};
      }
      if (fails && fails(item)) return Error{ErrorCode::kNumeric, "scripted fault"};
    }
    logits_.clear();
    states_.clear();
    Step1 record;
    for (const StepItem& item : items) {
      record.tokens.push_back(item.tokens.size());
      record.total += item.tokens.size();
      const auto before = static_cast<size_t>(item.sequence->length());
      item.sequence->Extend(item.tokens, item.adapter == nullptr ? 0 : item.adapter->id());
      const auto& origins = item.sequence->origins();
      for (size_t i = before; i < origins.size(); ++i) {
        const bool last = i + 1 == origins.size();
        const auto so_far = std::span(origins).first(i + 1);
        if (item.logits == Rows::kAll || (item.logits == Rows::kLast && last)) PushLogits(so_far);
        if (item.states == Rows::kAll || (item.states == Rows::kLast && last)) {
          const auto row = state ? state(so_far) : std::vector<float>(static_cast<size_t>(hidden_), 0.0F);
          states_.insert(states_.end(), row.begin(), row.end());
        }
      }
    }
    steps.push_back(record);
    return StepOutput{vocab_, hidden_, logits_, states_};
  }

  int64_t blocks_in_use() const { return pool_->blocks_in_use(); }

 private:
  void PushLogits(std::span<const KvOrigin> so_far) {
    const size_t begin = logits_.size();
    logits_.resize(begin + static_cast<size_t>(vocab_), -std::numeric_limits<float>::infinity());
    for (const auto& [token, logit] : next(so_far)) logits_[begin + static_cast<size_t>(token)] = logit;
  }

  int32_t vocab_;
  int64_t hidden_;
  std::shared_ptr<KvPool> pool_ =
      std::make_shared<KvPool>(KvShape{1, 1, 2, KvType::kF32}, KvIdentity{"scripted", KvType::kF32});
  std::vector<float> logits_;
  std::vector<float> states_;
};

// A model whose responses are written down. The prompt is any text. At its end one of `responses` is chosen by its
// first token (they must differ in it), each as likely as the others; then it goes on by itself. What the policy forces
// is taken as if the model had said it: where the response so far is no prefix of a script, the model says
// `after_forced`, then ends.
class ScriptedModel {
 public:
  explicit ScriptedModel(std::vector<std::string> pieces = DefaultPieces(), int64_t hidden = 4)
      : tokenizer(std::make_shared<PieceTokenizer>(std::move(pieces))), engine(tokenizer->size(), hidden) {
    engine.next = [this](std::span<const KvOrigin> so_far) { return Next(so_far); };
    model.engine = &engine;
    model.tokenizer = tokenizer;
    model.stop_ids = {PieceTokenizer::kEnd};
    EXPECT_TRUE(model.Finish().ok());
  }

  // The end token, and pieces that cut the tags as real vocabularies do.
  static std::vector<std::string> DefaultPieces() { return {"<|end|>", "</", "think", ">\n", ">\n\n", "\\box", "ed{"}; }

  std::vector<std::string> responses;
  std::string after_forced = "7}.";

  // The response so far, after the prompt; the prompt ends with this byte.
  static constexpr char kPromptEnd = '\x01';
  std::vector<int32_t> Prompt(std::string_view text) const { return Ids(*tokenizer, std::string(text) + kPromptEnd); }

  std::shared_ptr<const PieceTokenizer> tokenizer;
  ScriptedEngine engine;
  ReasonModel model;

 private:
  ScriptedLogits Next(std::span<const KvOrigin> so_far) const {
    std::string text;
    size_t begin = so_far.size();
    while (begin > 0 && so_far[begin - 1].token != kPromptEnd) --begin;
    for (const KvOrigin& origin : so_far.subspan(begin)) text += tokenizer->TokenBytes(origin.token);
    ScriptedLogits logits;
    for (const std::string& response : responses) {
      if (!response.starts_with(text)) continue;
      const auto rest = Ids(*tokenizer, std::string_view(response).substr(text.size()));
      const int32_t token = rest.empty() ? static_cast<int32_t>(PieceTokenizer::kEnd) : rest.front();
      if (std::none_of(logits.begin(), logits.end(), [&](const auto& entry) { return entry.first == token; })) {
        logits.emplace_back(token, 0.0F);
      }
    }
    if (!logits.empty()) return logits;
    // Something was forced: what is left of the text that follows it.
    for (size_t said = after_forced.size(); said > 0; --said) {
      if (text.ends_with("{" + after_forced.substr(0, said))) {
        const auto rest = Ids(*tokenizer, std::string_view(after_forced).substr(said));
        return {{rest.empty() ? static_cast<int32_t>(PieceTokenizer::kEnd) : rest.front(), 0.0F}};
      }
    }
    return {{Ids(*tokenizer, after_forced).front(), 0.0F}};
  }
};

}  // namespace pith::testing
