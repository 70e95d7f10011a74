// Many tokens (prefill, many streams): a tile of 16 rows is unpacked once to signed bytes, four inputs of every row
// side by side, and each token's four inputs are broadcast to all rows.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/qmatmul_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/qmatmul_many.cc"
#include <hwy/foreach_target.h>

#include "kernels/qmatmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith::kernels {
namespace HWY_NAMESPACE {

// An unpacked tile: per block kPasses * 8 steps of 64 bytes, then 64 bytes of constants. Step s holds four signed
// weights of each of the 16 rows, and meets bytes 4 (s % 8) .. of a plane of the activation line. 4-bit weights are u
// - 8. 8-bit ones are u - 128; without an 8-bit instruction they take two passes, floor((u - 128) / 16) and u % 16 - 8,
// and w = 16 * first + second + 8. The constants undo the offset of the activation bytes: -128 * sum of the pass's
// weights.
template <bool kW8>
constexpr int kPasses = kW8 && !kDot8 ? 2 : 1;
constexpr int64_t kStepBytes = kTileRows * 4;
constexpr int64_t kPassBytes = 9 * kStepBytes;
template <bool kW8>
constexpr int64_t kTileBlockBytes = kPasses<kW8>* kPassBytes;

template <bool kW8>
void UnpackTile(const QuantMatrix& w, int64_t tile, uint8_t* HWY_RESTRICT out) {
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t blocks = w.cols() / kBlock;
  constexpr int kUnitsPerBlock = kW8 ? 2 : 1;
  const VU8 mask = hn::Set(du8, uint8_t{15});
  const VI8 eight = hn::Set(di8, int8_t{8});
  const VU8 ones = hn::Set(du8, uint8_t{1});
  const hn::Repartition<uint16_t, DU8> du16;
  for (int64_t block = 0; block < blocks; ++block) {
    uint8_t* to = out + block * kTileBlockBytes<kW8>;
    for (int p = 0; p < kParts; ++p) {
      DotAcc sums[kPasses<kW8>];
      for (DotAcc& sum : sums) sum = DotZero();
      const auto emit = [&](int pass, int step, VI8 weights) {
        hn::StoreU(hn::BitCast(du8, weights), du8, to + pass * kPassBytes + step * kStepBytes + p * kVectorBytes);
        sums[pass] = DotStep(sums[pass], ones, weights);
      };
      for (int unit = 0; unit < kUnitsPerBlock; ++unit) {
        const uint8_t* from = rows + p * kLanes * stride + (block * kUnitsPerBlock + unit) * 16;
        VU8 words[4];
        LoadWords(from, stride, words);
        for (int i = 0; i < 4; ++i) {
          if constexpr (kW8 && kDot8) {
            emit(0, unit * 4 + i, hn::BitCast(di8, hn::Xor(words[i], hn::Set(du8, uint8_t{128}))));
            continue;
          }
          const VI8 low = hn::Sub(hn::BitCast(di8, hn::And(words[i], mask)), eight);
          const VU8 upper = hn::And(hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, words[i]))), mask);
          const VI8 high = hn::Sub(hn::BitCast(di8, upper), eight);
          if constexpr (kW8) {
            emit(0, unit * 4 + i, high);
            emit(kPasses<kW8> - 1, unit * 4 + i, low);
          } else {  // even elements (low nibbles) meet the first half of a line
            emit(0, i, low);
            emit(0, 4 + i, high);
          }
        }
      }
      for (int pass = 0; pass < kPasses<kW8>; ++pass) {
        const VI32 sum = WidenAcc(sums[pass]);
        hn::StoreU(hn::BitCast(du8, hn::Neg(hn::ShiftLeft<7>(sum))), du8,
                   to + pass * kPassBytes + 8 * kStepBytes + p * kVectorBytes);
      }
    }
  }
}

HWY_INLINE VU8 BroadcastFour(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return hn::BitCast(du8, hn::Set(di32, word));
}

