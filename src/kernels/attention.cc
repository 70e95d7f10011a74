#include "kernels/attention.h"

#include <algorithm>

#include "kernels/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
inline constexpr int64_t kBlockVectors = kKvBlockTokens / kLanes;
inline constexpr int64_t kTileRows = 6;  // query rows per register tile, on floats
inline constexpr int64_t kDirectRows =
    8;  // up to so many rows in all, elements are converted in registers instead of once in memory
inline constexpr int64_t kGroupRows = 32;  // query rows whose scores are held at once

// Vectors of columns (tokens, or components of V) per register tile of `rows` query rows: at least 8 independent sums
// to hide the latency of fused multiply-adds, at most what the registers hold.
constexpr int64_t TileColumns(int64_t rows) {
  if (kManyRegisters) return rows == 1 ? 8 : rows <= kTileRows ? 4 : 2;
  return rows == 1 ? 8 : rows <= 3 ? 4 : rows <= kTileRows ? 2 : 1;
}

HWY_INLINE VF32 LoadElements(F32 d, const float* p) { return hn::LoadU(d, p); }
HWY_INLINE VF32 LoadElements(F32 d, const uint16_t* p) { return LoadBF16(d, p); }
HWY_INLINE VF32 LoadElements(F32 d, const int8_t* p) { return LoadI8(d, p); }

// acc[r][c] += column[r * stride] * row[c]. The shorter side is held in registers, so that R * C + min(R, C) + 1 of
// them do.
template <int R, int C, class T>
HWY_INLINE void OuterProduct(const float* HWY_RESTRICT column, int64_t stride, const T* HWY_RESTRICT row,
                             VF32 (&acc)[R][C]) {
  const F32 d;
  if constexpr (R <= C) {
    VF32 x[R];
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) x[r] = hn::Set(d, column[r * stride]);
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) {
      const VF32 y = LoadElements(d, row + c * kLanes);
      HWY_UNROLL(8)
      for (int r = 0; r < R; ++r) acc[r][c] = hn::MulAdd(x[r], y, acc[r][c]);
    }
  } else {
    VF32 y[C];
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) y[c] = LoadElements(d, row + c * kLanes);
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      const VF32 x = hn::Set(d, column[r * stride]);
      HWY_UNROLL(8)
      for (int c = 0; c < C; ++c) acc[r][c] = hn::MulAdd(x, y[c], acc[r][c]);
    }
  }
}

// scores[r][t] = sum over d of q[r][d] * keys[d][t] for R rows and C vectors of tokens.
template <int R, int C, class T>
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, int64_t head_dim, const T* HWY_RESTRICT keys,
                          float* HWY_RESTRICT scores) {
  const F32 d;
  VF32 acc[R][C];
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) acc[r][c] = hn::Zero(d);
  }
  for (int64_t i = 0; i < head_dim; ++i) {
    OuterProduct<R, C>(q + i, head_dim, keys + i * kKvBlockTokens, acc);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) hn::Store(acc[r][c], d, scores + r * kKvBlockTokens + c * kLanes);
  }
}

template <int R, class T>
HWY_INLINE void ScoreRows(const float* q, int64_t head_dim, const T* keys, int64_t visible, float* scores) {
  constexpr int64_t kColumns = std::min(TileColumns(R), kBlockVectors);
  for (int64_t t = 0; t < visible; t += kColumns * kLanes) {
    ScoreTile<R, static_cast<int>(kColumns)>(q, head_dim, keys + t, scores + t);
  }
}

// acc[r] = acc[r] * correction[r] + sum over t of p[r][t] * values[t] (+ 0), for R rows and C vectors of components.
template <int R, int C, class T>
HWY_INLINE void ValueTile(const float* HWY_RESTRICT p, const float* HWY_RESTRICT correction, int64_t visible,
                          const T* HWY_RESTRICT values, int64_t stride, float* HWY_RESTRICT acc_rows,
                          int64_t acc_stride) {
  const F32 d;
  VF32 acc[R][C];
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    const VF32 factor = hn::Set(d, correction[r]);
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) acc[r][c] = hn::Mul(hn::LoadU(d, acc_rows + r * acc_stride + c * kLanes), factor);
  }
  for (int64_t t = 0; t < visible; ++t) {
    OuterProduct<R, C>(p + t, kKvBlockTokens, values + t * stride, acc);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) {
      hn::StoreU(hn::Add(acc[r][c], hn::Zero(d)), d, acc_rows + r * acc_stride + c * kLanes);
    }
  }
}

template <int R, class T>
HWY_INLINE void ValueRows(const float* p, const float* correction, int64_t visible, const T* values,
                          int64_t value_stride, int64_t components, float* acc, int64_t acc_stride) {
  constexpr int kColumns = static_cast<int>(TileColumns(R));
  int64_t c = 0;
  for (; c + kColumns * kLanes <= components; c += kColumns * kLanes) {
    ValueTile<R, kColumns>(p, correction, visible, values + c, value_stride, acc + c, acc_stride);
  }
  for (; c + 2 * kLanes <= components; c += 2 * kLanes) {
    ValueTile<R, 2>(p, correction, visible, values + c, value_stride, acc + c, acc_stride);
  }
  for (; c < components; c += kLanes) {
    ValueTile<R, 1>(p, correction, visible, values + c, value_stride, acc + c, acc_stride);
  }
}

// One row's step of the online softmax: scores become p (times the value scale for int8), `max` and `sum` move on;
// returns the correction factor of what was summed before.
HWY_INLINE float SoftmaxStep(float* HWY_RESTRICT scores, int64_t visible, const KvBlockView& block, float* max,
                             float* sum) {
  const F32 d;
  const bool scaled = block.type == KvType::kInt8;
  const int64_t end = (visible + kLanes - 1) / kLanes * kLanes;
  const VF32 lowest = hn::Set(d, kMinusInfinity);
  VF32 largest = lowest;
  for (int64_t t = 0; t < end; t += kLanes) {
    VF32 s = hn::Load(d, scores + t);
    if (scaled) s = hn::Mul(s, hn::LoadU(d, block.k_scale + t));
    if (visible - t < kLanes) s = hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(visible - t)), s, lowest);
    largest = hn::Max(largest, s);
    hn::Store(s, d, scores + t);
  }
  const float new_max = std::max(*max, Max(d, largest));
  const VF32 shift = hn::Set(d, new_max);
  VF32 total = hn::Zero(d);
  for (int64_t t = 0; t < end; t += kLanes) {
    VF32 p = Exp(d, hn::Sub(hn::Load(d, scores + t), shift));
    VF32 weight = scaled ? hn::Mul(p, hn::LoadU(d, block.v_scale + t)) : p;
    if (visible - t < kLanes) {
      const auto mask = hn::FirstN(d, static_cast<size_t>(visible - t));
      p = hn::IfThenElseZero(mask, p);
      weight = hn::IfThenElseZero(mask, weight);
    }
    total = hn::Add(total, p);
    hn::Store(weight, d, scores + t);
  }
  for (int64_t t = end; t < kKvBlockTokens; t += kLanes) hn::Store(hn::Zero(d), d, scores + t);
  const float correction = hn::GetLane(Exp(d, hn::Sub(hn::Set(d, *max), shift)));
  *max = new_max;
  *sum = *sum * correction + Sum(d, total);
  return correction;
}

HWY_INLINE void ToFloat(KvType type, const void* from, int64_t n, float* HWY_RESTRICT to) {
  const F32 d;
  int64_t i = 0;
  if (type == KvType::kInt8) {
    const int8_t* p = static_cast<const int8_t*>(from);
    for (; i + kLanes <= n; i += kLanes) hn::StoreU(LoadI8(d, p + i), d, to + i);
    for (; i < n; ++i) to[i] = static_cast<float>(p[i]);
  } else if (type == KvType::kBF16) {
    const uint16_t* p = static_cast<const uint16_t*>(from);
    for (; i + kLanes <= n; i += kLanes) hn::StoreU(LoadBF16(d, p + i), d, to + i);
    if (i < n) StorePartial(LoadPartialBF16(d, p + i, n - i), d, to + i, n - i);
  } else {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  }
}

// The keys and values of one block as floats (int8: the integers, without scales).
struct FloatBlock {
  alignas(64) float keys[kMaxHeadDim * kKvBlockTokens];    // [head_dim][64]
  alignas(64) float values[kKvBlockTokens * kMaxHeadDim];  // [64][components]

  HWY_INLINE void Load(const KvBlockView& block, int64_t head_dim, int64_t components, int64_t visible) {
    ToFloat(block.type, block.k, head_dim * kKvBlockTokens, keys);
    if (components == head_dim) {
      ToFloat(block.type, block.v, visible * head_dim, values);
      return;
    }
    const int64_t row_bytes = head_dim * KvElementBytes(block.type);
    for (int64_t t = 0; t < visible; ++t) {
      ToFloat(block.type, static_cast<const char*>(block.v) + t * row_bytes, head_dim, values + t * components);
      std::memset(values + t * components + head_dim, 0, static_cast<size_t>(components - head_dim) * sizeof(float));
    }
  }
};

// Largest number of tokens of the block that one of the rows sees.
HWY_INLINE int64_t MaxVisible(const int64_t* limits, int64_t rows, int64_t start) {
  int64_t most = 0;
  for (int64_t r = 0; r < rows; ++r) most = std::max(most, limits[r] - start);
  return std::min(most, kKvBlockTokens);
}

// Up to kGroupRows rows from `first` on, one block whose elements (T) lie in keys and values. The rows are cut into
// tiles of tile_rows.
template <class T>
void AttendGroup(const float* q, const int64_t* limits, int64_t first, int64_t end, int64_t tile_rows,
                 const KvBlockView& block, const T* keys, const T* values, int64_t start, const AttentionState& state) {
  HWY_ALIGN float scores[kGroupRows * kKvBlockTokens];
  float correction[kGroupRows];
  const int64_t head_dim = state.head_dim(), stride = state.stride();
  for (int64_t row = first; row < end; row += tile_rows) {
    const int64_t count = std::min(tile_rows, end - row);
    const int64_t visible = MaxVisible(limits + row, count, start);
    const float* tile_q = q + row * head_dim;
    float* tile_scores = scores + (row - first) * kKvBlockTokens;
    switch (count) {
      case 1: ScoreRows<1>(tile_q, head_dim, keys, visible, tile_scores); break;
      case 2: ScoreRows<2>(tile_q, head_dim, keys, visible, tile_scores); break;
      case 3: ScoreRows<3>(tile_q, head_dim, keys, visible, tile_scores); break;
      case 4: ScoreRows<4>(tile_q, head_dim, keys, visible, tile_scores); break;
      case 5: ScoreRows<5>(tile_q, head_dim, keys, visible, tile_scores); break;
      case 6: ScoreRows<6>(tile_q, head_dim, keys, visible, tile_scores); break;
      case 7: ScoreRows<7>(tile_q, head_dim, keys, visible, tile_scores); break;
      default: ScoreRows<8>(tile_q, head_dim, keys, visible, tile_scores); break;
    }
  }
  for (int64_t row = first; row < end; ++row) {
    float* row_scores = scores + (row - first) * kKvBlockTokens;
    const int64_t visible = std::min(limits[row] - start, kKvBlockTokens);
    if (visible > 0) {
      correction[row - first] = SoftmaxStep(row_scores, visible, block, state.max() + row, state.sum() + row);
    } else {
      correction[row - first] = 1.0f;
      std::memset(row_scores, 0, kKvBlockTokens * sizeof(float));
    }
  }
  for (int64_t row = first; row < end; row += tile_rows) {
    const int64_t count = std::min(tile_rows, end - row);
    const int64_t visible = MaxVisible(limits + row, count, start);
    if (visible <= 0) continue;
    const float* p = scores + (row - first) * kKvBlockTokens;
    const float* c = correction + (row - first);
    float* acc = state.acc() + row * stride;
    switch (count) {
      case 1: ValueRows<1>(p, c, visible, values, stride, stride, acc, stride); break;
      case 2: ValueRows<2>(p, c, visible, values, stride, stride, acc, stride); break;
      case 3: ValueRows<3>(p, c, visible, values, stride, stride, acc, stride); break;
      case 4: ValueRows<4>(p, c, visible, values, stride, stride, acc, stride); break;
      case 5: ValueRows<5>(p, c, visible, values, stride, stride, acc, stride); break;
      case 6: ValueRows<6>(p, c, visible, values, stride, stride, acc, stride); break;
      case 7: ValueRows<7>(p, c, visible, values, stride, stride, acc, stride); break;
      default: ValueRows<8>(p, c, visible, values, stride, stride, acc, stride); break;
    }
  }
}

