// The program as scripts see it: exit statuses, JSON on standard output, help, completion.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "support/data.h"
#include "support/shell.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using ::pith::testing::Outcome;
using ::pith::testing::Shell;
using ::pith::testing::TempDir;

// The outcome must be exactly one line of JSON; returns it.
Json OneLineOfJson(const Outcome& outcome) {
  EXPECT_FALSE(outcome.out.empty());
  EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1) << outcome.out;
  const auto json = ParseJson(outcome.out, "output");
  EXPECT_TRUE(json.ok()) << outcome.out;
  return json.ok() ? *json : Json();
}

void ExpectJsonError(const std::string& line, ErrorCode code) {
  const Outcome outcome = Shell(line);
  EXPECT_EQ(outcome.status, ExitCode(code)) << line << "\n" << outcome.out << outcome.error;
  const Json json = OneLineOfJson(outcome);
  ASSERT_TRUE(json.is_object() && json.contains("error")) << outcome.out;
  EXPECT_EQ(json["error"]["code"], ErrorCodeName(code)) << line;
  EXPECT_FALSE(json["error"]["message"].get<std::string>().empty());
  EXPECT_EQ(outcome.error, "") << line;
}

class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* before = std::getenv("PITH_CACHE")) before_ = before;
    ::setenv("PITH_CACHE", cache_.c_str(), 1);
  }
  void TearDown() override {
    if (before_) {
      ::setenv("PITH_CACHE", before_->c_str(), 1);
    } else {
      ::unsetenv("PITH_CACHE");
    }
  }
  // Names of the subcommands, from the program's own help.
  static std::vector<std::string> Commands() {
    std::vector<std::string> names;
    const std::string words =
        Shell("$PITH completion bash | sed -n \"s/.*compgen -W '\\([^']*\\)'.*/\\1/p\" | head -n 1").out;
    std::istringstream stream(words);
    for (std::string word; stream >> word;) {
      if (word[0] != '-') names.push_back(word);
    }
    return names;
  }
  const std::string cache_ = TempDir();
  std::optional<std::string> before_;
};

TEST_F(CliTest, Version) {
  const Outcome outcome = Shell("$PITH --version");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out.rfind("pith ", 0), 0u);
}

TEST_F(CliTest, EveryCommandHasHelpWithAnExampleAndJson) {
  const auto commands = Commands();
  ASSERT_GE(commands.size(), 4u);
  for (const auto& command : commands) {
    const Outcome help = Shell("$PITH " + command + " --help");
    EXPECT_EQ(help.status, 0) << command;
    EXPECT_NE(help.out.find("Example:\n  "), std::string::npos) << command;
    EXPECT_NE(help.out.find("--json"), std::string::npos) << command;
    EXPECT_EQ(help.error, "") << command;
  }
}

