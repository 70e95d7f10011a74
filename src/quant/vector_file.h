// Intermediate results of a quantization as safetensors files: transforms of layers, vectors by name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "quant/quantize_model.h"
#include "quant/transforms.h"

namespace pith::quant {

// The transforms of one layer, and the losses that optimizing them began and ended with.
Status SaveLayer(const std::string& path, const LayerTransforms& transforms, const LayerReport& report);
// kMalformed names the tensor that is missing or of another size.
Status LoadLayer(const std::string& path, LayerTransforms* transforms, LayerReport* report);

// Vectors by name.
Status SaveVectors(const std::string& path, const std::map<std::string, std::vector<float>>& vectors);
Result<std::map<std::string, std::vector<float>>> LoadVectors(const std::string& path);

}  // namespace pith::quant
