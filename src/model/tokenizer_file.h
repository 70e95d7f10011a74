// Finding the tokenizer of a model on disk.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "model/tokenizer.h"

namespace pith {

class Checkpoint;

// `path` is a directory with a tokenizer.json, a tokenizer.json itself, or a GGUF file. Weights are not needed.
Result<std::shared_ptr<const Tokenizer>> OpenTokenizer(const std::string& path);
// The tokenizer of an open checkpoint.
Result<std::shared_ptr<const Tokenizer>> CheckpointTokenizer(const Checkpoint& checkpoint);

// Whether the file begins like a GGUF file. False also when it cannot be read.
bool LooksLikeGguf(const std::string& path);

}  // namespace pith