TEST_F(CliTest, UnknownOptionsAreErrorsEverywhere) {
  for (const auto& command : Commands()) {
    // Without libtorch this command has no options of its own: whatever is asked, it says what is missing.
    if (command == "quantize" && Shell("$PITH quantize").status == ExitCode(ErrorCode::kUnsupported)) {
      ExpectJsonError("$PITH quantize --json --no-such-option < /dev/null", ErrorCode::kUnsupported);
      continue;
    }
    const Outcome outcome = Shell("$PITH " + command + " --no-such-option < /dev/null");
    EXPECT_EQ(outcome.status, ExitCode(ErrorCode::kInvalidArgument)) << command;
    EXPECT_EQ(outcome.out, "") << command;
    EXPECT_EQ(outcome.error.rfind("pith: invalid_argument: ", 0), 0u) << outcome.error;
    ExpectJsonError("$PITH " + command + " --json --no-such-option < /dev/null", ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(Shell("$PITH").status, 2);
  EXPECT_EQ(Shell("$PITH no-such-command").status, 2);
  EXPECT_EQ(Shell("$PITH --no-such-option").status, 2);
}

TEST_F(CliTest, TypedErrors) {
  ExpectJsonError("$PITH inspect /no/such/model --json", ErrorCode::kNotFound);
  ExpectJsonError("$PITH inspect smollm2-135m --json", ErrorCode::kNotFound);
  ExpectJsonError("$PITH inspect " + cache_ + " --json", ErrorCode::kUnsupported);
  ExpectJsonError("$PITH pull no-such-model --json", ErrorCode::kNotFound);
  ExpectJsonError("$PITH pull hf:a/../b --json", ErrorCode::kInvalidArgument);
  ExpectJsonError("$PITH pull smollm2-135m --from elsewhere --json", ErrorCode::kInvalidArgument);
  ExpectJsonError("$PITH pull --json", ErrorCode::kInvalidArgument);
  ExpectJsonError("HF_ENDPOINT=http://127.0.0.1:1 $PITH pull hf:a/b:c.gguf --json", ErrorCode::kUnavailable);
  ExpectJsonError("$PITH tokenize -m /no/such/model --json < /dev/null", ErrorCode::kNotFound);
  ExpectJsonError("$PITH completion tcsh --json", ErrorCode::kInvalidArgument);
  ExpectJsonError("$PITH ask --adapter '' hello --json", ErrorCode::kInvalidArgument);
}

TEST_F(CliTest, MalformedFilesGiveAnExitStatusBelow64) {
  const std::string folder = TempDir();
  const std::string nul(8, '\0');
  const std::pair<const char*, std::string> files[] = {
      {"empty.gguf", ""},
      {"text.gguf", "hello"},
      {"magic.gguf", "GGUF"},
      {"huge.gguf", std::string("GGUF\x03\0\0\0", 8) + std::string(16, '\xff')},
      {"empty.safetensors", ""},
      {"huge.safetensors", std::string(8, '\xff')},
      {"list.safetensors", std::string("\x02\0\0\0\0\0\0\0[]", 10)},
      {"empty.json", ""},
      {"deep.json", std::string(100000, '[')},
      {"bytes.json", "\xff\xfe"},
  };
  for (const auto& [name, content] : files) {
    const std::string path = folder + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    const Outcome outcome = Shell("$PITH inspect " + path + " --json");
    EXPECT_GE(outcome.status, 1) << name;
    EXPECT_LE(outcome.status, 63) << name;
    const Json json = OneLineOfJson(outcome);
    EXPECT_NE(json["error"]["message"].get<std::string>().find(name), std::string::npos) << outcome.out;
  }
}

TEST_F(CliTest, FullDiskOnStandardOutputIsAnError) {
  EXPECT_EQ(Shell("$PITH completion bash > /dev/full").status, ExitCode(ErrorCode::kIo));
}

TEST_F(CliTest, CompletionScriptsAreWellFormedAndKnowTheCommands) {
  EXPECT_EQ(Shell("$PITH completion bash | bash -n").status, 0);
  // What a person sees after "pith pull --fr<TAB>" and "pith tokenize -m smollm2-135m<TAB>".
  const std::string completed = Shell(R"(bash -c 'source <("$PITH" completion bash)
    COMP_WORDS=(pith pull --fr); COMP_CWORD=2; _pith; echo "${COMPREPLY[@]}"
    COMP_WORDS=(pith pull --from p); COMP_CWORD=3; _pith; echo "${COMPREPLY[@]}"
    COMP_WORDS=(pith tokenize -m smollm2-1.7); COMP_CWORD=3; _pith; echo "${COMPREPLY[@]}"
    COMP_WORDS=(pith insp); COMP_CWORD=1; _pith; echo "${COMPREPLY[@]}"')")
                                    .out;
  EXPECT_EQ(completed, "--from\npip\nsmollm2-1.7b-instruct\ninspect\n");
  for (const auto& command : Commands()) {
    EXPECT_NE(Shell("$PITH completion fish").out.find(" -a " + command + " "), std::string::npos) << command;
    EXPECT_NE(Shell("$PITH completion zsh").out.find("    " + command + ")"), std::string::npos) << command;
  }
}

TEST_F(CliTest, PullListNamesTheCatalogue) {
  const Json json = OneLineOfJson(Shell("$PITH pull --list --json"));
  ASSERT_EQ(json["models"].size(), 10u);
  for (const Json& model : json["models"]) EXPECT_TRUE(model["path"].is_null());
}

// With a real model.
class CliModelTest : public ::testing::Test {};

TEST_F(CliModelTest, TokenizeRoundTrip) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const std::string text = "Hello, w\xC3\xB6rld <|im_end|>\n  \xF0\x9F\x98\x80";
  const std::string file = TempDir() + "/text";
  std::ofstream(file, std::ios::binary) << text;
  const Json plain = OneLineOfJson(Shell("$PITH tokenize -m " + model + " --json < " + file));
  const Json special = OneLineOfJson(Shell("$PITH tokenize -m " + model + " --special --json < " + file));
  ASSERT_TRUE(plain["ids"].is_array());
  EXPECT_GT(plain["ids"].size(), special["ids"].size());  // the special token is one id only when asked
  for (const char* option : {"", "--special"}) {
    EXPECT_EQ(Shell("$PITH tokenize -m " + model + " " + option + " --json < " + file +
                    " | $PITH tokenize --decode -m " + model)
                  .out,
              text);
    EXPECT_EQ(
        Shell("$PITH tokenize -m " + model + " " + option + " < " + file + " | $PITH tokenize --decode -m " + model)
            .out,
        text);
  }
  EXPECT_EQ(OneLineOfJson(Shell("printf '%s' '' | $PITH tokenize --json -m " + model))["ids"].size(), 0u);
}

// One rule for escapes: there are none.
TEST_F(CliModelTest, BackslashesStay) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const std::string tokenize = "printf '%s' 'a\\nb' | $PITH tokenize -m " + model;
  EXPECT_EQ(Shell(tokenize + " | $PITH tokenize --decode -m " + model).out, "a\\nb");
}

TEST_F(CliModelTest, IdsThatAreNoneAreRefused) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  for (const char* ids : {"49152", "-1", "1 x", "99999999999999999999", "[1.5]", "{}", "[", "{\"ids\":7}",
                          "[18446744073709551615]", "[4294967296]"}) {
    const Outcome outcome =
        Shell("printf '%s' '" + std::string(ids) + "' | $PITH tokenize --decode --json -m " + model);
    EXPECT_TRUE(outcome.status == 2 || outcome.status == 5) << ids << outcome.out;
    EXPECT_TRUE(OneLineOfJson(outcome).contains("error")) << ids;
  }
}