// One plane of one pass of a block: sum[r][t] += sum over 32 inputs of weight * activation byte.
template <int kR, int kT>
HWY_INLINE void AddPlane(const uint8_t* const* HWY_RESTRICT tile, int64_t offset,
                         const int8_t* const* HWY_RESTRICT lines, int64_t line, VI32 (&sum)[kR][kT]) {
#if HWY_TARGET == HWY_AVX3_DL
  // The instruction adds to int32 lanes: no second accumulator.
  HWY_UNROLL(8)
  for (int step = 0; step < 8; ++step) {
    VI8 w[kR];
    HWY_UNROLL(2)
    for (int r = 0; r < kR; ++r) {
      w[r] = hn::BitCast(di8, hn::LoadU(du8, tile[r] + offset + step * kStepBytes));
    }
    HWY_UNROLL(8)
    for (int t = 0; t < kT; ++t) {
      const VU8 a = BroadcastFour(lines[t] + line + 4 * step);
      HWY_UNROLL(2)
      for (int r = 0; r < kR; ++r) sum[r][t] = DotStep(sum[r][t], a, w[r]);
    }
  }
#else
  DotAcc acc[kR][kT];
  HWY_UNROLL(2)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int t = 0; t < kT; ++t) acc[r][t] = DotZero();
  }
  HWY_UNROLL(8)
  for (int step = 0; step < 8; ++step) {
    VI8 w[kR];
    HWY_UNROLL(2)
    for (int r = 0; r < kR; ++r) {
      w[r] = hn::BitCast(di8, hn::LoadU(du8, tile[r] + offset + step * kStepBytes));
    }
    HWY_UNROLL(8)
    for (int t = 0; t < kT; ++t) {
      const VU8 a = BroadcastFour(lines[t] + line + 4 * step);
      HWY_UNROLL(2)
      for (int r = 0; r < kR; ++r) {
        acc[r][t] = DotStep(acc[r][t], a, w[r]);
        KeepOrder(acc[r][t]);
      }
    }
  }
  HWY_UNROLL(2)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int t = 0; t < kT; ++t) sum[r][t] = hn::Add(sum[r][t], WidenAcc(acc[r][t]));
  }
#endif
}

template <int kR, int kT>
HWY_INLINE void ShiftAll(VI32 (&sum)[kR][kT]) {
  HWY_UNROLL(2)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int t = 0; t < kT; ++t) sum[r][t] = hn::ShiftLeft<8>(sum[r][t]);
  }
}

// Sums of one block for kR vectors of rows and kT tokens: sum[r][t] += sum of (u - 8 or 128) * q. For 8-bit weights in
// two passes the last `+ 8 * sum of q` is left to the caller. The digits are joined on the way: |sum| < 2^31 for up to
// 128 inputs.
template <bool kW8, int kPlanes, int kR, int kT>
HWY_INLINE void AddBlock(const uint8_t* const* HWY_RESTRICT tile, int64_t block,
                         const int8_t* const* HWY_RESTRICT lines, VI32 (&total)[kR][kT], bool first) {
  constexpr int64_t kLine = kBlock * kPlanes;
  const int64_t line = block * kLine;
  HWY_UNROLL(2)
  for (int pass = 0; pass < kPasses<kW8>; ++pass) {
    const int64_t offset = block * kTileBlockBytes<kW8> + pass * kPassBytes;
    VI32 sum[kR][kT];
    HWY_UNROLL(2)
    for (int r = 0; r < kR; ++r) {
      const VI32 constant = hn::BitCast(di32, hn::LoadU(du8, tile[r] + offset + 8 * kStepBytes));
      HWY_UNROLL(8)
      for (int t = 0; t < kT; ++t) sum[r][t] = constant;
    }
    AddPlane<kR, kT>(tile, offset, lines, line, sum);
    if constexpr (kPlanes == 2) {
      ShiftAll<kR, kT>(sum);
      AddPlane<kR, kT>(tile, offset, lines, line + kBlock, sum);
    }
    HWY_UNROLL(2)
    for (int r = 0; r < kR; ++r) {
      HWY_UNROLL(8)
      for (int t = 0; t < kT; ++t) {
        if (kPasses<kW8> == 2 && pass == 0) sum[r][t] = hn::ShiftLeft<4>(sum[r][t]);
        total[r][t] = first && pass == 0 ? sum[r][t] : hn::Add(total[r][t], sum[r][t]);
      }
    }
  }
}

