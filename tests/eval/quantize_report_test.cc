#include "eval/quantize_report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/json.h"
#include "drawn_report.h"
#include "support/data.h"

namespace pith {
namespace {

constexpr const char* kHostile = "</script><script>alert(1)</script>";

std::string Record() {
  Json json = {{"source", std::string("models/") + kHostile}, {"method", "hadamard+gptq"}};
  for (int layer = 0; layer < 3; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    json["sqnr_db"][at + "mlp.down_proj"] = 20.5 - layer;
    json["sqnr_db"][at + "self_attn.q_proj"] = layer == 1 ? Json(nullptr) : Json(18.25);
    json["outliers"].push_back({{"module", at + "mlp.down_proj"}, {"before", 30.0}, {"after", 3.0}});
    json["layers"].push_back({{"loss_before", 2.0}, {"loss_after", 1.0}, {"value_condition", 1.5}});
  }
  json["sqnr_db"]["lm_head"] = 19.0;
  json["tuning"] = {{"steps", 60}, {"held_out_after", {{"divergence", 0.02}, {"perplexity", 22.0}}}};
  return json.dump();
}

TEST(QuantizeReport, HoldsTheNumbersAndNoMarkupOfOthers) {
  const auto page = RenderQuantizeReport("run <1>", Record());
  ASSERT_TRUE(page.ok()) << page.error().message;
  EXPECT_EQ(page->find(kHostile), std::string::npos);
  EXPECT_NE(page->find("run &lt;1&gt;"), std::string::npos);
  EXPECT_NE(page->find("model.layers.2.mlp.down_proj"), std::string::npos);
  EXPECT_EQ(page->find("http://"), page->find("http://www.w3.org"));  // nothing is loaded
}

TEST(QuantizeReport, BrokenRecordsAreNamed) {
  for (const char* text : {"[1]", "{\"a\":", ""}) {
    const auto page = RenderQuantizeReport("run", text);
    ASSERT_FALSE(page.ok()) << text;
    EXPECT_NE(page.error().message.find("pith-quantize.json"), std::string::npos);
  }
}

TEST(QuantizeReport, IsWrittenBesideTheRecord) {
  const std::string folder = testing::TempDir() + "/quantized";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(WriteQuantizeReport(folder).error().code, ErrorCode::kNotFound);
  std::ofstream(folder + "/pith-quantize.json") << Record();
  const auto path = WriteQuantizeReport(folder + "/");
  ASSERT_TRUE(path.ok()) << path.error().message;
  EXPECT_EQ(*path, folder + "/report.html");
  EXPECT_NE(testing::ReadFile(*path).find("pith quantize: quantized"), std::string::npos);

  if (!testing::HasNode()) {
    GTEST_SKIP() << "SKIPPED LOUDLY: no node; the scripts of the report were not run";
  }
  const Json drawn = testing::DrawnReport(*path, folder);
  ASSERT_TRUE(drawn.is_object());
  EXPECT_EQ(drawn["charts"], Json({"Input of down_proj", "By layer", "Norm by layer"}));
  EXPECT_EQ(drawn["failed"], Json::array());
  const auto text = drawn["text"].get<std::string>();
  EXPECT_NE(text.find(kHostile), std::string::npos);  // as text
  EXPECT_NE(text.find("lm_head"), std::string::npos);
}

}  // namespace
}  // namespace pith