// The elements of the block as they are. Narrow ones are converted in the registers of each tile.
template <class T>
HWY_INLINE void AttendDirect(const float* q, const int64_t* limits, int64_t first, int64_t end, int64_t tile_rows,
                             const KvBlockView& block, int64_t start, const AttentionState& state) {
  AttendGroup(q, limits, first, end, tile_rows, block, static_cast<const T*>(block.k), static_cast<const T*>(block.v),
              start, state);
}

// Many rows, or components that do not fill vectors: the block becomes floats once and serves all rows.
void AttendWidened(const float* q, const int64_t* limits, const KvBlockView& block, int64_t visible, int64_t start,
                   const AttentionState& state) {
  FloatBlock data;
  const float* keys = data.keys;
  const float* values = data.values;
  const bool direct = block.type == KvType::kF32 && state.head_dim() == state.stride();
  if (!direct) data.Load(block, state.head_dim(), state.stride(), visible);
  for (int64_t group = 0; group < state.rows(); group += kGroupRows) {
    const int64_t end = std::min(state.rows(), group + kGroupRows);
    // Tiles of nearly equal size: 7 rows are 4 + 3, not 6 + 1.
    const int64_t tiles = (end - group + kTileRows - 1) / kTileRows;
    const int64_t tile_rows = (end - group + tiles - 1) / tiles;
    if (direct) {
      AttendDirect<float>(q, limits, group, end, tile_rows, block, start, state);
    } else {
      AttendGroup(q, limits, group, end, tile_rows, block, keys, values, start, state);
    }
  }
}

void AttendBlocks(const float* q, const int64_t* limits, const KvBlockView* blocks, int64_t n_blocks,
                  int64_t first_block, const AttentionState& state) {
  const int64_t rows = state.rows();
  const bool few = rows <= kDirectRows && state.head_dim() == state.stride();
  for (int64_t b = 0; b < n_blocks; ++b) {
    const KvBlockView& block = blocks[b];
    const int64_t start = (first_block + b) * kKvBlockTokens;
    const int64_t visible = MaxVisible(limits, rows, start);
    if (visible <= 0) continue;
    if (few && block.type == KvType::kInt8) {
      AttendDirect<int8_t>(q, limits, 0, rows, rows, block, start, state);
    } else if (few && block.type == KvType::kBF16) {
      AttendDirect<uint16_t>(q, limits, 0, rows, rows, block, start, state);
    } else {
      AttendWidened(q, limits, block, visible, start, state);
    }
  }
}