// The same with the digit sums kept apart, for whole rows. high counts -128 * weights per block, low nothing.
template <bool kW8, int kPlanes, int kR, int kT>
HWY_INLINE void AddBlockDigits(const uint8_t* const* HWY_RESTRICT tile, int64_t block,
                               const int8_t* const* HWY_RESTRICT lines, VI32 (&high)[kR][kT], VI32 (&low)[kR][kT]) {
  constexpr int64_t kLine = kBlock * kPlanes;
  const int64_t line = block * kLine;
  HWY_UNROLL(2)
  for (int pass = 0; pass < kPasses<kW8>; ++pass) {
    const int64_t offset = block * kTileBlockBytes<kW8> + pass * kPassBytes;
    VI32 part[kR][kT];
    const auto add = [&](VI32(&to)[kR][kT], int64_t at, bool with_constant) {
      HWY_UNROLL(2)
      for (int r = 0; r < kR; ++r) {
        const VI32 constant =
            with_constant ? hn::BitCast(di32, hn::LoadU(du8, tile[r] + offset + 8 * kStepBytes)) : hn::Zero(di32);
        HWY_UNROLL(8)
        for (int t = 0; t < kT; ++t) part[r][t] = constant;
      }
      AddPlane<kR, kT>(tile, offset, lines, at, part);
      HWY_UNROLL(2)
      for (int r = 0; r < kR; ++r) {
        HWY_UNROLL(8)
        for (int t = 0; t < kT; ++t) {
          if (kPasses<kW8> == 2 && pass == 0) part[r][t] = hn::ShiftLeft<4>(part[r][t]);
          to[r][t] = hn::Add(to[r][t], part[r][t]);
        }
      }
    };
    if constexpr (kPlanes == 2) {
      add(high, line, true);
      add(low, line + kBlock, false);
    } else {
      add(low, line, true);
    }
  }
}