// Fields that scripts rely on (docs/cli.md).
TEST_F(CliModelTest, AskKeepsItsJson) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const std::string ask = "$PITH ask -w stored -m " + model + " --temp 0 --max-tokens 6 --json ";
  const Json direct = OneLineOfJson(Shell(ask + "--reason off 'Say hello.'"));
  EXPECT_FALSE(direct["text"].get<std::string>().empty());
  EXPECT_EQ(direct["route"], "direct");
  EXPECT_EQ(direct["usage"]["completion_tokens"], 6);
  EXPECT_GT(direct["usage"]["prompt_tokens"].get<int>(), 6);
  EXPECT_GT(direct["timings"]["first_token_s"].get<double>(), 0);
  EXPECT_EQ(OneLineOfJson(Shell("printf 'Say hello.' | " + ask + "--reason off"))["text"], direct["text"]);
  EXPECT_EQ(OneLineOfJson(Shell(ask + "--reason on 'Say hello.'"))["route"], "reason");
  EXPECT_EQ(OneLineOfJson(Shell(ask + "--reason off --stop one --stop two 'Say hello.' < /dev/null"))["usage"],
            direct["usage"])
      << "a stop string takes the question";
  ExpectJsonError(ask + "< /dev/null", ErrorCode::kInvalidArgument);
  ExpectJsonError(ask + "--ctx 8 'Say hello.'", ErrorCode::kContextOverflow);
  for (const char* bad : {"--temp -1", "--temp 1e309", "--top-k -1", "--top-p 1.5", "--min-p nan", "--seed -1",
                          "--seed 18446744073709551616", "--max-tokens 0", "--max-tokens 2147483648", "--ctx -1",
                          "--ctx 9223372036854775808", "--threads 0", "--kv-type int3", "--weights w5"}) {
    ExpectJsonError(ask + "Hello " + bad, ErrorCode::kInvalidArgument);
  }
}

