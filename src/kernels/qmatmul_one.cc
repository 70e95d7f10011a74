// One token (decode): weights are read row by row as they lie in memory. A vector of packed bytes of one row meets the
// same inputs of the token; four such rows are reduced together, so that the lanes become rows again.
#include <algorithm>
#include <cstring>

#include "kernels/qmatmul_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/qmatmul_one.cc"
#include <hwy/foreach_target.h>

#include "kernels/qmatmul-inl.h"
#include "kernels/qmatmul_bytes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith::kernels {
namespace HWY_NAMESPACE {

// The inputs of one chunk (one vector of packed bytes): even and odd elements for 4-bit weights, all in `even` for
// 8-bit.
struct ChunkInputs {
  VI8 high_even, high_odd, low_even, low_odd;
};

template <bool kW8, int kPlanes>
HWY_INLINE ChunkInputs LoadChunk(const int8_t* HWY_RESTRICT lines, int64_t unit) {
  constexpr int64_t kLine = kBlock * kPlanes;
  ChunkInputs in;
  if constexpr (kW8) {
    // Units 2i and 2i+1 share a line.
#if HWY_TARGET == HWY_AVX3_DL
    const hn::Half<DI8> half;
    const int8_t* line = lines + unit / 2 * kLine;
    in.low_even = hn::Combine(di8, hn::LoadU(half, line + kLine + (kPlanes - 1) * kBlock),
                              hn::LoadU(half, line + (kPlanes - 1) * kBlock));
    in.high_even = kPlanes == 2 ? hn::Combine(di8, hn::LoadU(half, line + kLine), hn::LoadU(half, line)) : in.low_even;
#else
    const int8_t* line = lines + unit / 2 * kLine + unit % 2 * 16;
    in.low_even = hn::LoadU(di8, line + (kPlanes - 1) * kBlock);
    in.high_even = kPlanes == 2 ? hn::LoadU(di8, line) : in.low_even;
#endif
    in.low_odd = in.low_even;
    in.high_odd = in.high_even;
  } else {
    const int8_t* line = lines + unit * kLine;
    const int8_t* low = line + (kPlanes - 1) * kBlock;
    in.low_even = LoadUnits(di8, low, kLine);
    in.low_odd = LoadUnits(di8, low + 16, kLine);
    in.high_even = kPlanes == 2 ? LoadUnits(di8, line, kLine) : in.low_even;
    in.high_odd = kPlanes == 2 ? LoadUnits(di8, line + 16, kLine) : in.low_odd;
  }
  return in;
}

// Digit sums of one row over one chunk: int32 lanes, each over 4 packed bytes.
template <bool kW8, int kPlanes>
HWY_INLINE void ChunkSums(const uint8_t* HWY_RESTRICT row, const ChunkInputs& in, VI32& high, VI32& low) {
  const VU8 packed = hn::LoadU(du8, row);
  if constexpr (kW8 && kDot8) {
    low = WidenAcc(DotStep(DotZero(), packed, in.low_even));
    if constexpr (kPlanes == 2) high = WidenAcc(DotStep(DotZero(), packed, in.high_even));
  } else {
    const VU8 mask = hn::Set(du8, uint8_t{15});
    const VU8 even = hn::And(packed, mask);
    const hn::Repartition<uint16_t, DU8> du16;
    const VU8 odd = hn::And(hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, packed))), mask);
    if constexpr (kW8) {  // value = 16 * odd + even, all against the same inputs
      low = hn::Add(hn::ShiftLeft<4>(WidenAcc(DotStep(DotZero(), odd, in.low_even))),
                    WidenAcc(DotStep(DotZero(), even, in.low_even)));
      if constexpr (kPlanes == 2) {
        high = hn::Add(hn::ShiftLeft<4>(WidenAcc(DotStep(DotZero(), odd, in.high_even))),
                       WidenAcc(DotStep(DotZero(), even, in.high_even)));
      }
    } else {
      low = WidenAcc(DotStep(DotStep(DotZero(), even, in.low_even), odd, in.low_odd));
      if constexpr (kPlanes == 2) {
        high = WidenAcc(DotStep(DotStep(DotZero(), even, in.high_even), odd, in.high_odd));
      }
    }
  }
}

