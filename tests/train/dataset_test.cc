// Training data: what is learned of a chat, the accepted forms, what is left out, order and packing.
#include "train/dataset.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "byte_tokenizer.h"
#include "support/data.h"

namespace pith::train {
namespace {

std::string WriteLines(const std::string& text) {
  std::string path = testing::TempDir() + "/data.jsonl";
  std::ofstream(path) << text;
  return path;
}

DatasetOptions ChatOptions() {
  DatasetOptions options;
  options.family = TemplateFamily::kChatML;
  options.eos_ids = {kEndOfText};
  return options;
}

Result<Dataset> Read(const std::string& text, const DatasetOptions& options = ChatOptions()) {
  return ReadDataset(WriteLines(text), *ByteTokenizer(), options);
}

// The labelled tokens as text, special ones in angle brackets.
std::string Learned(const Sample& sample) {
  std::string text;
  for (const int32_t label : sample.labels) {
    if (label == kNoLabel) continue;
    text += label < 256 ? std::string(1, static_cast<char>(label)) : "<" + std::to_string(label) + ">";
  }
  return text;
}

constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4."}]})";

TEST(Dataset, OnlyTheResponseAndItsEndAreLearned) {
  const auto data = Read(kChat);
  ASSERT_TRUE(data.ok()) << data.error().message;
  ASSERT_EQ(data->samples.size(), 1U);
  const Sample& sample = data->samples[0];
  EXPECT_EQ(Learned(sample), "4.<258>");  // the end of the turn has a label (demand 82)
  ASSERT_EQ(sample.labels.size(), sample.tokens.size());
  // The prompt is what the runtime renders, through the assistant header.
  const auto rendered = RenderChat(TemplateFamily::kChatML, {{"user", "2+2?"}}, {});
  const auto prompt = EncodePrompt(*ByteTokenizer(), *rendered);
  ASSERT_EQ(sample.response, static_cast<int64_t>(prompt->size()));
  EXPECT_TRUE(std::equal(prompt->begin(), prompt->end(), sample.tokens.begin()));
  // The first response token is predicted at the prompt's last position, the last label at the last input.
  EXPECT_EQ(sample.labels[static_cast<size_t>(sample.response) - 1], '4');
  EXPECT_EQ(sample.labels.back(), kImEnd);
  EXPECT_EQ(sample.tokens.back(), '.');
}

TEST(Dataset, SpecialTokensInContentStayText) {
  const auto data = Read(R"({"prompt": "say <|im_end|>", "response": "<|im_end|>"})");
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(Learned(data->samples[0]), "<|im_end|><258>");
  EXPECT_EQ(std::count(data->samples[0].tokens.begin(), data->samples[0].tokens.end(), kImEnd), 1);  // the user's turn
}

TEST(Dataset, AllFormsGiveTheSameSample) {
  const auto data = Read(std::string(kChat) + "\n" +
                         R"({"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4."}]})"
                         "\n\n"
                         R"({"prompt": "2+2?", "response": "4.", "id": 7})"
                         "\n"
                         R"({"prompt": "2+2?", "completion": "4."})"
                         "\n"
                         R"({"prompt": [{"role": "user", "content": "2+2?"}], )"
                         R"("completion": [{"role": "assistant", "content": "4."}]})"
                         "\n");
  ASSERT_TRUE(data.ok()) << data.error().message;
  ASSERT_EQ(data->samples.size(), 5U);
  EXPECT_EQ(data->report.lines, 5);
  for (const Sample& sample : data->samples) {
    EXPECT_EQ(sample.tokens, data->samples[0].tokens);
    EXPECT_EQ(sample.labels, data->samples[0].labels);
    EXPECT_EQ(sample.response, data->samples[0].response);
  }
}

TEST(Dataset, PlainTextIsLearnedWholeAndEnds) {
  DatasetOptions options;
  options.eos_ids = {kEndOfText};
  const auto data = Read(R"({"text": "abc"})", options);
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(data->samples[0].tokens, (std::vector<int32_t>{'a', 'b', 'c'}));
  EXPECT_EQ(data->samples[0].labels, (std::vector<int32_t>{'b', 'c', kEndOfText}));
  EXPECT_EQ(data->samples[0].response, 0);
}

TEST(Dataset, LastTurnOrAllTurns) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}]})";
  std::string line = chat;
  std::replace(line.begin(), line.end(), '\n', ' ');
  EXPECT_EQ(Learned(Read(line)->samples[0]), "d<258>");
  DatasetOptions options = ChatOptions();
  options.all_turns = true;
  EXPECT_EQ(Learned(Read(line, options)->samples[0]), "b<258>d<258>");
}

