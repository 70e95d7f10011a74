// Where tests find data. Two sources: golden vectors committed under tests/golden, and the public data sets outside the
// project (PITH_DATA, else ../shared/data beside the checkout). A test whose data is missing is skipped loudly.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace pith::testing {

// Path of a committed golden file: GoldenPath("dequant/q4_0.bin").
std::string GoldenPath(const std::string& relative);
// Path of a public data file ("tokenizers/vectors_qwen3.jsonl"), or nothing when it is not on this machine.
std::optional<std::string> DataPath(const std::string& relative);
// Path of a real model of the catalogue ("smollm2-135m") in the model cache, or nothing when it has not been pulled.
std::optional<std::string> ModelPath(const std::string& name);
// Whole file as bytes; fails the test when it cannot be read.
std::string ReadFile(const std::string& path);
// A fresh directory that is removed at exit.
std::string TempDir();

}  // namespace pith::testing

// Skips the test unless the data file is there: PITH_REQUIRE_DATA(path, "eval/gsm8k_test.jsonl");
#define PITH_REQUIRE_DATA(variable, relative)                                                      \
  const auto variable##_found = ::pith::testing::DataPath(relative);                               \
  if (!variable##_found) GTEST_SKIP() << "SKIPPED LOUDLY: no " << (relative) << "; set PITH_DATA"; \
  const std::string& variable = *variable##_found

#define PITH_REQUIRE_MODEL(variable, name)                                                                      \
  const auto variable##_found = ::pith::testing::ModelPath(name);                                               \
  if (!variable##_found)                                                                                        \
    GTEST_SKIP() << "SKIPPED LOUDLY: model " << (name) << " is not here; run 'bin/pith pull " << (name) << "'"; \
  const std::string& variable = *variable##_found