void MergeStates(const AttentionState& total, const AttentionState& part) {
  const F32 d;
  const int64_t stride = total.stride();
  for (int64_t r = 0; r < total.rows(); ++r) {
    float* m1 = total.max() + r;
    float* l1 = total.sum() + r;
    float* acc1 = total.acc() + r * stride;
    const float m2 = part.max()[r], l2 = part.sum()[r];
    const float* acc2 = part.acc() + r * stride;
    // A row that has seen a position has sum >= 1, or NaN: never 0.
    if (l2 == 0.0f) continue;
    if (*l1 == 0.0f) {
      *m1 = m2;
      *l1 = l2;
      std::memcpy(acc1, acc2, static_cast<size_t>(stride) * sizeof(float));
      continue;
    }
    const float m = std::max(*m1, m2);
    const VF32 c1 = Exp(d, hn::Set(d, *m1 - m)), c2 = Exp(d, hn::Set(d, m2 - m));
    *m1 = m;
    *l1 = *l1 * hn::GetLane(c1) + l2 * hn::GetLane(c2);
    for (int64_t i = 0; i < stride; i += kLanes) {
      const VF32 a = hn::Mul(hn::LoadU(d, acc1 + i), c1);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, acc2 + i), c2, a), d, acc1 + i);
    }
  }
}

void FinishAttention(const AttentionState& state, float* out, int64_t out_stride) {
  const F32 d;
  const int64_t head_dim = state.head_dim();
  for (int64_t r = 0; r < state.rows(); ++r) {
    const bool empty = state.sum()[r] == 0.0f;
    const VF32 factor = hn::Set(d, empty ? 0.0f : 1.0f / state.sum()[r]);
    const float* acc = state.acc() + r * state.stride();
    float* row = out + r * out_stride;
    int64_t i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, acc + i), factor), d, row + i);
    if (i < head_dim) StorePartial(hn::Mul(hn::LoadU(d, acc + i), factor), d, row + i, head_dim - i);
  }
}

// Quantizes one vector: integers and scale as StoreKv documents. `padded` has room for whole vectors.
HWY_INLINE float QuantizeVector(const float* x, int64_t n, float static_scale, int32_t* HWY_RESTRICT padded) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  auto largest = hn::Zero(di);  // bit patterns of |x|, see AbsMax
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
  if (i < n) largest = hn::Max(largest, hn::BitCast(di, hn::Abs(LoadPartial(d, x + i, n - i))));
  const float abs_max = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, largest)));
  float scale = static_scale > 0.0f ? static_scale : abs_max / 127.0f;
  const bool finite = abs_max <= std::numeric_limits<float>::max();
  if (!finite || scale < std::numeric_limits<float>::min()) {
    std::memset(padded, 0, static_cast<size_t>(n) * sizeof(int32_t));
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const VF32 low = hn::Set(d, static_scale > 0.0f ? -128.0f : -127.0f), high = hn::Set(d, 127.0f);
  const VF32 divisor = hn::Set(d, scale);
  for (i = 0; i < n; i += kLanes) {
    const VF32 v = n - i >= kLanes ? hn::LoadU(d, x + i) : LoadPartial(d, x + i, n - i);
    hn::Store(hn::NearestInt(hn::Min(hn::Max(hn::Div(v, divisor), low), high)), di, padded + i);
  }
  return scale;
}