// kR vectors of rows x kT tokens over the whole width. `tile[r]` points at the rows of vector r in its unpacked tile,
// and `index[r]` is the place of its first row among the 16 of scales[r].
template <bool kW8, int kPlanes, int kR, int kT>
void GemmCell(const QuantMatrix& w, const QuantActivations& x, const uint8_t* const* tile, const TileScales* scales,
              const int64_t* index, int64_t token, const Ahead& ahead, float* const* out, int64_t ldo) {
  constexpr bool kBlockScale = kPlanes == 1;
  constexpr int32_t kBase = kW8 ? 128 : 8;              // the zero taken off in the tile
  constexpr int32_t kRest = kPasses<kW8> == 2 ? 8 : 0;  // and what two passes leave to add per unit of q
  const int64_t blocks = w.cols() / kBlock;
  const int64_t group_blocks = w.group() / kBlock;
  const int8_t* lines[kT];
  for (int t = 0; t < kT; ++t) lines[t] = x.Lines(token + t);
  VF32 acc[kR][kT];
  HWY_UNROLL(2)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(8)
    for (int t = 0; t < kT; ++t) acc[r][t] = hn::Zero(df32);
  }
  if (w.per_channel()) {
    VI32 high[kR][kT];
    VI32 low[kR][kT];
    for (int r = 0; r < kR; ++r) {
      for (int t = 0; t < kT; ++t) high[r][t] = low[r][t] = hn::Zero(di32);
    }
    for (int64_t b = 0; b < blocks; ++b) {
      Fetch(ahead, b);
      AddBlockDigits<kW8, kPlanes, kR, kT>(tile, b, lines, high, low);
    }
    for (int r = 0; r < kR; ++r) {
      for (int t = 0; t < kT; ++t) {
        acc[r][t] =
            CloseLong(acc[r][t], high[r][t], low[r][t], x.RowSum(token + t), kBase + kRest, scales[r], index[r]);
      }
    }
  } else if (kRest == 0 && scales[0].zero != ZeroKind::kZeroPoint && (kBlockScale || group_blocks == 1)) {
    // The common cases, kept tight: one block per sum, symmetric weights or minimums.
    const auto one_block_per_sum = [&](auto with_minimum) HWY_ATTR {
      constexpr bool kMinimum = decltype(with_minimum)::value;
      const float* factors[kT];
      const int32_t* sums[kT];
      for (int t = 0; t < kT; ++t) {
        factors[t] = kBlockScale ? x.BlockScales(token + t) : nullptr;
        sums[t] = kMinimum ? x.BlockSums(token + t) : nullptr;
      }
      int64_t group = 0;
      int64_t left = group_blocks;  // blocks of the group that are still to come
      for (int64_t block = 0; block < blocks; ++block) {
        Fetch(ahead, block);
        VI32 sum[kR][kT];
        AddBlock<kW8, kPlanes, kR, kT>(tile, block, lines, sum, true);
        VF32 scale[kR];
        VF32 min[kR];
        for (int r = 0; r < kR; ++r) {
          scale[r] = LoadScales(scales[r].scales_f16, scales[r].scales_f32, group * kTileRows + index[r]);
          if constexpr (kMinimum) {
            min[r] = LoadScales(scales[r].mins_f16, scales[r].mins_f32, group * kTileRows + index[r]);
          }
        }
        HWY_UNROLL(8)
        for (int t = 0; t < kT; ++t) {
          const VF32 factor = hn::Set(df32, kBlockScale ? factors[t][block] : 1.0F);
          const int32_t ones = kMinimum ? sums[t][block] : 0;
          HWY_UNROLL(2)
          for (int r = 0; r < kR; ++r) {
            VI32 exact = sum[r][t];
            if constexpr (kMinimum) exact = hn::Add(exact, hn::Set(di32, kBase * ones));
            const VF32 weight = kBlockScale ? hn::Mul(scale[r], factor) : scale[r];
            acc[r][t] = hn::MulAdd(hn::ConvertTo(df32, exact), weight, acc[r][t]);
            if constexpr (kMinimum) {
              const VF32 minimum = kBlockScale ? hn::Mul(min[r], factor) : min[r];
              acc[r][t] = hn::MulAdd(hn::Set(df32, static_cast<float>(ones)), minimum, acc[r][t]);
            }
          }
        }
        if (--left == 0) {
          left = group_blocks;
          ++group;
        }
      }
    };
    if (scales[0].zero == ZeroKind::kMin) {
      one_block_per_sum(std::true_type());
    } else {
      one_block_per_sum(std::false_type());
    }
  } else {
    const int64_t close_blocks = kBlockScale ? 1 : group_blocks;
    for (int64_t first = 0; first < blocks; first += close_blocks) {
      VI32 sum[kR][kT];
      for (int64_t b = 0; b < close_blocks; ++b) Fetch(ahead, first + b);
      AddBlock<kW8, kPlanes, kR, kT>(tile, first, lines, sum, true);
      for (int64_t b = 1; b < close_blocks; ++b) AddBlock<kW8, kPlanes, kR, kT>(tile, first + b, lines, sum, false);
      for (int r = 0; r < kR; ++r) {
        const TileScales& s = scales[r];
        const int64_t at = first / group_blocks * kTileRows + index[r];
        const VI32 zero = s.zero == ZeroKind::kZeroPoint
                              ? LoadZeroPoints(s.zero_points + at)
                              : hn::Set(di32, s.zero == ZeroKind::kMin ? 0 : s.symmetric_zero);
        const VI32 off = hn::Sub(zero, hn::Set(di32, kBase + kRest));
        for (int t = 0; t < kT; ++t) {
          const int32_t* sums = x.BlockSums(token + t) + first;
          int32_t ones = sums[0];
          for (int64_t b = 1; b < close_blocks; ++b) ones += sums[b];
          const VI32 exact = hn::Sub(sum[r][t], hn::Mul(off, hn::Set(di32, ones)));
          const VF32 factor = hn::Set(df32, kBlockScale ? x.BlockScales(token + t)[first] : 1.0F);
          VF32 weight = LoadScales(s.scales_f16, s.scales_f32, at);
          if constexpr (kBlockScale) weight = hn::Mul(weight, factor);
          acc[r][t] = hn::MulAdd(hn::ConvertTo(df32, exact), weight, acc[r][t]);
          if (s.zero == ZeroKind::kMin) {
            VF32 min = LoadScales(s.mins_f16, s.mins_f32, at);
            if constexpr (kBlockScale) min = hn::Mul(min, factor);
            acc[r][t] = hn::MulAdd(hn::Set(df32, static_cast<float>(ones)), min, acc[r][t]);
          }
        }
      }
    }
  }
  const bool scaled = x.scale_kind() == ActivationScale::kPerToken;
  for (int t = 0; t < kT; ++t) {
    const VF32 token_scale = hn::Set(df32, x.TokenScale(token + t));
    for (int r = 0; r < kR; ++r) {
      hn::StoreU(scaled ? hn::Mul(acc[r][t], token_scale) : acc[r][t], df32, out[r] + t * ldo);
    }
  }
}

// Tiles are taken two at a time on 512-bit vectors, so that each broadcast input serves two multiply-adds.
constexpr int kGemmRows = kLanes == kTileRows ? 2 : 1;  // vectors of rows per cell

// A cell of `tokens` tokens, as CellTokens gives them.
template <bool kW8, int kPlanes, int kR, class... Arguments>
void GemmCellOf(int64_t tokens, const Arguments&... arguments) {
  switch (tokens) {
    case 8:
      if constexpr (kGemmTokens == 8) GemmCell<kW8, kPlanes, kR, 8>(arguments...);
      break;
    case 6:
      if constexpr (kGemmTokens >= 6) GemmCell<kW8, kPlanes, kR, 6>(arguments...);
      break;
    case 4: GemmCell<kW8, kPlanes, kR, 4>(arguments...); break;
    case 3: GemmCell<kW8, kPlanes, kR, 3>(arguments...); break;
    case 2: GemmCell<kW8, kPlanes, kR, 2>(arguments...); break;
    default: GemmCell<kW8, kPlanes, kR, 1>(arguments...); break;
  }
}

