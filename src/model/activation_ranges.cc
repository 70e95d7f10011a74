#include "model/activation_ranges.h"

#include <array>
#include <cfloat>
#include <cmath>
#include <filesystem>

#include "base/durable_file.h"
#include "base/json.h"
#include "base/sha256.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr int kVersion = 1;

constexpr std::array<const char*, kActivationSites> kNames = {
    "attention_norm", "q_proj",         "k_proj",          "v_proj",          "q.norm",
    "k.norm",         "q.rope.low_cos", "q.rope.high_sin", "q.rope.high_cos", "q.rope.low_sin",
    "q.rope",         "k.rope.low_cos", "k.rope.high_sin", "k.rope.high_cos", "k.rope.low_sin",
    "k.rope",         "k.scaled",       "scores",          "masked",          "mixed",
    "o_proj",         "attention_sum",  "mlp_norm",        "gate_proj",       "sigmoid",
    "silu",           "up_proj",        "gated",           "down_proj",       "sum",
    "embedding",      "final_norm",     "logits"};

Status CheckRange(const std::string& name, const ValueRanges& values) {
  const auto found = values.find(name);
  if (found == values.end()) return Error{ErrorCode::kNotFound, "no range of '" + name + "'"};
  const ValueRange& range = found->second;
  if (!std::isfinite(range.lowest) || !std::isfinite(range.highest) || range.lowest > range.highest) {
    return Error{ErrorCode::kNumeric, "the range of '" + name + "' is not two finite numbers, the lower one first"};
  }
  if (range.lowest == 0 && range.highest == 0) {
    return Error{ErrorCode::kMalformed, "the range of '" + name + "' is zero: nothing but zeros was seen"};
  }
  return {};
}

}  // namespace

StaticQuantizer StaticQuantizer::Of(ValueRange range, int bits, bool symmetric) {
  const double low = std::min(0.0, static_cast<double>(range.lowest));
  const double high = std::max(0.0, static_cast<double>(range.highest));
  const double half = static_cast<double>(1 << (bits - 1));
  const double most = static_cast<double>((1 << bits) - 1);
  const double scale = symmetric ? std::max(-low / half, high / (half - 1)) : (high - low) / most;
  StaticQuantizer quantizer;
  quantizer.scale = static_cast<float>(std::max(scale, static_cast<double>(FLT_MIN)));  // all zeros: any scale
  const double lowest = symmetric ? -half : std::nearbyint(low / static_cast<double>(quantizer.scale));
  quantizer.lowest = static_cast<int32_t>(std::max(lowest, -most));
  quantizer.highest = quantizer.lowest + (1 << bits) - 1;
  return quantizer;
}

std::string ActivationName(ActivationSite site, int64_t layer) {
  const char* name = kNames[static_cast<size_t>(site)];
  if (static_cast<int>(site) >= kLayerSites) return name;
  return "layer" + std::to_string(layer) + "." + name;
}

ValueRange RopeRange(const ModelConfig& config) {
  const auto factor = static_cast<float>(ComputeRopeFrequencies(config).attention_factor);
  return {-factor, factor};
}

std::vector<ActivationSite> ActivationSitesOf(const ModelConfig& config) {
  std::vector<ActivationSite> sites;
  for (int i = 0; i < kActivationSites; ++i) {
    const auto site = static_cast<ActivationSite>(i);
    const bool norm = site == ActivationSite::kQNorm || site == ActivationSite::kKNorm;
    if (!norm || config.qk_norm) sites.push_back(site);
  }
  return sites;
}

Status CheckActivationRanges(const ActivationRanges& ranges, const ModelConfig& config) {
  for (const ActivationSite site : ActivationSitesOf(config)) {
    const int64_t layers = static_cast<int>(site) < kLayerSites ? config.layers : 1;
    for (int64_t layer = 0; layer < layers; ++layer) {
      PITH_RETURN_IF_ERROR(CheckRange(ActivationName(site, layer), ranges.values));
    }
  }
  return {};
}

bool HasActivationRanges(const std::string& directory) {
  std::error_code error;
  return fs::exists(fs::path(directory) / kActivationRangesFile, error);
}

Result<ActivationRanges> ReadActivationRanges(const std::string& directory, const ModelConfig& config,
                                              const std::string& fingerprint) {
  const std::string path = (fs::path(directory) / kActivationRangesFile).string();
  const std::string again = "; `pith calibrate " + directory + "` measures them";
  if (!HasActivationRanges(directory)) {
    return Error{ErrorCode::kNotFound, "'" + directory + "' has no activation ranges" + again};
  }
  PITH_ASSIGN(const Json json, ReadJsonFile(path));
  ActivationRanges ranges;
  try {
    if (const int version = json.at("pith_activation_ranges").get<int>(); version != kVersion) {
      return Error{ErrorCode::kUnsupported, "'" + path + "' has version " + std::to_string(version) + "; this is " +
                                                std::to_string(kVersion) + again};
    }
    ranges.model = json.at("model").get<std::string>();
    ranges.method = json.at("method").get<std::string>();
    ranges.tokens = json.at("tokens").get<int64_t>();
    for (const auto& [name, pair] : json.at("ranges").items()) {
      // JSON has no words for what is not finite; null stands where a number was lost.
      const auto number = [](const Json& value) { return value.is_null() ? NAN : value.get<float>(); };
      if (!pair.is_array() || pair.size() != 2) {
        return Error{ErrorCode::kMalformed, "'" + path + "': the range of '" + name + "' is not two numbers"};
      }
      ranges.values[name] = {number(pair[0]), number(pair[1])};
    }
  } catch (const Json::exception& exception) {
    return Error{ErrorCode::kMalformed, "'" + path + "': " + exception.what()};
  }
  if (ranges.model != fingerprint) {
    return Error{ErrorCode::kMismatch, "'" + path + "' was measured on other weights than those beside it" + again};
  }
  if (const Status status = CheckActivationRanges(ranges, config); !status.ok()) {
    return status.error().Wrap("'" + path + "'");
  }
  return ranges;
}

std::string DigestOf(const ActivationRanges& ranges) {
  Digest digest;
  for (const auto& [name, range] : ranges.values) {
    digest.Update(name + "\n");
    digest.Update(std::as_bytes(std::span(&range, 1)));
  }
  return digest.Finish();
}

Status WriteActivationRanges(const ActivationRanges& ranges, const std::string& directory) {
  OrderedJson values = OrderedJson::object();
  for (const auto& [name, range] : ranges.values) values[name] = {range.lowest, range.highest};
  const OrderedJson json = {{"pith_activation_ranges", kVersion},
                            {"model", ranges.model},
                            {"method", ranges.method},
                            {"tokens", ranges.tokens},
                            {"ranges", values}};
  return WriteFileDurably((fs::path(directory) / kActivationRangesFile).string(), json.dump(1) + "\n");
}

}  // namespace pith
