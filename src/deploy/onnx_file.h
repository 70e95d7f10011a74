// ONNX graphs as files, through the protobuf classes of Debian's libonnx. Built only where the library is; elsewhere
// writing fails with a message that says so.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "deploy/onnx_graph.h"

namespace pith {

// Whether this program was built with libonnx.
bool OnnxIsBuiltIn();

// Writes `graph` to `path`; the file appears complete or not at all. Constants in files stay there: the graph names
// them with offset and length. Shapes of all values are written too. Returns the bytes written. kUnavailable without
// libonnx; kIo.
Result<uint64_t> WriteOnnx(const OnnxGraph& graph, const std::string& path);

}  // namespace pith
