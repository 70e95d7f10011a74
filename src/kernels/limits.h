// Limits of this machine, measured: what the kernels could reach at best.
#pragma once

namespace pith {

class ThreadPool;

struct MachineLimits {
  double read_bytes_per_second = 0;  // streaming reads from memory, all threads of the pool
  double int8_macs_per_second = 0;   // multiply-adds in registers: 8-bit,
  double int16_macs_per_second = 0;  // 16-bit,
  double f32_macs_per_second = 0;    // float
};

// Takes about two seconds and 256 MiB. Medians of several runs.
MachineLimits MeasureLimits(ThreadPool& pool);

}  // namespace pith
