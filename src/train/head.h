// The LM head and the cross-entropy on it, a few rows at a time: the logits of a large vocabulary are never all held.
// Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "train/frozen_linear.h"
#include "train/train_model.h"

namespace pith::train {

// logits = W h + b (+ scaling * B A h). W is frozen, or trained with its gradient beside it. The factors of a LoRA on
// the head and their gradients are null without one.
struct Head {
  int64_t vocab = 0;
  int64_t hidden = 0;
  const FrozenLinear* frozen = nullptr;
  const float* weight = nullptr;  // [vocab, hidden] when not frozen
  float* weight_gradient = nullptr;
  int64_t rank = 0;
  float scaling = 0;
  const float* a = nullptr;  // [rank, hidden]
  const float* b = nullptr;  // [vocab, rank]
  float* a_gradient = nullptr;
  float* b_gradient = nullptr;
};

// Rows of states that are handled at once.
int64_t HeadChunk(int64_t vocab);

// logits[rows, vocab] of states h[rows, hidden]. `adapter` has a value per row: whether the LoRA acts; empty = on
// everywhere.
void HeadLogits(const Head& head, const float* h, int64_t rows, std::span<const uint8_t> adapter, float* logits,
                ThreadPool& pool);

// log p and entropy of the labels at h[rows, hidden], of softmax(logits / temperature).
void HeadScores(const Head& head, const float* h, std::span<const int32_t> labels, std::span<const uint8_t> adapter,
                TokenScores* scores, ThreadPool& pool, float temperature = 1.0F);

// Of loss = sum_i weights[i] * -log p(label i): the scores (when not null), dh[rows, hidden], and what is added to the
// gradients of the head.
void HeadBackward(const Head& head, const float* h, std::span<const int32_t> labels, std::span<const float> weights,
                  std::span<const uint8_t> adapter, TokenScores* scores, float* dh, ThreadPool& pool,
                  float temperature = 1.0F);

// Of a loss of the logits themselves, without a LoRA: `gradient` replaces the logits of rows [first, first + count) by
// d loss / d logits, chunk by chunk in order. dh and the gradient of the head as above.
void HeadBackwardOfLogits(const Head& head, const float* h, int64_t rows,
                          const std::function<void(int64_t first, int64_t count, float* logits)>& gradient, float* dh,
                          ThreadPool& pool);

}  // namespace pith::train
