// pith tokenize: text on standard input to token ids, or back.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <vector>

#include "command.h"
#include "json_output.h"
#include "model/tokenizer_file.h"
#include "pull/model_cache.h"

namespace pith {

namespace {

struct TokenizeOptions {
  std::string model;
  bool special = false;
  bool bos = false;
  bool decode = false;
  bool skip_special = false;
};

// Ids in text: {"ids":[1,2]}, [1,2], or numbers between spaces, commas or line ends.
Result<std::vector<int32_t>> ParseIds(const std::string& text, int32_t size) {
  std::vector<int32_t> ids;
  const auto add = [&](int64_t id) -> Status {
    if (id < 0 || id >= size) {
      return Error{ErrorCode::kInvalidArgument,
                   "token id " + std::to_string(id) + " is outside 0.." + std::to_string(size - 1)};
    }
    ids.push_back(static_cast<int32_t>(id));
    return {};
  };
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && (text[first] == '{' || text[first] == '[')) {
    PITH_ASSIGN(const Json json, ParseJson(text, "standard input"));
    if (json.is_object() && !json.contains("ids")) {
      return Error{ErrorCode::kInvalidArgument, "standard input: no \"ids\" in the JSON object"};
    }
    const Json& list = json.is_object() ? json["ids"] : json;
    if (!list.is_array()) return Error{ErrorCode::kInvalidArgument, "standard input: \"ids\" is not a list"};
    for (const Json& id : list) {
      if (!id.is_number_integer()) return Error{ErrorCode::kInvalidArgument, "standard input: an id is not an integer"};
      if (id.is_number_unsigned() && id.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
        return Error{ErrorCode::kInvalidArgument, "token id " + std::to_string(id.get<uint64_t>()) + " is too large"};
      }
      PITH_RETURN_IF_ERROR(add(id.get<int64_t>()));
    }
    return ids;
  }
  constexpr std::string_view kBetween = " \t\r\n,";
  for (size_t begin = text.find_first_not_of(kBetween); begin != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word.size() > 10 || word.find_first_not_of("0123456789") != std::string::npos) {
      return Error{ErrorCode::kInvalidArgument, "standard input: '" + word.substr(0, 40) + "' is not a token id"};
    }
    PITH_RETURN_IF_ERROR(add(std::stoll(word)));
    begin = text.find_first_not_of(kBetween, end);
  }
  return ids;
}

Status Decode(const Cli& cli, const TokenizeOptions& options, const Tokenizer& tokenizer, const std::string& input) {
  PITH_ASSIGN(const auto ids, ParseIds(input, tokenizer.size()));
  const std::string text = tokenizer.Decode(ids, options.skip_special);
  if (cli.json()) {
    PrintJson({{"text", text}});
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return {};
}

Status RunTokenize(const Cli& cli, const TokenizeOptions& options) {
  std::string path = options.model;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    PITH_ASSIGN(path, ResolveModel(options.model));
  }
  PITH_ASSIGN(const auto tokenizer, OpenTokenizer(path));
  PITH_ASSIGN(const std::string input, ReadStdin());
  if (options.decode) return Decode(cli, options, *tokenizer, input);

  EncodeOptions encode;
  encode.parse_special = options.special;
  encode.add_bos = options.bos;
  PITH_ASSIGN(const auto ids, tokenizer->Encode(input, encode));
  if (cli.json()) {
    PrintJson({{"ids", ids}});
    return {};
  }
  std::string line;
  for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  std::printf("%s\n", line.c_str());
  return {};
}

}  // namespace

void AddTokenizeCommand(Cli& cli) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* app = cli.AddCommand("tokenize", "Turn text on standard input into token ids, or ids into text.",
                                 "printf 'Hello, world' | pith tokenize -m smollm2-135m --json");
  CLI::Option* model = AddModelOption(app, options->model);
  model->required();
  model->description(
      "Model: a name of the catalogue, hf:org/name[:file], a directory, a GGUF file or a tokenizer.json");
  app->add_flag("--special", options->special, "Recognise special tokens such as <|im_end|> in the text");
  app->add_flag("--bos", options->bos, "Put the tokenizer's begin-of-text token in front, if it has one");
  CLI::Option* decode = app->add_flag("--decode", options->decode, "Standard input holds ids: write their text");
  app->add_flag("--skip-special", options->skip_special, "Leave special tokens out of the text")->needs(decode);
  cli.OnRun(app, [&cli, options] { return RunTokenize(cli, *options); });
}

}  // namespace pith
