// A few tokens (parallel streams): the weights of one block of a tile are unpacked into registers, where all tokens
// meet them. Nothing is stored in between, which for so few tokens would cost more than the products. That takes 32
// registers, and an instruction that multiplies bytes of full range. AVX2, which has neither, takes 8-bit weights (the
// LM head) row by row on 16-bit products; 4-bit ones go to the loop for many tokens.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/qmatmul_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/qmatmul_few.cc"
#include <hwy/foreach_target.h>

#include "kernels/qmatmul-inl.h"
#include "kernels/qmatmul_bytes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// From there on the loop for many tokens is as fast. 8-bit activations need one sum per token, 16-bit ones two.
constexpr int64_t kMostTokens[] = {10, 6};  // by planes

constexpr int kSteps = static_cast<int>(kBlock / 4);  // of four inputs

// The weights u of one block of 16 rows, four inputs of every row side by side: step s meets bytes 4 s .. 4 s + 3 of a
// plane of an activation line. `from` is the block in the first row, `stride` leads to the next row.
template <bool kW8>
HWY_INLINE void UnpackBlock(const uint8_t* HWY_RESTRICT from, int64_t stride, VU8 (&steps)[kSteps]) {
  const hn::Repartition<uint16_t, DU8> du16;
  const VU8 mask = hn::Set(du8, uint8_t{15});
  constexpr int kUnitsPerBlock = kW8 ? 2 : 1;
  HWY_UNROLL(2)
  for (int unit = 0; unit < kUnitsPerBlock; ++unit) {
    const uint8_t* at = from + unit * 16;
    VU8 words[4];
    LoadWords(at, stride, words);
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      if constexpr (kW8) {
        steps[unit * 4 + i] = words[i];
      } else {  // even elements (low nibbles) meet the first half of a line
        steps[i] = hn::And(words[i], mask);
        steps[4 + i] = hn::And(hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, words[i]))), mask);
      }
    }
  }
}

// acc[t] += sum over the 32 inputs of a plane of u * digit. Step by step over all tokens: the sum of one token alone
// would wait for each multiply-add. `plane`: four digits of each token, step after step.
template <int kT>
HWY_INLINE void AddSteps(const VU8 (&steps)[kSteps], const int8_t* HWY_RESTRICT plane, VI32 (&acc)[kT]) {
  HWY_UNROLL(8)
  for (int s = 0; s < kSteps; ++s) {
    HWY_UNROLL(10)
    for (int t = 0; t < kT; ++t) {
      int32_t four;
      std::memcpy(&four, plane + 4 * (s * kT + t), sizeof(four));
      acc[t] = DotStep(acc[t], steps[s], hn::BitCast(di8, hn::Set(di32, four)));
    }
  }
}

// part[t] = sum over one block of u * q.
template <int kPlanes, int kT>
HWY_INLINE void BlockSums(const VU8 (&steps)[kSteps], const int8_t* HWY_RESTRICT line, VI32 (&part)[kT]) {
  HWY_UNROLL(10)
  for (int t = 0; t < kT; ++t) part[t] = hn::Zero(di32);
  AddSteps<kT>(steps, line, part);
  if constexpr (kPlanes == 2) {
    HWY_UNROLL(10)
    for (int t = 0; t < kT; ++t) part[t] = hn::ShiftLeft<8>(part[t]);
    AddSteps<kT>(steps, line + kBlock * kT, part);
  }
}

// One tile for kT tokens, group by group as the definition in qmatmul.h wants it.
template <bool kW8, int kPlanes, int kT>
void FewTile(const QuantMatrix& w, const QuantActivations& x, int64_t tile, float* HWY_RESTRICT out) {
  constexpr int64_t kLine = kBlock * kPlanes * kT;
  constexpr bool kFactor = kPlanes == 1;                      // 8-bit activations: a scale per block
  constexpr int64_t kBlockBytes = kW8 ? kBlock : kBlock / 2;  // of a row
  const TileScales s = ScalesOf(w, tile);
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t blocks = w.cols() / kBlock;
  const uint8_t* ahead = rows + kTileRows * stride;  // the next tile
  const int8_t* line = x.Interleaved();
  VU8 steps[kSteps];
  VF32 acc[kT];
  const auto unpack = [&](int64_t block) HWY_ATTR {
    for (int64_t at = 0; at < kTileRows * kBlockBytes; at += 64) {
      PrefetchWeights(ahead + block * kTileRows * kBlockBytes + at);
    }
    UnpackBlock<kW8>(rows + block * kBlockBytes, stride, steps);
  };

  if (w.per_channel()) {
    VI32 high[kT];
    VI32 low[kT];
    for (int t = 0; t < kT; ++t) high[t] = low[t] = hn::Zero(di32);
    for (int64_t block = 0; block < blocks; ++block, line += kLine) {
      unpack(block);
      if constexpr (kPlanes == 2) AddSteps<kT>(steps, line, high);
      AddSteps<kT>(steps, line + (kPlanes - 1) * kBlock * kT, low);
    }
    for (int t = 0; t < kT; ++t) acc[t] = CloseLong(hn::Zero(df32), high[t], low[t], x.RowSum(t), 0, s, 0);
  } else {
    const int64_t group_blocks = w.group() / kBlock;
    const int64_t close_blocks = kFactor ? 1 : group_blocks;  // blocks per exact sum
    for (int t = 0; t < kT; ++t) acc[t] = hn::Zero(df32);
    int64_t group_end = group_blocks;  // of the group under way, and the place of its scales
    int64_t at = 0;
    for (int64_t first = 0; first < blocks; first += close_blocks) {
      VI32 sum[kT];
      unpack(first);
      BlockSums<kPlanes, kT>(steps, line, sum);
      line += kLine;
      for (int64_t block = first + 1; HWY_UNLIKELY(block < first + close_blocks); ++block, line += kLine) {
        VI32 part[kT];
        unpack(block);
        BlockSums<kPlanes, kT>(steps, line, part);
        for (int t = 0; t < kT; ++t) sum[t] = hn::Add(sum[t], part[t]);
      }
      HWY_UNROLL(10)
      for (int t = 0; t < kT; ++t) {
        const int32_t* sums = x.BlockSums(t) + first;
        int32_t ones = sums[0];
        for (int64_t b = 1; HWY_UNLIKELY(b < close_blocks); ++b) ones += sums[b];
        acc[t] = CloseGroup(acc[t], sum[t], ones, kFactor ? x.BlockScales(t)[first] : 1.0F, kFactor, s, at);
      }
      if (first + close_blocks == group_end) {
        group_end += group_blocks;
        at += kTileRows;
      }
    }
  }
  const bool scaled = x.scale_kind() == ActivationScale::kPerToken;
  for (int t = 0; t < kT; ++t) {
    const VF32 token_scale = hn::Set(df32, x.TokenScale(t));
    hn::StoreU(scaled ? hn::Mul(acc[t], token_scale) : acc[t], df32, out + t * kTileRows);
  }
}

