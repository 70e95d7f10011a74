// Attention of query rows over a blocked key/value cache, and the one definition of its arithmetic.
//
// Cache layout. Per (layer, kv head), positions [64 b, 64 b + 64) lie in block b: keys transposed, K[head_dim][64],
// values V[64][head_dim]. Elements are int8 with one f32 scale per token (x = scale * integer), bf16, or f32.
//
// Arithmetic. For one query row q (already multiplied by 1 / sqrt(head_dim)) that sees the positions [0, limit):
//   score[t] = sum over d ascending of q[d] * K[d][t], one fused multiply-add each (multiply then add on SSSE3), times
//              k_scale[t] for int8
//   Positions are cut into partitions of 512 (8 blocks). Each partition starts empty (m = -inf, l = 0, acc = 0) and
//   takes its blocks in ascending order by the online softmax (Milakov & Gimelshein 2018):
//     m' = max(m, max score of visible t),  c = exp(m - m'),  p[t] = exp(score[t] - m') (0 where t >= limit)
//     l = l * c + (fixed tree sum of p),    acc[d] = acc[d] * c, then += (p[t] * v_scale[t]) * V[t][d] for t ascending,
//     then += +0
//   A block without a visible position changes nothing.
//   Partitions are merged in ascending order:
//     m = max(m1, m2), c1 = exp(m1 - m), c2 = exp(m2 - m), l = l1 * c1 + l2 * c2, acc = acc1 * c1 + acc2 * c2
//   where an empty side leaves the other one as it is. The result is acc / l.
// Every step of a row depends only on its q, its limit and the cache contents below the limit, never on how many rows
// are computed together or how the list of blocks is cut into calls. So streams over a shared prefix, chunked prefill
// and single-token decode agree bit for bit (on one target; targets differ in rounding). `+= +0` makes the sign of a
// zero sum independent of masked tokens.
//
// Masked positions: scores at or beyond the limit are replaced before use, whatever the memory holds. Values at masked
// positions are multiplied by 0, so a block must hold finite bf16/f32 values in all 64 places (the cache
// zero-initialises blocks); scales may hold anything there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pith {

inline constexpr int64_t kKvBlockTokens = 64;
inline constexpr int64_t kPartitionBlocks = 8;
inline constexpr int64_t kPartitionTokens = kKvBlockTokens * kPartitionBlocks;
inline constexpr int64_t kMaxHeadDim = 256;

enum class KvType { kInt8, kBF16, kF32 };

// Bytes of one element, and of the K (or of the V) part of one block.
int64_t KvElementBytes(KvType type);
int64_t KvBlockBytes(KvType type, int64_t head_dim);

// A block of one (layer, kv head), borrowed. The scales have 64 entries each and are null unless `type` is kInt8.
struct KvBlockView {
  KvType type = KvType::kInt8;
  const void* k = nullptr;
  const void* v = nullptr;
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
};

// The same block for writing.
struct MutableKvBlock {
  KvType type = KvType::kInt8;
  void* k = nullptr;
  void* v = nullptr;
  float* k_scale = nullptr;
  float* v_scale = nullptr;

  operator KvBlockView() const { return {type, k, v, k_scale, v_scale}; }  // NOLINT(google-explicit-constructor)
};

// Writes the key and value vectors (head_dim floats each) of one token into place `slot` (0..63) of a block.
// kInt8: scale = max|x| / 127 of this vector, or the given static scale when it is > 0 (checkpoints with one scale per
// tensor); integers are x / scale rounded to nearest even and clamped to [-127, 127] ([-128, 127] for a static scale);
// an all-zero vector has scale 0. A vector with NaN or infinity is stored with a NaN scale, so that the fault shows in
// the logits. kBF16: nearest even.
void StoreKv(const float* k, const float* v, int64_t head_dim, int64_t slot, const MutableKvBlock& block,
             float k_static_scale = 0.0f, float v_static_scale = 0.0f);

// Running softmax state of `rows` query rows, in memory that the caller owns (AttentionStateFloats(rows, head_dim)
// floats, any alignment). Copies of the object share that memory.
class AttentionState {
 public:
  AttentionState(float* memory, int64_t rows, int64_t head_dim);

  void Reset() const;  // all rows empty

  int64_t rows() const { return rows_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t stride() const { return stride_; }          // floats between rows of acc: head_dim rounded up to 16
  float* max() const { return memory_; }              // [rows]
  float* sum() const { return memory_ + rows_; }      // [rows]
  float* acc() const { return memory_ + 2 * rows_; }  // [rows, stride]
  // The rows [begin, begin + count) of this state cannot be a state of their own (the layout is by columns); give each
  // range that a thread works on its own memory instead.

 private:
  float* memory_;
  int64_t rows_;
  int64_t head_dim_;
  int64_t stride_;
};

int64_t AttentionStateFloats(int64_t rows, int64_t head_dim);

// Continues `state` over n_blocks blocks at the absolute positions [64 * first_block, 64 * (first_block + n_blocks)).
// q: [state.rows(), head_dim], contiguous, scaled by 1 / sqrt(head_dim). limits[r]: row r sees positions below it.
// To follow the definition above, all blocks between two Resets lie in one partition and come in ascending order.
// head_dim is even, 2..256; blocks[i].type may differ from block to block. Allocates nothing; uses up to 160 KiB of
// stack.
void AttendBlocks(const float* q, const int64_t* limits, const KvBlockView* blocks, int64_t n_blocks,
                  int64_t first_block, const AttentionState& state);

// total = merge(total, part), row by row; `part` is the partition that follows.
void MergeStates(const AttentionState& total, const AttentionState& part);

// out[r * out_stride + d] = acc / sum. A row that saw nothing becomes 0.
void FinishAttention(const AttentionState& state, float* out, int64_t out_stride);

// The whole of it for some rows of one kv head: partitions in order, merged and finished. blocks[i] holds positions
// [64 i, 64 i + 64); limits[r] <= 64 * n_blocks. `workspace` has AttentionWorkspaceFloats(rows, head_dim) floats.
int64_t AttentionWorkspaceFloats(int64_t rows, int64_t head_dim);
void Attend(const float* q, const int64_t* limits, int64_t rows, int64_t head_dim, const KvBlockView* blocks,
            int64_t n_blocks, float* workspace, float* out, int64_t out_stride);

}  // namespace pith
