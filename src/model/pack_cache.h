// Packed models in the cache folder: a model that is run unpacked is packed once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/pack.h"

namespace pith {

// The directory of the checkpoint packed by the recipe, <cache_root>/packed/<fingerprint>-<recipe>, which is written
// when it is not there, not whole, or made of other files: the fingerprint samples the tensors, so beside it stand the
// SHA-256 of all source files and their sizes and times, by which unchanged files need not be read again. Safe when
// several programs ask at once: one packs, the others wait (`on_wait` is then called once, if given) and use what it
// wrote. Errors of PackCheckpoint; kIo also when the disk is too full.
Result<std::string> PackToCache(const Checkpoint& checkpoint, const PackRecipe& recipe, const std::string& cache_root,
                                const PackOptions& options = {}, const std::function<void()>& on_wait = {});

// What is there.
struct CachedPack {
  std::string path;
  std::string source;  // path of the checkpoint at the time
  std::string recipe;
  uint64_t bytes = 0;  // model.safetensors
};
// Sorted by path; empty when the cache has none. Directories that are not whole are left out.
Result<std::vector<CachedPack>> ListPackCache(const std::string& cache_root);

}  // namespace pith