template <bool kW8, int kPlanes>
void GemmTiles(const QuantProduct& product, int64_t begin, int64_t end, uint8_t* scratch) {
  const QuantActivations& x = *product.x;
  const QuantMatrix& w = *product.weights;
  const int64_t tile_bytes = w.cols() / kBlock * kTileBlockBytes<kW8>;
  const int64_t tokens = x.rows();
  constexpr int64_t kTilesAtOnce = kGemmRows == 2 ? 2 : 1;
  HWY_ALIGN float cell[kTilesAtOnce * kTileRows * kGemmTokens];
  for (int64_t tile = begin; tile < end; tile += kTilesAtOnce) {
    const int64_t tiles = std::min(kTilesAtOnce, end - tile);
    const bool pair = kTilesAtOnce == 2 && tiles == 2;
    for (int64_t i = 0; i < tiles; ++i) UnpackTile<kW8>(w, tile + i, scratch + i * tile_bytes);
    TileScales scales[2];
    for (int64_t i = 0; i < tiles; ++i) scales[i] = ScalesOf(w, tile + i);
    const int64_t block_bytes = tiles * kTileRows * w.row_bytes() / (w.cols() / kBlock);
    const Ahead next{w.TileData(tile) + tiles * kTileRows * w.row_bytes(), block_bytes};
    const int64_t first = tile * kTileRows;
    const int64_t count = std::min(tiles * kTileRows, w.rows() - first);
    for (int64_t token = 0; token < tokens;) {
      const int64_t nt = CellTokens(tokens - token, pair);
      const int vectors = pair ? 1 : kParts * static_cast<int>(tiles);  // cells along the rows
      for (int v = 0; v < vectors; ++v) {
        const Ahead ahead = token == 0 && v == 0 ? next : Ahead{};
        const int64_t part = v % kParts * kLanes;
        const uint8_t* base[2] = {scratch + (pair ? 0 : part * 4), scratch + tile_bytes};
        const int64_t index[2] = {pair ? 0 : part, 0};
        float* out[2] = {cell + (pair ? 0 : part), cell + kTileRows};
        constexpr int64_t kLdc = kTilesAtOnce * kTileRows;
        if (pair) {
          GemmCellOf<kW8, kPlanes, kGemmRows>(nt, w, x, base, scales, index, token, ahead, out, kLdc);
        } else {
          GemmCellOf<kW8, kPlanes, 1>(nt, w, x, base, scales, index, token, ahead, out, kLdc);
        }
      }
      for (int64_t t = 0; t < nt; ++t) {
        std::memcpy(product.out + (token + t) * product.ldo + first, cell + t * kTilesAtOnce * kTileRows,
                    static_cast<size_t>(count) * sizeof(float));
      }
      token += nt;
    }
  }
}

void ManyTokenTiles(const QuantProduct& product, int64_t begin, int64_t end, uint8_t* scratch) {
  const bool w8 = product.weights->bits() == 8;
  const bool two = product.x->planes() == 2;
  if (w8) {
    two ? GemmTiles<true, 2>(product, begin, end, scratch) : GemmTiles<true, 1>(product, begin, end, scratch);
  } else {
    two ? GemmTiles<false, 2>(product, begin, end, scratch) : GemmTiles<false, 1>(product, begin, end, scratch);
  }
}

int64_t UnpackedBytes(int64_t cols, int weight_bits) {
  return 2 * (cols / kBlock) * (weight_bits == 8 ? kTileBlockBytes<true> : kTileBlockBytes<false>);
}

}  // namespace HWY_NAMESPACE
}  // namespace pith::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith::kernels {

HWY_EXPORT(ManyTokenTiles);
HWY_EXPORT(UnpackedBytes);

void MultiplyMany(const QuantProduct& product, int64_t begin, int64_t end, uint8_t* scratch) {
  HWY_DYNAMIC_DISPATCH(ManyTokenTiles)(product, begin, end, scratch);
}

int64_t ManyScratchBytes(int64_t cols, int weight_bits) {
  return HWY_DYNAMIC_DISPATCH(UnpackedBytes)(cols, weight_bits);
}

}  // namespace pith::kernels
#endif  // HWY_ONCE
