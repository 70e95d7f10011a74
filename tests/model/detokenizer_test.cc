#include <gtest/gtest.h>

#include "model/tokenizer.h"

namespace pith {
namespace {

// One token per byte; 256 is a special token, 257 a text of its own.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (int byte = 0; byte < 256; ++byte) bytes_[byte] = static_cast<char>(static_cast<uint8_t>(byte));
  }
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions&) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  std::string_view TokenBytes(int32_t id) const override {
    if (id == 256) return "<|im_end|>";
    if (id == 257) return "word";
    return id < 0 || id > 257 ? std::string_view() : std::string_view(&bytes_[id], 1);
  }
  bool IsSpecial(int32_t id) const override { return id == 256; }
  int32_t FindToken(std::string_view) const override { return -1; }
  int32_t size() const override { return 258; }
  int32_t bos_id() const override { return -1; }

 private:
  char bytes_[256];
};

std::vector<std::string> Stream(const std::string& bytes) {
  IncrementalDetokenizer detokenizer(std::make_shared<ByteTokenizer>());
  std::vector<std::string> out;
  for (const char c : bytes) out.push_back(detokenizer.Push(static_cast<uint8_t>(c)));
  out.push_back(detokenizer.Flush());
  return out;
}

std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) text += part;
  return text;
}

const std::string kR = "\xEF\xBF\xBD";

TEST(IncrementalDetokenizer, WaitsForWholeCharacters) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(Stream("a\xC3\xA9"), (Parts{"a", "", "\xC3\xA9", ""}));
  EXPECT_EQ(Stream("\xF0\x9F\x9A\x80"), (Parts{"", "", "", "\xF0\x9F\x9A\x80", ""}));
  EXPECT_EQ(Stream("\xE4\xB8\xAD"), (Parts{"", "", "\xE4\xB8\xAD", ""}));
}

TEST(IncrementalDetokenizer, InvalidBytesComeOutAtOnce) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(Stream("\xFF"), (Parts{kR, ""}));
  EXPECT_EQ(Stream("\x80z"), (Parts{kR, "z", ""}));
  EXPECT_EQ(Stream("\xE4\xB8z"), (Parts{"", "", kR + "z", ""}));
  EXPECT_EQ(Stream("\xE4\xC3\xA9"), (Parts{"", kR, "\xC3\xA9", ""}));
  EXPECT_EQ(Stream("\xF0\x9F\x9A"), (Parts{"", "", "", kR}));

  EXPECT_EQ(Join(Stream("\xED\xA0\x80")), kR + kR + kR);
}

// Whatever the bytes are, nothing waits longer than the three bytes that can start a character, every piece is valid
// UTF-8 by itself, and the whole is what decoding at once gives (demands, row 44).
TEST(IncrementalDetokenizer, NoStreamStalls) {
  uint64_t state = 3;
  const uint8_t kinds[] = {'a', 0x80, 0xBF, 0xC3, 0xE0, 0xE4, 0xED, 0xF0, 0xF4, 0xF8, 0xFF, 0xA0, 0x9F, 0x90};
  for (int round = 0; round < 3000; ++round) {
    IncrementalDetokenizer detokenizer(std::make_shared<ByteTokenizer>());
    std::string bytes;
    std::string shown;
    size_t waiting = 0;
    for (int i = 0; i < 12; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const uint8_t byte = kinds[(state >> 33) % std::size(kinds)];
      bytes += static_cast<char>(byte);
      const std::string piece = detokenizer.Push(byte);
      waiting = piece.empty() ? waiting + 1 : 0;
      ASSERT_LE(waiting, 3U);
      shown += piece;
    }
    shown += detokenizer.Flush();
    EXPECT_EQ(detokenizer.Flush(), "");
    ASSERT_EQ(shown, Join(Stream(bytes)));
    for (size_t i = 0; i < shown.size(); ++i) ASSERT_NE(static_cast<uint8_t>(shown[i]), 0xFF);
  }
}

TEST(IncrementalDetokenizer, SpecialTokensAndUnknownIds) {
  IncrementalDetokenizer skipping(std::make_shared<ByteTokenizer>());
  EXPECT_EQ(skipping.Push(256), "");
  EXPECT_EQ(skipping.Push(-7), "");
  EXPECT_EQ(skipping.Push(100000), "");
  EXPECT_EQ(skipping.Push(257), "word");
  IncrementalDetokenizer showing(std::make_shared<ByteTokenizer>(), false);
  EXPECT_EQ(showing.Push(256), "<|im_end|>");
  const ByteTokenizer tokenizer;
  const int32_t ids[] = {'a', 256, 257, 0xC3};
  EXPECT_EQ(tokenizer.Decode(ids, true), "aword\xC3");
  EXPECT_EQ(tokenizer.Decode(ids, false), "a<|im_end|>word\xC3");
}

}  // namespace
}  // namespace pith
