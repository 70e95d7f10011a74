#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/data.h"

namespace pith {
namespace {

std::string File(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

Result<std::shared_ptr<const SafetensorsFile>> Parse(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  return SafetensorsFile::Parse(std::as_bytes(std::span(owner->data(), owner->size())), owner, "test.safetensors");
}

void ExpectError(const std::string& bytes, ErrorCode code, const std::string& part) {
  const auto file = Parse(bytes);
  ASSERT_FALSE(file.ok()) << "accepted, expected an error about: " << part;
  EXPECT_EQ(file.error().code, code) << file.error().message;
  EXPECT_NE(file.error().message.find(part), std::string::npos) << file.error().message;
}
void ExpectMalformed(const std::string& bytes, const std::string& part) {
  ExpectError(bytes, ErrorCode::kMalformed, part);
}

// One tensor "t" with these fields over `bytes` bytes of data.
std::string OneTensor(const std::string& fields, size_t bytes) {
  return File("{\"t\":{" + fields + "}}", std::string(bytes, 'x'));
}

TEST(Safetensors, ReadsAFile) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[6,22]},)"
      R"("a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},"empty":{"dtype":"I8","shape":[0,4],"data_offsets":[22,22]},)"
      R"("scalar":{"shape":[],"data_offsets":[22,23],"dtype":"BOOL"}}   )";
  const auto file = Parse(File(header, std::string(23, '\0')));
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ((*file)->tensors().size(), 4u);
  EXPECT_EQ((*file)->tensors()[0].name, "a");
  EXPECT_EQ((*file)->Find("b")->shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ((*file)->Find("b")->data.size(), 16u);
  EXPECT_EQ(*ToFloats(*(*file)->Find("b")), std::vector<float>(4, 0.0f));
  EXPECT_EQ((*file)->Find("scalar")->elements(), 1);
  EXPECT_EQ((*file)->Find("empty")->elements(), 0);
  EXPECT_EQ((*file)->Find("c"), nullptr);
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
  EXPECT_EQ((*file)->file_bytes(), 8 + header.size() + 23);
  EXPECT_TRUE(Parse(File("{}")).ok());
}

TEST(Safetensors, RefusesBadHeaders) {
  ExpectMalformed("", "too short");
  ExpectMalformed("1234567", "too short");
  ExpectMalformed(File(""), "not a JSON object");
  ExpectMalformed(File("[]"), "not a JSON object");
  ExpectMalformed(File(" {}"), "not a JSON object");
  ExpectMalformed(File("{"), "parse");
  ExpectMalformed(File("{} x"), "parse");
  ExpectMalformed(File("{}{}"), "parse");
  ExpectMalformed(File(R"({"t":1})"), "'t' may not be a number");
  ExpectMalformed(File(R"({"t":null})"), "'t' may not be null");
  ExpectMalformed(File(R"({"t":[]})"), "'t' may not be an array");
  ExpectMalformed(File("{\"\xff\":{}}"), "UTF-8");
  // Lengths: above the cap, and beyond the file however large.
  for (const uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
    std::string bytes = File("{}");
    std::memcpy(bytes.data(), &length, sizeof(length));
    ExpectMalformed(bytes, "above 100 MB");
  }
  std::string bytes = File("{}");
  bytes[0] = 3;
  ExpectMalformed(bytes, "ends inside the header");
  // Depth costs nothing: only the one form is accepted.
  std::string deep = "{\"t\":";
  for (int i = 0; i < 200000; ++i) deep += "{\"a\":";
  ExpectMalformed(File(deep), "unknown field 'a'");
}

TEST(Safetensors, RefusesBadMetadata) {
  ExpectMalformed(File(R"({"__metadata__":[]})"), "__metadata__");
  ExpectMalformed(File(R"({"__metadata__":{"a":1}})"), "'a' of __metadata__");
  ExpectMalformed(File(R"({"__metadata__":{"a":{}}})"), "'a' of __metadata__");
  ExpectMalformed(File(R"({"__metadata__":{"a":"1","a":"2"}})"), "'a' of __metadata__ appears twice");
  ExpectMalformed(File(R"({"__metadata__":{},"__metadata__":{}})"), "'__metadata__' appears twice");
}

TEST(Safetensors, RefusesBadFields) {
  ExpectMalformed(OneTensor(R"("shape":[1],"data_offsets":[0,1])", 1), "'t' has no dtype");
  ExpectMalformed(OneTensor(R"("dtype":"U8","data_offsets":[0,1])", 1), "'t' has no shape");
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[1])", 1), "'t' has no data_offsets");
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0)", 1), "unknown field 'x'");
  ExpectMalformed(OneTensor(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])", 1), "'dtype' twice");
  ExpectMalformed(OneTensor(R"("dtype":8,"shape":[1],"data_offsets":[0,1])", 1), "'dtype' of tensor 't'");
  ExpectError(OneTensor(R"("dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1])", 1), ErrorCode::kUnsupported,
              "F8_E4M3");
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":1,"data_offsets":[0,1])", 1), "'shape' of tensor 't'");
  for (const char* size : {"-1", "1.0", "1e0", "\"1\"", "null", "true", "[1]", "{}", "9223372036854775808",
                           "18446744073709551616", "-9223372036854775808"}) {
    ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[)" + std::string(size) + R"(],"data_offsets":[0,1])", 1),
                    "'shape' of tensor 't'");
    const std::string in_offsets = R"("dtype":"U8","shape":[1],"data_offsets":[0,)" + std::string(size) + "]";
    EXPECT_FALSE(Parse(OneTensor(in_offsets, 1)).ok()) << size;
  }
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[0])", 1), "fewer than 2");
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,1])", 1), "too many");
  ExpectMalformed(File(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                       "xx"),
                  "'t' appears twice");
  std::string long_shape = "1";
  for (int i = 0; i < 100; ++i) long_shape += ",1";
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[)" + long_shape + R"(],"data_offsets":[0,1])", 1), "too many");
}

