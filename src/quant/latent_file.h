// The values that integers were rounded from, on disk: where training of the integers starts.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/recipe.h"
#include "model/safetensors.h"

namespace pith::quant {

// Writes a safetensors file with one tensor of halves per quantized linear, [rows, cols] in units of the integers, in
// the order in which the packer asks for roundings. One matrix is in memory at a time.
class LatentWriter {
 public:
  // `config` of the model that is packed with `recipe`. kIo.
  static Result<std::unique_ptr<LatentWriter>> Create(const std::string& path, const ModelConfig& config,
                                                      const PackRecipe& recipe);
  // Writes the module before and makes room for this one: values() may be filled, by several threads.
  Status Begin(const std::string& module);
  float* values() { return values_.data(); }
  Status Finish();

 private:
  Status Flush();

  std::map<std::string, size_t> sizes_;
  std::unique_ptr<SafetensorsWriter> file_;
  std::string module_;
  std::vector<float> values_;
};

}  // namespace pith::quant
