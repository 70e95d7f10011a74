#include "model/input_moments.h"

#include "model/safetensors.h"

namespace pith {

Result<InputMoments> ReadInputMoments(const std::string& path) {
  PITH_ASSIGN(const auto file, SafetensorsFile::Open(path));
  InputMoments moments;
  for (const Tensor& tensor : file->tensors()) {
    if (tensor.shape.size() != 1) {
      return Error{ErrorCode::kMalformed, "'" + path + "': tensor '" + tensor.name + "' has shape " +
                                              ShapeText(tensor.shape) + "; input moments are vectors"};
    }
    PITH_ASSIGN(moments[tensor.name], ToFloats(tensor));
  }
  return moments;
}

}  // namespace pith
