// Causal attention with grouped heads over segments and their prefixes, forward and backward, on floats. Internal.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace pith::train {

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

// Rows [begin, begin + length) see rows [prefix_begin, prefix_begin + prefix_length) of the prefix keys, and themselves
// causally.
struct AttentionSpan {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t prefix_begin = 0;
  int64_t prefix_length = 0;
};

// q[rows, q_width], k and v[rows, kv_width], after RoPE; prefix_k and prefix_v[prefix rows, kv_width], null when no
// span has a prefix. out[rows, q_width]; log_sums[heads, rows] is what the backward pass needs of the softmax.
struct AttentionInputs {
  AttentionShape shape;
  const std::vector<AttentionSpan>* spans = nullptr;
  int64_t rows = 0;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* prefix_k = nullptr;
  const float* prefix_v = nullptr;
};
void AttentionForward(const AttentionInputs& in, float* out, float* log_sums, ThreadPool& pool);

// Gradients of q, k and v from that of out. Probabilities are computed again, block by block; nothing of size rows x
// rows is held. Prefixes get no gradient.
void AttentionBackward(const AttentionInputs& in, const float* out, const float* log_sums, const float* dout, float* dq,
                       float* dk, float* dv, ThreadPool& pool);

}  // namespace pith::train
