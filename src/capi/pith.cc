// The C interface (include/pith/pith.h) on the policy of reason/.
#include "pith/pith.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/targets.h"
#include "reason/answer.h"
#include "reason/reason_model.h"

struct PithModel {
  std::unique_ptr<pith::TextModel> text_model;
  std::unique_ptr<pith::LoadedReasonModel> reasoner;
  std::atomic<bool> cancelled = false;
};

struct PithAnswer {
  pith::AnswerResult result;
};

namespace {

using pith::Error;
using pith::ErrorCode;
using pith::Result;
using pith::Status;

constexpr int32_t kDefaultMaxTokens = 512;
constexpr size_t kMaxMessages = 100'000;
constexpr double kSeveralTemperature = 0.7;  // of several responses, as the command line has it

thread_local std::string last_error;

PithStatus Fail(const Error& error) {
  last_error = error.message;
  return static_cast<PithStatus>(pith::ExitCode(error.code));
}

// Runs `body`, which returns a Status; nothing that it throws gets out.
template <class Body>
PithStatus Guard(const Body& body) {
  try {
    const Status status = body();
    return status.ok() ? PITH_OK : Fail(status.error());
  } catch (const std::bad_alloc&) {
    last_error.clear();
    return Fail({ErrorCode::kIo, "out of memory"});
  } catch (const std::exception& exception) {
    return Fail({ErrorCode::kInternal, exception.what()});
  }
}

Error Invalid(const std::string& message) { return {ErrorCode::kInvalidArgument, message}; }

std::string TextOr(const char* text, const char* otherwise) { return text == nullptr ? otherwise : text; }

// A copy of a caller's structure; fields that its version does not have stay zero.
template <class T>
Result<T> CopyOptions(const T* options, const char* name) {
  T copy = {};
  if (options == nullptr) return copy;
  if (options->struct_size < sizeof(size_t) || options->struct_size > sizeof(T)) {
    return Invalid(std::string(name) + ".struct_size is " + std::to_string(options->struct_size) +
                   "; this library's is " + std::to_string(sizeof(T)));
  }
  std::memcpy(&copy, options, options->struct_size);
  return copy;
}

Status Load(const char* path, const PithModelOptions* given, PithModel** model) {
  if (path == nullptr) return Invalid("path is NULL");
  PITH_ASSIGN(const PithModelOptions options, CopyOptions(given, "PithModelOptions"));
  pith::TextModelOptions text;
  text.weights = TextOr(options.weights, "auto");
  text.chat_template = TextOr(options.chat_template, "auto");
  const std::string kv = TextOr(options.kv, "int8");
  if (kv != "int8" && kv != "bf16" && kv != "f32") return Invalid("kv '" + kv + "': int8, bf16, f32");
  if (options.threads < 0) return Invalid("threads is negative");
  if (options.context < 0) return Invalid("context is negative");
  text.engine.kv = kv == "f32" ? pith::KvType::kF32 : kv == "bf16" ? pith::KvType::kBF16 : pith::KvType::kInt8;
  text.engine.threads = options.threads;
  text.engine.context = options.context;
  if (text.weights == "f32") text.engine.adapters = pith::LoraFormat::kF32;
  auto loaded = std::make_unique<PithModel>();
  PITH_ASSIGN(loaded->text_model, pith::TextModel::Load(path, text));
  PITH_ASSIGN(loaded->reasoner, pith::LoadedReasonModel::Load(
                                    *loaded->text_model, {TextOr(options.adapter, ""), TextOr(options.switcher, ""),
                                                          TextOr(options.verifier, "")}));
  *model = loaded.release();
  return {};
}

Result<pith::AnswerOptions> MakeOptions(const PithAskOptions& options, const pith::ReasonModel& model) {
  for (const auto& [name, value] : {std::pair{"budget", options.budget}, std::pair{"max_tokens", options.max_tokens},
                                    std::pair{"parallel", options.parallel}, std::pair{"top_k", options.top_k}}) {
    if (value < 0) return Invalid(std::string(name) + " is negative");
  }
  pith::AnswerOptions answer;
  switch (options.reason) {
    case PITH_REASON_DEFAULT:
      answer.mode = model.adapter != nullptr && !model.switcher ? pith::ReasonMode::kOn : pith::DefaultMode(model);
      break;
    case PITH_REASON_AUTO: answer.mode = pith::ReasonMode::kAuto; break;
    case PITH_REASON_ON: answer.mode = pith::ReasonMode::kOn; break;
    case PITH_REASON_OFF: answer.mode = pith::ReasonMode::kOff; break;
    default: return Invalid("reason is " + std::to_string(options.reason));
  }
  switch (options.verify) {
    case PITH_VERIFY_VOTE: answer.verify = pith::AnswerOptions::Verify::kVote; break;
    case PITH_VERIFY_NEVER: answer.verify = pith::AnswerOptions::Verify::kNever; break;
    case PITH_VERIFY_ALWAYS: answer.verify = pith::AnswerOptions::Verify::kAlways; break;
    default: return Invalid("verify is " + std::to_string(options.verify));
  }
  const int64_t limit = options.max_tokens > 0 ? options.max_tokens : kDefaultMaxTokens;
  if (options.budget > 0) {
    answer.budget = options.max_tokens > 0 ? std::min<int64_t>(options.budget, limit) : options.budget;
  } else if (options.max_tokens == 0 && answer.mode != pith::ReasonMode::kOff) {
    answer.budget = model.texts.default_budget;
  } else {
    answer.budget = limit;
    answer.force_answer = false;
  }
  answer.parallel = std::max(options.parallel, 1);
  answer.early_stop = options.early_stop != 0;
  answer.sampling.temperature =
      options.temperature == 0 && answer.parallel > 1 ? kSeveralTemperature : options.temperature;
  answer.sampling.top_k = options.top_k;
  answer.sampling.top_p = options.top_p == 0 ? 1.0 : options.top_p;
  answer.sampling.min_p = options.min_p;
  answer.sampling.seed = options.seed;
  return answer;
}

Status Ask(PithModel* model, const PithMessage* messages, size_t count, const PithAskOptions* given,
           PithAnswer** answer) {
  if (model == nullptr) return Invalid("model is NULL");
  if (messages == nullptr || count == 0) return Invalid("there is no message");
  if (count > kMaxMessages) return Invalid(std::to_string(count) + " messages");
  PITH_ASSIGN(const PithAskOptions options, CopyOptions(given, "PithAskOptions"));
  std::vector<pith::ChatMessage> chat;
  for (size_t i = 0; i < count; ++i) {
    if (messages[i].content == nullptr) return Invalid("message " + std::to_string(i) + " has no content");
    chat.push_back({TextOr(messages[i].role, "user"), messages[i].content});
  }
  const pith::ReasonModel& reason = model->reasoner->model();
  pith::Question question;
  PITH_ASSIGN(question.options, MakeOptions(options, reason));
  if (options.raw != 0) {
    if (count != 1) return Invalid("a raw prompt is one message");
    PITH_ASSIGN(question.prompt, reason.tokenizer->Encode(
                                     chat[0].content, {.parse_special = true, .special_ranges = {}, .add_bos = true}));
  } else {
    // A budget that only cuts was not trained for, so it is not told either.
    PITH_ASSIGN(pith::Prompts prompts,
                pith::RenderPrompts(*model->text_model, reason.texts, chat,
                                    question.options.force_answer ? question.options.budget : 0));
    question.prompt = std::move(prompts.direct);
    question.reason_prompt = std::move(prompts.reason);
  }
  model->cancelled = false;
  question.options.cancel = &model->cancelled;
  if (options.on_text != nullptr) {
    question.options.on_text = [model, &options](int64_t stream, std::string_view text, bool thought) {
      const int32_t stop =
          options.on_text(options.user, static_cast<int32_t>(stream), text.data(), text.size(), thought ? 1 : 0);
      if (stop != 0) model->cancelled = true;
    };
  }
  PITH_ASSIGN(pith::AnswerResult result, pith::AnswerQuestion(reason, std::move(question)));
  *answer = new PithAnswer{std::move(result)};
  return {};
}

}  // namespace

