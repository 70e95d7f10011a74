#include "distill/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "samples.h"

namespace pith {
namespace {

std::vector<std::string> Texts(const std::vector<Derivation>& derivations) {
  std::vector<std::string> texts;
  for (const auto& derivation : derivations) texts.push_back(derivation.text);
  return texts;
}

TEST(SelectTest, TextHelpers) {
  EXPECT_EQ(NormalisedText("  **So**, the total:\n 3 + 4 = \\$7. "), "so the total 3 4 7");
  EXPECT_EQ(WithoutBoxes("a \\boxed{\\frac{1}{2}} b \\fbox{c} {d}"), "a \\frac{1}{2} b c {d}");
  EXPECT_EQ(WithoutBoxes("\\boxed{x \\boxed{y}} z"), "x y z");
  EXPECT_EQ(WithoutBoxes("open \\boxed{x"), "open \\boxed{x");
  EXPECT_EQ(WithoutBoxes("\\boxed{\\{1\\}}"), "\\{1\\}");
}

TEST(SelectTest, RightOnesWithoutDuplicatesTheShortestFirst) {
  std::vector<Generation> streams = {
      Sample("p", "First 2 + 3 = 5. Then 5 * 2 = 10. \\boxed{10}", "10", true, 30),
      Sample("p", "first, 2 + 3 = 5; then 5 * 2 = 10: 10", "10", true, 40),     // the same words
      Sample("p", "We get 2 + 3 = 5 and from it 5 * 2 = 10.", "10", true, 50),  // the same path
      Sample("p", "Twice 2 is 4, twice 3 is 6, so 4 + 6 = 10.", "10", true, 45),
      Sample("p", "2 + 3 = 6, 6 * 2 = 12. \\boxed{12}", "12", false, 20),
      Sample("p", "It is 11.", "11", false, 10),
      Sample("p", "It is 11.", "11", false, 10),
  };
  SampleCounts counts;
  const Derivations selected = SelectDerivations(streams, 2, &counts);
  EXPECT_EQ(Texts(selected.right), (std::vector<std::string>{"First 2 + 3 = 5. Then 5 * 2 = 10. 10",
                                                             "Twice 2 is 4, twice 3 is 6, so 4 + 6 = 10."}));
  EXPECT_EQ(Texts(selected.wrong), (std::vector<std::string>{"It is 11.", "2 + 3 = 6, 6 * 2 = 12. 12"}));
  EXPECT_EQ(counts.samples, 7);
  EXPECT_EQ(counts.right, 4);
  EXPECT_EQ(counts.duplicates, 2);
  EXPECT_EQ(counts.kept, 2);
  EXPECT_EQ(counts.surplus, 0);
  // Whatever their order.
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(streams.begin(), streams.end(), random);
    SampleCounts again;
    const Derivations other = SelectDerivations(streams, 2, &again);
    EXPECT_EQ(other.right, selected.right);
    EXPECT_EQ(other.wrong, selected.wrong);
  }
}

TEST(SelectTest, AmongDistinctOnesDifferentWordsCount) {
  const std::string base = "alpha beta gamma delta epsilon zeta eta theta ";
  const std::vector<Generation> streams = {
      Sample("p", base + "1 2", "2", true, 10),
      Sample("p", base + "1 3 2", "2", true, 11),  // nearly the same words
      Sample("p", "quite another way with 4 and 5 gives 2", "2", true, 14),
  };
  SampleCounts counts;
  const Derivations selected = SelectDerivations(streams, 2, &counts);
  EXPECT_EQ(Texts(selected.right), (std::vector<std::string>{base + "1 2", "quite another way with 4 and 5 gives 2"}));
  EXPECT_EQ(counts.surplus, 1);
}

TEST(SelectTest, WhatIsUnfitIsNotKept) {
  std::vector<Generation> streams(10, Sample("p", "fine: 1 + 1 = 2", "2", true, 10));
  streams[1].truncated = true;
  streams[2].forced = true;
  streams[3].finish = FinishReason::kLength;
  streams[4].text = "says </think> itself 2";
  streams[5].answer->text = "{2";
  streams[6].answer->text = "2\n3";
  streams[7].text = " \n";
  streams[8].answer.reset();
  streams[8].verdict = Verdict::kNoAnswer;
  streams[9].text = "```python\nprint(1 + 1)\n```\n2";
  Generation failed;
  failed.error = Error{ErrorCode::kContextOverflow, "too long"};
  streams.push_back(failed);
  Generation too_hard = Sample("p", "other 3", "3", false, 4);
  too_hard.verdict = Verdict::kTooHard;  // not known to be wrong
  streams.push_back(too_hard);
  SampleCounts counts;
  const Derivations selected = SelectDerivations(streams, 8, &counts);
  EXPECT_EQ(Texts(selected.right), (std::vector<std::string>{"fine: 1 + 1 = 2"}));
  EXPECT_TRUE(selected.wrong.empty());
  EXPECT_EQ(counts.unfit, 8);
  EXPECT_EQ(counts.no_answer, 2);
  EXPECT_EQ(counts.samples, 12);
}

TEST(SelectTest, ThoughtsAreTheDerivationWhereThereAreSome) {
  Generation generation = Sample("p", "\\boxed{7}", "7", true, 20);
  generation.reasoning = "3 + 4 = 7, surely.\n";
  SampleCounts counts;
  const Derivations selected = SelectDerivations({&generation, 1}, 1, &counts);
  ASSERT_EQ(selected.right.size(), 1U);
  EXPECT_EQ(selected.right[0].text, "3 + 4 = 7, surely.");
  EXPECT_EQ(selected.right[0].answer, "7");
}

}  // namespace
}  // namespace pith
