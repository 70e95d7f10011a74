// The tokenizer and the chat template of a checkpoint as GGUF metadata.
#pragma once

#include "base/result.h"
#include "deploy/gguf_writer.h"
#include "model/checkpoint.h"

namespace pith {

// Adds the "tokenizer.*" keys with which llama.cpp and pith give the ids of the checkpoint's own tokenizer. The
// vocabulary is filled up to the rows of the embedding with unused tokens. A GGUF checkpoint's keys are carried over as
// they are. kUnsupported for a pre-tokenizer that GGUF has no name for here (gpt-2, smollm, qwen2, llama-bpe have one).
Status AddTokenizerMetadata(const Checkpoint& checkpoint, GgufMetadata* metadata);

}  // namespace pith
