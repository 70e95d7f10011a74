#include "model/recipe.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace pith {

namespace {

Error Invalid(const std::string& message) { return {ErrorCode::kInvalidArgument, message}; }

std::string Quoted(std::string_view text) { return "'" + std::string(text.substr(0, 60)) + "'"; }

struct FloatName {
  std::string_view name;
  DType type;
};
constexpr FloatName kFloatNames[] = {{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}};

std::string NumberText(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return {buffer, end.ptr};
}

}  // namespace

Result<MatrixFormat> ParseMatrixFormat(std::string_view text) {
  MatrixFormat format;
  if (text == "keep") {
    format.kind = MatrixFormat::Kind::kKeep;
    return format;
  }
  for (const auto& [name, type] : kFloatNames) {
    if (text != name) continue;
    format.kind = MatrixFormat::Kind::kFloat;
    format.float_type = type;
    return format;
  }
  const Error invalid = Invalid("format " + Quoted(text) +
                                " is not known: w4 or w8, then g32, g64 or g128 for groups, then z (zero points) or m "
                                "(minimums); keep, bf16, f16 or f32");
  std::string_view rest = text;
  if (rest.substr(0, 2) != "w4" && rest.substr(0, 2) != "w8") return invalid;
  format.quant.bits = rest[1] - '0';
  format.quant.group = 0;
  rest.remove_prefix(2);
  if (!rest.empty() && rest.front() == 'g') {
    rest.remove_prefix(1);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), format.quant.group);
    if (error != std::errc()) return invalid;
    if (format.quant.group != 32 && format.quant.group != 64 && format.quant.group != 128) {
      return Invalid("format " + Quoted(text) + ": groups have 32, 64 or 128 inputs");
    }
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  }
  if (rest == "z") {
    format.quant.zero = ZeroForm::kZeroPoint;
  } else if (rest == "m") {
    format.quant.zero = ZeroForm::kMinimum;
  } else if (!rest.empty()) {
    return invalid;
  }
  return format;
}

std::string MatrixFormatText(const MatrixFormat& format) {
  if (format.kind == MatrixFormat::Kind::kKeep) return "keep";
  if (format.kind == MatrixFormat::Kind::kFloat) {
    for (const auto& [name, type] : kFloatNames) {
      if (type == format.float_type) return std::string(name);
    }
    return "?";
  }
  std::string text = "w" + std::to_string(format.quant.bits);
  if (format.quant.group != 0) text += "g" + std::to_string(format.quant.group);
  if (format.quant.zero == ZeroForm::kZeroPoint) text += "z";
  if (format.quant.zero == ZeroForm::kMinimum) text += "m";
  return text;
}

std::string PackRecipe::Canonical() const {
  std::string text =
      MatrixFormatText(linear) + ",head=" + MatrixFormatText(head) + ",embed=" + MatrixFormatText(embedding);
  text += std::string(",method=") + QuantMethodName(method);
  if (method != QuantMethod::kMinMax) text += ",p=" + NumberText(p) + (weigh_inputs ? ",weigh=inputs" : ",weigh=none");
  text += scale_type == DType::kF16 ? ",scales=f16" : ",scales=f32";
  text += kv_bits ? ",kv=" + std::to_string(*kv_bits) : ",kv=none";
  return text;
}

MatrixFormat DefaultHead(const MatrixFormat& linear) {
  if (linear.kind != MatrixFormat::Kind::kQuantized) return linear;
  // One scale per row costs nothing that can be measured here, and is the format of the embedding table: tied models
  // store one matrix for both.
  MatrixFormat head;
  head.quant.bits = 8;
  head.quant.group = 0;
  return head;
}

MatrixFormat DefaultEmbedding(const MatrixFormat& linear) {
  if (linear.kind != MatrixFormat::Kind::kQuantized) return linear;
  MatrixFormat embedding;
  embedding.quant.bits = 8;
  embedding.quant.group = 0;
  return embedding;
}

