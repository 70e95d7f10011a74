#include "model/heads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>

#include "base/json.h"
#include "model/safetensors.h"
#include "support/data.h"

namespace pith {
namespace {

using testing::TempDir;

SwitcherHead Switcher() {
  SwitcherHead head;
  head.hidden = 3;
  head.inner = 2;
  head.pooling = {.chunk = 64, .alpha = 0.25};
  head.threshold = 0.4;
  head.w1 = {1, 2, 3, -1, 0, 0.5F};
  head.b1 = {0.5F, 0};
  head.w2 = {0.1F, -2};
  head.b2 = 0.25F;
  return head;
}

VerifierHead Verifier() {
  VerifierHead head;
  head.hidden = 3;
  head.prompt = "Is the solution right? \xE2\x9C\x93";
  head.adapter = true;
  head.w = {1, -2, 0.5F};
  head.b = -0.125F;
  return head;
}

TEST(HeadsTest, Scores) {
  const std::vector<float> state{1, -1, 2};
  // relu(1 - 2 + 6 + 0.5) = 5.5, relu(-1 + 1) = 0
  EXPECT_NEAR(Switcher().Score(state), 1 / (1 + std::exp(-(0.1 * 5.5 + 0.25))), 1e-7);
  const std::vector<float> other{-3, 0, 0};  // relu(-2.5) = 0, relu(3) = 3
  EXPECT_NEAR(Switcher().Score(other), 1 / (1 + std::exp(-(-2 * 3.0 + 0.25))), 1e-7);
  EXPECT_NEAR(Verifier().Score(state), 1 / (1 + std::exp(-(1 + 2 + 1 - 0.125))), 1e-7);
  const std::vector<float> huge{-1e30F, 1e30F, 0};
  EXPECT_EQ(Verifier().Score(huge), 0.0);
}

TEST(HeadsTest, RoundTrip) {
  const std::string dir = TempDir();
  ASSERT_TRUE(WriteSwitcher(dir + "/s", Switcher()).ok());
  const auto switcher = ReadSwitcher(dir + "/s", 3);
  ASSERT_TRUE(switcher.ok()) << switcher.error().message;
  EXPECT_EQ(switcher->inner, 2);
  EXPECT_EQ(switcher->pooling, Switcher().pooling);
  EXPECT_EQ(switcher->threshold, 0.4);
  EXPECT_EQ(switcher->w1, Switcher().w1);
  EXPECT_EQ(switcher->b1, Switcher().b1);
  EXPECT_EQ(switcher->w2, Switcher().w2);
  EXPECT_EQ(switcher->b2, Switcher().b2);
  ASSERT_TRUE(WriteVerifier(dir + "/v", Verifier()).ok());
  const auto verifier = ReadVerifier(dir + "/v", 3);
  ASSERT_TRUE(verifier.ok()) << verifier.error().message;
  EXPECT_EQ(verifier->prompt, Verifier().prompt);
  EXPECT_TRUE(verifier->adapter);
  EXPECT_EQ(verifier->w, Verifier().w);
  EXPECT_EQ(verifier->b, Verifier().b);
}

template <class T>
void ExpectError(const Result<T>& result, ErrorCode code, const std::string& word) {
  ASSERT_FALSE(result.ok()) << word;
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(word), std::string::npos) << result.error().message;
}

TEST(HeadsTest, OfAnotherModelOrKind) {
  const std::string dir = TempDir();
  ASSERT_TRUE(WriteSwitcher(dir + "/s", Switcher()).ok());
  ASSERT_TRUE(WriteVerifier(dir + "/v", Verifier()).ok());
  ExpectError(ReadSwitcher(dir + "/s", 4), ErrorCode::kMismatch, "width 3, the model's have 4");
  ExpectError(ReadVerifier(dir + "/v", 896), ErrorCode::kMismatch, "896");
  ExpectError(ReadSwitcher(dir + "/v", 3), ErrorCode::kMismatch, "is a verifier, not a switcher");
  ExpectError(ReadVerifier(dir + "/s", 3), ErrorCode::kMismatch, "is a switcher, not a verifier");
  ExpectError(ReadSwitcher(dir + "/none", 3), ErrorCode::kNotFound, "none");
}

struct File {
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> tensors;
};

File GoodFile() {
  return {
      {{"pith_head",
        R"({"kind":"switcher","version":1,"hidden_size":3,"inner_size":2,"chunk":128,"alpha":0.5,"threshold":0.5})"}},
      {{"fc1.weight", {{2, 3}, {1, 2, 3, 4, 5, 6}}},
       {"fc1.bias", {{2}, {0, 0}}},
       {"fc2.weight", {{1, 2}, {1, 1}}},
       {"fc2.bias", {{1}, {0}}}}};
}

Result<SwitcherHead> ReadChanged(const std::function<void(File&)>& change) {
  File file = GoodFile();
  change(file);
  const std::string path = TempDir() + "/head.safetensors";
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : file.tensors) entries.push_back({name, DType::kF32, tensor.first});
  auto writer = SafetensorsWriter::Create(path, entries, file.metadata);
  EXPECT_TRUE(writer.ok());
  for (const auto& [name, tensor] : file.tensors) {
    EXPECT_TRUE((*writer)->Write(name, std::as_bytes(std::span(tensor.second))).ok());
  }
  EXPECT_TRUE((*writer)->Finish().ok());
  return ReadSwitcher(path, 3);
}

