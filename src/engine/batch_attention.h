// Attention of a batch of rows, over caches that sequences may share. Internal to the engine.
//
// The arithmetic of a row is fixed by kernels/attention.h. This class only decides what is computed together: rows of
// sequences that hold the same block attend to it in one call (the shared prompt of N streams is read and converted
// once), long caches are cut in their partitions and long chunks in tiles, so that threads share the work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "engine/kv_cache.h"

namespace pith {

// Consecutive rows of the batch that belong to one sequence: its last `rows` positions.
struct SequenceRows {
  const Sequence* sequence = nullptr;
  int64_t rows = 0;
};

class BatchAttention {
 public:
  BatchAttention(const KvShape& shape, int64_t heads, ThreadPool& pool);

  // Lays out the work for one step; the same for every layer. The sequences keep their blocks until Run is done.
  void Plan(std::span<const SequenceRows> sequences);

  // Queries of the planned rows, to be filled before Run: [kv_heads][rows * group][head_dim], where group = heads /
  // kv_heads, rotated and multiplied by 1 / sqrt(head_dim). Query head h of a row belongs to kv head h / group.
  float* Query(int64_t row, int64_t kv_head) { return q_.data() + (kv_head * rows_ + row) * group_ * shape_.head_dim; }

  // out[rows, heads * head_dim].
  void Run(int64_t layer, float* out);

 private:
  // Rows [begin, end) of the batch that are worked on together: several short sequences, or a tile of a long one.
  struct Span {
    int64_t begin, end;
    int64_t partitions;
    size_t first_node;  // of partition 0 in partition_nodes_
  };
  // Rows of a span that attend to consecutive blocks of one sequence (which all of them share).
  struct Node {
    int64_t begin, end;  // rows of the batch
    const Sequence* sequence;
    int64_t first_block, blocks;
    int parent;  // node of the same partition whose state is continued, or -1
    bool leaf;
  };

  void PlanSpan(std::span<const SequenceRows> sequences, std::span<const int64_t> first_rows, int64_t begin,
                int64_t end);
  void PlanPartition(std::span<const SequenceRows> sequences, std::span<const int64_t> first_rows, int64_t begin,
                     int64_t end, int64_t partition, std::vector<Node>* nodes);
  float* StateMemory(const Span& span, int64_t kv_head, int64_t partition);
  void RunPartition(const Span& span, int64_t layer, int64_t kv_head, int64_t partition, std::vector<float>* scratch);
  void FinishSpan(const Span& span, int64_t kv_head, float* out, std::vector<float>* scratch);

  KvShape shape_;
  int64_t heads_, group_;
  ThreadPool& pool_;
  int64_t rows_ = 0;
  std::vector<Span> spans_;
  std::vector<std::vector<Node>> partition_nodes_;  // by span, then partition
  std::vector<int64_t> state_offsets_;              // of (span, partition 0), in floats per kv head
  int64_t state_floats_ = 0;                        // per kv head
  std::vector<int64_t> limits_;                     // [rows * group]
  std::vector<float> q_, states_;
  std::vector<std::vector<float>> scratch_;  // one per thread
};

}  // namespace pith
