/* The C interface from C: errors, ownership of what was never made, defaults of structures. */
#include <stdio.h>
#include <string.h>

#include "pith/pith.h"

static int failures = 0;

static void Expect(int condition, const char* what) {
  if (condition) return;
  ++failures;
  fprintf(stderr, "FAILED: %s (last error: '%s')\n", what, PithLastError());
}

static int32_t Ignore(void* user, int32_t stream, const char* text, size_t length, int32_t is_thought) {
  (void)user;
  (void)stream;
  (void)text;
  (void)length;
  return is_thought * 0;
}

int main(void) {
  PithModelOptions options = {.struct_size = sizeof(options)};
  PithAskOptions ask = {.struct_size = sizeof(ask)};
  PithMessage message = {"user", "hello"};
  PithModel* model = (PithModel*)&options; /* must be cleared by a call that fails */
  PithAnswer* answer = (PithAnswer*)&options;
  PithStream stream = {.struct_size = sizeof(stream)};

  Expect(strlen(PithVersion()) > 0, "there is a version");
  Expect(strlen(PithKernels()) > 0, "there are kernels");

  Expect(PithLoad("/no/such/model", &options, &model) == PITH_NOT_FOUND, "a model that is not there");
  Expect(model == NULL, "a failed PithLoad leaves NULL");
  Expect(strstr(PithLastError(), "/no/such/model") != NULL, "the message names the model");
  Expect(PithLoad("/no/such/model", NULL, &model) == PITH_NOT_FOUND, "options may be NULL");
  Expect(PithLoad(NULL, &options, &model) == PITH_INVALID_ARGUMENT, "path is NULL");
  Expect(PithLoad("x", &options, NULL) == PITH_INVALID_ARGUMENT, "model is NULL");
  options.struct_size = 1;
  Expect(PithLoad("x", &options, &model) == PITH_INVALID_ARGUMENT, "a structure without its size");
  options.struct_size = sizeof(options) + 8;
  Expect(PithLoad("x", &options, &model) == PITH_INVALID_ARGUMENT, "a structure of a later version");
  Expect(strstr(PithLastError(), "struct_size") != NULL, "the message names struct_size");
  options.struct_size = offsetof(PithModelOptions, context); /* an earlier version, without the last fields */
  options.threads = -1;
  Expect(PithLoad("/no/such/model", &options, &model) == PITH_NOT_FOUND, "fields behind the size are not read");
  options.struct_size = sizeof(options);
  Expect(PithLoad("/no/such/model", &options, &model) == PITH_INVALID_ARGUMENT, "threads is negative");
  options.threads = 0;
  options.kv = "int3";
  Expect(PithLoad("/no/such/model", &options, &model) == PITH_INVALID_ARGUMENT, "a KV format that is none");

  ask.on_text = Ignore;
  Expect(PithAsk(NULL, &message, 1, &ask, &answer) == PITH_INVALID_ARGUMENT, "no model to ask");
  Expect(answer == NULL, "a failed PithAsk leaves NULL");
  Expect(PithAnswerStream(NULL, 0, &stream) == PITH_INVALID_ARGUMENT, "no answer to look at");

  PithCancel(NULL);
  PithFreeAnswer(NULL);
  PithFreeModel(NULL);
  if (failures == 0) printf("capi_c_test: passed\n");
  return failures == 0 ? 0 : 1;
}
