// Stands in for onnx_file.cc where libonnx is missing.
#include "deploy/onnx_file.h"

namespace pith {

bool OnnxIsBuiltIn() { return false; }

Result<uint64_t> WriteOnnx(const OnnxGraph& graph, const std::string& path) {
  return Error{ErrorCode::kUnavailable, "cannot write '" + path + "' (" + graph.name +
                                            "): this pith was built without libonnx; install libonnx-dev and "
                                            "libprotobuf-dev (scripts/setup.sh) and build again"};
}

}  // namespace pith
