#include "kernels/float_matmul.h"

#include <hwy/cache_control.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/float_matmul.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {

// Register tile: kTileM rows of x by kTileN rows of W, one accumulator each.
inline constexpr int64_t kTileM = 4;
inline constexpr int64_t kTileN = kManyRegisters ? 5 : 3;
inline constexpr int64_t kTileNSingle = 8;  // for one row of x: enough independent sums to hide the latency of the adds
// Inputs per pass: the weight tile then stays in the first-level cache while the rows of x pass by. A multiple of every
// lane count.
inline constexpr int64_t kBlockK = 1024;
// Rows of x per pass over W; bounds the memory for partial sums.
inline constexpr int64_t kBlockM = 64;

HWY_INLINE VF32 LoadWeight(F32 d, const float* p) { return hn::LoadU(d, p); }
HWY_INLINE VF32 LoadWeight(F32 d, const uint16_t* p) { return LoadBF16(d, p); }
HWY_INLINE VF32 LoadWeightPartial(F32 d, const float* p, int64_t count) { return LoadPartial(d, p, count); }
HWY_INLINE VF32 LoadWeightPartial(F32 d, const uint16_t* p, int64_t count) { return LoadPartialBF16(d, p, count); }

struct Output {
  float* out;
  int64_t stride;
  float alpha;
  bool accumulate;

  HWY_INLINE void Put(int64_t m, int64_t n, float dot) const {
    float* place = out + m * stride + n;
    *place = accumulate ? *place + alpha * dot : alpha * dot;
  }
};

// The sums of the lanes of a, b, c, e, in a fixed tree, as the 4 lanes of the first block.
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> SumLanes4(VF32 a, VF32 b, VF32 c, VF32 e) {
  const F32 d;
  const hn::RepartitionToWide<F32> wide;
  // Interleaving twice and adding transposes each 128-bit block of 4 x 4.
  const VF32 ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const VF32 ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto ab2 = hn::BitCast(wide, ab), ce2 = hn::BitCast(wide, ce);
  const VF32 sums =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab2, ce2)), hn::BitCast(d, hn::InterleaveUpper(wide, ab2, ce2)));
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  const hn::Half<F32> half;
  const hn::Half<hn::Half<F32>> quarter;
  const auto folded = hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums));
  return hn::Add(hn::LowerHalf(quarter, folded), hn::UpperHalf(quarter, folded));
#elif HWY_TARGET == HWY_AVX2
  const hn::Half<F32> half;
  return hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums));
#else
  return sums;
#endif
}

// Adds inputs [0, length) of M rows of x and N rows of W to the lane sums. `sums` [M * N * kLanes] carries them from
// one block of inputs to the next; null on the first block of a row (start at zero) and on the last one (reduce and put
// out). The weights `ahead` elements further on are asked for early: rows are too short for the hardware to notice the
// stream.
template <int M, int N, class T>
HWY_INLINE void RunTile(const float* x, int64_t x_stride, const T* const* w, int64_t length, int64_t ahead,
                        const float* sums_in, float* sums_out, const Output& output, int64_t m, int64_t n,
                        int64_t n_valid) {
  const F32 d;
  VF32 acc[M][N];
  HWY_UNROLL(8)
  for (int i = 0; i < M; ++i) {
    HWY_UNROLL(8)
    for (int j = 0; j < N; ++j) acc[i][j] = sums_in ? hn::Load(d, sums_in + (i * N + j) * kLanes) : hn::Zero(d);
  }
  int64_t k = 0;
  for (; k + kLanes <= length; k += kLanes) {
    VF32 wv[N];
    HWY_UNROLL(8)
    for (int j = 0; j < N; ++j) {
      wv[j] = LoadWeight(d, w[j] + k);
      hwy::Prefetch(w[j] + k + ahead);
    }
    HWY_UNROLL(8)
    for (int i = 0; i < M; ++i) {
      const VF32 xv = hn::LoadU(d, x + i * x_stride + k);
      HWY_UNROLL(8)
      for (int j = 0; j < N; ++j) acc[i][j] = hn::MulAdd(xv, wv[j], acc[i][j]);
    }
  }
  if (k < length) {
    VF32 wv[N];
    HWY_UNROLL(8)
    for (int j = 0; j < N; ++j) wv[j] = LoadWeightPartial(d, w[j] + k, length - k);
    HWY_UNROLL(8)
    for (int i = 0; i < M; ++i) {
      const VF32 xv = LoadPartial(d, x + i * x_stride + k, length - k);
      HWY_UNROLL(8)
      for (int j = 0; j < N; ++j) acc[i][j] = hn::MulAdd(xv, wv[j], acc[i][j]);
    }
  }
  if (sums_out != nullptr) {
    HWY_UNROLL(8)
    for (int i = 0; i < M; ++i) {
      HWY_UNROLL(8)
      for (int j = 0; j < N; ++j) hn::Store(acc[i][j], d, sums_out + (i * N + j) * kLanes);
    }
    return;
  }
  constexpr int kTotal = M * N, kPadded = (kTotal + 3) / 4 * 4;
  HWY_ALIGN float dots[kPadded];
  const hn::CappedTag<float, 4> d4;
  HWY_UNROLL(8)
  for (int g = 0; g < kPadded; g += 4) {
    // Past the end the last sum is repeated and dropped.
    const auto at = [&](int index) HWY_ATTR {
      const int i = index < kTotal ? index : kTotal - 1;
      return acc[i / N][i % N];
    };
    hn::Store(SumLanes4(at(g), at(g + 1), at(g + 2), at(g + 3)), d4, dots + g);
  }
  const int64_t columns = std::min<int64_t>(N, n_valid);
  for (int i = 0; i < M; ++i) {
    for (int64_t j = 0; j < columns; ++j) output.Put(m + i, n + j, dots[i * N + j]);
  }
}

