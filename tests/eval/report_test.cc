#include "eval/report.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "drawn_report.h"
#include "eval/html_page.h"
#include "eval/settings.h"
#include "support/data.h"

namespace pith {
namespace {

using testing::TempDir;

constexpr const char* kHostile =
    "</script><script>alert(1)</script><!-- \xE2\x80\xA8 ]]> \"' <img src=x onerror=alert(2)>";

EvalRecord Record() {
  EvalSettings settings;
  settings.suite = std::string("evil ") + kHostile;
  settings.problems = 1;
  settings.caps = {100, 200};
  settings.modes = {ReasonMode::kOff, ReasonMode::kOn};
  settings.parallel = 2;
  EvalRecord record;
  record.settings_json = SettingsJson(settings);
  record.problems = {{std::string("id ") + kHostile, kHostile, kHostile}};
  for (const ReasonMode mode : settings.modes) {
    for (const int64_t cap : settings.caps) {
      for (int64_t stream = 0; stream < 2; ++stream) {
        Generation generation;
        generation.key = {record.problems[0].id, 0, cap, mode};
        generation.stream = stream;
        generation.streams = 2;
        generation.text = kHostile;
        generation.reasoning = kHostile;
        generation.answer = ExtractedAnswer{kHostile, AnswerSource::kLast};
        generation.verdict = stream == 0 ? Verdict::kEqual : Verdict::kDifferent;
        generation.tokens = 50 + stream;
        generation.verifier_score = 0.5;
        if (mode == ReasonMode::kOn) generation.switcher_score = 0.7;
        record.generations.push_back(generation);
      }
    }
  }
  return record;
}

std::string Render(const EvalRecord& record) {
  const auto summary = SummaryJson(record);
  EXPECT_TRUE(summary.ok());
  const auto report = RenderReport(record, *summary);
  EXPECT_TRUE(report.ok());
  return *report;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The text between the tags of the data element.
std::string DataOf(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = html.find(open);
  EXPECT_NE(begin, std::string::npos);
  const size_t end = html.find("</script>", begin);
  return html.substr(begin + open.size(), end - begin - open.size());
}

TEST(ReportTest, NoTextBecomesMarkup) {
  const std::string html = Render(Record());
  EXPECT_EQ(Count(html, "<script"), 3U);
  EXPECT_EQ(Count(html, "</script"), 3U);
  EXPECT_EQ(Count(html, "<img"), 0U);
  EXPECT_EQ(Count(html, "<title>"), 1U);
  EXPECT_NE(html.find("&lt;/script&gt;&lt;script&gt;alert(1)"), std::string::npos);  // the title
  EXPECT_EQ(DataOf(html).find('<'), std::string::npos);
  EXPECT_EQ(DataOf(html).find("\xE2\x80\xA8"), std::string::npos);
  // Nothing is lost by the escaping.
  const auto data = ParseJson(DataOf(html), "data");
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ((*data)["rows"][0]["text"], kHostile);
  EXPECT_EQ((*data)["problems"][0]["problem"], kHostile);
  // The script writes texts as texts only.
  const std::string script(ReportScript());
  for (const char* unsafe : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("}) {
    EXPECT_EQ(script.find(unsafe), std::string::npos) << unsafe;
  }
}

TEST(ReportTest, NothingIsLoadedFromANetwork) {
  const std::string html = Render(Record());
  EXPECT_NE(html.find("Content-Security-Policy\" content=\"default-src 'none'"), std::string::npos);
  for (const char* loader : {"src=\"", "href=\"", "@import", "url(http"}) {
    EXPECT_EQ(html.find(loader), std::string::npos) << loader;
  }
  EXPECT_EQ(std::string(ReportChartLibrary()).find("</script"), std::string::npos);
  EXPECT_NE(html.find("Chart.js v3"), std::string::npos);
  EXPECT_NE(html.find("MIT License"), std::string::npos);
}

TEST(ReportTest, HoldsTheDataOfAllPlots) {
  const auto data = ParseJson(DataOf(Render(Record())), "data");
  ASSERT_TRUE(data.ok());
  const Json& summary = (*data)["summary"];
  ASSERT_EQ(summary["results"].size(), 4U);  // accuracy x cap, two modes
  for (const Json& result : summary["results"]) {
    for (const char* field : {"value", "low", "high"}) EXPECT_TRUE(result["accuracy"][field].is_number());
    EXPECT_TRUE(result["majority"]["value"].is_number());
    EXPECT_TRUE(result["weighted"]["value"].is_number());
    EXPECT_EQ(result["length_histogram"]["right"].size(), result["length_histogram"]["wrong"].size());
  }
  ASSERT_EQ(summary["vote_curves"]["curves"].size(), 4U);
  EXPECT_EQ(summary["vote_curves"]["curves"][0]["points"].size(), 2U);
  EXPECT_TRUE(summary["vote_curves"]["curves"][0]["points"][1]["weighted"]["sd"].is_number());
  ASSERT_EQ(summary["threshold_sweeps"].size(), 2U);
  for (const char* field : {"threshold", "routed_share", "accuracy", "vote_accuracy", "mean_tokens"}) {
    EXPECT_TRUE(summary["threshold_sweeps"][0]["points"][0][field].is_number()) << field;
  }
  ASSERT_EQ((*data)["rows"].size(), 8U);
  for (const char* field : {"p", "verdict", "truncated", "tokens", "reasoning_tokens", "finish", "answer", "verifier",
                            "switcher", "text", "reasoning"}) {
    EXPECT_TRUE((*data)["rows"][0].contains(field)) << field;
  }
}

TEST(ReportTest, LongTextsAreShortenedBetweenCharacters) {
  EvalRecord record = Record();
  std::string text = "begin ";
  while (text.size() < 100000) text += "\xC3\xA9";
  record.generations[0].text = text + " end";
  const auto data = ParseJson(DataOf(Render(record)), "data");
  ASSERT_TRUE(data.ok());
  const auto shown = (*data)["rows"][0]["text"].get<std::string>();
  EXPECT_LT(shown.size(), 26000U);
  EXPECT_EQ(shown.rfind("begin ", 0), 0U);
  EXPECT_NE(shown.find(" end"), std::string::npos);
  EXPECT_NE(shown.find("bytes are in generations.jsonl"), std::string::npos);
  EXPECT_EQ(shown.find("\xEF\xBF\xBD"), std::string::npos);  // no character was cut
}

TEST(ReportTest, Escapes) {
  EXPECT_EQ(HtmlText("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(ScriptSafeJson("{\"a\":\"<\xE2\x80\xA9\xE2\x82\xAC\"}"), "{\"a\":\"\\u003c\\u2029\xE2\x82\xAC\"}");
}

// The scripts of the page run without an error, on a stand-in for the browser that records what is drawn.
TEST(ReportTest, ScriptsRun) {
  if (!testing::HasNode()) {
    GTEST_SKIP() << "SKIPPED LOUDLY: no node; the scripts of the report were not run";
  }
  const std::string folder = TempDir();
  EvalRecord record = Record();
  record.timings = {{0, ReasonMode::kOff, 200, 5000, 4, 20.0, 500, 32}};
  const std::string html = Render(record);
  std::ofstream(folder + "/report.html") << html;
  const Json drawn = testing::DrawnReport(folder + "/report.html", folder);
  ASSERT_TRUE(drawn.is_object());
  const Json expected = Json::parse(R"json([
      "Accuracy × cap", "Accuracy × routed share (cap 100)", "Accuracy × length (cap 100)",
      "Accuracy × routed share (cap 200)", "Accuracy × length (cap 200)",
      "Vote: direct, cap 100", "Vote: direct, cap 200", "Vote: reasoning, cap 100", "Vote: reasoning, cap 200",
      "Lengths: direct, cap 100", "Lengths: direct, cap 200", "Lengths: reasoning, cap 100",
      "Lengths: reasoning, cap 200"])json");
  EXPECT_EQ(drawn["charts"], expected);
  EXPECT_EQ(drawn["failed"], Json::array());
  ASSERT_EQ(drawn["tables"].size(), 2U);  // results, cost
  EXPECT_EQ(drawn["tables"][1], Json::parse(R"json(["direct, cap 200", "4", "5,000", "20.0", "250.0", "1250.0",
      "5.00", "10.0", "at most 32", "0"])json"));
  EXPECT_EQ(drawn["rows"], 8);
  EXPECT_EQ(drawn["rows_right"], 4);
  EXPECT_NE(drawn["detail"].get<std::string>().find(kHostile), std::string::npos);
}

}  // namespace
}  // namespace pith
