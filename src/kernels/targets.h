// Which vector unit the kernels run on.
#pragma once

#include <string>
#include <vector>

namespace pith {

// Names of the targets that were compiled in and that this processor has, best first: "AVX3_DL", "AVX2", "SSSE3",
// "NEON".
std::vector<std::string> KernelTargets();

// The target that kernels run on now.
std::string ActiveKernelTarget();

// Makes every kernel of this process run on one target of KernelTargets(), or on the best one again (empty name).
// False, and no change, for a name that is not in the list. For tests and measurements: results differ between targets
// in the last bits, so do not call it while kernels run.
bool SelectKernelTarget(const std::string& name);

}  // namespace pith
