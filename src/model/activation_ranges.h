// Static ranges of activations: what every value of the forward pass was seen to hold on a text, stored beside the
// weights in "activation_ranges.json". The device export quantizes with them, and the engine's static mode computes
// with the same integers.
//
// Values have the names that they have in an exported graph (deploy/decoder_graph.h): "embedding", "layer3.q_proj",
// "layer3.q.rope.low_cos", "final_norm", "logits". All are 16 bits, asymmetric, one scale per tensor; what goes into
// the KV cache ("layer3.k.scaled", "layer3.v_proj") is 8 bits, symmetric. The softmax has the range [0, 1], cosines
// and sines that of RopeRange.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace pith {

inline constexpr const char* kActivationRangesFile = "activation_ranges.json";
inline constexpr int kStaticActivationBits = 16;
inline constexpr int kStaticCacheBits = 8;
// What is added to a score where a token may not look: enough for a weight of zero, and 16 bits resolve the rest.
inline constexpr float kStaticMaskFloor = -50.0F;

struct ValueRange {
  float lowest = 0;
  float highest = 0;
};
using ValueRanges = std::map<std::string, ValueRange>;

// x^ = q * scale, q = clamp(round(x / scale), lowest, highest): to nearest, ties to even. NaN stays NaN. An unsigned
// integer with a zero point, as devices store it, is q - lowest.
struct StaticQuantizer {
  float scale = 1;
  int32_t lowest = 0;
  int32_t highest = 0;

  // The quantizer of a range, which is widened to hold 0. Symmetric: -2^(bits-1) to 2^(bits-1) - 1. bits <= 16.
  static StaticQuantizer Of(ValueRange range, int bits, bool symmetric);
  static StaticQuantizer Activation(ValueRange range) { return Of(range, kStaticActivationBits, false); }
  static StaticQuantizer Cache(ValueRange range) { return Of(range, kStaticCacheBits, true); }

  // q as a float.
  float Integer(float x) const {
    const float limited =
        std::min(std::max(x / scale, static_cast<float>(lowest)), static_cast<float>(highest));  // |limited| < 2^22
    constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
    return (limited + kMagic) - kMagic;
  }
  float Round(float x) const { return Integer(x) * scale; }
};

// A value of the forward pass.
enum class ActivationSite {
  kAttentionNorm,
  kQProj,
  kKProj,
  kVProj,  // the cache's values
  kQNorm,  // with norms on the heads
  kKNorm,
  kQLowCos,  // products of RoPE
  kQHighSin,
  kQHighCos,
  kQLowSin,
  kQRope,
  kKLowCos,
  kKHighSin,
  kKHighCos,
  kKLowSin,
  kKRope,
  kKScaled,  // the cache's keys: divided by sqrt(head_dim)
  kScores,
  kMasked,
  kMixed,
  kOProj,
  kAttentionSum,
  kMlpNorm,
  kGateProj,
  kSigmoid,
  kSilu,
  kUpProj,
  kGated,
  kDownProj,
  kSum,
  // Once in a model.
  kEmbedding,
  kFinalNorm,
  kLogits,
};
inline constexpr int kLayerSites = static_cast<int>(ActivationSite::kEmbedding);
inline constexpr int kActivationSites = static_cast<int>(ActivationSite::kLogits) + 1;

inline bool IsCacheSite(ActivationSite site) {
  return site == ActivationSite::kVProj || site == ActivationSite::kKScaled;
}
// The value's name; `layer` does not matter for sites that a model has once.
std::string ActivationName(ActivationSite site, int64_t layer);
// Of cosines and sines: [-f, f] with the factor f that the model's RoPE scaling puts on them (1 but for yarn).
ValueRange RopeRange(const ModelConfig& config);
// The sites that a layer of the model has, and those of the whole model.
std::vector<ActivationSite> ActivationSitesOf(const ModelConfig& config);

struct ActivationRanges {
  std::string model;   // fingerprint of the checkpoint
  std::string method;  // "minmax", "l2", ...
  int64_t tokens = 0;  // of the text
  ValueRanges values;  // of every site
};

// Checks that every value of the model has a range: kNotFound, kNumeric (not finite, or upside down), kMalformed (only
// zeros), each naming the value.
Status CheckActivationRanges(const ActivationRanges& ranges, const ModelConfig& config);

bool HasActivationRanges(const std::string& directory);
// Of the directory of a checkpoint with this fingerprint. kNotFound names the command that measures them; kMismatch
// when they are another model's; else as CheckActivationRanges, or kMalformed for what is no such file.
Result<ActivationRanges> ReadActivationRanges(const std::string& directory, const ModelConfig& config,
                                              const std::string& fingerprint);
// SHA-256 of names and numbers, 64 hex digits.
std::string DigestOf(const ActivationRanges& ranges);

Status WriteActivationRanges(const ActivationRanges& ranges, const std::string& directory);

}  // namespace pith
