#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grade/grade.h"

namespace pith {
namespace {

struct Case {
  std::string response;
  std::string answer;  // as it must compare; empty for none
  AnswerSource source;
};

void Check(const std::vector<Case>& cases, const ExtractOptions& options = {}) {
  for (const Case& c : cases) {
    const auto found = ExtractAnswer(c.response, options);
    if (c.answer.empty()) {
      EXPECT_FALSE(found) << c.response << "\n  gave " << (found ? found->text : "");
      continue;
    }
    ASSERT_TRUE(found) << c.response;
    EXPECT_EQ(CompareAnswers(c.answer, found->text), Verdict::kEqual) << c.response << "\n  gave " << found->text;
    EXPECT_STREQ(AnswerSourceName(found->source), AnswerSourceName(c.source)) << c.response;
  }
}

TEST(GradeExtractTest, LastClosedBox) {
  Check({
      {"So $x = \\boxed{12}$.", "12", AnswerSource::kBox},
      {"First \\boxed{3}. No, wait. It is \\boxed{4}.", "4", AnswerSource::kBox},
      {"\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{\\sqrt2}{2}", AnswerSource::kBox},
      {"\\boxed{\\{1, 2\\}}", "\\{1,2\\}", AnswerSource::kBox},
      {"\\fbox{7}", "7", AnswerSource::kBox},
      {"\\boxed 5", "5", AnswerSource::kBox},
      {"The box \\boxed{8} is closed, \\boxed{9 is not", "8", AnswerSource::kBox},
      {"Empty \\boxed{} after \\boxed{6}, then \\boxed{ }", "6", AnswerSource::kBox},
      {"The answer is 3, I mean \\boxed{5}", "5", AnswerSource::kBox},
      {"The answer is 3. So \\boxed{5}. There are 9 more.", "5", AnswerSource::kBox},
      {"<answer>\\boxed{42}</answer>", "42", AnswerSource::kBox},
      {"\\boxed{\\boxed{5}}", "5", AnswerSource::kBox},
      {"a loss of \\boxed{28}\\%", "0.28", AnswerSource::kBox},
      {"$\\boxed{28 percent}$", "28\\%", AnswerSource::kBox},
  });
}

TEST(GradeExtractTest, BoxesJoined) {
  Check({
      {"$\\boxed{2}$ and $\\boxed{5}$", "2, 5", AnswerSource::kBox},
      {"\\boxed{2}, \\boxed{5}, and \\boxed{7}", "2, 5, 7", AnswerSource::kBox},
      {"\\boxed{x=2} \\quad \\text{or} \\quad \\boxed{x=5}", "x = 2, 5", AnswerSource::kBox},
      {"\\boxed{(1,2)} for part (a) and \\boxed{(3,4)}", "(1,2),(3,4)", AnswerSource::kBox},
      {"\\boxed{2} but better \\boxed{5}", "5", AnswerSource::kBox},
      {"\\boxed{1} so far and later \\boxed{2} and \\boxed{5}", "2, 5", AnswerSource::kBox},
      {"We get \\boxed{2}.\n\nAnd so \\boxed{5}", "5", AnswerSource::kBox},
  });
}

TEST(GradeExtractTest, ABoxThatIsAPartOfItsFormula) {
  Check({
      {"-\\boxed{5}", "-5", AnswerSource::kBox},
      {"$x=-\\boxed{5}$", "-5", AnswerSource::kBox},
      {"so $x = 3 \\cdot 5 = -\\boxed{15}$", "-15", AnswerSource::kBox},
      {"$x = - \\boxed{\\frac{1}{2}}$.", "-0.5", AnswerSource::kBox},
      {"\\(x = −\\boxed{5}\\)", "-5", AnswerSource::kBox},
      {"$2\\boxed{5}$", "10", AnswerSource::kBox},
      {"$\\boxed{5}/2$", "5/2", AnswerSource::kBox},
      {"it is \\boxed{5}/2", "5/2", AnswerSource::kBox},
      {"$\\sqrt{\\boxed{5}}$", "\\sqrt5", AnswerSource::kBox},
      {"$$\\frac{\\boxed{5}}{2}$$", "5/2", AnswerSource::kBox},
      {"$y = \\boxed{x^2} + C$", "x^2 + C", AnswerSource::kBox},
      {"$\\boxed{3}^2$", "9", AnswerSource::kBox},
      {"$\\pm\\boxed{2}$", "\\pm 2", AnswerSource::kBox},
      {"$\\boxed{5} \\times 10^3$", "5000", AnswerSource::kBox},
      // The box by itself.
      {"- \\boxed{5}", "5", AnswerSource::kBox},
      {"Results:\n- \\boxed{5}", "5", AnswerSource::kBox},
      {"the answer - \\boxed{5}", "5", AnswerSource::kBox},
      {"$3+2=\\boxed{5}$", "5", AnswerSource::kBox},
      {"$x = \\boxed{5}$.", "5", AnswerSource::kBox},
      {"$\\mathbf{\\boxed{5}}$", "5", AnswerSource::kBox},
      {"$\\left(\\boxed{5}\\right)$", "5", AnswerSource::kBox},
      {"**\\boxed{5}**", "5", AnswerSource::kBox},
      {"It is \\boxed{5}!", "5", AnswerSource::kBox},
      {"a \\boxed{5}-bedroom house", "5", AnswerSource::kBox},
      {"$\\boxed{5}^\\circ$", "5", AnswerSource::kBox},
      {"$\\boxed{5}\\text{ dollars}$", "5", AnswerSource::kBox},
      {"\\[ 2 + 3 = 5 \\quad \\boxed{5} \\]", "5", AnswerSource::kBox},
      {"\\[ 2 + 3 = 5 \\boxed{5} \\]", "5", AnswerSource::kBox},
      {"$12 + \\boxed{8} = 20$", "8", AnswerSource::kBox},
      {"$20 = 12 + \\boxed{8}$", "8", AnswerSource::kBox},
      {"costs $5. That is \\boxed{5} - a bargain", "5", AnswerSource::kBox},
      {"$-x$ is \\boxed{5}", "5", AnswerSource::kBox},
  });
}

TEST(GradeExtractTest, WordsAroundANumber) {
  Check({
      {"The answer is negative 5.", "-5", AnswerSource::kStated},
      {"The answer is minus 5.", "-5", AnswerSource::kStated},
      {"The answer is －5", "-5", AnswerSource::kStated},
      {"The temperature is negative 5", "-5", AnswerSource::kLast},
      {"The answer is half of 5.", "5/2", AnswerSource::kStated},
      {"The answer is twice 5.", "10", AnswerSource::kStated},
      {"The answer is either 5 or 6", "5, 6", AnswerSource::kStated},
      {"The answer is between 5 and 6.", "between 5 and 6", AnswerSource::kStated},
      {"The answer is at least 5 for all of the people", "at least 5", AnswerSource::kStated},
      {"The answer is no more than 5.", "no more than 5", AnswerSource::kStated},
      {"The answer is 5 million people as of last year", "5 million", AnswerSource::kStated},
      {"The answer is 5 times 3, which comes to 15", "15", AnswerSource::kStated},
      {"The answer is not 6 but 5", "5", AnswerSource::kLast},
      {"So it is not 6, it is 5", "5", AnswerSource::kLast},
      {"It is 5 and not 6", "5", AnswerSource::kLast},
      {"It is 5 rather than 6", "5", AnswerSource::kLast},
      {"It lies between 5 and 6", "between 5 and 6", AnswerSource::kLast},
      {"so it must be at least 5", "5", AnswerSource::kLast},
      {"10 minus 5 is 5", "5", AnswerSource::kLast},
      {"The answer is 5 more than before", "5", AnswerSource::kStated},
      {"a total of 5", "5", AnswerSource::kLast},
      {"The answer isn't 5", "", AnswerSource::kLast},
      {"the answer cannot be 5", "", AnswerSource::kLast},
      {"Sure!\nProblem: 2 + 3\nSolution: \\boxed{5}", "5", AnswerSource::kBox},
      {"It is 5.\nQuestion: and 2 + 2? It is 4.", "5", AnswerSource::kLast},
      {"Yes.\nQuestion: 2 + 2? It is 4.", "yes", AnswerSource::kWhole},
  });
  // What denies the number, or makes it a part of another, is never the number.
  for (const char* text : {"The answer is definitely not 5.", "The answer is **not** 5", "The answer is a third of 5",
                           "The answer is more than 5", "The answer is a factor of 5", "The answer is up to 5",
                           "The answer is anything but 5", "The answer is from 5 to 6", "The answer is 5 to 6",
                           "The answer is 5 out of 6.", "The answer is 5 percent of 20.", "The answer is 5 squared.",
                           "The answer is 5 factorial.", "The answer is the negative of 5"}) {
    const auto found = ExtractAnswer(text);
    EXPECT_TRUE(!found || CompareAnswers("5", found->text) != Verdict::kEqual) << text << " gave " << found->text;
  }
  // An unclosed thought is none, however long.
  EXPECT_FALSE(ExtractAnswer("<think>" + std::string(1200000, ' ') + "The answer is 5"));
}

TEST(GradeExtractTest, FinalStatementBehindABox) {
  Check({
      {"We had \\boxed{10}. Adding: 15. Final Answer: The final answer is $15$. I hope it is correct.", "15",
       AnswerSource::kStated},
      {"The final answer is 15. In a box: \\boxed{16}", "16", AnswerSource::kBox},
      {"\\boxed{16}. The answer is 17.", "16", AnswerSource::kBox},  // only a final one
      {"**Final Answer**\n\\boxed{16}", "16", AnswerSource::kBox},
  });
}

TEST(GradeExtractTest, Statements) {
  Check({
      {"3 + 4 = 7\nThe answer is 7", "7", AnswerSource::kStated},
      {"The answer is 7. There were 12 of them.", "7", AnswerSource::kStated},
      {"So the answer is: $\\frac{7}{2}$.", "3.5", AnswerSource::kStated},
      {"**Answer:** 42", "42", AnswerSource::kStated},
      {"Answer: 1,250 dollars", "1250", AnswerSource::kStated},
      {"Final Answer:\n\n42", "42", AnswerSource::kStated},
      {"10 apples\n#### 42", "42", AnswerSource::kStated},
      {"2 * 21 = <<2*21=42>>42\nA: 42", "42", AnswerSource::kStated},
      {"The answer is 7.\nHowever, the correct answer is 8.", "8", AnswerSource::kStated},
      {"The answer is not 5. It is 6 apples.", "6", AnswerSource::kLast},
      {"Final Answer: The largest $n$ is 34.", "34", AnswerSource::kStated},
      {"The answer is (3 + 4 = 7).", "7", AnswerSource::kStated},
      {"The answer is $x < 3$.", "x < 3", AnswerSource::kStated},
      {"The answer is $2$ and $3$.", "2, 3", AnswerSource::kStated},
      {"The answer is between 12 and 13.", "between 12 and 13", AnswerSource::kStated},
      {"The answer is B, because A is too small.", "B", AnswerSource::kStated},
      {"The correct answer is (C) Madrid", "C", AnswerSource::kStated},
      {"The answer is Madrid.", "Madrid", AnswerSource::kStated},
      {"La réponse est 12.", "12", AnswerSource::kStated},
      {"答案：42", "42", AnswerSource::kStated},
      {"Answer \\[ 9 \\]", "9", AnswerSource::kStated},
      {"Answer $$\n9\n$$", "9", AnswerSource::kStated},
      // Inline mathematics does not span lines: broken, so no answer.
      {"Answer $ \n 9 \n $", "", AnswerSource::kStated},
  });
}

TEST(GradeExtractTest, WholeAndLast) {
  Check({
      {"x^2 + 3x", "3x + x^2", AnswerSource::kWhole},
      {"$x \\ge 4$", "x \\ge 4", AnswerSource::kWhole},
      {"Madrid", "Madrid", AnswerSource::kWhole},
      {"They eat 3 and have 36 - 3 = 33 left.", "33", AnswerSource::kLast},
      {"So 5 of 8, that is $\\frac{5}{8}$ of all.", "5/8", AnswerSource::kLast},
      {"With $x = 2$ this makes 14 in all", "14", AnswerSource::kLast},
      {"There are 3 pies and 3/8 are left.", "3/8", AnswerSource::kLast},
      {"It costs $1,250.50 in all", "1250.50", AnswerSource::kLast},
      {"It grew by 12% a year", "12%", AnswerSource::kLast},
      {"The change is -4 degrees in total", "-4", AnswerSource::kLast},
      {"We add 2 3/4 of them", "11/4", AnswerSource::kLast},
      {"we find that $$y = 3x + 1$$ holds", "y = 3x+1", AnswerSource::kLast},
      {"Matrix({{1,2},{3,4}})*\\oint", "Matrix({{1,2},{3,4}})*\\oint", AnswerSource::kWhole},  // unreadable, not 4
      {"the correct option is D", "D", AnswerSource::kStated},
      {"The answer is yes, it is.", "yes", AnswerSource::kStated},
      {"Wir erhalten x = (\\frac{2}{7}) Liter davon", "2/7", AnswerSource::kLast},
      {"the code is XK2B", "", AnswerSource::kLast},  // digits in a word are no number
      {"I do not know what this could possibly be about, sorry about that", "", AnswerSource::kLast},
      {"", "", AnswerSource::kLast},
      {"  \n ", "", AnswerSource::kLast},
  });
}

TEST(GradeExtractTest, Thinking) {
  Check({
      {"<think> It is \\boxed{42} </think> I give up now, who would know this", "", AnswerSource::kBox},
      {"<think> It is \\boxed{42} </think> The answer is 43", "43", AnswerSource::kStated},
      {"It is clear </think> \\boxed{42}", "42", AnswerSource::kBox},
      {"<think> It must be \\boxed{42}", "", AnswerSource::kBox},
      {"<think>a</think> \\boxed{1} <think> no, \\boxed{2}", "1", AnswerSource::kBox},
      {"<think>a</think> \\boxed{1} <think> no </think> \\boxed{3}", "3", AnswerSource::kBox},
  });
  EXPECT_TRUE(LooksTruncated("<think> It must be"));
  EXPECT_TRUE(LooksTruncated("<think>a</think> b <think>"));
  EXPECT_TRUE(LooksTruncated("so \\boxed{4"));
  EXPECT_FALSE(LooksTruncated("so \\boxed{4}"));
  EXPECT_FALSE(LooksTruncated("<think>a</think> 4"));
  EXPECT_FALSE(LooksTruncated(""));
}

TEST(GradeExtractTest, RanOn) {
  Check({
      {"The answer is 7.<|im_end|>\n<|im_start|>user\nWhat is 9 + 1? The answer is 10.", "7", AnswerSource::kStated},
      {"The answer is 7.\n\nQuestion: What is 9 + 1?\nThe answer is 10.", "7", AnswerSource::kStated},
  });
}

TEST(GradeExtractTest, Truncated) {
  ExtractOptions cut;
  cut.truncated = true;
  Check(
      {
          {"Adding 3 and 4 gives 7 and then we", "", AnswerSource::kLast},
          {"so \\boxed{7}. Let me check: 3", "7", AnswerSource::kBox},
          {"The answer is 7.\nLet me check 3", "7", AnswerSource::kStated},
          {"The answer is 12", "", AnswerSource::kStated},  // it may have become 1250
          {"so \\boxed{7", "", AnswerSource::kBox},
      },
      cut);
  const GradeResult result = Grade("7", "so \\boxed{7}. Let", cut);
  EXPECT_TRUE(result.correct());
  EXPECT_TRUE(result.truncated);
  EXPECT_FALSE(Grade("7", "so \\boxed{7}.").truncated);
  const GradeResult none = Grade("7", "Adding 3 and 4 gives 7 and", cut);
  EXPECT_EQ(none.verdict, Verdict::kNoAnswer);
  EXPECT_FALSE(none.correct());
}

// A key is never cut down to its last number.
TEST(GradeExtractTest, KeysAreWhole) {
  for (const auto& [key, part] : {std::pair{"between 5 and 10", "10"},
                                  {"5 feet 3 inches", "3"},
                                  {"May 5, 2020", "2020"},
                                  {"-1./3", "3"},
                                  {"1⁄2", "2"},
                                  {"at least 5", "5"},
                                  {"three of the 7", "7"}}) {
    EXPECT_FALSE(Grade(key, part).correct()) << key;
    EXPECT_FALSE(Grade(key, std::string("The answer is ") + part).correct()) << key;
    EXPECT_TRUE(Grade(key, std::string("\\boxed{") + key + "}").correct()) << key;
    EXPECT_EQ(GoldAnswer(key)->text, key);
  }
  EXPECT_EQ(GoldAnswer("She has 3 + 4.\n#### 7")->text, "7");
  EXPECT_EQ(GoldAnswer("Adding gives $\\boxed{7}$, which is prime.")->text, "7");
  EXPECT_FALSE(GoldAnswer(" "));
}

TEST(GradeExtractTest, KeysMayBeSolutions) {
  EXPECT_TRUE(Grade("Adding gives $3+4=\\boxed{7}$, which is prime.", "7").correct());
  EXPECT_TRUE(Grade("She has 3 + 4 = <<3+4=7>>7.\n#### 7", "The answer is 7").correct());
  EXPECT_TRUE(Grade("7", "7").correct());
  EXPECT_FALSE(Grade("7", "The answer is 8").correct());
}

}  // namespace
}  // namespace pith