void StoreKv(const float* k, const float* v, int64_t head_dim, int64_t slot, const MutableKvBlock& block,
             float k_static_scale, float v_static_scale) {
  switch (block.type) {
    case KvType::kInt8: {
      HWY_ALIGN int32_t integers[kMaxHeadDim];
      int8_t* keys = static_cast<int8_t*>(block.k) + slot;
      block.k_scale[slot] = QuantizeVector(k, head_dim, k_static_scale, integers);
      for (int64_t i = 0; i < head_dim; ++i) keys[i * kKvBlockTokens] = static_cast<int8_t>(integers[i]);
      int8_t* values = static_cast<int8_t*>(block.v) + slot * head_dim;
      block.v_scale[slot] = QuantizeVector(v, head_dim, v_static_scale, integers);
      for (int64_t i = 0; i < head_dim; ++i) values[i] = static_cast<int8_t>(integers[i]);
      break;
    }
    case KvType::kBF16: {
      uint16_t* keys = static_cast<uint16_t*>(block.k) + slot;
      uint16_t* values = static_cast<uint16_t*>(block.v) + slot * head_dim;
      uint16_t bits[kMaxHeadDim];
      ConvertToBF16(k, head_dim, bits);
      for (int64_t i = 0; i < head_dim; ++i) keys[i * kKvBlockTokens] = bits[i];
      ConvertToBF16(v, head_dim, values);
      break;
    }
    case KvType::kF32: {
      float* keys = static_cast<float*>(block.k) + slot;
      for (int64_t i = 0; i < head_dim; ++i) keys[i * kKvBlockTokens] = k[i];
      std::memcpy(static_cast<float*>(block.v) + slot * head_dim, v, static_cast<size_t>(head_dim) * sizeof(float));
      break;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith {

HWY_EXPORT(AttendBlocks);
HWY_EXPORT(MergeStates);
HWY_EXPORT(FinishAttention);
HWY_EXPORT(StoreKv);

int64_t KvElementBytes(KvType type) { return type == KvType::kInt8 ? 1 : type == KvType::kBF16 ? 2 : 4; }
int64_t KvBlockBytes(KvType type, int64_t head_dim) { return head_dim * kKvBlockTokens * KvElementBytes(type); }

namespace {
int64_t AccStride(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
}  // namespace

int64_t AttentionStateFloats(int64_t rows, int64_t head_dim) { return rows * (2 + AccStride(head_dim)); }

AttentionState::AttentionState(float* memory, int64_t rows, int64_t head_dim)
    : memory_(memory), rows_(rows), head_dim_(head_dim), stride_(AccStride(head_dim)) {}

void AttentionState::Reset() const {
  std::fill_n(max(), rows_, -std::numeric_limits<float>::infinity());
  std::fill_n(sum(), rows_ * (1 + stride_), 0.0f);
}

void StoreKv(const float* k, const float* v, int64_t head_dim, int64_t slot, const MutableKvBlock& block,
             float k_static_scale, float v_static_scale) {
  HWY_DYNAMIC_DISPATCH(StoreKv)(k, v, head_dim, slot, block, k_static_scale, v_static_scale);
}

void AttendBlocks(const float* q, const int64_t* limits, const KvBlockView* blocks, int64_t n_blocks,
                  int64_t first_block, const AttentionState& state) {
  HWY_DYNAMIC_DISPATCH(AttendBlocks)(q, limits, blocks, n_blocks, first_block, state);
}

void MergeStates(const AttentionState& total, const AttentionState& part) {
  HWY_DYNAMIC_DISPATCH(MergeStates)(total, part);
}

void FinishAttention(const AttentionState& state, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(FinishAttention)(state, out, out_stride);
}

int64_t AttentionWorkspaceFloats(int64_t rows, int64_t head_dim) { return 2 * AttentionStateFloats(rows, head_dim); }

void Attend(const float* q, const int64_t* limits, int64_t rows, int64_t head_dim, const KvBlockView* blocks,
            int64_t n_blocks, float* workspace, float* out, int64_t out_stride) {
  const AttentionState total(workspace, rows, head_dim);
  const AttentionState part(workspace + AttentionStateFloats(rows, head_dim), rows, head_dim);
  total.Reset();
  for (int64_t first = 0; first < n_blocks; first += kPartitionBlocks) {
    // The first partition is computed in place: merging into an empty state is a copy.
    const AttentionState& state = first == 0 ? total : part;
    if (first != 0) part.Reset();
    AttendBlocks(q, limits, blocks + first, std::min(kPartitionBlocks, n_blocks - first), first, state);
    if (first != 0) MergeStates(total, part);
  }
  FinishAttention(total, out, out_stride);
}

}  // namespace pith
#endif  // HWY_ONCE
