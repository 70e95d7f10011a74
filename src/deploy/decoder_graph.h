// The static graph of a part of a model for one number of new tokens and one context length, as mobile runtimes want it
// (the contract of Qualcomm's GENIE):
//
//   input_ids             int32 [1, S]           the new tokens; in the part with the embedding
//   hidden_<i>            [1, S, hidden]         what part i gives to part i + 1
//   attention_mask        [1, 1, S, C]           added to the scores: 0 where a token may look, a large negative number
//                                                elsewhere. Columns: the C - S places of the cache, then the S new
//                                                tokens
//   position_ids_cos/sin  [1, 1, S, head_dim/2]  RoPE tables, made by the host (yarn's factor is in them)
//   past_key_<l>_in       [K, 1, head_dim, C-S]  keys of layer l, transposed, divided by sqrt(head_dim), after RoPE
//   past_value_<l>_in     [K, 1, C-S, head_dim]
//   past_key_<l>_out      [K, 1, head_dim, S]    only the new ones; the host puts them into the cache
//   past_value_<l>_out    [K, 1, S, head_dim]
//   logits                [1, S, vocab]          of every new token
//
// The order of the places does not matter, for the keys carry their positions: the host may pad on either side.
// With an adapter: lora_alpha [1], 0 = the base exactly, 1 = the adapter; factors <module>.lora_A [rank, in] and
// .lora_B [out, rank] (the scaling in them), which the host may replace. With heads:
//   verifier_score        [1, S]                 of every token's state
//   switcher_weights      [1, S]                 in: 1/n for each of the n tokens of the chunk, 0 for padding
//   switcher_blend        [1]                    in: 1 for the first chunk of a prompt, else the average's alpha
//   switcher_state_in/out [1, hidden]            the average over the chunks so far
//   switcher_score        [1, 1]                 of switcher_state_out; only where S is the switcher's chunk
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "deploy/onnx_graph.h"
#include "model/config.h"
#include "model/heads.h"

namespace pith {

// Where the bytes of a constant lie.
struct ExternalPlace {
  std::string file;
  uint64_t offset = 0;
};
// By name: "<module>.weight", "<module>.bias", "<module>.lora_A", "verifier.weight", ... Matrices are float32 [out,
// in].
using ExternalPlaces = std::map<std::string, ExternalPlace>;

// Layers [begin, end) of the model, with what stands before and behind them.
struct GraphPart {
  int64_t index = 1;  // of count, from 1
  int64_t count = 1;
  int64_t begin = 0;
  int64_t end = 0;
  bool embedding = false;
  bool head = false;
};

struct DecoderGraphOptions {
  int64_t tokens = 1;         // S
  int64_t context = 4096;     // C > S
  bool convolutions = false;  // linears as 1x1 convolutions, norms on four dimensions
  bool per_head = false;      // attention head by head
  int opset = 17;
  std::map<std::string, int64_t> lora_ranks;  // by module; empty = no adapter
  bool lora_inputs = false;                   // factors are inputs with a default value, not plain constants
  const SwitcherHead* switcher = nullptr;     // in the part with the head
  const VerifierHead* verifier = nullptr;
};

// The graph's name is the contract's: "prompt_ar128_cl4096_1_of_3"; "token" when S is 1.
std::string GraphName(const GraphPart& part, int64_t tokens, int64_t context);
// Every constant in a file must have its place.
OnnxGraph BuildDecoderGraph(const ModelConfig& config, const GraphPart& part, const DecoderGraphOptions& options,
                            const ExternalPlaces& places);

}  // namespace pith
