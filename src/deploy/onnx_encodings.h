// Encodings for exported graphs: ranges of activations measured on a text, integers of the weights as they are packed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "deploy/encodings.h"
#include "deploy/onnx_export.h"
#include "model/activation_ranges.h"
#include "model/checkpoint.h"

namespace pith {

// The scheme: weights per output channel (or in blocks of inputs, where they are packed so), activations of 16 bits
// with the range that was seen, keys and values of 8 bits, symmetric, with one encoding for the cache that goes in and
// what comes out, in every graph and with the adapter on or off: switching it leaves the cache valid.
struct EncodingOptions {
  EncodingVersion version = EncodingVersion::k1_0_0;
  // Stored beside the weights (`pith calibrate`); null = measured here. Not with an adapter, which they do not know.
  const ActivationRanges* ranges = nullptr;
  std::vector<int32_t> tokens;  // of the calibration text; the adapter, if any, is on for the second half
  int linear_bits = 4;          // of linears that are not packed
  int head_bits = 8;            // of the LM head and the embedding, likewise
  std::function<void(int64_t done, int64_t total)> on_tokens;
};

struct EncodingReport {
  int64_t parameters = 0;
  int64_t activations = 0;
  // Parameters whose packed form the encodings cannot say (zero points, minimums, a negative scale that uses the extra
  // integer): they are quantized again from their floats.
  int64_t requantized = 0;
  // Parameters that came as floats: the graphs' integers are not the model's numbers.
  int64_t quantized = 0;
  std::vector<std::string> files;
};

// Measures, writes "<graph>.encodings" beside every graph, checks each with ValidateEncodings, and notes them in the
// manifest. With `qdq` the graphs are then replaced by their quantized form. The mask of quantized graphs has -50 where
// a token may not look, which 16 bits resolve.
Result<EncodingReport> AddEncodings(const Checkpoint& checkpoint, const OnnxExportReport& exported,
                                    const OnnxExportOptions& export_options, const EncodingOptions& options);

// All encodings of a graph from the ranges of its values; those of one head may have the range of all heads, whose name
// lacks the head's number.
Result<Encodings> ActivationEncodings(const OnnxGraph& graph, const ValueRanges& ranges);

}  // namespace pith
