#include "describe_model.h"

#include "base/sha256.h"

namespace pith {

namespace {

std::string HashOf(const std::vector<const std::vector<float>*>& parts, const std::string& rest) {
  Digest digest(DigestKind::kSha256);
  for (const auto* part : parts) digest.Update(std::as_bytes(std::span(*part)));
  digest.Update(rest);
  return digest.Finish();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> DescribeModel(const EngineFlags& flags, TextModel& text_model,
                                                               const ReasonModel& model) {
  std::vector<std::pair<std::string, std::string>> about = {
      {"name", flags.model},
      {"fingerprint", text_model.checkpoint()->fingerprint()},
      {"weights", text_model.engine().weights().description},
      {"kv", flags.kv},
      {"activations", flags.activations},
      {"template", text_model.family().ok() ? TemplateFamilyName(*text_model.family()) : "none"},
      {"context", std::to_string(text_model.engine().context())},
      {"adapter", model.adapter ? model.adapter->file().fingerprint : "none"}};
  if (model.adapter) about.emplace_back("adapter_type", flags.adapter_type);
  if (model.switcher) {
    const SwitcherHead& head = *model.switcher;
    about.emplace_back("switcher",
                       HashOf({&head.w1, &head.b1, &head.w2},
                              std::to_string(head.b2) + " " + std::to_string(head.threshold) + " " +
                                  std::to_string(head.pooling.chunk) + " " + std::to_string(head.pooling.alpha)));
  }
  if (model.verifier) {
    const VerifierHead& head = *model.verifier;
    about.emplace_back("verifier",
                       HashOf({&head.w}, std::to_string(head.b) + (head.adapter ? " on " : " off ") + head.prompt));
  }
  about.emplace_back("texts", WriteReasoningTexts(model.texts));
  return about;
}

}  // namespace pith