// One tile of a matrix with groups of at most 128 inputs (digits can be joined as int32).
template <bool kW8, int kPlanes>
void GemvTileGroups(const QuantMatrix& w, const QuantActivations& x, int64_t token, int64_t tile,
                    float* HWY_RESTRICT out) {
  const TileScales scales = ScalesOf(w, tile);
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t units = stride / 16;
  const int8_t* lines = x.Lines(token);
  const int32_t* block_sums = x.BlockSums(token);
  constexpr bool kFactor = kPlanes == 1;  // 8-bit activations: a scale per block
  const float* factors = kFactor ? x.BlockScales(token) : nullptr;
  constexpr int64_t kUnitsPerBlock = kW8 ? 2 : 1;
  const int64_t group_units = w.group() / kBlock * kUnitsPerBlock;
  const int64_t close_units = kFactor ? kUnitsPerBlock : group_units;  // units per exact sum
  const int64_t close_blocks = close_units / kUnitsPerBlock;

  VF32 acc[kParts];
  VI32 sum[kParts];
  for (int p = 0; p < kParts; ++p) {
    acc[p] = hn::Zero(df32);
    sum[p] = hn::Zero(di32);
  }
  // The next tile is fetched meanwhile, in the order of memory: 16 short rows are too many streams for the hardware to
  // follow, one long one is not.
  const uint8_t* ahead = rows + kTileRows * stride;
  for (int64_t unit = 0; unit < units; unit += kUnits) {
    const ChunkInputs in = LoadChunk<kW8, kPlanes>(lines, unit);
    const uint8_t* chunk = rows + unit * 16;
    const int valid = static_cast<int>(HWY_MIN(units - unit, int64_t{kUnits}));
    for (int p = 0; p < kParts; ++p) {
      VI32 parts[kUnits];
      for (int q = 0; q < kUnits; ++q) {
        VI32 four[4];
        for (int i = 0; i < 4; ++i) {
          const uint8_t* row = chunk + (p * kLanes + q * 4 + i) * stride;
          ahead += kVectorBytes;
          PrefetchWeights(ahead);
          VI32 high;
          VI32 low;
          ChunkSums<kW8, kPlanes>(row, in, high, low);
          if constexpr (kPlanes == 2) {
            four[i] = hn::Add(hn::ShiftLeft<8>(high), low);
          } else {
            four[i] = low;
          }
        }
        parts[q] = SumOfFours(four[0], four[1], four[2], four[3]);
      }
      TransposeParts(parts);  // parts[j]: rows of this part, unit j of the chunk
      for (int j = 0; j < kUnits; ++j) {
        if (j >= valid) break;
        sum[p] = hn::Add(sum[p], parts[j]);
        const int64_t next = unit + j + 1;
        if (close_units != 1 && next % close_units != 0) continue;
        const int64_t block = (next - close_units) / kUnitsPerBlock;
        int32_t ones = block_sums[block];
        for (int64_t b = 1; b < close_blocks; ++b) ones += block_sums[block + b];
        const int64_t group = kFactor ? (next - 1) / group_units : next / group_units - 1;
        acc[p] = CloseGroup(acc[p], sum[p], ones, kFactor ? factors[block] : 1.0F, kFactor, scales,
                            group * kTileRows + p * kLanes);
        sum[p] = hn::Zero(di32);
      }
    }
  }
  const VF32 token_scale = hn::Set(df32, x.TokenScale(token));
  for (int p = 0; p < kParts; ++p) {
    hn::StoreU(kFactor ? acc[p] : hn::Mul(acc[p], token_scale), df32, out + p * kLanes);
  }
}

// Sums of a block for four rows: in every 128-bit part, lane i = 256 * sum of high[i] + sum of low[i]. Each of high and
// low has two steps in it, so a 16-bit lane holds at most 4 products of 15 * 128.
template <int kPlanes>
HWY_INLINE VI32 JoinRows(const DotAcc (&high)[4], const DotAcc (&low)[4]) {
#if HWY_TARGET == HWY_AVX3_DL
  // The sums of four bytes fit 16 bits too: pairs of rows are packed together, and one multiply-add both halves their
  // number and joins the digits.
  const __m512i ones = _mm512_set1_epi16(1);
  const __m512i k256 = _mm512_set1_epi16(256);
  const auto pair = [&](int a, int b) HWY_ATTR {
    VI32 halves{_mm512_dpwssd_epi32(_mm512_setzero_si512(), _mm512_packs_epi32(low[a].raw, low[b].raw), ones)};
    if constexpr (kPlanes == 2) {
      halves.raw = _mm512_dpwssd_epi32(halves.raw, _mm512_packs_epi32(high[a].raw, high[b].raw), k256);
    }
    return halves;
  };
  const VF32 first = hn::BitCast(df32, pair(0, 1));
  const VF32 second = hn::BitCast(df32, pair(2, 3));
  return hn::Add(VI32{_mm512_castps_si512(_mm512_shuffle_ps(first.raw, second.raw, 0x88))},
                 VI32{_mm512_castps_si512(_mm512_shuffle_ps(first.raw, second.raw, 0xDD))});
#else
  VI32 four[4];
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    four[i] = WidenAcc(low[i]);
    if constexpr (kPlanes == 2) {
#if HWY_TARGET == HWY_AVX2
      four[i] = hn::Add(four[i], VI32{_mm256_madd_epi16(high[i].raw, _mm256_set1_epi16(256))});
#else
      four[i] = hn::Add(four[i], hn::ShiftLeft<8>(WidenAcc(high[i])));
#endif
    }
  }
  return SumOfFours(four[0], four[1], four[2], four[3]);
