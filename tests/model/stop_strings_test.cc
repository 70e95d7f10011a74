#include "model/stop_strings.h"

#include <gtest/gtest.h>

namespace pith {
namespace {

TEST(StopMatcher, WithholdsOnlyProperPrefixes) {
  StopMatcher matcher({"</s>"});
  EXPECT_EQ(matcher.Push("a < b"), "a < b");
  EXPECT_EQ(matcher.Push("x<"), "x");
  EXPECT_EQ(matcher.Push("/"), "");
  EXPECT_EQ(matcher.Push("sx"), "</sx");
  EXPECT_EQ(matcher.Push("<<"), "<");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Flush(), "<");
}

TEST(StopMatcher, StopSplitOverPieces) {
  StopMatcher matcher({"\n\nQ:", "END"});
  EXPECT_EQ(matcher.Push("yes\n"), "yes");
  EXPECT_EQ(matcher.Push("\nQ"), "");
  EXPECT_EQ(matcher.Push(": more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.stop(), "\n\nQ:");
  EXPECT_EQ(matcher.Push("more"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, OverlappingBeginnings) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.Push("aaa"), "a");
  EXPECT_EQ(matcher.Push("a"), "a");
  EXPECT_EQ(matcher.Push("b"), "");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, TheFirstCompleteStopCounts) {
  StopMatcher inner({"abcd", "bc"});
  EXPECT_EQ(inner.Push("xabcd"), "xa");
  EXPECT_EQ(inner.stop(), "bc");
  StopMatcher longest({"c", "abc"});
  EXPECT_EQ(longest.Push("xabc"), "x");
  EXPECT_EQ(longest.stop(), "abc");
}

TEST(StopMatcher, NothingToStopAt) {
  StopMatcher matcher({"", ""});
  EXPECT_EQ(matcher.Push("anything"), "anything");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Flush(), "");
}

// Against the definition, for random texts over two letters: the same text is shown however it is cut into pieces, it
// ends before the first stop string, and after each piece only a proper prefix of a stop string is missing.
TEST(StopMatcher, AnyCutting) {
  uint64_t state = 11;
  const auto next = [&](uint64_t bound) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % bound;
  };
  for (int round = 0; round < 4000; ++round) {
    const auto word = [&](size_t most) {
      std::string text;
      const size_t size = 1 + next(most);
      while (text.size() < size) text += next(2) == 0 ? 'a' : 'b';
      return text;
    };
    const std::vector<std::string> stops = {word(5), word(5)};
    const std::string text = word(24);
    size_t stop_begin = std::string::npos;
    size_t stop_end = std::string::npos;
    for (size_t end = 1; end <= text.size() && stop_end == std::string::npos; ++end) {
      for (const auto& stop : stops) {
        if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) {
          stop_end = end;
          stop_begin = std::min(stop_begin, end - stop.size());
        }
      }
    }
    StopMatcher matcher(stops);
    std::string shown;
    size_t at = 0;
    while (at < text.size()) {
      const size_t size = std::min(text.size() - at, size_t{1} + next(4));
      shown += matcher.Push(std::string_view(text).substr(at, size));
      at += size;
      if (matcher.stopped()) break;
      // What is missing is the longest proper prefix of a stop string that ends the text so far.
      size_t longest = 0;
      for (const auto& stop : stops) {
        for (size_t n = 1; n < stop.size() && n <= at; ++n) {
          if (text.compare(at - n, n, stop, 0, n) == 0) longest = std::max(longest, n);
        }
      }
      ASSERT_EQ(shown, text.substr(0, at - longest));
    }
    shown += matcher.Flush();
    ASSERT_EQ(matcher.stopped(), stop_end != std::string::npos);
    ASSERT_EQ(shown, text.substr(0, stop_begin)) << text << " " << stops[0] << " " << stops[1];
  }
}

}  // namespace
}  // namespace pith
