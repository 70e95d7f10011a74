// adapter_config.json of a PEFT LoRA adapter, with the matching rules of PEFT 0.18.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace pith {

class NamePattern;  // a compiled regular expression over module names

// What the file declares. Fields that would change the result in a way that pith cannot compute make Parse fail with
// kUnsupported, so every PeftConfig that exists can be run exactly.
class PeftConfig {
 public:
  // `what` names the file in errors. Wrong types and values out of range are kMalformed and name the field.
  static Result<PeftConfig> Parse(std::string_view text, const std::string& what);

  // Whether a LoRA is declared on module `name` ("model.layers.0.self_attn.q_proj", "lm_head"). Fails, like the two
  // below, only when a regular expression of the file needs too much work.
  Result<bool> Targets(const std::string& name) const;
  Result<int64_t> Rank(
      const std::string& name) const;  // r, or the first key of rank_pattern that matches the name's end
  Result<double> Alpha(const std::string& name) const;  // likewise with lora_alpha and alpha_pattern

  // alpha / rank, with rsLoRA alpha / sqrt(rank).
  double Scaling(int64_t rank, double alpha) const;

  // Entries of target_modules when it is a list of names, else empty.
  const std::vector<std::string>& target_names() const { return target_names_; }
  const std::vector<int32_t>& invocation() const { return invocation_; }  // alora_invocation_tokens
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  friend class PeftConfigReader;
  using Pattern = std::shared_ptr<const NamePattern>;

  Result<bool> LayerIsChosen(const std::string& name) const;

  std::string what_;
  int64_t rank_ = 8;  // PEFT's defaults
  double alpha_ = 8;
  bool rslora_ = false;
  std::vector<std::pair<Pattern, int64_t>> rank_pattern_;  // in the order of the file: the first match counts
  std::vector<std::pair<Pattern, double>> alpha_pattern_;
  bool all_linear_ = false;
  Pattern target_pattern_;  // target_modules as a regular expression
  std::vector<std::string> target_names_;
  Pattern exclude_pattern_;
  std::vector<std::string> exclude_names_;
  std::vector<int64_t> layers_;          // layers_to_transform; empty = all
  std::vector<Pattern> layer_patterns_;  // group 1 is the index of the layer
  std::vector<int32_t> invocation_;
  std::vector<std::string> warnings_;
};

}  // namespace pith
