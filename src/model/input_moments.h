// How strongly each input of a linear is used: weights of quantization errors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace pith {

// Second moments E[x^2] of the inputs of linears over some text, by module name ("model.layers.0.mlp.up_proj"), one
// value per input. They weigh the errors in the searches of kLp and kBest. Modules that are not there are not weighted.
using InputMoments = std::map<std::string, std::vector<float>>;

// From a safetensors file with one floating-point vector per module, under the module's name. kMalformed for tensors of
// another rank; values are checked when they meet a model.
Result<InputMoments> ReadInputMoments(const std::string& path);

}  // namespace pith
