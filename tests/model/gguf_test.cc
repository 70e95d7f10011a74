#include "model/gguf.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "support/data.h"
#include "support/gguf_builder.h"

namespace pith {
namespace {

using testing::GgufBuilder;
using testing::ParseGguf;
using testing::Raw;

constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ2_K = 10, kQ4_K = 12;

// A well-formed file with one of everything.
GgufBuilder Sample() {
  GgufBuilder builder;
  builder.AddString("general.architecture", "llama");
  builder.Add("a.u8", GgufType::kU8, uint8_t{200}).Add("a.i8", GgufType::kI8, int8_t{-3});
  builder.Add("a.u16", GgufType::kU16, uint16_t{60000}).Add("a.i16", GgufType::kI16, int16_t{-300});
  builder.AddU32("a.u32", 4000000000u).Add("a.i32", GgufType::kI32, int32_t{-5});
  builder.Add("a.u64", GgufType::kU64, uint64_t{1} << 40).Add("a.i64", GgufType::kI64, int64_t{-7});
  builder.AddF32("a.f32", 0.5f).Add("a.f64", GgufType::kF64, 0.1).Add("a.bool", GgufType::kBool, uint8_t{1});
  builder.AddStrings("b.strings", {"", "x", "two words"});
  builder.AddArray<int32_t>("b.ints", GgufType::kI32, {1, -2, 3});
  builder.AddArray<float>("b.floats", GgufType::kF32, {1.0f, -2.5f});
  builder.AddArray<uint8_t>("b.bools", GgufType::kBool, {0, 1});
  builder.AddArray<uint32_t>("b.empty", GgufType::kU32, {});
  builder.AddFloats("t.matrix", {3, 2}, 1.5f);
  builder.AddTensor("t.quant", {64, 2}, kQ4_0, std::string(4 * 18, '\1'));
  builder.AddFloats("t.vector", {5}, -1.0f);
  return builder;
}

// Expects that the bytes are refused with this code and a message that holds `part`.
void ExpectError(const std::string& bytes, ErrorCode code, const std::string& part) {
  const auto file = ParseGguf(bytes);
  ASSERT_FALSE(file.ok()) << "accepted, expected an error about: " << part;
  EXPECT_EQ(file.error().code, code) << file.error().message;
  EXPECT_NE(file.error().message.find(part), std::string::npos) << file.error().message;
  EXPECT_LT(file.error().message.size(), 400u);
}
void ExpectMalformed(const std::string& bytes, const std::string& part) {
  ExpectError(bytes, ErrorCode::kMalformed, part);
}

TEST(Gguf, ReadsEveryKindOfValue) {
  for (const uint32_t version : {2u, 3u}) {
    GgufBuilder builder = Sample();
    builder.version = version;
    const auto file = ParseGguf(builder.Build());
    ASSERT_TRUE(file.ok()) << file.error().message;
    const GgufFile& gguf = **file;
    EXPECT_EQ(gguf.version(), version);
    EXPECT_EQ(gguf.metadata().size(), 17u);
    EXPECT_EQ(*gguf.GetString("general.architecture"), "llama");
    EXPECT_EQ(*gguf.GetInt("a.u8"), 200);
    EXPECT_EQ(*gguf.GetInt("a.i8"), -3);
    EXPECT_EQ(*gguf.GetInt("a.u16"), 60000);
    EXPECT_EQ(*gguf.GetInt("a.i16"), -300);
    EXPECT_EQ(*gguf.GetInt("a.u32"), 4000000000);
    EXPECT_EQ(*gguf.GetInt("a.i32"), -5);
    EXPECT_EQ(*gguf.GetInt("a.u64"), int64_t{1} << 40);
    EXPECT_EQ(*gguf.GetInt("a.i64"), -7);
    EXPECT_EQ(*gguf.GetFloat("a.f32"), 0.5);
    EXPECT_EQ(*gguf.GetFloat("a.f64"), 0.1);
    EXPECT_EQ(*gguf.GetFloat("a.i32"), -5.0);
    EXPECT_TRUE(*gguf.GetBool("a.bool"));
    EXPECT_EQ(*gguf.GetStrings("b.strings"), (std::vector<std::string_view>{"", "x", "two words"}));
    EXPECT_EQ(*gguf.GetInts("b.ints"), (std::vector<int64_t>{1, -2, 3}));
    EXPECT_EQ(*gguf.GetFloats("b.floats"), (std::vector<float>{1.0f, -2.5f}));
    EXPECT_EQ(*gguf.GetInts("b.bools"), (std::vector<int64_t>{0, 1}));
    EXPECT_TRUE(gguf.GetInts("b.empty")->empty());
  }
}

TEST(Gguf, AbsentKeysAndOtherTypesAreErrorsThatNameTheKey) {
  const auto file = ParseGguf(Sample().Build());
  ASSERT_TRUE(file.ok());
  const GgufFile& gguf = **file;
  EXPECT_EQ(gguf.GetInt("no.such").error().code, ErrorCode::kNotFound);
  EXPECT_NE(gguf.GetInt("no.such").error().message.find("'no.such'"), std::string::npos);
  EXPECT_EQ(*gguf.GetInt("no.such", 9), 9);
  EXPECT_EQ(*gguf.GetString("no.such", "x"), "x");
  EXPECT_EQ(*gguf.GetFloat("no.such", 1.5), 1.5);
  EXPECT_FALSE(*gguf.GetBool("no.such", false));
  EXPECT_EQ(gguf.GetStrings("no.such").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(gguf.GetFloats("no.such").error().code, ErrorCode::kNotFound);
  // A fallback is for an absent key, not for a wrong one.
  EXPECT_EQ(gguf.GetInt("a.f32", 9).error().code, ErrorCode::kMalformed);
  EXPECT_EQ(gguf.GetInt("a.bool").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(gguf.GetInt("b.ints").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(gguf.GetFloat("general.architecture").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(gguf.GetBool("a.u8").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(gguf.GetString("b.strings").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(gguf.GetStrings("b.ints").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(gguf.GetInts("b.floats").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(gguf.GetInts("b.strings").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(gguf.GetFloats("b.ints").error().code, ErrorCode::kMalformed);
  GgufBuilder big;
  big.Add("k", GgufType::kU64, ~uint64_t{0});
  big.AddArray<uint64_t>("ks", GgufType::kU64, {1, ~uint64_t{0}});
  const auto with_big = ParseGguf(big.Build());
  EXPECT_EQ((*with_big)->GetInt("k").error().code, ErrorCode::kMalformed);
  EXPECT_EQ((*with_big)->GetInts("ks").error().code, ErrorCode::kMalformed);
}

TEST(Gguf, TensorsHaveRowMajorShapesAndTheirBytes) {
  const auto file = ParseGguf(Sample().Build());
  ASSERT_TRUE(file.ok());
  ASSERT_EQ((*file)->tensors().size(), 3u);
  const Tensor* matrix = (*file)->FindTensor("t.matrix");
  ASSERT_NE(matrix, nullptr);
  EXPECT_EQ(matrix->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(*ToFloats(*matrix), std::vector<float>(6, 1.5f));
  const Tensor* quant = (*file)->FindTensor("t.quant");
  EXPECT_EQ(quant->type, DType::kQ4_0);
  EXPECT_EQ(quant->shape, (std::vector<int64_t>{2, 64}));
  EXPECT_EQ(quant->data.size(), 72u);
  EXPECT_EQ(*ToFloats(*(*file)->FindTensor("t.vector")), std::vector<float>(5, -1.0f));
  EXPECT_EQ((*file)->FindTensor("t"), nullptr);
}

TEST(Gguf, TensorsOutliveTheFileObject) {
  auto file = ParseGguf(Sample().Build());
  const Tensor tensor = *(*file)->FindTensor("t.matrix");
  file = Error{};
  EXPECT_EQ(*ToFloats(tensor), std::vector<float>(6, 1.5f));
}

TEST(Gguf, RefusesBadMagicAndVersions) {
  ExpectMalformed("", "GGUF");
  ExpectMalformed("GGU", "GGUF");
  GgufBuilder builder = Sample();
  builder.magic = "GGML";
  ExpectMalformed(builder.Build(), "not a GGUF file");
  builder.magic = "GGUF";
  builder.version = 0;
  ExpectMalformed(builder.Build(), "version 0");
  builder.version = 1;
  ExpectError(builder.Build(), ErrorCode::kUnsupported, "version 1");
  builder.version = 4;
  ExpectError(builder.Build(), ErrorCode::kUnsupported, "version 4");
  builder.version = 0x03000000;
  ExpectError(builder.Build(), ErrorCode::kUnsupported, "big-endian");
}

TEST(Gguf, RefusesBadKeys) {
  ExpectMalformed(GgufBuilder().AddU32("", 1).AddU32("pad", 1).Build(), "empty key");
  ExpectMalformed(GgufBuilder().AddU32("same", 1).AddU32("same", 1).Build(), "'same' appears twice");
  ExpectMalformed(GgufBuilder().AddU32(std::string(70000, 'k'), 1).Build(), "longer than 65535");
  ExpectMalformed(GgufBuilder().AddU32("bad\xff", 1).Build(), "not UTF-8");
  EXPECT_TRUE(ParseGguf(GgufBuilder().AddU32(std::string(65535, 'k'), 1).Build()).ok());
  // The length of a key: huge, and so large that adding anything to it wraps.
  for (const uint64_t length : {uint64_t{1} << 30, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    const std::string bytes =
        "GGUF" + Raw(3u) + Raw<uint64_t>(0) + Raw<uint64_t>(1) + Raw(length) + std::string(64, 'k');
    ExpectMalformed(bytes, "the key of metadata entry 0");
  }
}

TEST(Gguf, RefusesBadValues) {
  ExpectMalformed(GgufBuilder().AddRaw("k", 13, Raw<uint64_t>(0)).Build(), "unknown value type 13");
  ExpectMalformed(GgufBuilder().AddRaw("k", ~0u, Raw<uint64_t>(0)).Build(), "unknown value type");
  ExpectMalformed(GgufBuilder().AddRaw("k", 9, Raw(77u) + Raw<uint64_t>(0)).Build(), "unknown value type 77");
  ExpectMalformed(GgufBuilder().Add("k", GgufType::kBool, uint8_t{2}).Build(), "neither 0 nor 1");
  // Arrays of arrays, also very deep ones, are refused at the first level.
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += Raw(9u) + Raw<uint64_t>(1);
  ExpectError(GgufBuilder().AddRaw("k", 9, nested).Build(), ErrorCode::kUnsupported, "array of arrays");
  // Lengths of strings and arrays beyond the file, up to those that wrap (a length plus one, a count times a size).
  for (const uint64_t length : {uint64_t{1} << 30, uint64_t{1} << 61, uint64_t{1} << 63, ~uint64_t{0}}) {
    ExpectMalformed(GgufBuilder().AddRaw("k", 8, Raw(length)).Build(), "'k'");
    for (const uint32_t type : {0u, 4u, 7u, 8u, 10u, 12u}) {
      ExpectMalformed(GgufBuilder().AddRaw("k", 9, Raw(type) + Raw(length)).Build(), "'k'");
    }
    ExpectMalformed(GgufBuilder().AddRaw("k", 9, Raw(8u) + Raw<uint64_t>(1) + Raw(length)).Build(), "'k'");
  }
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  for (const uint64_t count : {uint64_t{1000}, uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}}) {
    GgufBuilder tensors = Sample();
    tensors.tensor_count = count;
    ExpectMalformed(tensors.Build(), "tensors (");
    GgufBuilder metadata = Sample();
    metadata.metadata_count = count;
    ExpectMalformed(metadata.Build(), "metadata entries (");
  }
  // A count that fits but is wrong makes the following bytes nonsense, which is an error, too.
  GgufBuilder more = Sample();
  more.metadata_count = 18;
  EXPECT_FALSE(ParseGguf(more.Build()).ok());
  GgufBuilder fewer = Sample();
  fewer.metadata_count = 16;
  EXPECT_FALSE(ParseGguf(fewer.Build()).ok());
}

TEST(Gguf, RefusesBadAlignment) {
  for (const uint32_t alignment : {0u, 3u, 13u, 48u, 1u << 30, 1u << 31, ~0u}) {
    ExpectMalformed(GgufBuilder().AddU32("general.alignment", alignment).AddFloats("t", {4}, 1.0f).Build(),
                    "general.alignment");
  }
  ExpectMalformed(GgufBuilder().Add("general.alignment", GgufType::kU64, uint64_t{32}).Build(), "general.alignment");
  ExpectMalformed(GgufBuilder().AddF32("general.alignment", 32.0f).Build(), "general.alignment");
  ExpectMalformed(GgufBuilder().AddString("general.alignment", "32").Build(), "general.alignment");
  for (const uint32_t alignment : {1u, 8u, 64u, 4096u}) {
    GgufBuilder builder;
    builder.alignment = alignment;
    builder.AddU32("general.alignment", alignment).AddFloats("a", {3}, 1.0f).AddFloats("b", {3}, 2.0f);
    const auto file = ParseGguf(builder.Build());
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(*ToFloats(*(*file)->FindTensor("b")), std::vector<float>(3, 2.0f));
  }
}

TEST(Gguf, RefusesBadShapes) {
  const std::string data(4096, '\0');
  const auto with = [&](const std::vector<uint64_t>& dims, uint32_t type) {
    return GgufBuilder().AddTensor("t", dims, type, data).Build();
  };
  ExpectMalformed(with({0}, kF32), "'t' has dimension 0");
  ExpectMalformed(with({4, 0}, kF32), "'t' has dimension 0");
  ExpectMalformed(with({1, 1, 1, 1, 1}, kF32), "5 dimensions");
  ExpectMalformed(with({uint64_t{1} << 63}, kF32), "'t' has dimension");
  ExpectMalformed(with({~uint64_t{0}}, kF32), "'t' has dimension");
  ExpectMalformed(with({uint64_t{1} << 62}, kF32), "cannot have shape");                     // bytes overflow
  ExpectMalformed(with({uint64_t{1} << 32, uint64_t{1} << 32}, kF16), "cannot have shape");  // elements wrap to 0
  ExpectMalformed(with({uint64_t{1} << 61, 2, 2, 2}, kQ4_0), "cannot have shape");
  ExpectMalformed(with({100}, kQ4_0), "cannot have shape");  // part of a block
  ExpectMalformed(with({128, 2}, kQ4_K), "cannot have shape");
  ExpectMalformed(GgufBuilder().AddTensorAt("t", std::vector<uint64_t>(1000, 1), kF32, 0).Build(), "1000 dimensions");
}

TEST(Gguf, RefusesDataOutsideTheFile) {
  // The declared shape is larger than the data: the bytes behind it must never be read.
  ExpectMalformed(GgufBuilder().AddTensor("leak", {1024}, kF32, std::string(64, '\0')).Build(), "'leak'");
  ExpectMalformed(GgufBuilder().AddTensorAt("t", {8}, kF32, 1 << 20).Build(), "'t'");
  ExpectMalformed(GgufBuilder().AddTensorAt("t", {8}, kF32, ~uint64_t{0} - 31).Build(), "'t'");
  ExpectMalformed(GgufBuilder().AddTensor("a", {8}, kF32, std::string(64, '\0')).AddTensorAt("t", {2}, kF32, 4).Build(),
                  "multiple of the alignment");
  // Sizes whose sum wraps around 2^64, each with an offset that looks plausible.
  GgufBuilder sum;
  for (int i = 0; i < 5; ++i) {
    sum.AddTensorAt("t" + std::to_string(i), {uint64_t{1} << 59}, kF32, uint64_t{static_cast<uint64_t>(i)} << 61);
  }
  ExpectMalformed(sum.Build(), "lies outside");
  ExpectMalformed(
      GgufBuilder().AddTensor("a", {16}, kF32, std::string(64, '\0')).AddTensorAt("b", {8}, kF32, 32).Build(),
      "overlap");
}

TEST(Gguf, RefusesBadTensorNamesAndTypes) {
  ExpectMalformed(GgufBuilder().AddFloats("t", {1}, 0).AddFloats("t", {1}, 0).Build(), "'t' appears twice");
  ExpectMalformed(GgufBuilder().AddFloats("", {1}, 0).Build(), "empty name");
  ExpectMalformed(GgufBuilder().AddFloats(std::string(65, 'n'), {1}, 0).Build(), "longer than 64");
  ExpectMalformed(GgufBuilder().AddFloats("\xc3", {1}, 0).Build(), "not UTF-8");
  EXPECT_TRUE(ParseGguf(GgufBuilder().AddFloats(std::string(64, 'n'), {1}, 0).Build()).ok());
  ExpectMalformed(GgufBuilder().AddTensorAt("t", {256}, 4, 0).Build(), "unknown type 4");
  ExpectMalformed(GgufBuilder().AddTensorAt("t", {256}, 1000000, 0).Build(), "unknown type");
  ExpectError(GgufBuilder().AddTensorAt("t", {256}, kQ2_K, 0).Build(), ErrorCode::kUnsupported, "Q2_K");
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string whole = Sample().Build();
  ASSERT_TRUE(ParseGguf(whole).ok());
  // Up to the last byte that some tensor needs; the rest is padding. A copy of exactly that size lets the address
  // sanitizer see a read of even one byte too many.
  const size_t needed = whole.size() - 12;  // the last tensor has 5 floats, padded to 32 bytes
  for (size_t length = 0; length < needed; ++length) {
    const auto file = ParseGguf(whole.substr(0, length));
    ASSERT_FALSE(file.ok()) << "accepted " << length << " of " << whole.size() << " bytes";
    ASSERT_EQ(file.error().code, ErrorCode::kMalformed) << file.error().message;
  }
  EXPECT_TRUE(ParseGguf(whole.substr(0, needed)).ok());
}

TEST(Gguf, SurvivesEveryChangedByte) {
  const std::string whole = Sample().Build();
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      const auto file = ParseGguf(changed);
      if (!file.ok()) continue;
      for (const Tensor& tensor : (*file)->tensors()) (void)ToFloats(tensor);
      for (const auto& [key, value] : (*file)->metadata()) {
        (void)(*file)->GetStrings(key);
        (void)(*file)->GetInts(key);
        (void)(*file)->GetFloats(key);
      }
    }
  }
}

TEST(Gguf, OpensFromDisk) {
  const std::string path = testing::TempDir() + "/sample.gguf";
  std::ofstream(path, std::ios::binary) << Sample().Build();
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_NE((*file)->tensors()[0].file, nullptr);
  EXPECT_EQ(GgufFile::Open(path + ".no").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(GgufFile::Open(testing::TempDir()).error().code, ErrorCode::kIo);
}

TEST(Gguf, LargeVocabularyOpensInMilliseconds) {
  std::vector<std::string> tokens, merges;
  for (int i = 0; i < 150'000; ++i) {
    tokens.push_back("token" + std::to_string(i));
    merges.push_back("to ken" + std::to_string(i));
  }
  GgufBuilder builder;
  builder.AddStrings("tokenizer.ggml.tokens", tokens).AddStrings("tokenizer.ggml.merges", merges);
  const std::string bytes = builder.Build();
  auto best = std::chrono::duration<double, std::milli>::max();
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), nullptr, "test.gguf");
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin));
    ASSERT_TRUE(file.ok());
    ASSERT_EQ((*file)->GetStrings("tokenizer.ggml.tokens")->at(149'999), "token149999");
  }
  // A walk over 300,000 lengths takes about 1 ms; the bound leaves room for sanitizers and busy machines.
  EXPECT_LT(best.count(), 50.0);
}

}  // namespace
}  // namespace pith