#endif
}

// The most common case of GemvTileGroups, kept tight: 4-bit weights in groups of one block.
template <bool kMinimum, int kPlanes>
void GemvTileBlocks(const QuantMatrix& w, const QuantActivations& x, int64_t token, int64_t tile,
                    float* HWY_RESTRICT out) {
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t blocks = stride / 16;
  const int8_t* lines = x.Lines(token);
  const int32_t* block_sums = x.BlockSums(token);
  const uint16_t* scales = w.TileScalesF16(tile);
  const uint16_t* mins = kMinimum ? w.TileMinsF16(tile) : nullptr;
  constexpr bool kFactor = kPlanes == 1;  // 8-bit activations: a scale per block
  const float* factors = kFactor ? x.BlockScales(token) : nullptr;
  const VU8 mask = hn::Set(du8, uint8_t{15});
  const hn::Repartition<uint16_t, DU8> du16;
  VF32 acc[kParts];
  for (VF32& part : acc) part = hn::Zero(df32);
  const uint8_t* ahead = rows + FetchDistance(kTileRows * stride);
  for (int64_t block = 0; block < blocks; block += kUnits) {
    const ChunkInputs in = LoadChunk<false, kPlanes>(lines, block);
    const int valid = static_cast<int>(HWY_MIN(blocks - block, int64_t{kUnits}));
    HWY_UNROLL(2)
    for (int p = 0; p < kParts; ++p) {
      const uint8_t* chunk = rows + block * 16 + p * kLanes * stride;
      VI32 parts[kUnits];
      HWY_UNROLL(4)
      for (int q = 0; q < kUnits; ++q) {
        DotAcc high[4];
        DotAcc low[4];
        HWY_UNROLL(4)
        for (int i = 0; i < 4; ++i) {
          const int row = q * 4 + i;
          const int64_t line = (p * kLanes + row) * kVectorBytes;
          if (line % 64 == 0) PrefetchWeights(ahead + line);
          const VU8 packed = hn::LoadU(du8, chunk + row * stride);
          const VU8 even = hn::And(packed, mask);
          const VU8 odd = hn::And(hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, packed))), mask);
          low[i] = DotStep(DotStep(DotZero(), even, in.low_even), odd, in.low_odd);
          high[i] = kPlanes == 2 ? DotStep(DotStep(DotZero(), even, in.high_even), odd, in.high_odd) : low[i];
        }
        parts[q] = JoinRows<kPlanes>(high, low);
      }
      TransposeParts(parts);
      HWY_UNROLL(4)
      for (int j = 0; j < kUnits; ++j) {
        if (j >= valid) break;
        const int32_t sum = block_sums[block + j];
        const int64_t at = (block + j) * kTileRows + p * kLanes;
        VI32 exact = parts[j];
        if constexpr (!kMinimum) exact = hn::Sub(exact, hn::Set(di32, 8 * sum));
        const VF32 factor = hn::Set(df32, kFactor ? factors[block + j] : 1.0F);
        VF32 scale = LoadScales(scales, nullptr, at);
        if constexpr (kFactor) scale = hn::Mul(scale, factor);
        acc[p] = hn::MulAdd(hn::ConvertTo(df32, exact), scale, acc[p]);
        if constexpr (kMinimum) {
          VF32 min = LoadScales(mins, nullptr, at);
          if constexpr (kFactor) min = hn::Mul(min, factor);
          acc[p] = hn::MulAdd(hn::Set(df32, static_cast<float>(sum)), min, acc[p]);
        }
      }
    }
    ahead += kTileRows * kVectorBytes;
    const int64_t next = (blocks + block) * kTileRows;  // scales of the next tile
    for (int64_t line = 0; line < kUnits * kTileRows; line += 32) {
      PrefetchWeights(scales + next + line);
      if constexpr (kMinimum) PrefetchWeights(mins + next + line);
    }
  }
  const VF32 token_scale = hn::Set(df32, x.TokenScale(token));
  for (int p = 0; p < kParts; ++p) {
    hn::StoreU(kFactor ? acc[p] : hn::Mul(acc[p], token_scale), df32, out + p * kLanes);
  }
}

