/* pith-run: asks a model one question through the C interface. The small program for phones and boards, and an example
 * of include/pith/pith.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pith/pith.h"

static const char kUsage[] =
    "usage: pith-run MODEL QUESTION [options]\n"
    "  --adapter DIR, --switcher FILE, --verifier FILE\n"
    "  --reason auto|on|off   --budget N   --max-tokens N   --parallel N   --early-stop\n"
    "  --temp T   --top-k N   --top-p P   --seed N   --raw\n"
    "  --weights W   --kv int8|bf16|f32   --template T   --context N   --threads N\n"
    "  --json                 one object with all responses and their tokens\n";

typedef struct Request {
  PithModelOptions model;
  PithAskOptions ask;
  int json;
} Request;

static int Fail(const char* message) {
  fprintf(stderr, "pith-run: %s\n", message);
  return PITH_INVALID_ARGUMENT;
}

/* A whole number from `low` to `high`. 0 when `text` is none. */
static int ReadInteger(const char* text, long long low, long long high, long long* value) {
  char* end = NULL;
  errno = 0;
  *value = strtoll(text, &end, 10);
  return errno == 0 && end != text && *end == '\0' && *value >= low && *value <= high;
}

static int ReadNumber(const char* text, double* value) {
  char* end = NULL;
  errno = 0;
  *value = strtod(text, &end);
  return errno == 0 && end != text && *end == '\0' && isfinite(*value);
}

/* Takes an option with its value. 0 when there is none of that name, -1 for a value that is none. */
static int TakeOption(const char* name, const char* value, Request* request) {
  PithModelOptions* model = &request->model;
  PithAskOptions* ask = &request->ask;
  const struct {
    const char* name;
    const char** text;
  } texts[] = {{"--adapter", &model->adapter},
               {"--switcher", &model->switcher},
               {"--verifier", &model->verifier},
               {"--weights", &model->weights},
               {"--kv", &model->kv},
               {"--template", &model->chat_template}};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); ++i) {
    if (strcmp(name, texts[i].name) != 0) continue;
    *texts[i].text = value;
    return 1;
  }
  const struct {
    const char* name;
    int32_t* number;
  } numbers[] = {{"--budget", &ask->budget},
                 {"--max-tokens", &ask->max_tokens},
                 {"--parallel", &ask->parallel},
                 {"--threads", &model->threads},
                 {"--top-k", &ask->top_k}};
  long long integer = 0;
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i) {
    if (strcmp(name, numbers[i].name) != 0) continue;
    if (!ReadInteger(value, 0, INT32_MAX, &integer)) return -1;
    *numbers[i].number = (int32_t)integer;
    return 1;
  }
  if (strcmp(name, "--temp") == 0) return ReadNumber(value, &ask->temperature) ? 1 : -1;
  if (strcmp(name, "--top-p") == 0) return ReadNumber(value, &ask->top_p) ? 1 : -1;
  if (strcmp(name, "--seed") == 0 || strcmp(name, "--context") == 0) {
    if (!ReadInteger(value, 0, INT64_MAX, &integer)) return -1;
    if (name[2] == 's') {
      ask->seed = (uint64_t)integer;
    } else {
      model->context = integer;
    }
    return 1;
  }
  if (strcmp(name, "--reason") == 0) {
    static const char* const kModes[] = {"", "auto", "on", "off"};
    for (int mode = PITH_REASON_AUTO; mode <= PITH_REASON_OFF; ++mode) {
      if (strcmp(value, kModes[mode]) != 0) continue;
      ask->reason = mode;
      return 1;
    }
    return -1;
  }
  return 0;
}

static void PrintString(const char* text) {
  if (text == NULL) {
    printf("null");
    return;
  }
  putchar('"');
  for (const unsigned char* c = (const unsigned char*)text; *c != 0; ++c) {
    if (*c == '"' || *c == '\\') {
      printf("\\%c", *c);
    } else if (*c < 0x20) {
      printf("\\u%04x", *c);
    } else {
      putchar(*c);
    }
  }
  putchar('"');
}

static void PrintNumber(double value) {
  if (isnan(value)) {
    printf("null");
  } else {
    printf("%.9g", value);
  }
}

