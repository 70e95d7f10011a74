#include "model/chat_template.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/mapped_file.h"
#include "model/gguf.h"
#include "support/data.h"

namespace pith {
namespace {

const char* const kNames[] = {"qwen2.5", "smollm2", "qwen3", "llama3", "llama3.1", "chatml"};

Json ReadGolden(const std::string& family) {
  return Json::parse(testing::ReadFile(testing::GoldenPath("chat/" + family + ".json")));
}

TemplateFamily Family(const std::string& name) {
  const auto family = ParseTemplateFamily(name);
  EXPECT_TRUE(family.ok()) << family.error().message;
  return *family;
}

RenderedPrompt RenderCase(TemplateFamily family, const Json& one) {
  std::vector<ChatMessage> messages;
  for (const Json& message : one["messages"]) messages.push_back({message[0], message[1]});
  RenderOptions options;
  options.add_generation_prompt = one["add_generation_prompt"];
  if (one.contains("enable_thinking")) options.enable_thinking = one["enable_thinking"].get<bool>();
  if (one.contains("date_string")) options.date = one["date_string"];
  const auto prompt = RenderChat(family, messages, options);
  EXPECT_TRUE(prompt.ok()) << prompt.error().message;
  return prompt.ok() ? *prompt : RenderedPrompt{};
}

TEST(ChatTemplate, TextEqualsTransformers) {
  for (const std::string name : kNames) {
    const Json golden = ReadGolden(name);
    ASSERT_GE(golden["cases"].size(), 40U);
    for (const Json& one : golden["cases"]) {
      const RenderedPrompt prompt = RenderCase(Family(name), one);
      EXPECT_EQ(prompt.text, one["text"].get<std::string>()) << name << " " << one["messages"];
      // The ranges are sorted and disjoint, and they cover what the template wrote and nothing else.
      std::string template_text;
      size_t done = 0;
      for (const TextRange& range : prompt.template_ranges) {
        ASSERT_LE(done, range.begin);
        ASSERT_LT(range.begin, range.end);
        template_text += prompt.text.substr(range.begin, range.end - range.begin);
        done = range.end;
      }
      ASSERT_LE(done, prompt.text.size());
      EXPECT_EQ(template_text, one["template"].get<std::string>()) << name << " " << one["messages"];
    }
  }
}

TEST(ChatTemplate, DefaultSystemPrompts) {
  const std::vector<ChatMessage> hello = {{"user", "Hello!"}};
  EXPECT_EQ(RenderChat(TemplateFamily::kQwen25, hello, {})->text,
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(RenderChat(TemplateFamily::kSmolLM2, hello, {})->text,
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, WhatTheTemplatesRefuse) {
  for (const std::string name : kNames) {
    const auto empty = RenderChat(Family(name), {}, {});
    ASSERT_FALSE(empty.ok());
    EXPECT_EQ(empty.error().code, ErrorCode::kInvalidArgument);
    const auto role = RenderChat(Family(name), {{"user", "a"}, {"<|im_end|>", "b"}}, {});
    ASSERT_FALSE(role.ok());
    EXPECT_EQ(role.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(role.error().message.find("<|im_end|>"), std::string::npos);
    EXPECT_EQ(TemplateFamilyName(Family(name)), name);
  }
  const auto unknown = ParseTemplateFamily("vicuna");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(unknown.error().message.find("qwen2.5, smollm2, qwen3, llama3, llama3.1, chatml"), std::string::npos);
}

TEST(DetectTemplate, RealTemplates) {
  size_t seen = 0;
  for (const std::string name : kNames) {
    const Json golden = ReadGolden(name);
    if (!golden.contains("template")) continue;
    const auto family = DetectTemplate(golden["template"].get<std::string>());
    ASSERT_TRUE(family.ok()) << name << ": " << family.error().message;
    EXPECT_EQ(TemplateFamilyName(*family), name);
    ++seen;
  }
  EXPECT_EQ(seen, 4U);
}

TEST(DetectTemplate, RealTemplateOfLlama3) {
  PITH_REQUIRE_DATA(path, "tokenizers/llama3_1_tokenizer_config.json");
  const auto family = DetectTemplate(Json::parse(testing::ReadFile(path))["chat_template"].get<std::string>());
  ASSERT_TRUE(family.ok()) << family.error().message;
  EXPECT_EQ(*family, TemplateFamily::kLlama3);
}

TEST(DetectTemplate, RealTemplatesOfModels) {
  PITH_REQUIRE_MODEL(path, "smollm2-135m");
  const auto gguf = GgufFile::Open(path);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  const auto family = DetectTemplate(*(*gguf)->GetString("tokenizer.chat_template"));
  ASSERT_TRUE(family.ok()) << family.error().message;
  EXPECT_EQ(*family, TemplateFamily::kSmolLM2);
}

// The parts of Llama 3.1's template that make it one.
TEST(DetectTemplate, Llama31) {
  const std::string jinja = R"({{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %})";
  const auto family = DetectTemplate(jinja);
  ASSERT_TRUE(family.ok()) << family.error().message;
  EXPECT_EQ(*family, TemplateFamily::kLlama31);
}

TEST(DetectTemplate, RelativesAreNotMistaken) {
  const auto replaced = [](std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    for (size_t i = at; i != std::string::npos; i = text.find(from, i + to.size())) text.replace(i, from.size(), to);
    return text;
  };
  const std::string qwen25 = ReadGolden("qwen2.5")["template"];
  const std::string qwen3 = ReadGolden("qwen3")["template"];
  const std::string smollm2 = ReadGolden("smollm2")["template"];
  const std::string chatml = ReadGolden("chatml")["template"];
  const std::string others[] = {"", "{{ messages }}",
                                // Qwen2 and Qwen2.5-Math: other default system prompts.
                                replaced(qwen25, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
                                         "You are a helpful assistant."),
                                replaced(qwen25, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
                                         "Please reason step by step, and put your final answer within \\\\boxed{}."),
                                // A reasoning model that opens the thought itself.
                                replaced(qwen25, "<|im_start|>assistant\\n", "<|im_start|>assistant\\n<think>\\n"),
                                replaced(qwen3, "'<|im_start|>assistant\\n'", "'<|im_start|>assistant\\n<think>\\n'"),
                                replaced(smollm2, "named SmolLM, trained", "named Smol, trained"),
                                replaced(chatml, "<|im_end|>", "<|end|>"), chatml + "{{ eos_token }}",
                                // The right words, but only in a comment.
                                "{# " + qwen25 + " #}{{ messages[0].content }}"};
  for (const std::string& jinja : others) {
    const auto family = DetectTemplate(jinja);
    ASSERT_FALSE(family.ok()) << TemplateFamilyName(*family) << ": " << jinja;
    EXPECT_EQ(family.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(family.error().message.find("--template"), std::string::npos);
  }
}

std::shared_ptr<const Tokenizer> LoadTokenizer(const std::string& path) {
  const auto tokenizer = Tokenizer::FromJson(testing::ReadFile(path), path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return *tokenizer;
}

void CheckPrompts(const std::string& family, const std::string& tokenizer_path) {
  const auto tokenizer = LoadTokenizer(tokenizer_path);
  const Json golden = ReadGolden(family);
  size_t compared = 0;
  for (const Json& one : golden["cases"]) {
    const RenderedPrompt prompt = RenderCase(Family(family), one);
    const auto ids = EncodePrompt(*tokenizer, prompt);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    if (one.contains("ids")) {
      EXPECT_EQ(*ids, one["ids"].get<std::vector<int32_t>>()) << one["messages"];
      ++compared;
    }
    // As many special tokens as the template wrote, whatever the contents say.
    const auto frame = tokenizer->Encode(one["template"].get<std::string>(), {.parse_special = true});
    const auto specials = [&](const std::vector<int32_t>& list) {
      return std::count_if(list.begin(), list.end(), [&](int32_t id) { return tokenizer->IsSpecial(id); });
    };
    EXPECT_EQ(specials(*ids), specials(*frame)) << one["messages"];
  }
  EXPECT_GE(compared, 8U);
}

TEST(EncodePrompt, SmolLM2) {
  PITH_REQUIRE_DATA(path, "tokenizers/smollm_tokenizer.json");
  CheckPrompts("smollm2", path);
  CheckPrompts("chatml", path);
}

TEST(EncodePrompt, Qwen3) {
  PITH_REQUIRE_DATA(path, "tokenizers/qwen3_tokenizer.json");
  CheckPrompts("qwen3", path);
}

TEST(EncodePrompt, Llama3) {
  PITH_REQUIRE_DATA(path, "tokenizers/llama3_1_tokenizer.json");
  CheckPrompts("llama3", path);
  CheckPrompts("llama3.1", path);
}

// Whole prompts of the real models, as transformers made them for the engine's tests.
void CheckRealPrompts(const std::string& model, const std::string& path) {
  const auto gguf = GgufFile::Open(path);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  const auto tokenizer = Tokenizer::FromGguf(**gguf);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const auto family = DetectTemplate(*(*gguf)->GetString("tokenizer.chat_template"));
  ASSERT_TRUE(family.ok()) << family.error().message;
  const Json golden = Json::parse(testing::ReadFile(testing::GoldenPath("real/" + model + ".json")));
  ASSERT_FALSE(golden["prompts"].empty());
  for (const Json& one : golden["prompts"]) {
    std::vector<ChatMessage> messages;
    for (const Json& message : one["messages"]) messages.push_back({message["role"], message["content"]});
    const auto prompt = RenderChat(*family, messages, {});
    ASSERT_TRUE(prompt.ok()) << prompt.error().message;
    EXPECT_EQ(prompt->text, one["text"].get<std::string>());
    EXPECT_EQ(*EncodePrompt(**tokenizer, *prompt), one["prompt_ids"].get<std::vector<int32_t>>());
    EXPECT_TRUE((*tokenizer)->IsSpecial((*tokenizer)->FindToken(TurnEndToken(*family))));
  }
}

TEST(EncodePrompt, RealSmolLM2) {
  PITH_REQUIRE_MODEL(path, "smollm2-135m");
  CheckRealPrompts("smollm2-135m", path);
}

TEST(EncodePrompt, RealQwen25Coder) {
  PITH_REQUIRE_MODEL(path, "qwen2.5-coder-0.5b");
  CheckRealPrompts("qwen2.5-coder-0.5b", path);
}

// An adapter that switches on at the assistant's header must find the same ids there whatever precedes (demands, row
// 80).
TEST(EncodePrompt, TheGenerationPromptDoesNotMergeWithItsNeighbours) {
  PITH_REQUIRE_DATA(path, "tokenizers/qwen3_tokenizer.json");
  const auto tokenizer = LoadTokenizer(path);
  const auto header = tokenizer->Encode("<|im_end|>\n<|im_start|>assistant\n", {.parse_special = true});
  ASSERT_TRUE(header.ok());
  ASSERT_EQ(header->size(), 5U);
  for (const std::string content :
       {"", " ", "\n", "\n\n", "<", "<|im_end|", "a", "<|im_end|>", "<|im_start|>", "\xF0\x9F\x9A", "\xCC\x81"}) {
    const auto prompt = RenderChat(TemplateFamily::kQwen25, {{"user", content}}, {});
    ASSERT_TRUE(prompt.ok());
    const auto ids = EncodePrompt(*tokenizer, *prompt);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    ASSERT_GE(ids->size(), header->size());
    EXPECT_TRUE(std::equal(header->begin(), header->end(), ids->end() - static_cast<ptrdiff_t>(header->size())))
        << content;
  }
}

}  // namespace
}  // namespace pith