const char* PithVersion(void) { return PITH_VERSION; }

const char* PithKernels(void) {
  static const std::string kName = pith::ActiveKernelTarget();
  return kName.c_str();
}

const char* PithLastError(void) { return last_error.c_str(); }

PithStatus PithLoad(const char* path, const PithModelOptions* options, PithModel** model) {
  return Guard([&]() -> Status {
    if (model == nullptr) return Invalid("model is NULL");
    *model = nullptr;
    return Load(path, options, model);
  });
}

void PithFreeModel(PithModel* model) { delete model; }

PithStatus PithAsk(PithModel* model, const PithMessage* messages, size_t count, const PithAskOptions* options,
                   PithAnswer** answer) {
  return Guard([&]() -> Status {
    if (answer == nullptr) return Invalid("answer is NULL");
    *answer = nullptr;
    return Ask(model, messages, count, options, answer);
  });
}

void PithCancel(PithModel* model) {
  if (model != nullptr) model->cancelled = true;
}

void PithFreeAnswer(PithAnswer* answer) { delete answer; }

const char* PithAnswerText(const PithAnswer* answer) { return answer->result.best().text.c_str(); }
const char* PithAnswerReasoning(const PithAnswer* answer) { return answer->result.best().reasoning.c_str(); }
const char* PithAnswerFinal(const PithAnswer* answer) {
  return answer->result.answer ? answer->result.answer->c_str() : nullptr;
}
int32_t PithAnswerReasoned(const PithAnswer* answer) { return answer->result.route == pith::Route::kReason ? 1 : 0; }
double PithAnswerSwitcherScore(const PithAnswer* answer) {
  return answer->result.score.value_or(std::numeric_limits<double>::quiet_NaN());
}
int32_t PithAnswerChosen(const PithAnswer* answer) { return static_cast<int32_t>(answer->result.chosen); }
int32_t PithAnswerStreams(const PithAnswer* answer) { return static_cast<int32_t>(answer->result.streams.size()); }
int32_t PithAnswerPromptTokens(const PithAnswer* answer) { return static_cast<int32_t>(answer->result.prompt_tokens); }

