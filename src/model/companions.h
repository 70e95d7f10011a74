// The files of a Hugging Face directory that travel with the weights: tokenizer, template, where generation ends.
#pragma once

#include <array>
#include <string>

#include "base/result.h"
#include "model/checkpoint.h"

namespace pith {

inline constexpr std::array<const char*, 9> kCompanionFiles = {"tokenizer.json",
                                                               "tokenizer_config.json",
                                                               "generation_config.json",
                                                               "special_tokens_map.json",
                                                               "added_tokens.json",
                                                               "vocab.json",
                                                               "merges.txt",
                                                               "chat_template.jinja",
                                                               "chat_template.json"};

// Puts those of a checkpoint into the directory `folder`: copies of what is there, or, for GGUF, files made from its
// metadata. What is there already is replaced. kIo names the file; errors as HfTokenizerOfGguf.
Status WriteCompanions(const Checkpoint& checkpoint, const std::string& folder);

}  // namespace pith
