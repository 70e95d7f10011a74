// Quantization written into a float graph, as pairs of QuantizeLinear and DequantizeLinear that a runtime computes:
// what the graph does once its values have the integers of the encodings. Opset 21, which has 4-bit and 16-bit
// integers.
#pragma once

#include <string>

#include "base/result.h"
#include "deploy/encodings.h"
#include "deploy/onnx_graph.h"

namespace pith {

// Adds the pairs to every value with an encoding that is computed anew (what only moves numbers keeps them), and to the
// float inputs; graph outputs have the integers' values. Linears, embedding and factors of the adapter become constants
// of 4 or 8 bits behind a DequantizeLinear; they are written to `file` in `folder`, at `*offset`, which moves on.
// Norms, biases and heads stay floats. `graph` was built for opset 21. Constants of rows of a matrix (attention head by
// head) are kUnsupported; kIo.
Result<OnnxGraph> QuantizeGraph(const OnnxGraph& graph, const Encodings& encodings, const std::string& folder,
                                const std::string& file, std::map<std::string, uint64_t>* places);

}  // namespace pith