// One tile of a matrix with one scale per row.
template <bool kW8, int kPlanes>
void GemvTileChannel(const QuantMatrix& w, const QuantActivations& x, int64_t token, int64_t tile,
                     float* HWY_RESTRICT out) {
  const TileScales scales = ScalesOf(w, tile);
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t units = stride / 16;
  const int8_t* lines = x.Lines(token);
  const uint8_t* ahead = rows + kTileRows * stride;
  HWY_ALIGN int32_t high_sums[kTileRows] = {};
  HWY_ALIGN int32_t low_sums[kTileRows];
  for (int quad = 0; quad < kTileRows / 4; ++quad) {
    const uint8_t* quad_rows = rows + quad * 4 * stride;
    VI32 high[4];
    VI32 low[4];
    for (int i = 0; i < 4; ++i) high[i] = low[i] = hn::Zero(di32);
    for (int64_t unit = 0; unit < units; unit += kUnits) {
      const ChunkInputs in = LoadChunk<kW8, kPlanes>(lines, unit);
      for (int i = 0; i < 4; ++i) {
        const uint8_t* row = quad_rows + i * stride + unit * 16;
        ahead += kVectorBytes;
        PrefetchWeights(ahead);
        VI32 h;
        VI32 l;
        ChunkSums<kW8, kPlanes>(row, in, h, l);
        low[i] = hn::Add(low[i], l);
        if constexpr (kPlanes == 2) high[i] = hn::Add(high[i], h);
      }
    }
    // SumOfFours leaves one partial sum per 128-bit part.
    HWY_ALIGN int32_t parts[kLanes];
    hn::Store(SumOfFours(low[0], low[1], low[2], low[3]), di32, parts);
    for (int i = 0; i < 4; ++i) {
      low_sums[quad * 4 + i] = 0;
      for (int part = 0; part < kUnits; ++part) low_sums[quad * 4 + i] += parts[part * 4 + i];
    }
    if constexpr (kPlanes == 2) {
      hn::Store(SumOfFours(high[0], high[1], high[2], high[3]), di32, parts);
      for (int i = 0; i < 4; ++i) {
        for (int part = 0; part < kUnits; ++part) high_sums[quad * 4 + i] += parts[part * 4 + i];
      }
    }
  }
  const VF32 token_scale = hn::Set(df32, x.TokenScale(token));
  for (int p = 0; p < kParts; ++p) {
    const VF32 acc = CloseLong(hn::Zero(df32), hn::Load(di32, high_sums + p * kLanes),
                               hn::Load(di32, low_sums + p * kLanes), x.RowSum(token), 0, scales, p * kLanes);
    hn::StoreU(hn::Mul(acc, token_scale), df32, out + p * kLanes);
  }
}

template <bool kW8, int kPlanes>
void GemvTiles(const QuantProduct& product, int64_t token, int64_t begin, int64_t end) {
  const QuantActivations& x = *product.x;
  const QuantMatrix& w = *product.weights;
#if HWY_TARGET == HWY_AVX2
  if (kW8 && w.per_channel()) return ByteTiles<kPlanes, 1>(product, token, begin, end);
#endif
  HWY_ALIGN float rows[kTileRows];
  for (int64_t tile = begin; tile < end; ++tile) {
    if (w.per_channel()) {
      GemvTileChannel<kW8, kPlanes>(w, x, token, tile, rows);
    } else if (!kW8 && w.group() == kBlock && !w.f32_scales() && w.zero() != ZeroKind::kZeroPoint) {
      w.zero() == ZeroKind::kMin ? GemvTileBlocks<true, kPlanes>(w, x, token, tile, rows)
                                 : GemvTileBlocks<false, kPlanes>(w, x, token, tile, rows);
    } else {
      GemvTileGroups<kW8, kPlanes>(w, x, token, tile, rows);
    }
    const int64_t first = tile * kTileRows;
    const int64_t count = std::min(kTileRows, w.rows() - first);
    std::memcpy(product.out + token * product.ldo + first, rows, static_cast<size_t>(count) * sizeof(float));
  }
}

void OneTokenTiles(const QuantProduct& product, int64_t token, int64_t begin, int64_t end) {
  const bool w8 = product.weights->bits() == 8;
  const bool two = product.x->planes() == 2;
  if (w8) {
    two ? GemvTiles<true, 2>(product, token, begin, end) : GemvTiles<true, 1>(product, token, begin, end);
  } else {
    two ? GemvTiles<false, 2>(product, token, begin, end) : GemvTiles<false, 1>(product, token, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pith::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith::kernels {

HWY_EXPORT(OneTokenTiles);

void MultiplyOne(const QuantProduct& product, int64_t token, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(OneTokenTiles)(product, token, begin, end);
}

}  // namespace pith::kernels
#endif  // HWY_ONCE
