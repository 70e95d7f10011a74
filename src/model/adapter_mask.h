// Where an adapter acts in a text: the one definition (rule 1 of the design), for training, log-probabilities,
// rollouts, evaluation and the runtime.
#pragma once

#include <cstdint>
#include <span>

namespace pith {

// The adapter is off for every token of the prompt, through the assistant header, and on from the first token of the
// response. An adapter with an invocation sequence (aLoRA) is on from the first token of the last occurrence of that
// sequence in the prompt; from the first response token when the prompt does not have it.
//
// Returns the index, in prompt + response, of the first token at which the adapter is on. It stays on to the end.
int64_t AdapterStart(std::span<const int32_t> prompt, std::span<const int32_t> invocation = {});

}  // namespace pith
