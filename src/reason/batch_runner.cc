#include "reason/batch_runner.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "reason/question_run.h"

namespace pith {

class BatchRunner::Impl {
 public:
  Impl(const ReasonModel& model, const BatchOptions& options) : model_(model), options_(options) {
    options_.prefill_tokens = std::max<int64_t>(options_.prefill_tokens, 1);  // or nothing would ever begin
  }

  bool HasRoom(int64_t streams) const {
    int64_t live = 0;
    for (const auto& entry : waiting_) live += entry.question.options.parallel;
    for (const auto& entry : active_) live += entry.run->live_streams();
    return (waiting_.empty() && active_.empty()) || live + streams <= options_.max_streams;
  }

  Status Add(uint64_t id, Question question) {
    PITH_RETURN_IF_ERROR(ValidateQuestion(model_, question));
    waiting_.push_back({id, std::move(question)});
    return {};
  }

  bool idle() const { return waiting_.empty() && active_.empty(); }

  std::vector<Finished> Step() {
    std::vector<Finished> finished;
    Admit(&finished);
    std::vector<std::pair<QuestionRun*, int64_t>> parts;
    std::vector<StepItem> items;
    Collect(&parts, &items);
    if (!items.empty()) {
      ++steps_;
      if (const auto output = model_.engine->Step(items); output.ok()) {
        Distribute(*output, parts, items);
      } else {
        OneByOne(parts, items);
      }
    }
    std::vector<Active> left;
    for (Active& entry : active_) {
      entry.run->EndStep();
      if (!entry.run->done()) {
        left.push_back(std::move(entry));
        continue;
      }
      tokens_of_finished_ += entry.run->generated_tokens();
      finished.push_back({entry.id, entry.run->Finish()});
    }
    active_ = std::move(left);
    return finished;
  }

  int64_t generated_tokens() const {
    int64_t tokens = tokens_of_finished_;
    for (const auto& entry : active_) tokens += entry.run->generated_tokens();
    return tokens;
  }
  int64_t steps() const { return steps_; }

 private:
  struct Waiting {
    uint64_t id;
    Question question;
  };
  struct Active {
    uint64_t id;
    std::unique_ptr<QuestionRun> run;
  };

  void Admit(std::vector<Finished>* finished) {
    int64_t live = 0;
    for (const auto& entry : active_) live += entry.run->live_streams();
    while (!waiting_.empty()) {
      const int64_t streams = waiting_.front().question.options.parallel;
      if (!active_.empty() && live + streams > options_.max_streams) return;
      Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      auto run = QuestionRun::Create(model_, std::move(next.question));
      if (!run.ok()) {
        finished->push_back({next.id, run.error()});
        continue;
      }
      live += streams;
      active_.push_back({next.id, *std::move(run)});
    }
  }

  void Collect(std::vector<std::pair<QuestionRun*, int64_t>>* parts, std::vector<StepItem>* items) {
    int64_t prefill = options_.prefill_tokens;
    std::vector<QuestionRun::Want> wants;
    for (const Active& entry : active_) {
      wants.clear();
      entry.run->Collect(&prefill, &wants);
      for (const QuestionRun::Want& want : wants) {
        parts->emplace_back(entry.run.get(), want.part);
        items->push_back(want.item);
      }
    }
  }

  // Rows come in the order of items, then tokens.
  static void Distribute(const StepOutput& output, std::span<const std::pair<QuestionRun*, int64_t>> parts,
                         std::span<const StepItem> items) {
    const auto vocab = static_cast<size_t>(output.vocab);
    const auto hidden = static_cast<size_t>(output.hidden);
    size_t logits_row = 0;
    size_t states_row = 0;
    const auto rows = [](Rows wanted, const StepItem& item) {
      return wanted == Rows::kAll ? item.tokens.size() : wanted == Rows::kLast ? size_t{1} : size_t{0};
    };
    for (size_t i = 0; i < items.size(); ++i) {
      const size_t logits = rows(items[i].logits, items[i]);
      const size_t states = rows(items[i].states, items[i]);
      parts[i].first->Take(parts[i].second, output.logits.subspan(logits_row * vocab, logits * vocab),
                           output.states.subspan(states_row * hidden, states * hidden));
      logits_row += logits;
      states_row += states;
    }
  }

  // A step that failed does not say which item was to blame: each is run alone, and only that question fails.
  void OneByOne(std::span<const std::pair<QuestionRun*, int64_t>> parts, std::span<const StepItem> items) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (parts[i].first->done()) continue;
      if (const auto output = model_.engine->Step(items.subspan(i, 1)); output.ok()) {
        Distribute(*output, parts.subspan(i, 1), items.subspan(i, 1));
      } else {
        parts[i].first->Fail(output.error());
      }
    }
  }

  const ReasonModel& model_;
  BatchOptions options_;
  std::deque<Waiting> waiting_;
  std::vector<Active> active_;
  int64_t tokens_of_finished_ = 0;
  int64_t steps_ = 0;
};

BatchRunner::BatchRunner(const ReasonModel& model, const BatchOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
BatchRunner::~BatchRunner() = default;
bool BatchRunner::HasRoom(int64_t streams) const { return impl_->HasRoom(streams); }
Status BatchRunner::Add(uint64_t id, Question question) { return impl_->Add(id, std::move(question)); }
bool BatchRunner::idle() const { return impl_->idle(); }
std::vector<BatchRunner::Finished> BatchRunner::Step() { return impl_->Step(); }
int64_t BatchRunner::generated_tokens() const { return impl_->generated_tokens(); }
int64_t BatchRunner::steps() const { return impl_->steps(); }

}  // namespace pith