// One row of x: no blocking over inputs, x stays cached by itself.
template <class T>
void MatVec(const float* x, const T* w, int64_t cols, int64_t n_begin, int64_t n_end, const Output& output, int64_t m) {
  for (int64_t n = n_begin; n < n_end; n += kTileNSingle) {
    const T* rows[kTileNSingle];
    // Rows past the end repeat the last one; their results are dropped.
    for (int64_t j = 0; j < kTileNSingle; ++j) rows[j] = w + std::min(n + j, n_end - 1) * cols;
    const int64_t ahead = n + 2 * kTileNSingle <= n_end ? kTileNSingle * cols : 0;
    RunTile<1, kTileNSingle>(x, 0, rows, cols, ahead, nullptr, nullptr, output, m, n, n_end - n);
  }
}

template <class T>
HWY_INLINE void RunTileOf(int64_t tile_m, const float* x, int64_t x_stride, const T* const* w, int64_t length,
                          int64_t ahead, const float* sums_in, float* sums_out, const Output& output, int64_t m,
                          int64_t n, int64_t n_valid) {
  switch (tile_m) {
    case 1: return RunTile<1, kTileN>(x, x_stride, w, length, ahead, sums_in, sums_out, output, m, n, n_valid);
    case 2: return RunTile<2, kTileN>(x, x_stride, w, length, ahead, sums_in, sums_out, output, m, n, n_valid);
    case 3: return RunTile<3, kTileN>(x, x_stride, w, length, ahead, sums_in, sums_out, output, m, n, n_valid);
    default: return RunTile<4, kTileN>(x, x_stride, w, length, ahead, sums_in, sums_out, output, m, n, n_valid);
  }
}

HWY_INLINE void Widen(const uint16_t* from, int64_t n, int64_t ahead, float* to) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hwy::Prefetch(from + i + ahead);
    hn::Store(LoadBF16(d, from + i), d, to + i);
  }
  if (i < n) hn::Store(LoadPartialBF16(d, from + i, n - i), d, to + i);
}

template <class T>
void MatMul(const float* x, int64_t x_stride, int64_t m_count, const T* w, int64_t cols, int64_t n_begin, int64_t n_end,
            const Output& output) {
  HWY_ALIGN float sums[kBlockM * kTileN * kLanes];
  HWY_ALIGN float widened[kTileN * kBlockK];
  const bool widen = sizeof(T) == 2 && m_count > 2 * kTileM;  // worth a copy only when several tiles of rows use it
  for (int64_t m0 = 0; m0 < m_count; m0 += kBlockM) {
    const int64_t m_end = std::min(m_count, m0 + kBlockM);
    for (int64_t n = n_begin; n < n_end; n += kTileN) {
      for (int64_t k0 = 0; k0 == 0 || k0 < cols; k0 += kBlockK) {
        const int64_t length = std::min(kBlockK, cols - k0);
        const T* rows[kTileN];
        const float* wide_rows[kTileN];
        const int64_t next = n + 2 * kTileN <= n_end ? kTileN * cols : 0;
        for (int64_t j = 0; j < kTileN; ++j) {
          rows[j] = w + std::min(n + j, n_end - 1) * cols + k0;
          wide_rows[j] = widened + j * kBlockK;
          if constexpr (sizeof(T) == 2) {
            if (widen) Widen(rows[j], length, next, widened + j * kBlockK);
          }
        }
        const bool first = k0 == 0, last = k0 + kBlockK >= cols;
        for (int64_t m = m0; m < m_end; m += kTileM) {
          float* tile_sums = sums + (m - m0) * kTileN * kLanes;
          const float* sums_in = first ? nullptr : tile_sums;
          float* sums_out = last ? nullptr : tile_sums;
          const float* xm = x + m * x_stride + k0;
          const int64_t ahead = m == m0 ? next : 0;
          const int64_t tile_m = std::min(kTileM, m_end - m);
          if (widen) {
            RunTileOf(tile_m, xm, x_stride, wide_rows, length, 0, sums_in, sums_out, output, m, n, n_end - n);
          } else {
            RunTileOf(tile_m, xm, x_stride, rows, length, ahead, sums_in, sums_out, output, m, n, n_end - n);
          }
        }
      }
    }
  }
}

template <class T>
HWY_INLINE void Run(const float* x, int64_t x_stride, int64_t m, const T* w, int64_t cols, int64_t n_begin,
                    int64_t n_end, const Output& output) {
  if (m == 1) {
    MatVec(x, w, cols, n_begin, n_end, output, 0);
  } else {
    MatMul(x, x_stride, m, w, cols, n_begin, n_end, output);
  }
}

void FloatMatmul(const float* x, int64_t x_stride, int64_t m, const FloatMatrix& w, int64_t n_begin, int64_t n_end,
                 float alpha, bool accumulate, float* out, int64_t out_stride) {
  const Output output{out, out_stride, alpha, accumulate};
  if (w.type == FloatType::kF32) {
    Run(x, x_stride, m, static_cast<const float*>(w.data), w.cols, n_begin, n_end, output);
  } else {
    Run(x, x_stride, m, static_cast<const uint16_t*>(w.data), w.cols, n_begin, n_end, output);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith {

HWY_EXPORT(FloatMatmul);

void FloatMatmul(const float* x, int64_t x_stride, int64_t m, const FloatMatrix& w, int64_t n_begin, int64_t n_end,
                 float alpha, bool accumulate, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(FloatMatmul)(x, x_stride, m, w, n_begin, n_end, alpha, accumulate, out, out_stride);
}

}  // namespace pith
#endif  // HWY_ONCE
