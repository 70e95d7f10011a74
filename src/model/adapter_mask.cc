#include "model/adapter_mask.h"

#include "model/adapter.h"

namespace pith {

int64_t AdapterStart(std::span<const int32_t> prompt, std::span<const int32_t> invocation) {
  const auto found = FindInvocation(prompt, invocation);
  return static_cast<int64_t>(found ? *found : prompt.size());
}

}  // namespace pith