template <bool kW8, int kPlanes>
void FewTiles(const QuantProduct& product, int64_t begin, int64_t end) {
  const QuantActivations& x = *product.x;
  const QuantMatrix& w = *product.weights;
  HWY_ALIGN float cell[kTileRows * kMostTokens[kPlanes - 1]];
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile * kTileRows;
    const auto bytes = static_cast<size_t>(std::min(kTileRows, w.rows() - first)) * sizeof(float);
    switch (x.rows()) {
      case 2: FewTile<kW8, kPlanes, 2>(w, x, tile, cell); break;
      case 3: FewTile<kW8, kPlanes, 3>(w, x, tile, cell); break;
      case 4: FewTile<kW8, kPlanes, 4>(w, x, tile, cell); break;
      case 5: FewTile<kW8, kPlanes, 5>(w, x, tile, cell); break;
      case 6: FewTile<kW8, kPlanes, 6>(w, x, tile, cell); break;
      default:
        if constexpr (kPlanes == 1) {
          switch (x.rows()) {
            case 7: FewTile<kW8, kPlanes, 7>(w, x, tile, cell); break;
            case 8: FewTile<kW8, kPlanes, 8>(w, x, tile, cell); break;
            case 9: FewTile<kW8, kPlanes, 9>(w, x, tile, cell); break;
            default: FewTile<kW8, kPlanes, 10>(w, x, tile, cell); break;
          }
        }
    }
    for (int64_t t = 0; t < x.rows(); ++t) {
      std::memcpy(product.out + t * product.ldo + first, cell + t * kTileRows, bytes);
    }
  }
}

void FewTokenTiles(const QuantProduct& product, int64_t begin, int64_t end) {
  assert(product.x->rows() <= kMostTokens[product.x->planes() - 1]);
  const bool w8 = product.weights->bits() == 8;
  const bool two = product.x->planes() == 2;
  if (w8) {
    two ? FewTiles<true, 2>(product, begin, end) : FewTiles<true, 1>(product, begin, end);
  } else {
    two ? FewTiles<false, 2>(product, begin, end) : FewTiles<false, 1>(product, begin, end);
  }
}

int64_t MostTokens(int planes, int /*weight_bits*/) { return kMostTokens[planes - 1]; }

#elif HWY_TARGET == HWY_AVX2

template <int kPlanes>
void FewBytes(const QuantProduct& product, int64_t begin, int64_t end) {
  switch (product.x->rows()) {
    case 2: ByteTiles<kPlanes, 2>(product, 0, begin, end); break;
    case 3: ByteTiles<kPlanes, 3>(product, 0, begin, end); break;
    case 4: ByteTiles<kPlanes, 4>(product, 0, begin, end); break;
    case 5: ByteTiles<kPlanes, 5>(product, 0, begin, end); break;
    case 6: ByteTiles<kPlanes, 6>(product, 0, begin, end); break;
    case 7: ByteTiles<kPlanes, 7>(product, 0, begin, end); break;
    default: ByteTiles<kPlanes, 8>(product, 0, begin, end); break;
  }
}

void FewTokenTiles(const QuantProduct& product, int64_t begin, int64_t end) {
  assert(product.weights->bits() == 8 && product.x->rows() <= kByteTokens);
  if (product.weights->per_channel()) {
    product.x->planes() == 2 ? FewBytes<2>(product, begin, end) : FewBytes<1>(product, begin, end);
    return;
  }
  // Groups of 8-bit weights are rare: token by token, while a tile is in the cache.
  for (int64_t tile = begin; tile < end; ++tile) {
    for (int64_t token = 0; token < product.x->rows(); ++token) MultiplyOne(product, token, tile, tile + 1);
  }
}

int64_t MostTokens(int /*planes*/, int weight_bits) { return weight_bits == 8 ? kByteTokens : 1; }

#else

void FewTokenTiles(const QuantProduct& /*product*/, int64_t /*begin*/, int64_t /*end*/) {
  assert(false);  // no activations are made for it
}

int64_t MostTokens(int /*planes*/, int /*weight_bits*/) { return 1; }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace pith::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith::kernels {

HWY_EXPORT(FewTokenTiles);
HWY_EXPORT(MostTokens);

void MultiplyFew(const QuantProduct& product, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(FewTokenTiles)(product, begin, end);
}

int64_t FewTokens(int planes, int weight_bits) { return HWY_DYNAMIC_DISPATCH(MostTokens)(planes, weight_bits); }

}  // namespace pith::kernels
#endif  // HWY_ONCE