QuantMethod DefaultMethod(const MatrixFormat& linear) {
  // Eight bits have room to spare: there the plain range is as good and quick.
  const bool scarce = linear.kind == MatrixFormat::Kind::kQuantized && linear.quant.bits == 4;
  return scarce ? QuantMethod::kBest : QuantMethod::kMinMax;
}

namespace {

// Weights of 8 bits gain nothing from it.
bool WeighsByDefault(const PackRecipe& recipe) {
  const auto four_bits = [](const MatrixFormat& format) {
    return format.kind == MatrixFormat::Kind::kQuantized && format.quant.bits == 4;
  };
  return recipe.method != QuantMethod::kMinMax && (four_bits(recipe.linear) || four_bits(recipe.head));
}

}  // namespace

PackRecipe DefaultRecipe() {
  PackRecipe recipe;
  recipe.linear.quant.zero = ZeroForm::kMinimum;
  recipe.head = DefaultHead(recipe.linear);
  recipe.embedding = DefaultEmbedding(recipe.linear);
  recipe.method = DefaultMethod(recipe.linear);
  recipe.weigh_inputs = WeighsByDefault(recipe);
  return recipe;
}

Result<PackRecipe> ParseRecipe(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  PackRecipe recipe;
  PITH_ASSIGN(recipe.linear, ParseMatrixFormat(parts.front()));
  recipe.head = DefaultHead(recipe.linear);
  recipe.embedding = DefaultEmbedding(recipe.linear);
  recipe.method = DefaultMethod(recipe.linear);
  std::optional<bool> weigh;
  std::vector<std::string_view> seen;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    if (equals == std::string_view::npos) return Invalid("recipe field " + Quoted(parts[i]) + " has no '='");
    const std::string_view key = parts[i].substr(0, equals);
    const std::string_view value = parts[i].substr(equals + 1);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return Invalid("recipe field " + Quoted(key) + " appears twice");
    }
    seen.push_back(key);
    const Error invalid = Invalid("recipe field " + Quoted(key) + " cannot be " + Quoted(value));
    if (key == "head" || key == "embed") {
      MatrixFormat& target = key == "head" ? recipe.head : recipe.embedding;
      if (value == "same") {
        target = recipe.linear;
      } else {
        Result<MatrixFormat> format = ParseMatrixFormat(value);
        if (!format.ok()) return format.error().Wrap("recipe field " + Quoted(key));
        target = *format;
      }
    } else if (key == "method") {
      bool found = false;
      for (const QuantMethod method : {QuantMethod::kMinMax, QuantMethod::kLp, QuantMethod::kBest}) {
        if (value != QuantMethodName(method)) continue;
        recipe.method = method;
        found = true;
      }
      if (!found) return invalid;
    } else if (key == "p") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), recipe.p);
      if (error != std::errc() || end != value.data() + value.size() || !(recipe.p >= 1.0 && recipe.p <= 16.0)) {
        return Invalid("recipe field 'p' is " + Quoted(value) + ", not a number from 1 to 16");
      }
    } else if (key == "weigh") {
      if (value != "inputs" && value != "none") return invalid;
      weigh = value == "inputs";
    } else if (key == "scales") {
      if (value != "f16" && value != "f32") return invalid;
      recipe.scale_type = value == "f16" ? DType::kF16 : DType::kF32;
    } else if (key == "kv") {
      if (value != "8" && value != "none") return invalid;
      recipe.kv_bits = value == "8" ? std::optional<int>(8) : std::nullopt;
    } else {
      return Invalid("recipe field " + Quoted(key) + " is not known (head, embed, method, p, weigh, scales, kv)");
    }
  }
  if (weigh.value_or(false) && recipe.method == QuantMethod::kMinMax) {
    return Invalid("recipe field 'weigh': the minmax method does not weigh errors");
  }
  recipe.weigh_inputs = weigh.value_or(WeighsByDefault(recipe));
  return recipe;
}

}  // namespace pith
