// The constants of exported graphs: one file per part with the base's, one with the adapter's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "deploy/decoder_graph.h"
#include "deploy/folded_keys.h"
#include "model/adapter.h"
#include "model/checkpoint.h"

namespace pith {

struct PartWeights {
  ExternalPlaces places;
  uint64_t base_bytes = 0;     // of the base's file
  uint64_t adapter_bytes = 0;  // of the adapter's file; 0 = the part has none
};

// "weights_1_of_3.bin", "adapter_1_of_3.bin".
std::string WeightFileName(const GraphPart& part);
std::string AdapterFileName(const GraphPart& part);

// Writes what a part's graphs need into `folder`: float32, matrices as they are in Hugging Face's files but for the
// folded equalizer of the keys, low-bit ones dequantized; factor B of a module times its scaling; the heads, when
// given, with the last part. Every constant begins at a multiple of 4096 bytes, so that a file can be mapped. kNumeric
// for weights that are not finite; kIo.
Result<PartWeights> WritePartWeights(const Checkpoint& checkpoint, const FoldedKeys& folded, const GraphPart& part,
                                     const AdapterFile* adapter, const SwitcherHead* switcher,
                                     const VerifierHead* verifier, const std::string& folder,
                                     const std::function<void(uint64_t bytes)>& on_bytes);

}  // namespace pith