TEST(Safetensors, RefusesBadRanges) {
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])", 1), "backwards");
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])", 1), "outside the file");
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615])", 1), "outside");
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])", 2), "gap");
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])", 2), "belong to none");
  // Shape and dtype must give exactly the range.
  ExpectMalformed(OneTensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", 4), "does not fit");
  ExpectMalformed(OneTensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])", 8), "does not fit");
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0), "does not fit");
  ExpectMalformed(OneTensor(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])", 0), "does not fit");
  ExpectMalformed(OneTensor(R"("dtype":"U8","shape":[9223372036854775807,2,0],"data_offsets":[0,0])", 0),
                  "does not fit");
  const auto two = [](const std::string& first, const std::string& second, size_t bytes) {
    return File(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
                    R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}",
                std::string(bytes, 'x'));
  };
  EXPECT_TRUE(Parse(two("[2,4]", "[0,2]", 4)).ok());
  ExpectMalformed(two("[0,2]", "[1,3]", 3), "overlap");
  ExpectMalformed(two("[0,2]", "[0,2]", 2), "overlap");
  ExpectMalformed(two("[0,2]", "[3,5]", 5), "gap");
}

TEST(Safetensors, SurvivesEveryTruncationAndChangedByte) {
  const std::string whole =
      File(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]}})", "abcd");
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t length = 0; length < whole.size(); ++length) EXPECT_FALSE(Parse(whole.substr(0, length)).ok()) << length;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      const auto file = Parse(changed);
      if (!file.ok()) continue;
      for (const Tensor& tensor : (*file)->tensors()) (void)ToFloats(tensor);
    }
  }
}

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); }

TEST(SafetensorsWriter, WritesInPiecesWhatTheReaderReads) {
  const std::string path = testing::TempDir() + "/out.safetensors";
  auto writer = SafetensorsWriter::Create(
      path,
      {{"z", DType::kI64, {2}}, {"none", DType::kU8, {0}}, {"a", DType::kU8, {3, 2}}, {"end", DType::kF32, {0, 3}}},
      {{"format", "pt"}, {"note", "\"quoted\" \xc3\xa4"}});
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  const std::string wide(16, '\7');
  EXPECT_TRUE((*writer)->Write("z", Bytes(wide)).ok());
  EXPECT_TRUE((*writer)->Write("none", {}).ok());
  EXPECT_TRUE((*writer)->Write("a", Bytes("abcd")).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE((*writer)->Write("a", Bytes("ef")).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ((*writer)->Finish().error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(std::filesystem::file_size(path), (*writer)->file_bytes());

  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->tensors().size(), 4u);
  const Tensor* tensor = (*file)->Find("a");
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size()), "abcdef");
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ((*file)->metadata().at("note"), "\"quoted\" \xc3\xa4");
  EXPECT_EQ((*file)->header().size() % 64, 0u);
  EXPECT_NE(tensor->file, nullptr);
}

TEST(SafetensorsWriter, LeavesNothingBehindWhenNotFinished) {
  const std::string dir = testing::TempDir();
  const std::string path = dir + "/out.safetensors";
  std::ofstream(path) << "old";
  {
    auto writer = SafetensorsWriter::Create(path, {{"a", DType::kU8, {4}}});
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE((*writer)->Write("a", Bytes("ab")).ok());
    const Status early = (*writer)->Finish();
    EXPECT_EQ(early.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(early.error().message.find("'a'"), std::string::npos);
  }
  EXPECT_EQ(testing::ReadFile(path), "old");
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir)) ++files;
  EXPECT_EQ(files, 1u);
}

TEST(SafetensorsWriter, RefusesWrongOrderSizesNamesAndPlaces) {
  const std::string path = testing::TempDir() + "/out.safetensors";
  auto writer = SafetensorsWriter::Create(path, {{"a", DType::kU8, {2}}, {"b", DType::kU8, {2}}});
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->Write("b", Bytes("xx")).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ((*writer)->Write("a", Bytes("xxx")).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE((*writer)->Write("a", Bytes("xx")).ok());
  EXPECT_TRUE((*writer)->Write("b", Bytes("xx")).ok());
  EXPECT_EQ((*writer)->Write("b", Bytes("x")).error().code, ErrorCode::kInvalidArgument);

  const auto create = [&](std::vector<SafetensorsEntry> entries) {
    const auto result = SafetensorsWriter::Create(path, std::move(entries));
    return result.ok() ? ErrorCode::kInternal : result.error().code;
  };
  EXPECT_EQ(create({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(create({{"", DType::kU8, {1}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(create({{"__metadata__", DType::kU8, {1}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(create({{"a", DType::kQ4_0, {32}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(create({{"a", DType::kU8, {-1}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(create({{"a\xff", DType::kU8, {1}}}), ErrorCode::kInvalidArgument);
  const int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(create({{"a", DType::kU8, {huge}}, {"b", DType::kU8, {huge}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(SafetensorsWriter::Create("/no/such/dir/x", {}).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace pith
