/* The C interface of pith: load a model, ask it, read the answer. For apps (Android, Swift) and other languages.
 *
 *   PithModelOptions options = {.struct_size = sizeof(options)};
 *   options.adapter = "reason";
 *   PithModel* model = NULL;
 *   if (PithLoad("coder-w4", &options, &model) != PITH_OK) fail(PithLastError());
 *   PithMessage message = {"user", "What is 12 * 12?"};
 *   PithAskOptions ask = {.struct_size = sizeof(ask)};
 *   PithAnswer* answer = NULL;
 *   if (PithAsk(model, &message, 1, &ask, &answer) != PITH_OK) fail(PithLastError());
 *   puts(PithAnswerText(answer));
 *   PithFreeAnswer(answer);
 *   PithFreeModel(model);
 *
 * Ownership. What PithLoad and PithAsk give belongs to the caller until it is freed; text that belongs to an answer
 * lives as long as the answer, answers may outlive their model. Strings that are passed in are copied, or used during
 * the call only. All text is UTF-8 and ends with a zero byte.
 *
 * Threads. A model answers one question at a time: PithAsk and PithFreeModel of one model must not overlap. PithCancel
 * may be called from any thread at any time between PithLoad and PithFreeModel. Different models are independent.
 *
 * Errors. A function that can fail returns a PithStatus; on failure what it would have given is left NULL, and
 * PithLastError() of the same thread says in a sentence what was wrong. No exception leaves this interface.
 *
 * Structures begin with their size, which the caller sets to sizeof; everything else may stay zero for the default.
 * Later versions only add fields at the end, and take and fill structures of earlier versions. PithMessage alone, of
 * which there are arrays, stays as it is. */
#ifndef PITH_PITH_H_
#define PITH_PITH_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PITH_API __attribute__((visibility("default")))
#else
#define PITH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are the command line's exit statuses. */
typedef enum PithStatus {
  PITH_OK = 0,
  PITH_INVALID_ARGUMENT = 2, /* an option or value that can never be right */
  PITH_NOT_FOUND = 3,        /* a file or tensor that is not there */
  PITH_IO = 4,               /* reading or writing failed, the disk or memory is full */
  PITH_MALFORMED = 5,        /* a file that breaks its own format */
  PITH_UNSUPPORTED = 6,      /* well formed, but not something this library can run */
  PITH_MISMATCH = 7,         /* two things that must agree do not */
  PITH_CONTEXT_OVERFLOW = 8, /* more tokens than the context holds */
  PITH_CANCELLED = 9,
  PITH_NUMERIC = 10,     /* NaN or infinity where a finite number is needed */
  PITH_UNAVAILABLE = 11, /* never from this interface: it uses no network */
  PITH_INTERNAL = 12     /* a defect of pith */
} PithStatus;

PITH_API const char* PithVersion(void);   /* "0.1.0" */
PITH_API const char* PithKernels(void);   /* the vector unit that is used: "NEON", "AVX2", ... */
PITH_API const char* PithLastError(void); /* of this thread; valid until its next call of this interface */

/* ---- models ---- */

typedef struct PithModel PithModel;

typedef struct PithModelOptions {
  size_t struct_size;
  const char* weights;       /* NULL: "auto"; "stored", "bf16", "f32" or a packing recipe, as pith --weights */
  const char* kv;            /* NULL: "int8"; "bf16", "f32" */
  const char* chat_template; /* NULL: "auto"; or a family ("qwen2.5", "smollm2", ...) */
  const char* adapter;       /* directory of a reasoning adapter; NULL: none */
  const char* switcher;      /* files of heads; NULL: those of the adapter directory, if it has them */
  const char* verifier;
  int64_t context; /* most tokens of a conversation; 0: what the model was made for */
  int32_t threads; /* 0: all cores */
} PithModelOptions;

/* `path`: a Hugging Face directory or a GGUF file. options may be NULL. A model that is not packed yet is packed once
 * into the cache folder (PITH_CACHE, else XDG_CACHE_HOME/pith, else ~/.cache/pith), unless weights says otherwise. */
PITH_API PithStatus PithLoad(const char* path, const PithModelOptions* options, PithModel** model);
PITH_API void PithFreeModel(PithModel* model); /* NULL is allowed */