PithStatus PithAnswerStream(const PithAnswer* answer, int32_t index, PithStream* stream) {
  if (answer == nullptr || stream == nullptr || index < 0 || index >= PithAnswerStreams(answer)) {
    return Fail(Invalid("there is no response " + std::to_string(index)));
  }
  const size_t size = stream->struct_size;
  if (size < sizeof(size_t) || size > sizeof(PithStream)) {
    return Fail(Invalid("PithStream.struct_size is " + std::to_string(size) + "; this library's is " +
                        std::to_string(sizeof(PithStream))));
  }
  const pith::StreamResult& result = answer->result.streams[static_cast<size_t>(index)];
  const PithStream whole = {size,
                            result.text.c_str(),
                            result.reasoning.c_str(),
                            result.answer ? result.answer->text.c_str() : nullptr,
                            pith::FinishReasonName(result.finish),
                            result.tokens.data(),
                            static_cast<int32_t>(result.tokens.size()),
                            static_cast<int32_t>(result.reasoning_tokens),
                            result.answer_forced ? 1 : 0,
                            result.verifier_score.value_or(std::numeric_limits<double>::quiet_NaN()),
                            result.candidate};
  std::memcpy(stream, &whole, size);  // a caller's earlier version has room for its own fields only
  return PITH_OK;
}
