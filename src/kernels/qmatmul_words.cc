// Many tokens with 16-bit activations on AVX2, whose 8-bit instruction needs a product for each digit and sums of 16
// bits that must be widened: pairs of 16-bit products are as many, and are int32 at once. A tile of 16 rows is unpacked
// to words, two inputs of every row side by side, and each token's two inputs are broadcast to all rows.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/qmatmul_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/qmatmul_words.cc"
#include <hwy/foreach_target.h>

#include "kernels/qmatmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2

using VI16 = hn::Vec<DI16>;

constexpr int kWordSteps = static_cast<int>(kBlock / 2);  // of two inputs
constexpr int64_t kWordStepBytes = kTileRows * 2 * int64_t{sizeof(int16_t)};
constexpr int64_t kWordBlockBytes = kWordSteps * kWordStepBytes;  // of an unpacked block

// Blocks whose products fit into an int32 lane: 16 pairs of products a block, of at most 15 or 255 times 32639.
template <bool kW8>
constexpr int64_t kWordSpan = kW8 ? 8 : 128;

// An unpacked tile holds u - base: base is the zero of symmetric weights, else 0.
template <bool kW8>
void UnpackWords(const QuantMatrix& w, int64_t tile, uint8_t* HWY_RESTRICT out) {
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t blocks = w.cols() / kBlock;
  constexpr int kUnitsPerBlock = kW8 ? 2 : 1;
  const VI16 base = hn::Set(di16, static_cast<int16_t>(w.zero() == ZeroKind::kSymmetric ? (kW8 ? 128 : 8) : 0));
  // Pair j of the four bytes of a row's lane: byte j twice, for its two nibbles, or bytes 2 j and 2 j + 1.
  constexpr int kPairs = kW8 ? 2 : 4;
  VU8 places[kPairs];
  const VI32 lane = hn::Mul(hn::And(hn::Iota(di32, 0), hn::Set(di32, 3)), hn::Set(di32, 0x04040404));
  for (int j = 0; j < kPairs; ++j) {
    const int32_t bytes = kW8 ? 0x00010000 + 2 * j * 0x01010101 : j * 0x01010101;
    places[j] = hn::BitCast(du8, hn::Add(lane, hn::Set(di32, bytes)));
  }
  const VU8 mask = hn::BitCast(du8, hn::Set(di32, kW8 ? int32_t{0x00FF00FF} : int32_t{0x00F0000F}));
  const VI16 lift = hn::BitCast(di16, hn::Set(di32, int32_t{0x00010010}));  // the low nibble to where the high one is
  for (int64_t block = 0; block < blocks; ++block) {
    for (int p = 0; p < kParts; ++p) {
      uint8_t* to = out + block * kWordBlockBytes + p * kVectorBytes;
      for (int unit = 0; unit < kUnitsPerBlock; ++unit) {
        VU8 words[4];
        LoadWords(rows + p * kLanes * stride + (block * kUnitsPerBlock + unit) * 16, stride, words);
        HWY_UNROLL(4)
        for (int i = 0; i < 4; ++i) {
          HWY_UNROLL(4)
          for (int j = 0; j < kPairs; ++j) {
            const VU8 bytes = hn::And(hn::TableLookupBytes(words[i], places[j]), mask);
            VI16 pair = hn::BitCast(di16, bytes);
            if constexpr (!kW8) {
              const hn::RebindToUnsigned<DI16> du16;
              pair = hn::BitCast(di16, hn::ShiftRight<4>(hn::BitCast(du16, hn::Mul(pair, lift))));
            }
            hn::StoreU(hn::BitCast(du8, hn::Sub(pair, base)), du8, to);
            to += kWordStepBytes;
          }
        }
      }
    }
  }
}

// sum[t] += the products of a block. `tile`: the block of one vector of rows; `lines`: that of each token.
template <int kT>
HWY_INLINE void AddWords(const uint8_t* HWY_RESTRICT tile, const int8_t* const* HWY_RESTRICT lines, int64_t line,
                         VI32 (&sum)[kT]) {
  HWY_UNROLL(16)
  for (int step = 0; step < kWordSteps; ++step) {
    const VI16 w = hn::BitCast(di16, hn::LoadU(du8, tile + step * kWordStepBytes));
    HWY_UNROLL(8)
    for (int t = 0; t < kT; ++t) {
      int32_t pair;
      std::memcpy(&pair, lines[t] + line + 4 * step, sizeof(pair));
      const VI16 q = hn::BitCast(di16, hn::Set(di32, pair));
      sum[t] = hn::Add(sum[t], VI32{_mm256_madd_epi16(w.raw, q.raw)});
      KeepOrder(sum[t]);
    }
  }
}