/* ---- questions ---- */

typedef struct PithMessage {
  const char* role; /* "system", "user", "assistant" */
  const char* content;
} PithMessage;

typedef enum PithReason {
  PITH_REASON_DEFAULT = 0, /* auto with a switcher, on with an adapter alone, else off */
  PITH_REASON_AUTO = 1,    /* the switcher chooses */
  PITH_REASON_ON = 2,
  PITH_REASON_OFF = 3
} PithReason;

typedef enum PithVerify {
  PITH_VERIFY_VOTE = 0, /* score responses by the verifier when there are several */
  PITH_VERIFY_NEVER = 1,
  PITH_VERIFY_ALWAYS = 2
} PithVerify;

/* Text as it comes. `text` has `length` bytes, whole characters, and lives during the call. Not 0: stop here. */
typedef int32_t (*PithOnText)(void* user, int32_t stream, const char* text, size_t length, int32_t is_thought);

typedef struct PithAskOptions {
  size_t struct_size;
  int32_t reason;     /* PithReason */
  int32_t verify;     /* PithVerify */
  int32_t budget;     /* most generated tokens of a response, at whose end it is made to answer; 0: the adapter's when
                         reasoning may happen, else see max_tokens */
  int32_t max_tokens; /* most generated tokens, cut there; 0: 512 where no budget counts */
  int32_t parallel;   /* responses that vote, up to 256; 0: 1 */
  int32_t early_stop; /* not 0: stop the other responses once the vote is decided */
  int32_t raw;        /* not 0: the content of the only message is the whole prompt, without a chat template */
  double temperature; /* 0: greedy; with several responses 0.7 */
  int32_t top_k;      /* 0: all */
  double top_p;       /* 0: all */
  double min_p;
  uint64_t seed; /* the same seed gives the same text */
  PithOnText on_text;
  void* user;
} PithAskOptions;

typedef struct PithAnswer PithAnswer;

/* messages: the conversation, ending with the user's. options may be NULL. A question that was cancelled is no error:
 * what was generated is the answer. */
PITH_API PithStatus PithAsk(PithModel* model, const PithMessage* messages, size_t count, const PithAskOptions* options,
                            PithAnswer** answer);
/* Ends the question that is being answered as soon as it can; without one, nothing happens. */
PITH_API void PithCancel(PithModel* model);
PITH_API void PithFreeAnswer(PithAnswer* answer); /* NULL is allowed */

/* ---- answers ---- */

PITH_API const char* PithAnswerText(const PithAnswer* answer);      /* of the chosen response, without its thoughts */
PITH_API const char* PithAnswerReasoning(const PithAnswer* answer); /* its thoughts */
PITH_API const char* PithAnswerFinal(const PithAnswer* answer);     /* the winner of the vote; NULL: no answer */
PITH_API int32_t PithAnswerReasoned(const PithAnswer* answer);      /* 1: the reasoning route was taken */
PITH_API double PithAnswerSwitcherScore(const PithAnswer* answer);  /* NaN: the switcher was not asked */
PITH_API int32_t PithAnswerChosen(const PithAnswer* answer);        /* index of the chosen response */
PITH_API int32_t PithAnswerStreams(const PithAnswer* answer);       /* number of responses */
PITH_API int32_t PithAnswerPromptTokens(const PithAnswer* answer);

/* One response. */
typedef struct PithStream {
  size_t struct_size; /* set it before the call: no more than this is written */
  const char* text;
  const char* reasoning;
  const char* final_answer; /* NULL: none was found */
  const char* finish;       /* "stop", "length", "context", "cancelled", "decided" */
  const int32_t* tokens;    /* all that were generated, forced ones too */
  int32_t token_count;
  int32_t reasoning_tokens;
  int32_t answer_forced;
  double verifier_score; /* NaN: not scored */
  int32_t candidate;     /* index of its answer in the vote; -1: none */
} PithStream;

/* PITH_INVALID_ARGUMENT for an index that is none, or a size that is no version's. `stream` points into the answer. */
PITH_API PithStatus PithAnswerStream(const PithAnswer* answer, int32_t index, PithStream* stream);

#ifdef __cplusplus
}
#endif

#endif /* PITH_PITH_H_ */
