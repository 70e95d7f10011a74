#include "model/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "base/json.h"
#include "base/mapped_file.h"
#include "model/gguf.h"
#include "support/data.h"

namespace pith {
namespace {

using Ids = std::vector<int32_t>;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

Json ReadGolden(const std::string& name) {
  return Json::parse(testing::ReadFile(testing::GoldenPath("tokenizer/" + name)));
}

TokenizerPtr LoadJson(const std::string& path) {
  auto tokenizer = Tokenizer::FromJson(testing::ReadFile(path), path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? *tokenizer : nullptr;
}

TokenizerPtr LoadGguf(const std::string& path) {
  const auto gguf = GgufFile::Open(path);
  EXPECT_TRUE(gguf.ok()) << gguf.error().message;
  if (!gguf.ok()) return nullptr;
  auto tokenizer = Tokenizer::FromGguf(**gguf);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? *tokenizer : nullptr;
}

Ids EncodeOk(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options) {
  auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.error().message;
  return ids.ok() ? *ids : Ids{-1};
}

// A tokenizer.json around the golden file's small vocabulary.
Json SmallDocument(const Json& golden, const Json& parts) {
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  Json document = {{"added_tokens", Json::array()}, {"normalizer", nullptr}, {"pre_tokenizer", byte_level},
                   {"post_processor", nullptr},     {"decoder", byte_level}, {"model", golden["model"]}};
  for (const auto& [name, part] : parts.items()) {
    if (name == "model") {
      document["model"].update(part);
    } else {
      document[name] = part;
    }
  }
  return document;
}

Error SmallError(const Json& parts) {
  const Json document = SmallDocument(ReadGolden("components.json"), parts);
  const auto tokenizer = Tokenizer::FromJson(document.dump(), "small");
  return tokenizer.ok() ? Error{ErrorCode::kInternal, "no error"} : tokenizer.error();
}

// Tokens of Qwen, GPT-2, ... written as their bytes.
std::vector<std::string> Pieces(const Tokenizer& tokenizer, const Ids& ids) {
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.emplace_back(tokenizer.TokenBytes(id));
  return pieces;
}

TEST(TokenizerComponents, IdsEqualTheTokenizersLibrary) {
  const Json golden = ReadGolden("components.json");
  size_t checked = 0;
  for (const Json& one : golden["cases"]) {
    const std::string name = one["name"];
    const auto tokenizer = Tokenizer::FromJson(SmallDocument(golden, one["parts"]).dump(), name);
    ASSERT_TRUE(tokenizer.ok()) << name << ": " << tokenizer.error().message;
    for (size_t i = 0; i < golden["texts"].size(); ++i) {
      const std::string text = golden["texts"][i];
      const Json& row = one["rows"][i];
      const Ids ids = row["ids"];
      EXPECT_EQ(EncodeOk(**tokenizer, text, {.parse_special = true}), ids) << name << ": " << golden["texts"][i];
      EXPECT_EQ(EncodeOk(**tokenizer, text, {}), row.value("plain", ids)) << name << " plain: " << golden["texts"][i];
      EXPECT_EQ(EncodeOk(**tokenizer, text, {.parse_special = true, .add_bos = true}), row.value("bos", ids))
          << name << " bos: " << golden["texts"][i];
      ++checked;
    }
  }
  EXPECT_GT(checked, 1000U);
}

// Added tokens that are not special are always recognised; special ones only when asked (demands, row 75).
TEST(TokenizerComponents, SpecialTokensOfAUserStayText) {
  const Json golden = ReadGolden("components.json");
  const auto n = static_cast<int32_t>(golden["model"]["vocab"].size());
  const Json token = {{"content", "<|im_end|>"}, {"id", n}, {"special", true}, {"normalized", false}};
  const Json think = {{"content", "<think>"}, {"id", n + 1}, {"special", false}, {"normalized", false}};
  const auto loaded =
      Tokenizer::FromJson(SmallDocument(golden, {{"added_tokens", Json::array({token, think})}}).dump(), "small");
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const Tokenizer& tokenizer = **loaded;
  const std::string text = "hi<|im_end|><think><|im_end|>";
  const auto count = [&](const Ids& ids, int32_t id) { return std::count(ids.begin(), ids.end(), id); };

  const Ids user = EncodeOk(tokenizer, text, {});
  EXPECT_EQ(count(user, n), 0);
  EXPECT_EQ(count(user, n + 1), 1);
  EXPECT_EQ(tokenizer.Decode(user, true), text);

  EXPECT_EQ(count(EncodeOk(tokenizer, text, {.parse_special = true}), n), 2);

  // Ranges: only the second one is the template's. Touching a range is not enough.
  const TextRange second[] = {{text.size() - 10, text.size()}};
  EXPECT_EQ(count(EncodeOk(tokenizer, text, {.parse_special = true, .special_ranges = second}), n), 1);
  const TextRange partly[] = {{3, 12}, {text.size() - 9, text.size()}};
  EXPECT_EQ(count(EncodeOk(tokenizer, text, {.parse_special = true, .special_ranges = partly}), n), 0);
  const TextRange both[] = {{2, 12}, {12, text.size()}};
  EXPECT_EQ(count(EncodeOk(tokenizer, text, {.parse_special = true, .special_ranges = both}), n), 2);

  // Ranges stay where they are when invalid bytes grow into U+FFFD in front of them.
  const std::string broken = "\xFF\xFE\x80" + text;
  const TextRange moved[] = {{broken.size() - 10, broken.size()}};
  EXPECT_EQ(count(EncodeOk(tokenizer, broken, {.parse_special = true, .special_ranges = moved}), n), 1);

  const TextRange backwards[] = {{5, 2}};
  EXPECT_FALSE(tokenizer.Encode(text, {.parse_special = true, .special_ranges = backwards}).ok());
  const TextRange outside[] = {{0, text.size() + 1}};
  EXPECT_FALSE(tokenizer.Encode(text, {.parse_special = true, .special_ranges = outside}).ok());
}

TEST(TokenizerComponents, InvalidUtf8IsReplacedAsPythonDoes) {
  const Json golden = ReadGolden("components.json");
  const auto tokenizer = Tokenizer::FromJson(SmallDocument(golden, Json::object()).dump(), "small");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const std::string r = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {{"a\xFF", "a" + r},
                                                       {"\xE4\xB8", r},
                                                       {"\xE4\xB8"
                                                        "a",
                                                        r + "a"},
                                                       {"\xC0\xAF", r + r},
                                                       {"\xED\xA0\x80", r + r + r},
                                                       {"\xF0\x9F\x92", r},
                                                       {"\xF4\x90\x80\x80", r + r + r + r},
                                                       {"\xE0\x80\x80", r + r + r},
                                                       {"\xF0\x9F\x92\x41", r + "A"},
                                                       {"\x80", r},
                                                       {"\xC3\xA9", "\xC3\xA9"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ((*tokenizer)->Decode(EncodeOk(**tokenizer, bytes, {}), false), text);
  }
}

TEST(TokenizerComponents, UnsupportedPartsAreNamed) {
  const auto expect = [](const Json& parts, ErrorCode code, const std::string& named) {
    const Error error = SmallError(parts);
    EXPECT_EQ(error.code, code) << error.message;
    EXPECT_NE(error.message.find(named), std::string::npos) << error.message;
  };
  const Json byte_level = {{"type", "ByteLevel"}};
  const auto with_split = [&](const std::string& regex) -> Json {
    const Json split = {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}};
    return {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}}};
  };
  constexpr auto kUnsupported = ErrorCode::kUnsupported;
  expect({{"normalizer", {{"type", "NFKC"}}}}, kUnsupported, "NFKC");
  expect({{"normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}}}}, kUnsupported,
         "Lowercase");
  expect({{"pre_tokenizer", {{"type", "Metaspace"}}}}, kUnsupported, "ByteLevel");
  expect({{"pre_tokenizer", nullptr}}, kUnsupported, "ByteLevel");
  expect({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Punctuation"}}, byte_level}}}}},
         kUnsupported, "Punctuation");
  expect({{"post_processor", {{"type", "RobertaProcessing"}}}}, kUnsupported, "RobertaProcessing");
  expect({{"decoder", {{"type", "WordPiece"}}}}, kUnsupported, "WordPiece");
  expect({{"decoder", nullptr}}, kUnsupported, "decoder");
  expect({{"model", {{"type", "Unigram"}}}}, kUnsupported, "Unigram");
  expect({{"model", {{"dropout", 0.1}}}}, kUnsupported, "dropout");
  expect({{"model", {{"byte_fallback", true}}}}, kUnsupported, "byte_fallback");
  expect({{"model", {{"end_of_word_suffix", "</w>"}}}}, kUnsupported, "end_of_word_suffix");
  expect({{"model", {{"vocab", {{"a", 0}}}, {"merges", Json::array()}, {"unk_token", "a"}}}}, kUnsupported,
         "unk_token");
  expect(with_split("^a"), kUnsupported, "anchor");
  expect(with_split("\\w+"), kUnsupported, "\\w");
  expect(with_split("(a)\\1"), kUnsupported, "\\1");
  expect(with_split("a{1,2}+"), kUnsupported, "possessive");
  expect(with_split("(?<x>a)"), kUnsupported, "group");
  expect(with_split("(*LIMIT_MATCH=1)a"), kUnsupported, "group");
  expect(with_split("[a&&b]"), kUnsupported, "intersection");
  expect(with_split("a*"), kUnsupported, "nothing");
  expect(with_split("(a"), ErrorCode::kMalformed, "(a");
  expect(with_split("[a"), kUnsupported, "[a");

  constexpr auto kMalformed = ErrorCode::kMalformed;
  expect({{"model", {{"merges", {"t hx"}}}}}, kMalformed, "hx");
  expect({{"model", {{"merges", {"t"}}}}}, kMalformed, "merge 0");
  expect({{"model", {{"merges", {"t h e"}}}}}, kMalformed, "merge 0");
  expect({{"model", {{"merges", {{"t"}}}}}}, kMalformed, "fewer");
  expect({{"model", {{"merges", {{"t", "h", "e"}}}}}}, kMalformed, "more");
  expect({{"model", {{"merges", {1}}}}}, kMalformed, "merges");
  expect({{"model", {{"vocab", {{"a", -1}}}}}}, kMalformed, "-1");
  expect({{"model", {{"vocab", {{"a", 1LL << 40}}}}}}, kMalformed, "'a'");
  expect({{"model", {{"vocab", {{"a", "b"}}}}}}, kMalformed, "vocab");
  expect({{"model", {{"vocab", {{"a", 1}, {"b", 1}}}, {"merges", Json::array()}}}}, kMalformed, "id 1");
  expect({{"model", {{"vocab", Json::object()}, {"merges", Json::array()}}}}, kMalformed, "empty");
  expect({{"added_tokens", {{{"content", "<x>"}, {"id", 0}}}}}, kMalformed, "<x>");
  expect({{"added_tokens", {{{"content", ""}, {"id", 5000}}}}}, kUnsupported, "empty");
  expect({{"added_tokens", {{{"content", std::string(2000, 'a')}, {"id", 5000}}}}}, kUnsupported, "1024");
  expect({{"added_tokens", {{{"content", "<x>"}, {"id", -5}}}}}, kMalformed, "id");
  const auto with_bos = [](const Json& ids, bool last) -> Json {
    Json single = {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}};
    if (last) std::swap(single[0], single[1]);
    return {{"post_processor",
             {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", {{"<s>", {{"ids", ids}}}}}}}};
  };
  expect(with_bos({100000}, false), kMalformed, "100000");
  expect(with_bos(Json::array(), false), kMalformed, "post_processor");
  expect(with_bos({1, 2}, false), kUnsupported, "post_processor");
  expect(with_bos({1}, true), kUnsupported, "post_processor");
}

TEST(TokenizerComponents, MalformedDocumentsAreErrors) {
  for (const std::string text : {"", "{", "[]", "null", "{}", "{\"model\":{}}", "{\"model\":{\"vocab\":{\"a\":0}}}",
                                 "{\"model\":{\"vocab\":{\"a\":0},\"vocab\":{\"b\":0}}}", "{\"model\":[]}", "\xFF"}) {
    const auto tokenizer = Tokenizer::FromJson(text, "here");
    ASSERT_FALSE(tokenizer.ok()) << text;
    EXPECT_EQ(tokenizer.error().message.substr(0, 4), "here");
  }
  const auto deep = Tokenizer::FromJson(std::string(100000, '['), "deep");
  ASSERT_FALSE(deep.ok());
  EXPECT_EQ(deep.error().code, ErrorCode::kMalformed);
}

// Vectors of a public data set: one JSON object a line.
void CheckJsonl(const Tokenizer& tokenizer, const std::string& path, size_t expected_rows) {
  const std::string file = testing::ReadFile(path);
  size_t rows = 0;
  for (size_t at = 0; at < file.size();) {
    const size_t end = file.find('\n', at);
    const Json row = Json::parse(file.substr(at, end - at));
    const std::string text = row["text"];
    const Ids ids = row["ids"];
    EXPECT_EQ(EncodeOk(tokenizer, text, {.parse_special = true}), ids) << row["text"];
    EXPECT_EQ(tokenizer.Decode(ids, false), text);
    ++rows;
    at = end == std::string::npos ? file.size() : end + 1;
  }
  EXPECT_GE(rows, expected_rows);
}

TEST(TokenizerVectors, Qwen3) {
  PITH_REQUIRE_DATA(tokenizer, "tokenizers/qwen3_tokenizer.json");
  PITH_REQUIRE_DATA(vectors, "tokenizers/vectors_qwen3.jsonl");
  CheckJsonl(*LoadJson(tokenizer), vectors, 300);
}

TEST(TokenizerVectors, Llama31) {
  PITH_REQUIRE_DATA(tokenizer, "tokenizers/llama3_1_tokenizer.json");
  PITH_REQUIRE_DATA(vectors, "tokenizers/vectors_llama3_1.jsonl");
  const TokenizerPtr loaded = LoadJson(tokenizer);
  CheckJsonl(*loaded, vectors, 300);
  EXPECT_EQ(loaded->bos_id(), 128000);
  EXPECT_EQ(EncodeOk(*loaded, "Hi", {.add_bos = true}).front(), 128000);
  EXPECT_EQ(loaded->size(), 128256);
}

TEST(TokenizerVectors, Smollm) {
  PITH_REQUIRE_DATA(tokenizer, "tokenizers/smollm_tokenizer.json");
  PITH_REQUIRE_DATA(vectors, "tokenizers/vectors_smollm.jsonl");
  CheckJsonl(*LoadJson(tokenizer), vectors, 300);
}

// llama.cpp's vectors: texts between separator lines, and a line of ids for each.
void CheckInpOut(const Tokenizer& tokenizer, const std::string& inp_path, const std::string& out_path) {
  const std::string inp = testing::ReadFile(inp_path);
  std::istringstream out(testing::ReadFile(out_path));
  const std::string separator = "\n__ggml_vocab_test__\n";
  size_t rows = 0;
  for (size_t at = 0; at < inp.size();) {
    const size_t end = inp.find(separator, at);
    const std::string text = inp.substr(at, end - at);
    std::string line;
    ASSERT_TRUE(std::getline(out, line));
    std::istringstream numbers(line);
    Ids ids;
    for (int32_t id = 0; numbers >> id;) ids.push_back(id);
    EXPECT_EQ(EncodeOk(tokenizer, text, {}), ids) << Json(text);
    ++rows;
    at = end == std::string::npos ? inp.size() : end + separator.size();
  }
  EXPECT_GE(rows, 40U);
}

TEST(TokenizerVectors, LlamaCppGpt2) {
  PITH_REQUIRE_DATA(vocab, "tokenizers/ggml-vocab-gpt-2.gguf");
  PITH_REQUIRE_DATA(inp, "tokenizers/ggml-vocab-gpt-2.gguf.inp");
  PITH_REQUIRE_DATA(out, "tokenizers/ggml-vocab-gpt-2.gguf.out");
  CheckInpOut(*LoadGguf(vocab), inp, out);
}

TEST(TokenizerVectors, LlamaCppLlama3) {
  PITH_REQUIRE_DATA(vocab, "tokenizers/llama3_1_tokenizer.json");
  PITH_REQUIRE_DATA(inp, "tokenizers/ggml-vocab-llama-bpe.gguf.inp");
  PITH_REQUIRE_DATA(out, "tokenizers/ggml-vocab-llama-bpe.gguf.out");
  CheckInpOut(*LoadJson(vocab), inp, out);
}

TEST(TokenizerVectors, LlamaCppQwen2) {
  PITH_REQUIRE_DATA(vocab, "tokenizers/qwen3_tokenizer.json");
  PITH_REQUIRE_DATA(inp, "tokenizers/ggml-vocab-qwen2.gguf.inp");
  PITH_REQUIRE_DATA(out, "tokenizers/ggml-vocab-qwen2.gguf.out");
  CheckInpOut(*LoadJson(vocab), inp, out);
}

void CheckRealModel(const std::string& golden_name, const std::string& path) {
  const TokenizerPtr tokenizer = LoadGguf(path);
  ASSERT_NE(tokenizer, nullptr);
  const Json rows = ReadGolden("real_models.json")[golden_name];
  ASSERT_GT(rows.size(), 100U);
  for (const Json& row : rows) {
    const std::string text = row["text"];
    EXPECT_EQ(EncodeOk(*tokenizer, text, {.parse_special = true}), row["ids"].get<Ids>()) << row["text"];
  }
  EXPECT_EQ(tokenizer->bos_id(), -1);
  EXPECT_GE(tokenizer->FindToken("<|im_end|>"), 0);
  EXPECT_TRUE(tokenizer->IsSpecial(tokenizer->FindToken("<|im_end|>")));
  EXPECT_EQ(tokenizer->TokenBytes(tokenizer->FindToken("\xC4\xA0the")), " the");  // U+0120 stands for the space
  EXPECT_EQ(tokenizer->FindToken("no such token"), -1);
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(1 << 30), "");
}

TEST(TokenizerRealModels, SmolLM2) {
  PITH_REQUIRE_MODEL(path, "smollm2-135m");
  CheckRealModel("smollm2-135m", path);
}

TEST(TokenizerRealModels, Qwen25Coder05B) {
  PITH_REQUIRE_MODEL(path, "qwen2.5-coder-0.5b");
  CheckRealModel("qwen2.5-coder-0.5b", path);
}

TEST(TokenizerRealModels, Qwen25Coder15B) {
  PITH_REQUIRE_MODEL(path, "qwen2.5-coder-1.5b");
  CheckRealModel("qwen2.5-coder-0.5b", path);  // the same tokenizer
}

// Hostile one-line texts (demands, row 70): the time grows with the length, not with its square. The bound is generous
// for a busy machine and still far below what a quadratic tokenizer needs for 1 MiB (minutes).
TEST(TokenizerLimits, OneLineOfOneMebibyteIsLinear) {
  PITH_REQUIRE_DATA(vocab, "tokenizers/smollm_tokenizer.json");
  const TokenizerPtr smollm = LoadJson(vocab);
  const auto small = Tokenizer::FromJson(
      SmallDocument(ReadGolden("components.json"),
                    {{"normalizer", {{"type", "NFC"}}},
                     {"added_tokens",
                      {{{"content", "\n"}, {"id", 5000}, {"rstrip", true}, {"lstrip", true}},
                       {{"content", "<|im_end|>"}, {"id", 5001}, {"special", true}, {"single_word", true}}}}})
          .dump(),
      "small");
  ASSERT_TRUE(small.ok()) << small.error().message;
  constexpr size_t kSize = size_t{1} << 20;
  const auto repeat = [](std::string_view unit, size_t size) {
    std::string text;
    while (text.size() < size) text += unit;
    return text;
  };
  std::string letters;
  std::string mixed;
  uint64_t state = 1;
  for (size_t i = 0; i < kSize; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    letters += static_cast<char>('a' + (state >> 33) % 26);
    mixed += static_cast<char>(' ' + (state >> 40) % 95);
  }
  const std::map<std::string, std::string> texts = {
      {"one letter", repeat("a", kSize)},       {"letters", letters},
      {"spaces", repeat(" ", kSize)},           {"spaces and a letter", repeat(" ", kSize) + "a"},
      {"digits", repeat("1", kSize)},           {"mixed", mixed},
      {"punctuation", repeat("!", kSize)},      {"line breaks", repeat("\n", kSize)},
      {"tabs", repeat(" \t", kSize)},           {"marks", repeat("\xCC\x81\xCC\xA7", kSize)},
      {"token starts", repeat("<|im_", kSize)}, {"tokens", repeat("<|im_end|>", kSize)},
      {"invalid", repeat("\xFF", kSize)},       {"brackets", repeat("<", kSize)}};
  for (const auto& [name, text] : texts) {
    for (const TokenizerPtr& tokenizer : {smollm, *small}) {
      const auto start = std::chrono::steady_clock::now();
      const auto ids = tokenizer->Encode(text, {.parse_special = true});
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      ASSERT_TRUE(ids.ok()) << name << ": " << ids.error().message;
      EXPECT_FALSE(ids->empty()) << name;
      EXPECT_LT(seconds.count(), 15.0) << name;
    }
  }
  EXPECT_EQ(smollm->Decode(EncodeOk(*smollm, letters, {}), false), letters);
  EXPECT_EQ(smollm->Decode(EncodeOk(*smollm, mixed, {}), false), mixed);
}

// Long words take another path through the merging than short ones; both must do the same.
TEST(TokenizerLimits, LongAndShortWordsMergeAlike) {
  const Json golden = ReadGolden("components.json");
  const Json no_split = {{"pre_tokenizer", {{"type", "ByteLevel"}, {"use_regex", false}, {"add_prefix_space", false}}}};
  const auto loaded = Tokenizer::FromJson(SmallDocument(golden, no_split).dump(), "small");
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  // Merges by definition: the lowest rank, leftmost first, one at a time.
  std::map<std::pair<std::string, std::string>, int> ranks;
  for (const Json& merge : golden["model"]["merges"]) {
    const int rank = static_cast<int>(ranks.size());
    if (merge.is_array()) {
      ranks[{merge[0], merge[1]}] = rank;
    } else {
      const std::string line = merge;
      const size_t space = line.find(' ');
      ranks[{line.substr(0, space), line.substr(space + 1)}] = rank;
    }
  }
  uint64_t state = 7;
  for (int round = 0; round < 60; ++round) {
    std::string text;
    const size_t size = 20 + static_cast<size_t>(round) * 3;
    while (text.size() < size) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      text += "theandrcou"[(state >> 33) % 10];
    }
    std::vector<std::string> parts;
    for (const char c : text) parts.emplace_back(1, c);
    while (true) {
      int best = INT32_MAX;
      size_t where = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ranks.find({parts[i], parts[i + 1]});
        if (found != ranks.end() && found->second < best) {
          best = found->second;
          where = i;
        }
      }
      if (best == INT32_MAX) break;
      parts[where] += parts[where + 1];
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(where) + 1);
    }
    EXPECT_EQ(Pieces(**loaded, EncodeOk(**loaded, text, {})), parts) << text;
  }
}

// Escapes are the command line's business (demands, row 77): a backslash and an n are two characters here.
TEST(TokenizerLimits, EscapesAreNotInterpreted) {
  const auto loaded = Tokenizer::FromJson(SmallDocument(ReadGolden("components.json"), Json::object()).dump(), "small");
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const Ids literal = EncodeOk(**loaded, "a\\nb", {});
  EXPECT_EQ((*loaded)->Decode(literal, false), "a\\nb");
  EXPECT_NE(literal, EncodeOk(**loaded, "a\nb", {}));
}

TEST(TokenizerGguf, OtherTokenizersAreNamed) {
  // A GGUF file without tensors: header, then metadata.
  const auto gguf_with = [](const std::string& model, const std::string& pre) {
    std::string file = "GGUF";
    const auto number = [&](uint64_t value, size_t bytes) {
      for (size_t i = 0; i < bytes; ++i) file += static_cast<char>((value >> (8 * i)) & 0xFF);
    };
    const auto text = [&](const std::string& value) {
      number(value.size(), 8);
      file += value;
    };
    number(3, 4);
    number(0, 8);
    number(2, 8);
    for (const auto& [key, value] : {std::pair{"tokenizer.ggml.model", model}, std::pair{"tokenizer.ggml.pre", pre}}) {
      text(key);
      number(8, 4);
      text(value);
    }
    return file;
  };
  const auto error_of = [&](const std::string& model, const std::string& pre) {
    const std::string file = gguf_with(model, pre);
    const auto gguf = GgufFile::Parse(std::as_bytes(std::span(file)), nullptr, "here");
    EXPECT_TRUE(gguf.ok()) << gguf.error().message;
    const auto tokenizer = Tokenizer::FromGguf(**gguf);
    EXPECT_FALSE(tokenizer.ok());
    return tokenizer.error();
  };
  EXPECT_EQ(error_of("llama", "default").code, ErrorCode::kUnsupported);
  EXPECT_NE(error_of("llama", "default").message.find("'llama'"), std::string::npos);
  EXPECT_EQ(error_of("gpt2", "deepseek-llm").code, ErrorCode::kUnsupported);
  EXPECT_NE(error_of("gpt2", "deepseek-llm").message.find("'deepseek-llm'"), std::string::npos);
  EXPECT_NE(error_of("gpt2", "qwen2").message.find("tokenizer.ggml.tokens"), std::string::npos);
}

}  // namespace
}  // namespace pith