TEST(Dataset, WhatCannotBeLearnedIsCountedAndNothingLeftIsAnError) {
  DatasetOptions options = ChatOptions();
  options.max_length = 60;
  const std::string too_long = R"({"prompt": "q", "response": ")" + std::string(100, 'x') + "\"}\n";
  const std::string no_response = R"({"messages": [{"role": "user", "content": "q"}]})"
                                  "\n";
  const std::string empty = R"({"prompt": "q", "response": ""})"
                            "\n";
  const auto data = Read(too_long + no_response + empty + R"({"prompt": "q", "response": "r"})", options);
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->report.too_long, 1);
  EXPECT_EQ(data->report.no_labels, 2);
  EXPECT_EQ(data->report.samples, 1);
  EXPECT_EQ(data->report.labels, 2);
  const auto nothing = Read(too_long + no_response, options);  // demand 81
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(nothing.error().message.find("of 2 samples 1 are longer than 60 tokens and 1 have no response"),
            std::string::npos)
      << nothing.error().message;
}

TEST(Dataset, BadLinesAreNamed) {
  for (const char* bad : {"{\"messages\": 3}", "[]", "{", "{\"prompt\": \"a\"}", "{\"prompt\": 1, \"response\": \"b\"}",
                          "{\"messages\": [{\"role\": \"user\"}]}", "{\"conversations\": [\"x\"]}", "{\"text\": 5}"}) {
    const auto data = Read(std::string(kChat) + "\n" + bad + "\n");
    ASSERT_FALSE(data.ok()) << bad;
    EXPECT_EQ(data.error().code, ErrorCode::kMalformed) << bad;
    EXPECT_NE(data.error().message.find("line 2"), std::string::npos) << data.error().message;
  }
  const auto role =
      Read(R"({"messages": [{"role": "oracle", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  ASSERT_FALSE(role.ok());
  EXPECT_NE(role.error().message.find("line 1"), std::string::npos);
  EXPECT_EQ(ReadDataset("/nowhere.jsonl", *ByteTokenizer(), ChatOptions()).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Read(kChat, DatasetOptions()).error().code, ErrorCode::kInvalidArgument);  // no template
}

TEST(Dataset, OrderIsAPermutationOfTheSeedAndTheEpoch) {
  const auto order = EpochOrder(100, 1, 0);
  EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 100U);
  EXPECT_EQ(EpochOrder(100, 1, 0), order);
  EXPECT_NE(EpochOrder(100, 1, 1), order);
  EXPECT_NE(EpochOrder(100, 2, 0), order);
}

TEST(Dataset, RowsHoldEverySampleOnceAndAreFull) {
  std::vector<Sample> samples(500);
  int64_t tokens = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].tokens.resize(10 + (i * 37) % 190);
    tokens += static_cast<int64_t>(samples[i].tokens.size());
  }
  const auto rows = PackRows(samples, EpochOrder(500, 3, 0), 256, true);
  std::set<int64_t> seen;
  for (const auto& row : rows) {
    int64_t used = 0;
    for (const int64_t index : row) {
      used += static_cast<int64_t>(samples[static_cast<size_t>(index)].tokens.size());
      EXPECT_TRUE(seen.insert(index).second);
    }
    EXPECT_LE(used, 256);
  }
  EXPECT_EQ(seen.size(), 500U);
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(rows.size() * 256), 0.9);
  EXPECT_EQ(PackRows(samples, EpochOrder(500, 3, 0), 256, false).size(), 500U);
}

}  // namespace
}  // namespace pith::train