// One vector of rows x kT tokens over the whole width; `index` is the place of its first row in the tile.
template <bool kW8, int kT>
void WordCell(const QuantMatrix& w, const QuantActivations& x, const uint8_t* tile, const TileScales& scales,
              int64_t index, int64_t token, const Ahead& ahead, float* out, int64_t ldo) {
  constexpr int64_t kLine = kBlock * 2;
  const int64_t blocks = w.cols() / kBlock;
  const int8_t* lines[kT];
  for (int t = 0; t < kT; ++t) lines[t] = x.Lines(token + t);
  VF32 acc[kT];
  for (VF32& a : acc) a = hn::Zero(df32);
  const auto add_block = [&](int64_t block, VI32(&sum)[kT]) HWY_ATTR {
    Fetch(ahead, block);
    AddWords<kT>(tile + block * kWordBlockBytes, lines, block * kLine, sum);
  };
  if (w.per_channel()) {
    VI32 high[kT];
    VI32 low[kT];
    for (int t = 0; t < kT; ++t) high[t] = low[t] = hn::Zero(di32);
    for (int64_t first = 0; first < blocks; first += kWordSpan<kW8>) {
      VI32 sum[kT];
      for (VI32& s : sum) s = hn::Zero(di32);
      const int64_t end = std::min(first + kWordSpan<kW8>, blocks);
      for (int64_t block = first; block < end; ++block) add_block(block, sum);
      for (int t = 0; t < kT; ++t) {
        high[t] = hn::Add(high[t], hn::ShiftRight<8>(sum[t]));
        low[t] = hn::Add(low[t], hn::And(sum[t], hn::Set(di32, 255)));
      }
    }
    const int32_t base = scales.zero == ZeroKind::kSymmetric ? scales.symmetric_zero : 0;
    for (int t = 0; t < kT; ++t) {
      acc[t] = CloseLong(acc[t], high[t], low[t], x.RowSum(token + t), base, scales, index);
    }
  } else {
    const int64_t group_blocks = w.group() / kBlock;
    const int32_t* sums[kT];
    for (int t = 0; t < kT; ++t) sums[t] = x.BlockSums(token + t);
    int64_t at = index;
    for (int64_t first = 0; first < blocks; first += group_blocks, at += kTileRows) {
      VI32 sum[kT];
      for (VI32& s : sum) s = hn::Zero(di32);
      add_block(first, sum);
      for (int64_t block = first + 1; HWY_UNLIKELY(block < first + group_blocks); ++block) add_block(block, sum);
      const VF32 scale = LoadScales(scales.scales_f16, scales.scales_f32, at);
      if (HWY_LIKELY(scales.zero == ZeroKind::kSymmetric)) {
        HWY_UNROLL(8)
        for (int t = 0; t < kT; ++t) acc[t] = hn::MulAdd(hn::ConvertTo(df32, sum[t]), scale, acc[t]);
        continue;
      }
      const VF32 min = scales.zero == ZeroKind::kMin ? LoadScales(scales.mins_f16, scales.mins_f32, at) : scale;
      const VI32 zero = scales.zero == ZeroKind::kMin ? hn::Zero(di32) : LoadZeroPoints(scales.zero_points + at);
      HWY_UNROLL(8)
      for (int t = 0; t < kT; ++t) {
        int32_t ones = sums[t][first];
        for (int64_t b = 1; HWY_UNLIKELY(b < group_blocks); ++b) ones += sums[t][first + b];
        if (scales.zero == ZeroKind::kMin) {
          acc[t] = hn::MulAdd(hn::ConvertTo(df32, sum[t]), scale, acc[t]);
          acc[t] = hn::MulAdd(hn::Set(df32, static_cast<float>(ones)), min, acc[t]);
        } else {
          const VI32 exact = hn::Sub(sum[t], hn::Mul(zero, hn::Set(di32, ones)));
          acc[t] = hn::MulAdd(hn::ConvertTo(df32, exact), scale, acc[t]);
        }
      }
    }
  }
  for (int t = 0; t < kT; ++t) {
    hn::StoreU(hn::Mul(acc[t], hn::Set(df32, x.TokenScale(token + t))), df32, out + t * ldo);
  }
}

// A cell of `tokens` tokens, as CellTokens gives them.
template <bool kW8, class... Arguments>
void WordCellOf(int64_t tokens, const Arguments&... arguments) {
  switch (tokens) {
    case 8: WordCell<kW8, 8>(arguments...); break;
    case 6: WordCell<kW8, 6>(arguments...); break;
    case 4: WordCell<kW8, 4>(arguments...); break;
    case 3: WordCell<kW8, 3>(arguments...); break;
    case 2: WordCell<kW8, 2>(arguments...); break;
    default: WordCell<kW8, 1>(arguments...); break;
  }
}

template <bool kW8>
void WordTilesOf(const QuantProduct& product, int64_t begin, int64_t end, uint8_t* scratch) {
  const QuantActivations& x = *product.x;
  const QuantMatrix& w = *product.weights;
  assert(x.scale_kind() == ActivationScale::kPerToken);  // as 16-bit activations are
  const int64_t blocks = w.cols() / kBlock;
  HWY_ALIGN float cell[kTileRows * kGemmTokens];
  for (int64_t tile = begin; tile < end; ++tile) {
    UnpackWords<kW8>(w, tile, scratch);
    const TileScales scales = ScalesOf(w, tile);
    const int64_t tile_bytes = kTileRows * w.row_bytes();
    const Ahead next{w.TileData(tile) + tile_bytes, tile_bytes / blocks};
    const int64_t first = tile * kTileRows;
    const auto bytes = static_cast<size_t>(std::min(kTileRows, w.rows() - first)) * sizeof(float);
    for (int64_t token = 0; token < x.rows();) {
      const int64_t tokens = CellTokens(x.rows() - token, false);
      for (int p = 0; p < kParts; ++p) {
        const int64_t index = p * kLanes;
        WordCellOf<kW8>(tokens, w, x, scratch + p * kVectorBytes, scales, index, token,
                        token == 0 && p == 0 ? next : Ahead{}, cell + index, kTileRows);
      }
      for (int64_t t = 0; t < tokens; ++t) {
        std::memcpy(product.out + (token + t) * product.ldo + first, cell + t * kTileRows, bytes);
      }
      token += tokens;
    }
  }
}

void WordTiles(const QuantProduct& product, int64_t begin, int64_t end, uint8_t* scratch) {
  product.weights->bits() == 8 ? WordTilesOf<true>(product, begin, end, scratch)
                               : WordTilesOf<false>(product, begin, end, scratch);
}

int64_t FewestTokens(int planes, int weight_bits) {
  // Fewer tokens of 4-bit weights do not pay for the longer unpacking.
  if (planes == 2) return weight_bits == 8 ? 1 : 9;
  return INT64_MAX;
}

int64_t UnpackedWords(int64_t cols) { return cols / kBlock * kWordBlockBytes; }

#else

void WordTiles(const QuantProduct& /*product*/, int64_t /*begin*/, int64_t /*end*/, uint8_t* /*scratch*/) {
  assert(false);  // no activations are made for it
}
int64_t FewestTokens(int /*planes*/, int /*weight_bits*/) { return INT64_MAX; }
int64_t UnpackedWords(int64_t /*cols*/) { return 0; }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace pith::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pith::kernels {

HWY_EXPORT(WordTiles);
HWY_EXPORT(FewestTokens);
HWY_EXPORT(UnpackedWords);

void MultiplyWords(const QuantProduct& product, int64_t begin, int64_t end, uint8_t* scratch) {
  HWY_DYNAMIC_DISPATCH(WordTiles)(product, begin, end, scratch);
}

int64_t WordTokens(int planes, int weight_bits) { return HWY_DYNAMIC_DISPATCH(FewestTokens)(planes, weight_bits); }

int64_t WordScratchBytes(int64_t cols) { return HWY_DYNAMIC_DISPATCH(UnpackedWords)(cols); }

}  // namespace pith::kernels
#endif  // HWY_ONCE
