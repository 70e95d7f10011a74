// A check that the kernels of this machine compute what their definitions say.
#pragma once

#include "base/result.h"

namespace pith {

class ThreadPool;

namespace kernels {

// Runs each kernel on fixed small inputs against its scalar reference, on the instruction set that is in use: packed
// products of all formats bit for bit (within rounding where the target has no fused multiply-add), attention and float
// products within rounding. Takes some milliseconds. kInternal names the kernel that differs.
Status SelfTest(ThreadPool& pool);

}  // namespace kernels
}  // namespace pith
