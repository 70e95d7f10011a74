#include "distill/arithmetic.h"

#include <gtest/gtest.h>

namespace pith {
namespace {

using Equations = std::vector<std::string>;

TEST(ArithmeticTest, TrueEquationsAreFound) {
  EXPECT_EQ(TrueEquations("Natalia sold 48/2 = 24 clips in May.\nNatalia sold 48+24 = 72 clips."),
            (Equations{"48 / 2 = 24", "48 + 24 = 72"}));
  EXPECT_EQ(TrueEquations("\\[ 12 \\times 3 + 4 = 40 \\]"), (Equations{"12 * 3 + 4 = 40"}));
  EXPECT_EQ(TrueEquations("$5 \xC3\x97 $1,200 = $6,000."), (Equations{"5 * 1200 = 6000"}));
  EXPECT_EQ(TrueEquations("2 + 3 * 4 - 10 \\div 5 = 12"), (Equations{"2 + 3 * 4 - 10 / 5 = 12"}));
  EXPECT_EQ(TrueEquations("0.10 * 30 = 3.00"), (Equations{"0.1 * 30 = 3"}));
  EXPECT_EQ(TrueEquations("2 + 3 = 5 + 1 = 6"), (Equations{"5 + 1 = 6"}));
  EXPECT_EQ(TrueEquations("\\[ \\frac{48}{2} = 24 \\] and 12 \\times \\dfrac{5}{6} = 10"),
            (Equations{"48 / 2 = 24", "12 * 5 / 6 = 10"}));
  EXPECT_EQ(TrueEquations("3 \\text{ pages} \\times 2 \\text{ letters} = 6 \\text{ pages}"), (Equations{"3 * 2 = 6"}));
}

TEST(ArithmeticTest, OthersAreLeftOut) {
  for (const char* text : {"2 + 2 = 5",
                           "x + 3 = 5",
                           "3 apples + 2 = 5",
                           "(2 + 3) * 4 = 20",
                           "2^3 + 1 = 9",
                           "= 4",
                           "4 =",
                           "7 = 7",
                           "1 / 0 = 5",
                           "3 - 5 = -2",
                           "+ 2 = 2",
                           "2 + + 2 = 4",
                           "2 3 = 6",
                           "",
                           "1/2 + 1/2 = 2/2",
                           "\\frac{x}{2} = 2",
                           "\\frac{4}{2",
                           "\\frac{4}{2}{3} = 2",
                           "10 / \\frac{1}{2} = 20",

                           "\\frac{4} = 4",
                           "12345678901234567890 + 1 = 12345678901234567890"}) {
    EXPECT_EQ(TrueEquations(text), Equations{}) << text;
  }
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "1 + 1 = 2.\n";
  EXPECT_EQ(TrueEquations(many).size(), 64U);
  std::string long_sum = "1";
  for (int i = 0; i < 100000; ++i) long_sum += " + 1";
  EXPECT_EQ(TrueEquations(long_sum + " = 100001"), Equations{});
}

TEST(ArithmeticTest, NumberPath) {
  EXPECT_EQ(NumberPath("She has 1,200 coins. 1200.0 / 2 = 600!"), "1200 2 600");
  EXPECT_EQ(NumberPath("no numbers"), "");
  EXPECT_EQ(NumberPath("3, 4 and 007 and 0.50"), "3 4 7 0.5");
  EXPECT_EQ(NumberPath("48 / 2 = 24"), NumberPath("Half of 48: divided by 2 that is 24."));
}

}  // namespace
}  // namespace pith