void Replace(File& file, const std::string& from, const std::string& to) {
  std::string& header = file.metadata["pith_head"];
  const size_t at = header.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  header.replace(at, from.size(), to);
}

TEST(HeadsTest, MalformedFilesAreNamed) {
  EXPECT_TRUE(ReadChanged([](File&) {}).ok());
  const struct {
    std::function<void(File&)> change;
    ErrorCode code;
    std::string word;
  } cases[] = {
      {[](File& f) { f.metadata.clear(); }, ErrorCode::kMalformed, "not a head"},
      {[](File& f) { f.metadata["pith_head"] = "{"; }, ErrorCode::kMalformed, "pith_head"},
      {[](File& f) { f.metadata["pith_head"] = "[]"; }, ErrorCode::kMalformed, "not an object"},
      {[](File& f) { Replace(f, "\"kind\":\"switcher\",", ""); }, ErrorCode::kMalformed, "kind"},
      {[](File& f) { Replace(f, "\"version\":1", "\"version\":2"); }, ErrorCode::kUnsupported, "version 2"},
      {[](File& f) { Replace(f, "\"hidden_size\":3", "\"hidden_size\":-3"); }, ErrorCode::kMalformed, "hidden_size"},
      {[](File& f) { Replace(f, "\"hidden_size\":3", "\"hidden_size\":18446744073709551615"); }, ErrorCode::kMalformed,
       "hidden_size"},
      {[](File& f) { Replace(f, "\"inner_size\":2", "\"inner_size\":\"2\""); }, ErrorCode::kMalformed, "inner_size"},
      {[](File& f) { Replace(f, "\"inner_size\":2", "\"inner_size\":9223372036854775807"); }, ErrorCode::kMalformed,
       "inner_size"},
      {[](File& f) { Replace(f, "\"chunk\":128", "\"chunk\":0"); }, ErrorCode::kMalformed, "chunk"},
      {[](File& f) { Replace(f, "\"alpha\":0.5", "\"alpha\":0"); }, ErrorCode::kMalformed, "alpha"},
      {[](File& f) { Replace(f, "\"alpha\":0.5", "\"alpha\":1.5"); }, ErrorCode::kMalformed, "alpha"},
      {[](File& f) { Replace(f, "\"threshold\":0.5", "\"threshold\":true"); }, ErrorCode::kMalformed, "threshold"},
      {[](File& f) { Replace(f, "\"kind\"", "\"more\":1,\"kind\""); }, ErrorCode::kMalformed, "unknown field \"more\""},
      {[](File& f) { f.tensors.erase("fc2.bias"); }, ErrorCode::kMalformed, "fc2.bias"},
      {[](File& f) {
         f.tensors["extra"] = {{1}, {0}};
       },
       ErrorCode::kMalformed, "unknown tensor \"extra\""},
      {[](File& f) {
         f.tensors["fc1.weight"] = {{3, 2}, {1, 2, 3, 4, 5, 6}};
       },
       ErrorCode::kMalformed, "[3, 2], not [2, 3]"},
      {[](File& f) { f.tensors["fc1.bias"].second[1] = std::numeric_limits<float>::quiet_NaN(); }, ErrorCode::kNumeric,
       "fc1.bias"},
      {[](File& f) { f.tensors["fc1.weight"].second[1] = std::numeric_limits<float>::infinity(); }, ErrorCode::kNumeric,
       "fc1.weight"},
  };
  for (const auto& c : cases) ExpectError(ReadChanged(c.change), c.code, c.word);
}

TEST(HeadsTest, TruncatedFilesAreRefused) {
  const std::string dir = TempDir();
  ASSERT_TRUE(WriteSwitcher(dir + "/s", Switcher()).ok());
  const std::string whole = testing::ReadFile(dir + "/s");
  for (size_t n = 0; n < whole.size(); n += 3) {
    std::ofstream(dir + "/cut", std::ios::binary | std::ios::trunc) << whole.substr(0, n);
    EXPECT_FALSE(ReadSwitcher(dir + "/cut", 3).ok()) << n;
  }
}

TEST(HeadsTest, NothingBrokenIsWritten) {
  const std::string path = TempDir() + "/head";
  const auto refuses = [&](const std::function<void(SwitcherHead&)>& change) {
    SwitcherHead head = Switcher();
    change(head);
    const Status status = WriteSwitcher(path, head);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(std::ifstream(path).good());
  };
  refuses([](SwitcherHead& head) { head.w1.pop_back(); });
  refuses([](SwitcherHead& head) { head.w2[0] = std::numeric_limits<float>::quiet_NaN(); });
  refuses([](SwitcherHead& head) { head.inner = 0; });
  refuses([](SwitcherHead& head) { head.hidden = -1; });
  refuses([](SwitcherHead& head) { head.hidden = INT64_MAX; });
  refuses([](SwitcherHead& head) { head.threshold = std::numeric_limits<double>::quiet_NaN(); });
  refuses([](SwitcherHead& head) { head.pooling.chunk = 0; });
  VerifierHead verifier = Verifier();
  verifier.prompt.clear();
  EXPECT_FALSE(WriteVerifier(path, verifier).ok());
  verifier.prompt = "\xFF";
  EXPECT_FALSE(WriteVerifier(path, verifier).ok());
}

}  // namespace
}  // namespace pith
