#include "heads/feature_set.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "support/data.h"
#include "toy_features.h"

namespace pith::heads {
namespace {

using testing::TempDir;

void ExpectError(const std::vector<std::string>& folders, ErrorCode code, const std::vector<std::string>& parts) {
  const auto set = ReadFeatures(folders);
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.error().code, code) << set.error().message;
  for (const auto& part : parts) EXPECT_NE(set.error().message.find(part), std::string::npos) << set.error().message;
}

TEST(FeatureSetTest, ReadsShardsOfSeveralFolders) {
  const std::string one = TempDir();
  const std::string two = TempDir();
  const FeatureSet first = ToySet(FeatureKind::kVerifier, 3, 2, 1);
  FeatureSet second = ToySet(FeatureKind::kVerifier, 2, 3, 1, 5);
  second.questions = {"q2", "new"};  // q2 is known already
  WriteShard(one + "/features-00000.safetensors", first);
  WriteShard(one + "/features-00001.safetensors", second, {}, 64);
  WriteShard(two + "/features-00000.safetensors", second);
  std::ofstream(one + "/notes.txt") << "not a shard";
  const auto set = ReadFeatures({one, two});
  ASSERT_TRUE(set.ok()) << set.error().message;
  EXPECT_EQ(set->kind, FeatureKind::kVerifier);
  EXPECT_EQ(set->prompt, "Right?");
  EXPECT_EQ(set->questions, (std::vector<std::string>{"q0", "q1", "q2", "new"}));
  EXPECT_EQ(set->question, (std::vector<int32_t>{0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 2, 2, 2, 3, 3, 3}));
  EXPECT_EQ(set->rows(), 18);
  EXPECT_EQ(set->State(6)[0], second.states[0]);
  const std::string three = TempDir();
  WriteShard(three + "/features-00000.safetensors", ToySet(FeatureKind::kSwitcher, 3, 1, 1));
  const auto switcher = ReadFeatures({three});
  ASSERT_TRUE(switcher.ok());
  EXPECT_EQ(switcher->pooling, (StatePooling{.chunk = 32, .alpha = 0.25}));
}

TEST(FeatureSetTest, ShardsOfDifferentModelsAreRefused) {
  const FeatureSet set = ToySet(FeatureKind::kVerifier, 2, 2, 1);
  const auto with = [&](const FeatureSet& other, const std::function<void(OrderedJson&)>& change) {
    const std::string dir = TempDir();
    WriteShard(dir + "/features-00000.safetensors", set);
    WriteShard(dir + "/features-00001.safetensors", other, change);
    return dir;
  };
  const std::string a = "features-00000";
  const std::string b = "features-00001";
  ExpectError({with(set, [](OrderedJson& json) { json["provenance"] = "another model"; })}, ErrorCode::kMismatch,
              {a, b, "provenance", "another model", "toy"});
  ExpectError({with(ToySet(FeatureKind::kVerifier, 2, 2, 1, 1, 7), {})}, ErrorCode::kMismatch,
              {a, b, "hidden_size", "7"});
  ExpectError({with(ToySet(FeatureKind::kSwitcher, 2, 2, 1), {})}, ErrorCode::kMismatch, {a, b, "kind"});
  ExpectError({with(set, [](OrderedJson& json) { json["verification_prompt"] = "Sure?"; })}, ErrorCode::kMismatch,
              {"verification_prompt", "Sure?"});
  ExpectError({with(set, [](OrderedJson& json) { json["verification_adapter"] = true; })}, ErrorCode::kMismatch,
              {"verification_adapter"});
  // Other prompts are fine: a set may be of chats and problems.
  EXPECT_TRUE(ReadFeatures({with(set, [](OrderedJson& json) { json["prompts"] = "boxed"; })}).ok());
}

TEST(FeatureSetTest, BadRowsAreNamed) {
  const auto write = [](const FeatureSet& set, const std::function<void(OrderedJson&)>& change = {}) {
    const std::string dir = TempDir();
    WriteShard(dir + "/features-00000.safetensors", set, change);
    return dir;
  };
  FeatureSet set = ToySet(FeatureKind::kSwitcher, 4, 1, 1);
  set.states[2 * 6 + 3] = std::numeric_limits<float>::quiet_NaN();
  ExpectError({write(set)}, ErrorCode::kNumeric, {"features-00000", "row 2", "'q2'"});
  set = ToySet(FeatureKind::kSwitcher, 4, 1, 1);
  set.labels[1] = 0.5F;
  ExpectError({write(set)}, ErrorCode::kMalformed, {"row 1", "'q1'", "label"});
  set = ToySet(FeatureKind::kSwitcher, 4, 1, 1);
  set.question[3] = 4;
  ExpectError({write(set)}, ErrorCode::kMalformed, {"row 3", "question 4"});
  set.question[3] = -1;
  ExpectError({write(set)}, ErrorCode::kMalformed, {"row 3", "question -1"});
  set = ToySet(FeatureKind::kSwitcher, 4, 1, 1);
  const auto changed = [&](const std::function<void(OrderedJson&)>& change) { return write(set, change); };
  ExpectError({changed([](OrderedJson& json) { json["hidden_size"] = 5; })}, ErrorCode::kMalformed,
              {"states", "[4, 6]"});
  ExpectError({changed([](OrderedJson& json) { json["version"] = 2; })}, ErrorCode::kUnsupported, {"version"});
  ExpectError({changed([](OrderedJson& json) { json["kind"] = "other"; })}, ErrorCode::kMalformed, {"kind"});
  ExpectError({changed([](OrderedJson& json) { json["hidden_size"] = 1e30; })}, ErrorCode::kMalformed, {"hidden_size"});
  ExpectError({changed([](OrderedJson& json) { json["ids"] = {1}; })}, ErrorCode::kMalformed, {"ids"});
  ExpectError({changed([](OrderedJson& json) { json["ids"] = nullptr; })}, ErrorCode::kMalformed, {"ids"});
  ExpectError({changed([](OrderedJson& json) { json["first_question"] = -5; })}, ErrorCode::kMalformed,
              {"first_question"});
  ExpectError({changed([](OrderedJson& json) { json.erase("provenance"); })}, ErrorCode::kMalformed, {"provenance"});
  ExpectError({changed([](OrderedJson& json) { json.erase("chunk"); })}, ErrorCode::kMalformed, {"chunk"});
}

TEST(FeatureSetTest, MissingFolders) {
  const std::string empty = TempDir();
  ExpectError({empty}, ErrorCode::kNotFound, {empty, "pith features"});
  ExpectError({"/no/such/folder"}, ErrorCode::kNotFound, {"/no/such/folder"});
  ExpectError({}, ErrorCode::kInvalidArgument, {"no rows"});
  FeatureSet none = ToySet(FeatureKind::kSwitcher, 0, 1, 1);
  WriteShard(empty + "/features-00000.safetensors", none);
  ExpectError({empty}, ErrorCode::kInvalidArgument, {"no rows"});
  const std::string other = TempDir();
  auto writer = SafetensorsWriter::Create(other + "/features-00000.safetensors", {{"x", DType::kF32, {1}}});
  const float zero = 0;
  ASSERT_TRUE((*writer)->Write("x", std::as_bytes(std::span(&zero, 1))).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  ExpectError({other}, ErrorCode::kMalformed, {"pith features"});
}

}  // namespace
}  // namespace pith::heads