// The policy on the command line (docs/cli.md, "Modes, budgets and votes").
TEST_F(CliModelTest, AskVotesWithinABudget) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const std::string ask = "$PITH ask -w stored -m " + model + " --json ";
  const Json json =
      OneLineOfJson(Shell(ask + "--parallel 3 --budget 40 --seed 3 'Tell me a long story about 12 + 30.'"));
  ASSERT_EQ(json["streams"].size(), 3u);
  int64_t tokens = 0;
  size_t voters = json["vote"]["no_answer"].get<size_t>();
  for (const Json& stream : json["streams"]) {
    EXPECT_LE(stream["tokens"].get<int64_t>(), 40);
    EXPECT_EQ(stream["tokens"], stream["reasoning_tokens"].get<int64_t>() + stream["answer_tokens"].get<int64_t>());
    tokens += stream["tokens"].get<int64_t>();
  }
  for (const Json& candidate : json["vote"]["candidates"]) voters += candidate["streams"].size();
  EXPECT_EQ(voters, 3u);
  EXPECT_EQ(json["usage"]["completion_tokens"], tokens);
  EXPECT_EQ(json["usage"]["prefill_tokens_saved"], 2 * json["usage"]["prompt_tokens"].get<int64_t>());
  EXPECT_EQ(json["text"], json["streams"][json["chosen"].get<size_t>()]["text"]);
  EXPECT_EQ(json["budget"], 40);
  EXPECT_TRUE(json["score"].is_null());
  ExpectJsonError(ask + "--reason auto Hello", ErrorCode::kInvalidArgument);
  ExpectJsonError(ask + "--parallel 2 --temp 0 Hello", ErrorCode::kInvalidArgument);
  ExpectJsonError(ask + "--verifier /no/such/file Hello", ErrorCode::kNotFound);
  // An option that could have no effect is an error too.
  for (const char* bad : {"--budget 0", "--budget -1", "--parallel 0", "--parallel 257", "--threshold 1.5",
                          "--threshold nan", "--reason maybe", "--verify sometimes", "--threshold 0.5",
                          "--threshold 0.5 --reason on", "--threshold 0.5 --reason off", "--verify always"}) {
    ExpectJsonError(ask + "Hello " + bad, ErrorCode::kInvalidArgument);
  }
  for (const char* bad : {"--threshold 0.5", "--verify always"}) {
    ExpectJsonError("printf '/exit\\n' | $PITH chat -w stored --json -m " + model + " " + bad,
                    ErrorCode::kInvalidArgument);
  }
}

TEST_F(CliModelTest, FeaturesGoOnWhereTheyWere) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const std::string folder = TempDir();
  std::ofstream(folder + "/rows.jsonl") << "{\"id\":\"a\",\"problem\":\"1+1?\",\"label\":0}\n"
                                        << "{\"id\":\"b\",\"problem\":\"Prove it.\",\"label\":1}\n";
  const std::string run = "$PITH features -w stored --kind switcher --shard-rows 1 --json -m " + model + " --input " +
                          folder + "/rows.jsonl --out " + folder + "/out";
  const Json first = OneLineOfJson(Shell(run));
  EXPECT_EQ(first["states"], 2);
  EXPECT_EQ(first["positives"], 1);
  EXPECT_EQ(first["shards_found"], 0);
  EXPECT_EQ(OneLineOfJson(Shell(run))["shards_found"], 2);
  ExpectJsonError(run + " --system other", ErrorCode::kMismatch);
  for (const char* bad : {"--threshold 0.5", "--verify always", "--verify never", "--early-stop"}) {
    ExpectJsonError(run + " " + bad, ErrorCode::kInvalidArgument);
  }
}

TEST_F(CliModelTest, FeaturesLeaveOutWhatDoesNotFit) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const std::string folder = TempDir();
  std::ofstream(folder + "/rows.jsonl") << "{\"id\":\"a\",\"problem\":\"1+1?\",\"label\":0}\n"
                                        << "{\"id\":\"b\",\"problem\":\"" << std::string(2000, 'x')
                                        << "\",\"label\":1}\n";
  const std::string run = "$PITH features -w stored --ctx 100 --kind switcher --json -m " + model + " --input " +
                          folder + "/rows.jsonl --out " + folder + "/out";
  for (const int found : {0, 1}) {
    const Outcome outcome = Shell(run);
    const Json json = OneLineOfJson(outcome);
    EXPECT_EQ(json["states"], 1) << outcome.out;
    EXPECT_EQ(json["shards_found"], found);
    EXPECT_EQ(json["too_long_questions"], Json::parse(R"(["b"])"));
    EXPECT_EQ(json["too_long_responses"], 0);
    EXPECT_NE(outcome.error.find("1 questions ('b')"), std::string::npos) << outcome.error;
  }
}

