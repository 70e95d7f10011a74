#include "model/recipe.h"

#include <gtest/gtest.h>

namespace pith {
namespace {

TEST(Recipe, MatrixFormats) {
  for (const char* text : {"w4", "w8", "w4g32", "w4g64", "w4g128", "w8g32", "w4g32z", "w4g32m", "w4z", "w8g128m",
                           "keep", "bf16", "f16", "f32"}) {
    const auto format = ParseMatrixFormat(text);
    ASSERT_TRUE(format.ok()) << text;
    EXPECT_EQ(MatrixFormatText(*format), text);
  }
  const auto format = ParseMatrixFormat("w4g64z");
  ASSERT_TRUE(format.ok());
  EXPECT_EQ(format->quant, (QuantFormat{4, 64, ZeroForm::kZeroPoint, DType::kF16}));
  for (const char* text : {"", "w", "w2", "w4g", "w4g0", "w4g33", "w4g-32", "w4g32x", "w4g32zm", "W4", "w4 ", "w44",
                           "w4g99999999999999999999", "float"}) {
    const auto bad = ParseMatrixFormat(text);
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Recipe, CanonicalParsesBack) {
  for (const char* text :
       {"w4", "w4g32", "w4g128z,head=w8g32,embed=bf16", "keep", "bf16", "w8g32,method=minmax",
        "w4g32m,p=3.5,method=lp,scales=f32,kv=none", "w4g32,head=same,embed=same", "w4,method=best,p=4"}) {
    const auto recipe = ParseRecipe(text);
    ASSERT_TRUE(recipe.ok()) << text << ": " << recipe.error().message;
    const std::string canonical = recipe->Canonical();
    const auto again = ParseRecipe(canonical);
    ASSERT_TRUE(again.ok()) << canonical;
    EXPECT_EQ(again->Canonical(), canonical);
    EXPECT_EQ(canonical.find_first_of("/\\ "), std::string::npos) << canonical;
    EXPECT_LT(canonical.size(), 120u);
  }
  EXPECT_EQ(ParseRecipe("w4g32,head=w8,embed=w8,method=lp,p=2")->Canonical(),
            "w4g32,head=w8,embed=w8,method=lp,p=2,weigh=inputs,scales=f16,kv=8");
}

TEST(Recipe, DefaultRecipeParsesBack) {
  const auto recipe = ParseRecipe(DefaultRecipe().Canonical());
  ASSERT_TRUE(recipe.ok());
  EXPECT_EQ(*recipe, DefaultRecipe());
}

TEST(Recipe, SpellingsOfOneRecipeHaveOneKey) {
  EXPECT_EQ(ParseRecipe("w4g32,p=2,method=lp")->Canonical(), ParseRecipe("w4g32,method=lp,p=2.0,kv=8")->Canonical());
  EXPECT_EQ(ParseRecipe("w4,method=minmax,p=4")->Canonical(), ParseRecipe("w4,method=minmax")->Canonical());
  EXPECT_NE(ParseRecipe("w4g32")->Canonical(), ParseRecipe("w4g32,kv=none")->Canonical());
}

TEST(Recipe, FourBitsAreWeighedByDefault) {
  EXPECT_TRUE(ParseRecipe("w4")->weigh_inputs);
  EXPECT_TRUE(ParseRecipe("w8,head=w4g32,method=best")->weigh_inputs);
  EXPECT_FALSE(ParseRecipe("w4,weigh=none")->weigh_inputs);
  EXPECT_FALSE(ParseRecipe("w4,method=minmax")->weigh_inputs);
  EXPECT_FALSE(ParseRecipe("w8g32")->weigh_inputs);
  EXPECT_FALSE(ParseRecipe("keep")->weigh_inputs);
  EXPECT_TRUE(ParseRecipe("w8,method=lp,weigh=inputs")->weigh_inputs);
}

TEST(Recipe, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {"w5", "w5"},
      {"w4,head", "head"},
      {"w4,head=w9", "head"},
      {"w4,p=0.5", "p"},
      {"w4,p=nan", "p"},
      {"w4,p=2x", "p"},
      {"w4,method=fast", "method"},
      {"w4,scales=bf16", "scales"},
      {"w4,weigh=no", "weigh"},
      {"w4,method=minmax,weigh=inputs", "weigh"},
      {"w4,kv=4", "kv"},
      {"w4,color=red", "color"},
      {"w4,p=2,p=3", "p"},
      {"w4,", "has no '='"},
      {",head=w8", "format"},
  };
  for (const auto& [text, named] : cases) {
    const auto recipe = ParseRecipe(text);
    ASSERT_FALSE(recipe.ok()) << text;
    EXPECT_EQ(recipe.error().code, ErrorCode::kInvalidArgument) << text;
    EXPECT_NE(recipe.error().message.find(named), std::string::npos) << text << ": " << recipe.error().message;
  }
}

}  // namespace
}  // namespace pith
