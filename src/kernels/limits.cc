#include "kernels/limits.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/limits.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

// See kernels/qmatmul.cc for the reason.
#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR \
  HWY_TARGET_STR_AVX3 ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512bitalg,avx512vpopcntdq,avx512vnni"
#endif

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<float> df;
constexpr hn::ScalableTag<int32_t> di32;
constexpr hn::ScalableTag<int16_t> di16;
constexpr hn::ScalableTag<uint8_t> du8;
constexpr int kChains = 10;  // independent sums: more than latency times issue width

uint64_t SumBytes(const uint8_t* data, size_t bytes) {
  auto a = hn::Zero(di32);
  auto b = hn::Zero(di32);
  const size_t n = hn::Lanes(du8);
  for (size_t i = 0; i + 2 * n <= bytes; i += 2 * n) {
    a = hn::Add(a, hn::BitCast(di32, hn::Load(du8, data + i)));
    b = hn::Add(b, hn::BitCast(di32, hn::Load(du8, data + i + n)));
  }
  return static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di32, hn::Add(a, b))));
}

// Each returns the multiply-adds that it did; `sink` keeps the work alive.
double SpinF32(int64_t rounds, uint64_t* sink) {
  hn::Vec<decltype(df)> acc[kChains];
  for (auto& v : acc) v = hn::Iota(df, 1.0F);
  const auto x = hn::Set(df, 0.999F);
  for (int64_t i = 0; i < rounds; ++i) {
    HWY_UNROLL(10)
    for (int c = 0; c < kChains; ++c) acc[c] = hn::MulAdd(acc[c], x, x);
  }
  auto sum = acc[0];
  for (int c = 1; c < kChains; ++c) sum = hn::Add(sum, acc[c]);
  *sink += static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(df, sum)));
  return static_cast<double>(rounds * kChains) * static_cast<double>(hn::Lanes(df));
}

double SpinI16(int64_t rounds, uint64_t* sink) {
  hn::Vec<decltype(di32)> acc[kChains];
  hn::Vec<decltype(di32)> high[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = high[c] = hn::Zero(di32);
  auto x = hn::Set(di16, static_cast<int16_t>(*sink & 7));
  for (int64_t i = 0; i < rounds; ++i) {
    HWY_UNROLL(10)
    for (int c = 0; c < kChains; ++c) {
#if HWY_TARGET == HWY_AVX3_DL
      acc[c].raw = _mm512_dpwssd_epi32(acc[c].raw, x.raw, hn::BitCast(di16, acc[c]).raw);
#else
      acc[c] = hn::ReorderWidenMulAccumulate(di32, x, hn::BitCast(di16, acc[c]), acc[c], high[c]);
#endif
    }
  }
  auto sum = acc[0];
  for (int c = 0; c < kChains; ++c) sum = hn::Add(sum, hn::Add(acc[c], high[c]));
  *sink += static_cast<uint64_t>(static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di32, sum))));
  return static_cast<double>(rounds * kChains) * static_cast<double>(hn::Lanes(di16));
}

double SpinI8(int64_t rounds, uint64_t* sink) {
  hn::Vec<decltype(di32)> acc[kChains];
  for (auto& v : acc) v = hn::Zero(di32);
  const auto w = hn::Set(du8, static_cast<uint8_t>(*sink & 15));
  for (int64_t i = 0; i < rounds; ++i) {
    HWY_UNROLL(10)
    for (int c = 0; c < kChains; ++c) {
#if HWY_TARGET == HWY_AVX3_DL
      acc[c].raw = _mm512_dpbusd_epi32(acc[c].raw, w.raw, acc[c].raw);
#elif HWY_TARGET == HWY_AVX2
      acc[c].raw = _mm256_add_epi16(acc[c].raw, _mm256_maddubs_epi16(w.raw, acc[c].raw));
#elif HWY_TARGET == HWY_SSSE3
      acc[c].raw = _mm_add_epi16(acc[c].raw, _mm_maddubs_epi16(w.raw, acc[c].raw));
#elif HWY_TARGET == HWY_NEON
      const int8x16_t a = vreinterpretq_s8_s32(acc[c].raw);
      const int8x16_t b = vreinterpretq_s8_u8(w.raw);
      const int16x8_t products =
          vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_s8(vget_high_s8(a), vget_high_s8(b)));
      acc[c] = hn::Add(acc[c], hn::Vec<decltype(di32)>{vreinterpretq_s32_s16(products)});
#endif
    }
  }
  auto sum = acc[0];
  for (int c = 1; c < kChains; ++c) sum = hn::Add(sum, acc[c]);
  *sink += static_cast<uint64_t>(static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di32, sum))));
  return static_cast<double>(rounds * kChains) * static_cast<double>(hn::Lanes(du8));
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith {

HWY_EXPORT(SumBytes);
HWY_EXPORT(SpinF32);
HWY_EXPORT(SpinI16);
HWY_EXPORT(SpinI8);

MachineLimits MeasureLimits(ThreadPool& pool) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRuns = 5;
  const int threads = pool.threads();
  std::vector<uint64_t> sinks(static_cast<size_t>(threads) * 8);
  // One task per thread, but a thread may take two of them; the wall time is what counts.
  const auto median_rate = [&](const auto& body) {
    std::vector<double> rates;
    for (int run = -1; run < kRuns; ++run) {
      std::vector<double> work(static_cast<size_t>(threads));
      const auto start = Clock::now();
      pool.Run(threads, [&](int64_t task, int) {
        work[static_cast<size_t>(task)] = body(task, &sinks[static_cast<size_t>(task) * 8]);
      });
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      double total = 0;
      for (const double w : work) total += w;
      if (run >= 0) rates.push_back(total / seconds);
    }
    std::sort(rates.begin(), rates.end());
    return rates[rates.size() / 2];
  };
  MachineLimits limits;
  {
    constexpr size_t kBytes = size_t{256} << 20;
    const size_t part = kBytes / static_cast<size_t>(threads) / 128 * 128;
    std::vector<uint8_t> memory(part * static_cast<size_t>(threads) + 64, 1);
    uint8_t* base = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    limits.read_bytes_per_second = median_rate([&](int64_t task, uint64_t* sink) {
      *sink += HWY_DYNAMIC_DISPATCH(SumBytes)(base + static_cast<size_t>(task) * part, part);
      return static_cast<double>(part);
    });
  }
  constexpr int64_t kRounds = 4'000'000;
  limits.f32_macs_per_second =
      median_rate([](int64_t, uint64_t* sink) { return HWY_DYNAMIC_DISPATCH(SpinF32)(kRounds, sink); });
  limits.int16_macs_per_second =
      median_rate([](int64_t, uint64_t* sink) { return HWY_DYNAMIC_DISPATCH(SpinI16)(kRounds, sink); });
  limits.int8_macs_per_second =
      median_rate([](int64_t, uint64_t* sink) { return HWY_DYNAMIC_DISPATCH(SpinI8)(kRounds, sink); });
  return limits;
}

}  // namespace pith
#endif  // HWY_ONCE