TEST_F(CliModelTest, ChatAnswersEachLine) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const Outcome outcome = Shell(
      "printf '%s\\n' 'Say hello.' /help /reset 'Say hello.' /exit 'not read' | "
      "$PITH chat --json -w stored --max-tokens 4 -m " +
      model);
  EXPECT_EQ(outcome.status, 0) << outcome.error;
  std::istringstream lines(outcome.out);
  std::vector<Json> answers;
  for (std::string line; std::getline(lines, line);) answers.push_back(*ParseJson(line, "answer"));
  ASSERT_EQ(answers.size(), 2u) << outcome.out;
  EXPECT_FALSE(answers[0]["text"].get<std::string>().empty());
  EXPECT_EQ(answers[1]["text"], answers[0]["text"]) << "/reset has not forgotten the first turn";
}

TEST_F(CliModelTest, PplAndBenchKeepTheirJson) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const std::string file = TempDir() + "/text";
  std::ofstream(file)
      << "The quick brown fox jumps over the lazy dog. The lazy dog does not mind at all, and sleeps on.";
  const Json ppl = OneLineOfJson(Shell("$PITH ppl -w stored --ctx 16 --json -m " + model + " --file " + file));
  EXPECT_GT(ppl["ppl"].get<double>(), 1);
  EXPECT_GT(ppl["tokens"].get<int>(), 16);
  EXPECT_EQ(ppl["window"], 16);
  const Json bench = OneLineOfJson(
      Shell("$PITH bench -w stored -p 8 -n 2 -d 8 -r 1 --streams 1,2 --random-adapter 8 --json -m " + model));
  std::vector<std::string> names;
  for (const Json& row : bench["rows"]) {
    EXPECT_GT(row["median_tokens_per_second"].get<double>(), 0);
    names.push_back(row["test"].get<std::string>() + (row["adapter"].get<bool>() ? " on" : " off"));
  }
  for (const char* name : {"pp8 off", "tg2 off", "tg2@d8 off", "tg2 on", "tg2@d8 on"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
  EXPECT_EQ(bench["file_bytes"], 98362432);
  EXPECT_FALSE(bench["kernels"].get<std::string>().empty());
  EXPECT_GT(bench["ready_s"].get<double>(), 0);
}

// Loading makes no second copy of packed weights: 1.15 times (file + KV) and 64 MiB.
TEST_F(CliModelTest, PackedModelRunsInTheMemoryOfItsFile) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const std::string packed = TempDir() + "/packed";
  const Json report = OneLineOfJson(Shell("$PITH pack --json --recipe keep " + model + " " + packed));
  EXPECT_EQ(report["recipe"].get<std::string>().rfind("keep", 0), 0u);
  EXPECT_GT(report["bits_per_weight"].get<double>(), 4);
  EXPECT_EQ(report["tensors"].size(), 211u);  // 30 layers of 7 linears, the embedding, which is the head too
  // 600 tokens of prompt, so that the KV cache counts.
  const Json answer = OneLineOfJson(Shell(
      "for i in $(seq 120); do printf 'one two three four '; done | $PITH ask --json --max-tokens 8 -m " + packed));
  const auto tokens = answer["usage"]["prompt_tokens"].get<double>() + 8;
  ASSERT_GT(tokens, 400);
  const double kv = tokens * 30 * 3 * 2 * (64 + 4);
  const double file = report["bytes"].get<double>();
  EXPECT_LE(answer["timings"]["peak_rss_bytes"].get<double>(), 1.15 * (file + kv) + 64 * 1024 * 1024);
}

TEST_F(CliModelTest, InspectTellsTheModel) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const Json json = OneLineOfJson(Shell("$PITH inspect --json " + model));
  EXPECT_EQ(json["format"], "gguf");
  EXPECT_EQ(json["file_bytes"], 98362432);
  EXPECT_EQ(json["config"]["architecture"], "llama");
  EXPECT_EQ(json["config"]["hidden_size"], 576);
  EXPECT_EQ(json["config"]["num_hidden_layers"], 30);
  EXPECT_EQ(json["parameters"], 134515008);
  EXPECT_EQ(json["tokenizer_size"], 49152);
  uint64_t bytes = 0;
  for (const Json& tensor : json["tensors"]) bytes += tensor["bytes"].get<uint64_t>();
  EXPECT_EQ(json["total_bytes"], bytes);
  EXPECT_NEAR(json["bits_per_weight"].get<double>(), 8.0 * static_cast<double>(bytes) / 134515008, 1e-9);
  EXPECT_EQ(json["tensors"].size(), 272u);
}

}  // namespace
}  // namespace pith
