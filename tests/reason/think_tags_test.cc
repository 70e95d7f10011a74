#include "reason/think_tags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pith {
namespace {

struct Parts {
  std::string answer, thoughts;
  bool thinking = false;
  bool operator==(const Parts&) const = default;
};
void PrintTo(const Parts& parts, std::ostream* out) {
  *out << "answer [" << parts.answer << "] thoughts [" << parts.thoughts << "]" << (parts.thinking ? " thinking" : "");
}

Parts Split(const std::vector<std::string>& pieces, bool thinking) {
  Parts parts;
  ThinkSplitter splitter(thinking, [&](std::string_view text, bool thought) {
    EXPECT_FALSE(text.empty());
    (thought ? parts.thoughts : parts.answer) += text;
  });
  for (const auto& piece : pieces) splitter.Push(piece);
  const bool before_the_end = splitter.thinking();
  splitter.Flush();
  EXPECT_EQ(splitter.thinking(), before_the_end);
  parts.thinking = splitter.thinking();
  return parts;
}

struct Case {
  bool thinking;
  std::string text;
  Parts parts;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases{
      {false, "", {"", ""}},
      {false, "plain\n\n", {"plain\n\n", ""}},
      {false, "\nplain", {"\nplain", ""}},
      {false, "<think>\nso\n</think>\n\nyes", {"yes", "so\n"}},
      {true, "so</think>yes", {"yes", "so"}},
      {true, "never closed", {"", "never closed", true}},
      {true, "a < b </ c </thin", {"", "a < b </ c </thin", true}},
      {true, "<</think>x", {"x", "<"}},
      {true, "</</think></think>", {"</think>", "</"}},
      // Mentions of the tag.
      {true,
       "the \"</think>\" tag `</think>` '</think>' ends</think>done",
       {"done", "the \"</think>\" tag `</think>` '</think>' ends"}},
      {true, "he said \"yes\"</think>done", {"done", "he said \"yes\""}},
      {true, "quote at the end \"</think>", {"", "quote at the end \""}},
      {true, "mixed \"</think>` done", {"` done", "mixed \""}},
      {true, "next tag \"</think><think>more", {"", "next tag \"more", true}},
      {true, "\"</think>\"</think>b", {"b", "\"</think>\""}},
      // Opened again: only at the beginning of a line.
      {true, "a</think>b\n<think>c</think>\n\nd", {"b\nd", "ac"}},
      {true, "a</think>\n\n<think>still", {"", "astill", true}},
      {true, "a</think>the <think> tag", {"the <think> tag", "a"}},
      {false, "x <think> y </think> z", {"x <think> y </think> z", ""}},
      {false, "x\n `<think>` y", {"x\n `<think>` y", ""}},
      {false, "<thinking>\n<think\n<thin", {"<thinking>\n<think\n<thin", ""}},
      // Characters of several bytes next to a tag.
      {true, "\xC3\xA9\"</think>\xC3\xA9", {"\xC3\xA9", "\xC3\xA9\""}},
  };
  return cases;
}

TEST(ThinkSplitterTest, Cases) {
  for (const Case& c : Cases()) EXPECT_EQ(Split({c.text}, c.thinking), c.parts) << c.text;
}

// Every way to cut a text in three, and single bytes.
TEST(ThinkSplitterTest, CutsChangeNothing) {
  for (const Case& c : Cases()) {
    const size_t n = c.text.size();
    for (size_t i = 0; i <= n; ++i) {
      for (size_t j = i; j <= n; ++j) {
        EXPECT_EQ(Split({c.text.substr(0, i), c.text.substr(i, j - i), c.text.substr(j)}, c.thinking), c.parts)
            << c.text << " cut at " << i << " and " << j;
      }
    }
    std::vector<std::string> bytes;
    for (const char b : c.text) bytes.emplace_back(1, b);
    EXPECT_EQ(Split(bytes, c.thinking), c.parts) << c.text;
  }
}

TEST(ThinkSplitterTest, OnlyWhatMayBecomeATagIsHeldBack) {
  std::string shown;
  ThinkSplitter splitter(true, [&](std::string_view text, bool) { shown += text; });
  splitter.Push("a<");
  EXPECT_EQ(shown, "a");
  splitter.Push("b</t");
  EXPECT_EQ(shown, "a<b");
  EXPECT_TRUE(splitter.holding());
  splitter.Push("x");
  EXPECT_EQ(shown, "a<b</tx");
  EXPECT_FALSE(splitter.holding());
}

TEST(ThinkSplitterTest, TagsAsTokensOfTheirOwn) {
  std::string thoughts, answer;
  ThinkSplitter splitter(false, [&](std::string_view text, bool thought) { (thought ? thoughts : answer) += text; });
  splitter.SearchNothing();
  splitter.Switch(true);
  splitter.Push("\nthe </think> tag");
  EXPECT_TRUE(splitter.thinking());
  splitter.Switch(false);
  splitter.Push("\n\nanswer <think>");
  splitter.Flush();
  EXPECT_FALSE(splitter.thinking());
  EXPECT_EQ(thoughts, "the </think> tag");
  EXPECT_EQ(answer, "answer <think>");
}

}  // namespace
}  // namespace pith