static void PrintJson(const PithAnswer* answer) {
  printf("{\"answer\":");
  PrintString(PithAnswerFinal(answer));
  printf(",\"route\":\"%s\",\"score\":", PithAnswerReasoned(answer) ? "reason" : "direct");
  PrintNumber(PithAnswerSwitcherScore(answer));
  printf(",\"chosen\":%d,\"prompt_tokens\":%d,\"streams\":[", (int)PithAnswerChosen(answer),
         (int)PithAnswerPromptTokens(answer));
  for (int32_t i = 0; i < PithAnswerStreams(answer); ++i) {
    PithStream stream = {.struct_size = sizeof(stream)};
    if (PithAnswerStream(answer, i, &stream) != PITH_OK) continue;
    printf("%s{\"answer\":", i == 0 ? "" : ",");
    PrintString(stream.final_answer);
    printf(",\"text\":");
    PrintString(stream.text);
    printf(",\"reasoning\":");
    PrintString(stream.reasoning);
    printf(",\"finish_reason\":\"%s\",\"answer_forced\":%s,\"verifier_score\":", stream.finish,
           stream.answer_forced ? "true" : "false");
    PrintNumber(stream.verifier_score);
    printf(",\"candidate\":%d,\"tokens\":[", (int)stream.candidate);
    for (int32_t t = 0; t < stream.token_count; ++t) printf(t == 0 ? "%d" : ",%d", (int)stream.tokens[t]);
    printf("]}");
  }
  printf("]}\n");
}

/* Shows the only response as it comes. */
static int32_t OnText(void* user, int32_t stream, const char* text, size_t length, int32_t is_thought) {
  (void)user;
  (void)stream;
  (void)is_thought;
  fwrite(text, 1, length, stdout);
  return fflush(stdout) == 0 ? 0 : 1;
}

static int Run(const char* path, const char* question, const Request* request) {
  PithModel* model = NULL;
  PithStatus status = PithLoad(path, &request->model, &model);
  PithAnswer* answer = NULL;
  if (status == PITH_OK) {
    const PithMessage message = {"user", question};
    status = PithAsk(model, &message, 1, &request->ask, &answer);
  }
  if (status != PITH_OK) {
    fprintf(stderr, "pith-run: %s\n", PithLastError());
  } else if (request->json) {
    PrintJson(answer);
  } else {
    if (request->ask.on_text == NULL) fputs(PithAnswerText(answer), stdout);
    putchar('\n');
  }
  PithFreeAnswer(answer);
  PithFreeModel(model);
  if (fflush(stdout) != 0 || ferror(stdout)) return PITH_IO;
  return status;
}

int main(int argc, char** argv) {
  Request request = {.model = {.struct_size = sizeof(PithModelOptions)},
                     .ask = {.struct_size = sizeof(PithAskOptions)}};
  const char* words[2] = {NULL, NULL};
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    const char* name = argv[i];
    if (strcmp(name, "--help") == 0 || strcmp(name, "--version") == 0) {
      if (name[2] == 'h') {
        fputs(kUsage, stdout);
      } else {
        printf("pith-run %s, kernels %s\n", PithVersion(), PithKernels());
      }
      return 0;
    }
    if (strncmp(name, "--", 2) != 0) {
      if (count == 2) return Fail("more than a model and a question");
      words[count++] = name;
    } else if (strcmp(name, "--json") == 0) {
      request.json = 1;
    } else if (strcmp(name, "--raw") == 0) {
      request.ask.raw = 1;
    } else if (strcmp(name, "--early-stop") == 0) {
      request.ask.early_stop = 1;
    } else {
      const int taken = i + 1 < argc ? TakeOption(name, argv[i + 1], &request) : -1;
      if (taken != 1) {
        fprintf(stderr, "pith-run: %s: %s\n", name, taken == 0 ? "there is no such option" : "its value is wrong");
        return PITH_INVALID_ARGUMENT;
      }
      ++i;
    }
  }
  if (count < 2) {
    fputs(kUsage, stderr);
    return PITH_INVALID_ARGUMENT;
  }
  if (!request.json && request.ask.parallel <= 1) request.ask.on_text = OnText;
  return Run(words[0], words[1], &request);
}
