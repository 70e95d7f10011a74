#include "kernels/attention.h"

#include <limits>
#include <memory>

#include "kernels/elementwise.h"
#include "kernels/kernel_test.h"
#include "kernels/reference.h"

namespace pith {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Blocks of one kv head with random keys and values of `tokens` positions; places beyond hold zeros.
struct Cache {
  KvType type;
  int64_t head_dim, tokens;
  std::vector<std::vector<char>> memory;
  std::vector<std::vector<float>> scales;
  std::vector<MutableKvBlock> blocks;

  Cache(KvType type_in, int64_t head_dim_in, int64_t tokens_in, uint64_t seed = 100)
      : type(type_in), head_dim(head_dim_in), tokens(tokens_in) {
    const int64_t n_blocks = (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
    for (int64_t b = 0; b < n_blocks; ++b) {
      const size_t bytes = static_cast<size_t>(KvBlockBytes(type, head_dim));
      auto& k = memory.emplace_back(bytes);
      MutableKvBlock block{type, k.data(), nullptr, nullptr, nullptr};
      auto& v = memory.emplace_back(bytes);
      block.v = v.data();
      if (type == KvType::kInt8) {
        block.k_scale = scales.emplace_back(kKvBlockTokens).data();
        block.v_scale = scales.emplace_back(kKvBlockTokens).data();
      }
      blocks.push_back(block);
    }
    const auto k = RandomFloats(tokens * head_dim, seed, 1.5), v = RandomFloats(tokens * head_dim, seed + 1);
    for (int64_t t = 0; t < tokens; ++t) {
      StoreKv(k.data() + t * head_dim, v.data() + t * head_dim, head_dim, t % kKvBlockTokens,
              blocks[static_cast<size_t>(t / kKvBlockTokens)]);
    }
  }
  std::vector<KvBlockView> views() const { return {blocks.begin(), blocks.end()}; }
};

std::vector<float> RunAttend(const std::vector<float>& q, const std::vector<int64_t>& limits, const Cache& cache) {
  const auto views = cache.views();
  const int64_t rows = static_cast<int64_t>(limits.size());
  std::vector<float> out(q.size()), work(static_cast<size_t>(AttentionWorkspaceFloats(rows, cache.head_dim)), NAN);
  Attend(q.data(), limits.data(), rows, cache.head_dim, views.data(), static_cast<int64_t>(views.size()), work.data(),
         out.data(), cache.head_dim);
  return out;
}

std::vector<float> Queries(int64_t rows, int64_t head_dim, uint64_t seed = 5) {
  return RandomFloats(rows * head_dim, seed, 2.0 / std::sqrt(static_cast<double>(head_dim)));
}

using AttentionTest = KernelTest;

TEST_P(AttentionTest, MatchesDoubleReference) {
  for (const KvType type : {KvType::kInt8, KvType::kBF16, KvType::kF32}) {
    for (const int64_t head_dim : {2, 6, 16, 48, 62, 64, 80, 96, 128, 130, 256}) {
      for (const int64_t tokens : {1, 2, 63, 64, 65, 200, 1100}) {
        if (tokens > 200 && head_dim != 64 && head_dim != 80) continue;
        const Cache cache(type, head_dim, tokens);
        const auto views = cache.views();
        const int64_t rows = 8;
        const auto q = Queries(rows, head_dim);
        std::vector<int64_t> limits;
        for (int64_t r = 0; r < rows; ++r) limits.push_back(r == 0 ? tokens : 1 + (tokens - 1) * r / rows);
        const auto got = RunAttend(q, limits, cache);
        std::vector<float> want(q.size());
        reference::Attend(q.data(), limits.data(), rows, head_dim, views.data(), static_cast<int64_t>(views.size()),
                          want.data(), head_dim);
        for (int64_t r = 0; r < rows; ++r) {
          // Scores are off by at most head_dim roundings (two each without FMA) of their terms, which moves every
          // weight p by that factor; sums over the tokens add one or two roundings per term, the rest is the polynomial
          // and a few products.
          double score_error = 0.0, value_size = 0.0;
          for (int64_t t = 0; t < limits[static_cast<size_t>(r)]; ++t) {
            double terms = 0.0;
            const auto& block = views[static_cast<size_t>(t / kKvBlockTokens)];
            for (int64_t d = 0; d < head_dim; ++d) {
              terms += std::abs(q[static_cast<size_t>(r * head_dim + d)] *
                                reference::KeyAt(block, head_dim, d, t % kKvBlockTokens));
              value_size = std::max(value_size, std::abs(reference::ValueAt(block, head_dim, t % kKvBlockTokens, d)));
            }
            score_error = std::max(score_error, terms * static_cast<double>(2 * head_dim + 4) * kFloatEps);
          }
          const double length = static_cast<double>(limits[static_cast<size_t>(r)]);
          const double tolerance = 2.0 * value_size * (score_error + (2.0 * length + 64.0) * kFloatEps);
          for (int64_t d = 0; d < head_dim; ++d) {
            const size_t at = static_cast<size_t>(r * head_dim + d);
            ASSERT_NEAR(got[at], want[at], tolerance) << static_cast<int>(type) << " d " << head_dim << " T " << tokens;
            // The worst case above is far away in practice; a lost token or scale is not.
            ASSERT_NEAR(got[at], want[at], 2e-5 * value_size)
                << static_cast<int>(type) << " d " << head_dim << " T " << tokens;
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, RowDoesNotDependOnTheOtherRows) {
  for (const KvType type : {KvType::kInt8, KvType::kBF16, KvType::kF32}) {
    for (const int64_t head_dim : {64, 128, 70}) {
      const int64_t tokens = 700, rows = 75;
      const Cache cache(type, head_dim, tokens);
      const auto q = Queries(rows, head_dim);
      std::vector<int64_t> limits;
      for (int64_t r = 0; r < rows; ++r) limits.push_back(r * 53 % tokens + 1);
      const auto all = RunAttend(q, limits, cache);
      for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 13, 33}) {
        for (int64_t first = 0; first + count <= rows; first += 17) {
          const std::vector<float> some_q(q.begin() + first * head_dim, q.begin() + (first + count) * head_dim);
          const auto some = RunAttend(some_q, {limits.begin() + first, limits.begin() + first + count}, cache);
          ASSERT_TRUE(SameBits(some, {all.begin() + first * head_dim, all.begin() + (first + count) * head_dim}))
              << count << " rows from " << first;
        }
      }
    }
  }
}

TEST_P(AttentionTest, CallsMayCutTheBlocksAnywhere) {
  const int64_t head_dim = 64, tokens = 512, rows = 9;
  const Cache cache(KvType::kInt8, head_dim, tokens);
  const auto views = cache.views();
  const auto q = Queries(rows, head_dim);
  std::vector<int64_t> limits;
  for (int64_t r = 0; r < rows; ++r) limits.push_back(100 + 50 * r);
  std::vector<float> whole(static_cast<size_t>(AttentionStateFloats(rows, head_dim)));
  const AttentionState state(whole.data(), rows, head_dim);
  state.Reset();
  AttendBlocks(q.data(), limits.data(), views.data(), 8, 0, state);
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{1, 1, 1, 1, 1, 1, 1, 1}, {3, 5}, {7, 1}, {2, 0, 6}}) {
    std::vector<float> pieces(whole.size(), NAN);
    const AttentionState other(pieces.data(), rows, head_dim);
    other.Reset();
    int64_t at = 0;
    for (const int64_t count : cuts) {
      AttendBlocks(q.data(), limits.data(), views.data() + at, count, at, other);
      at += count;
    }
    EXPECT_TRUE(SameBits(pieces, whole));
  }
}

TEST_P(AttentionTest, PartitionsInParallelGiveTheSameBits) {
  const int64_t head_dim = 80, tokens = 1700, rows = 7;
  const Cache cache(KvType::kInt8, head_dim, tokens);
  const auto views = cache.views();
  const auto q = Queries(rows, head_dim);
  // Some rows end before the last partitions begin.
  const std::vector<int64_t> limits = {1700, 1, 512, 513, 1024, 1536, 1537};
  const auto want = RunAttend(q, limits, cache);
  std::vector<std::vector<float>> memory;
  std::vector<AttentionState> parts;
  for (int64_t first = 0; first < static_cast<int64_t>(views.size()); first += kPartitionBlocks) {
    auto& m = memory.emplace_back(static_cast<size_t>(AttentionStateFloats(rows, head_dim)));
    parts.emplace_back(m.data(), rows, head_dim).Reset();
    const int64_t count = std::min<int64_t>(kPartitionBlocks, static_cast<int64_t>(views.size()) - first);
    AttendBlocks(q.data(), limits.data(), views.data() + first, count, first, parts.back());
  }
  ASSERT_EQ(parts.size(), 4u);
  std::vector<float> total_memory(memory[0].size(), NAN), out(q.size());
  const AttentionState total(total_memory.data(), rows, head_dim);
  total.Reset();
  for (const auto& part : parts) MergeStates(total, part);
  FinishAttention(total, out.data(), head_dim);
  EXPECT_TRUE(SameBits(out, want));
}

TEST_P(AttentionTest, MaskedTokensHaveNoInfluence) {
  for (const KvType type : {KvType::kInt8, KvType::kBF16, KvType::kF32}) {
    const int64_t head_dim = 64, tokens = 128, rows = 7;
    Cache clean(type, head_dim, tokens), dirty(type, head_dim, tokens);
    const auto q = Queries(rows, head_dim);
    const std::vector<int64_t> limits = {1, 5, 40, 64, 65, 70, 77};
    // From position 77 on: keys and values that would win every score. Int8 scales may be anything there.
    const std::vector<float> large_k(64, 1e18f), large_v(64, -1e18f);
    for (int64_t t = 77; t < tokens; ++t) {
      StoreKv(large_k.data(), large_v.data(), head_dim, t % 64, dirty.blocks[1]);
      if (type == KvType::kInt8) {
        dirty.blocks[1].k_scale[t % 64] = t % 3 == 0 ? NAN : t % 3 == 1 ? kInfinity : -kInfinity;
        dirty.blocks[1].v_scale[t % 64] = t % 2 == 0 ? NAN : kInfinity;
      }
    }
    if (type == KvType::kF32) {  // masked keys may even be NaN
      for (int64_t d = 0; d < head_dim; ++d) static_cast<float*>(dirty.blocks[1].k)[d * 64 + 63] = NAN;
    }
    const auto want = RunAttend(q, limits, clean);
    EXPECT_TRUE(SameBits(RunAttend(q, limits, dirty), want)) << static_cast<int>(type);
    for (const float x : want) EXPECT_TRUE(std::isfinite(x));
    // A later query sees them: the data was not simply ignored.
    EXPECT_FALSE(
        SameBits(RunAttend(Queries(1, head_dim), {100}, dirty), RunAttend(Queries(1, head_dim), {100}, clean)));
  }
}

TEST_P(AttentionTest, RowWithoutPositionsIsZero) {
  const Cache cache(KvType::kInt8, 64, 65);
  const auto out = RunAttend(Queries(3, 64), {0, 65, 0}, cache);
  for (size_t d = 0; d < 64; ++d) {
    EXPECT_EQ(Bits(out[d]), 0u);
    EXPECT_EQ(Bits(out[128 + d]), 0u);
  }
}

TEST_P(AttentionTest, NanInTheCacheOrQueryShows) {
  Cache cache(KvType::kInt8, 64, 70);
  std::vector<float> bad(64, 1.0f), good(64, 1.0f);
  bad[17] = NAN;
  StoreKv(good.data(), bad.data(), 64, 3, cache.blocks[0]);
  for (const float x : RunAttend(Queries(1, 64), {70}, cache)) EXPECT_TRUE(std::isnan(x));
  Cache keys(KvType::kInt8, 64, 70);
  StoreKv(bad.data(), good.data(), 64, 3, keys.blocks[0]);
  for (const float x : RunAttend(Queries(1, 64), {70}, keys)) EXPECT_TRUE(std::isnan(x));
  // The only visible position of the second partition, and the first position of all.
  Cache edge(KvType::kInt8, 64, 513);
  StoreKv(bad.data(), good.data(), 64, 0, edge.blocks[8]);
  for (const float x : RunAttend(Queries(1, 64), {513}, edge)) EXPECT_TRUE(std::isnan(x));
  for (const float x : RunAttend(Queries(1, 64), {512}, edge)) EXPECT_FALSE(std::isnan(x));
  StoreKv(bad.data(), good.data(), 64, 0, edge.blocks[0]);
  for (const float x : RunAttend(Queries(1, 64), {1}, edge)) EXPECT_TRUE(std::isnan(x));
  auto q = Queries(2, 64);
  q[64] = NAN;
  const auto out = RunAttend(q, {70, 70}, Cache(KvType::kF32, 64, 70));
  EXPECT_TRUE(std::isfinite(out[0]));
  EXPECT_TRUE(std::isnan(out[64]));
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const Cache cache(KvType::kF32, 64, 600);
  auto q = Queries(2, 64);
  for (float& x : q) x *= 1e4f;  // scores of tens of thousands: one token takes it all
  const auto out = RunAttend(q, {600, 599}, cache);
  const auto views = cache.views();
  std::vector<float> want(q.size());
  const std::vector<int64_t> limits = {600, 599};
  reference::Attend(q.data(), limits.data(), 2, 64, views.data(), 10, want.data(), 64);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], want[i], 1e-2);
}

TEST_P(AttentionTest, StoreQuantizesToNearestEven) {
  const int64_t head_dim = 10;
  Cache cache(KvType::kInt8, head_dim, 64);
  std::vector<float> x = {127.0f, -127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 0.49f, 126.51f, 0.0f};
  const std::vector<int> want = {127, -127, 0, 2, 2, 0, -2, 0, 127, 0};
  StoreKv(x.data(), x.data(), head_dim, 9, cache.blocks[0]);
  EXPECT_EQ(cache.blocks[0].k_scale[9], 1.0f);
  EXPECT_EQ(cache.blocks[0].v_scale[9], 1.0f);
  for (int64_t d = 0; d < head_dim; ++d) {
    EXPECT_EQ(static_cast<int8_t*>(cache.blocks[0].k)[d * 64 + 9], want[static_cast<size_t>(d)]) << d;
    EXPECT_EQ(static_cast<int8_t*>(cache.blocks[0].v)[9 * head_dim + d], want[static_cast<size_t>(d)]) << d;
  }
  // A static scale clamps.
  StoreKv(x.data(), x.data(), head_dim, 9, cache.blocks[0], 0.5f, 0.25f);
  EXPECT_EQ(cache.blocks[0].k_scale[9], 0.5f);
  EXPECT_EQ(cache.blocks[0].v_scale[9], 0.25f);
  EXPECT_EQ(static_cast<int8_t*>(cache.blocks[0].k)[0 * 64 + 9], 127);
  EXPECT_EQ(static_cast<int8_t*>(cache.blocks[0].k)[1 * 64 + 9], -128);
  EXPECT_EQ(static_cast<int8_t*>(cache.blocks[0].v)[9 * head_dim + 3], 6);
  // Zero, tiny and non-finite vectors.
  std::vector<float> zero(10, 0.0f), tiny(10, 1e-40f), infinite(10, 1.0f);
  infinite[3] = kInfinity;
  StoreKv(zero.data(), tiny.data(), head_dim, 9, cache.blocks[0]);
  EXPECT_EQ(cache.blocks[0].k_scale[9], 0.0f);
  EXPECT_EQ(cache.blocks[0].v_scale[9], 0.0f);
  StoreKv(infinite.data(), zero.data(), head_dim, 9, cache.blocks[0]);
  EXPECT_TRUE(std::isnan(cache.blocks[0].k_scale[9]));
}

TEST_P(AttentionTest, StoredErrorIsHalfAStep) {
  const int64_t head_dim = 64, tokens = 64;
  const Cache cache(KvType::kInt8, head_dim, tokens, 100);
  const auto k = RandomFloats(tokens * head_dim, 100, 1.5), v = RandomFloats(tokens * head_dim, 101);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t d = 0; d < head_dim; ++d) {
      const size_t at = static_cast<size_t>(t * head_dim + d);
      EXPECT_NEAR(reference::KeyAt(cache.blocks[0], head_dim, d, t), k[at], 0.5001 * cache.blocks[0].k_scale[t]);
      EXPECT_NEAR(reference::ValueAt(cache.blocks[0], head_dim, t, d), v[at], 0.5001 * cache.blocks[0].v_scale[t]);
    }
  }
}

PITH_INSTANTIATE_PER_TARGET(AttentionTest);

}  // namespace
}  // namespace pith
