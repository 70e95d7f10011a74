// 8-bit weights with one scale per row against up to 8 tokens, on multiply-adds of words: where bytes of full range do
// not fit the instruction for bytes they would have to be split in nibbles, and two products of words cost less than
// four of bytes. Compiled once per target: include after kernels/qmatmul-inl.h.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/qmatmul-inl.h"

#if defined(PITH_KERNELS_QMATMUL_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PITH_KERNELS_QMATMUL_BYTES_INL_H_
#undef PITH_KERNELS_QMATMUL_BYTES_INL_H_
#else
#define PITH_KERNELS_QMATMUL_BYTES_INL_H_
#endif

#if HWY_TARGET == HWY_AVX2
HWY_BEFORE_NAMESPACE();
namespace pith::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kByteStep = kVectorBytes / 2;  // inputs of a vector
constexpr int64_t kByteSpan = 2048;  // inputs: a lane adds 128 pairs of products of 255 * 32639, less than 2^31
constexpr int64_t kByteTokens = 8;

// The activations of kT tokens from `token` on as integers of 16 bits, [kT, cols]; x has signed digits.
template <int kPlanes, int kT>
void JoinDigits(const QuantActivations& x, int64_t token, int16_t* HWY_RESTRICT out) {
  const hn::Rebind<int8_t, DI16> bytes;
  for (int t = 0; t < kT; ++t) {
    const int8_t* line = x.Lines(token + t);
    for (int64_t k = 0; k < x.cols(); k += kByteStep, out += kByteStep) {
      const int8_t* at = line + k / kBlock * kBlock * kPlanes + k % kBlock;
      auto q = hn::PromoteTo(di16, hn::LoadU(bytes, at + (kPlanes - 1) * kBlock));
      if constexpr (kPlanes == 2) q = hn::Add(q, hn::ShiftLeft<8>(hn::PromoteTo(di16, hn::LoadU(bytes, at))));
      hn::StoreU(q, di16, out);
    }
  }
}

// One tile: out[t * kTileRows + row]. Row after row, since one stream of memory is what the hardware follows best.
template <int kT>
void ByteTile(const QuantMatrix& w, const QuantActivations& x, int64_t token, int64_t tile,
              const int16_t* HWY_RESTRICT inputs, float* HWY_RESTRICT out) {
  constexpr int kChains = kT >= 4 ? 1 : 4 / kT;  // sums under way per token: an addition waits for the one before
  const hn::Rebind<uint8_t, DI16> bytes;
  const uint8_t* rows = w.TileData(tile);
  const int64_t stride = w.row_bytes();
  const int64_t cols = w.cols();
  const uint8_t* ahead = rows + FetchDistance(kTileRows * stride);
  // Sums of rows need more than 32 bits: they are 256 * high + low.
  HWY_ALIGN int32_t high[kT * kTileRows] = {};
  HWY_ALIGN int32_t low[kT * kTileRows] = {};
  for (int64_t row = 0; row < kTileRows; ++row) {
    for (int64_t begin = 0; begin < cols; begin += kByteSpan) {
      const uint8_t* from = rows + row * stride + begin;
      const int16_t* to = inputs + begin;
      const int64_t count = std::min(kByteSpan, cols - begin);
      VI32 sum[kChains][kT];
      for (auto& chain : sum) {
        for (VI32& lanes : chain) lanes = hn::Zero(di32);
      }
      const auto step = [&](int64_t k, VI32(&chain)[kT]) HWY_ATTR {
        const auto weights = hn::PromoteTo(di16, hn::LoadU(bytes, from + k));
        HWY_UNROLL(8)
        for (int t = 0; t < kT; ++t) {
          chain[t] = hn::Add(chain[t], VI32{_mm256_madd_epi16(weights.raw, hn::LoadU(di16, to + t * cols + k).raw)});
        }
      };
      constexpr int64_t kStride = kChains * kByteStep;
      int64_t k = 0;
      for (; k + kStride <= count; k += kStride) {
        PrefetchWeights(ahead);
        ahead += kStride;
        HWY_UNROLL(4)
        for (int c = 0; c < kChains; ++c) step(k + c * kByteStep, sum[c]);
      }
      for (; k < count; k += kByteStep) step(k, sum[0]);
      HWY_UNROLL(8)
      for (int t = 0; t < kT; ++t) {
        VI32 all = sum[0][t];
        for (int c = 1; c < kChains; ++c) all = hn::Add(all, sum[c][t]);
        high[t * kTileRows + row] += hn::GetLane(hn::SumOfLanes(di32, hn::ShiftRight<8>(all)));
        low[t * kTileRows + row] += hn::GetLane(hn::SumOfLanes(di32, hn::And(all, hn::Set(di32, 255))));
      }
    }
  }
  const TileScales scales = ScalesOf(w, tile);
  for (int t = 0; t < kT; ++t) {
    const VF32 token_scale = hn::Set(df32, x.TokenScale(token + t));
    for (int64_t at = 0; at < kTileRows; at += kLanes) {
      const VF32 acc = CloseLong(hn::Zero(df32), hn::Load(di32, high + t * kTileRows + at),
                                 hn::Load(di32, low + t * kTileRows + at), x.RowSum(token + t), 0, scales, at);
      hn::StoreU(hn::Mul(acc, token_scale), df32, out + t * kTileRows + at);
    }
  }
}

// Tiles [begin, end) of a matrix with one scale per row, for kT tokens from `token` on.
template <int kPlanes, int kT>
void ByteTiles(const QuantProduct& product, int64_t token, int64_t begin, int64_t end) {
  const QuantActivations& x = *product.x;
  const QuantMatrix& w = *product.weights;
  std::vector<int16_t> inputs(static_cast<size_t>(kT * w.cols()));
  JoinDigits<kPlanes, kT>(x, token, inputs.data());
  HWY_ALIGN float cell[kT * kTileRows];
  for (int64_t tile = begin; tile < end; ++tile) {
    ByteTile<kT>(w, x, token, tile, inputs.data(), cell);
    const int64_t first = tile * kTileRows;
    const auto bytes = static_cast<size_t>(std::min(kTileRows, w.rows() - first)) * sizeof(float);
    for (int t = 0; t < kT; ++t) {
      std::memcpy(product.out + (token + t) * product.ldo + first, cell + t * kTileRows, bytes);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pith::kernels
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard
