#include "kernels/targets.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

namespace pith {

// One target alone (aarch64) needs no choice at run time, and so nothing of Highway's library.
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0

std::vector<std::string> KernelTargets() { return {hwy::TargetName(HWY_TARGETS)}; }
std::string ActiveKernelTarget() { return hwy::TargetName(HWY_TARGETS); }
bool SelectKernelTarget(const std::string& name) { return name.empty() || name == hwy::TargetName(HWY_TARGETS); }

#else

std::vector<std::string> KernelTargets() {
  // SupportedTargets() honours a selection made before: lift it while listing.
  const int64_t selected = hwy::SupportedTargets();
  hwy::SetSupportedTargetsForTest(0);
  const int64_t all = hwy::SupportedTargets();
  if (selected != all) hwy::SetSupportedTargetsForTest(selected);
  std::vector<std::string> names;
  for (int64_t rest = all & HWY_TARGETS; rest != 0; rest &= rest - 1) names.emplace_back(hwy::TargetName(rest & -rest));
  return names;
}

std::string ActiveKernelTarget() {
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);
}

bool SelectKernelTarget(const std::string& name) {
  const int64_t selected = hwy::SupportedTargets();
  hwy::SetSupportedTargetsForTest(0);
  if (name.empty()) return true;
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    if (name == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      return true;
    }
  }
  if (selected != hwy::SupportedTargets()) hwy::SetSupportedTargetsForTest(selected);
  return false;
}

#endif

}  // namespace pith
