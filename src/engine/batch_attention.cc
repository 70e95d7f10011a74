#include "engine/batch_attention.h"

#include <algorithm>
#include <cstring>

#include "kernels/attention.h"

namespace pith {
namespace {

constexpr int64_t kSpanRows = 64;  // rows of short sequences that are worked on together
constexpr int64_t kTileRows = 32;  // rows of a tile of a long chunk

// Copies `count` rows of one softmax state into another.
void CopyRows(const AttentionState& from, int64_t from_row, const AttentionState& to, int64_t to_row, int64_t count) {
  std::memcpy(to.max() + to_row, from.max() + from_row, static_cast<size_t>(count) * sizeof(float));
  std::memcpy(to.sum() + to_row, from.sum() + from_row, static_cast<size_t>(count) * sizeof(float));
  std::memcpy(to.acc() + to_row * to.stride(), from.acc() + from_row * from.stride(),
              static_cast<size_t>(count * from.stride()) * sizeof(float));
}

}  // namespace

BatchAttention::BatchAttention(const KvShape& shape, int64_t heads, ThreadPool& pool)
    : shape_(shape), heads_(heads), group_(heads / shape.kv_heads), pool_(pool) {
  scratch_.resize(static_cast<size_t>(pool.threads()));
}

void BatchAttention::Plan(std::span<const SequenceRows> sequences) {
  std::vector<int64_t> first_rows;
  rows_ = 0;
  for (const SequenceRows& s : sequences) {
    first_rows.push_back(rows_);
    rows_ += s.rows;
  }
  limits_.resize(static_cast<size_t>(rows_ * group_));
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t first_position = sequences[i].sequence->length() - sequences[i].rows;
    for (int64_t r = 0; r < sequences[i].rows; ++r) {
      std::fill_n(limits_.begin() + (first_rows[i] + r) * group_, group_, first_position + r + 1);
    }
  }
  spans_.clear();
  partition_nodes_.clear();
  state_offsets_.clear();
  state_floats_ = 0;
  q_.resize(static_cast<size_t>(shape_.kv_heads * rows_ * group_ * shape_.head_dim));

  size_t i = 0;
  while (i < sequences.size()) {
    const int64_t begin = first_rows[i];
    if (sequences[i].rows > kTileRows) {
      for (int64_t tile = 0; tile < sequences[i].rows; tile += kTileRows) {
        PlanSpan(sequences, first_rows, begin + tile, begin + std::min(tile + kTileRows, sequences[i].rows));
      }
      ++i;
      continue;
    }
    int64_t end = begin;
    while (i < sequences.size() && sequences[i].rows <= kTileRows && end - begin + sequences[i].rows <= kSpanRows) {
      end += sequences[i].rows;
      ++i;
    }
    PlanSpan(sequences, first_rows, begin, end);
  }
  states_.resize(static_cast<size_t>(state_floats_ * shape_.kv_heads));
}

void BatchAttention::PlanSpan(std::span<const SequenceRows> sequences, std::span<const int64_t> first_rows,
                              int64_t begin, int64_t end) {
  int64_t most = 0;
  for (int64_t r = begin; r < end; ++r) most = std::max(most, limits_[static_cast<size_t>(r * group_)]);
  Span span{begin, end, (most + kPartitionTokens - 1) / kPartitionTokens, partition_nodes_.size()};
  state_offsets_.push_back(state_floats_);
  state_floats_ += span.partitions * AttentionStateFloats((end - begin) * group_, shape_.head_dim);
  for (int64_t p = 0; p < span.partitions; ++p) {
    std::vector<Node> nodes;
    PlanPartition(sequences, first_rows, begin, end, p, &nodes);
    partition_nodes_.push_back(std::move(nodes));
  }
  spans_.push_back(span);
}

// Builds the tree of shared blocks: a node covers the longest run of blocks that the rows of a group have in common;
// where they part, each run of neighbours that agree becomes a child.
void BatchAttention::PlanPartition(std::span<const SequenceRows> sequences, std::span<const int64_t> first_rows,
                                   int64_t begin, int64_t end, int64_t partition, std::vector<Node>* nodes) {
  // The part of each sequence inside [begin, end), and the blocks its rows can see.
  struct Member {
    const Sequence* sequence;
    int64_t begin, end, blocks;
  };
  std::vector<Member> members;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t from = std::max(begin, first_rows[i]);
    const int64_t to = std::min(end, first_rows[i] + sequences[i].rows);
    if (from >= to) continue;
    const int64_t last = limits_[static_cast<size_t>((to - 1) * group_)];
    members.push_back({sequences[i].sequence, from, to, (last + kKvBlockTokens - 1) / kKvBlockTokens});
  }
  const int64_t first = partition * kPartitionBlocks;
  const int64_t stop = first + kPartitionBlocks;
  const auto block_of = [&](size_t m, int64_t b) -> const KvBlock* {
    return b < members[m].blocks ? members[m].sequence->blocks()[static_cast<size_t>(b)].get() : nullptr;
  };
  struct Group {
    size_t from, to;  // members
    int64_t block;
    int parent;
  };
  std::vector<Group> work{{0, members.size(), first, -1}};
  while (!work.empty()) {
    const Group group = work.back();
    work.pop_back();
    int64_t b = group.block;
    const auto agree = [&](int64_t at) {
      const KvBlock* want = block_of(group.from, at);
      for (size_t m = group.from + 1; m < group.to; ++m) {
        if (block_of(m, at) != want) return false;
      }
      return true;
    };
    while (b < stop && agree(b) && block_of(group.from, b) != nullptr) ++b;
    const bool done = b == stop || (agree(b) && block_of(group.from, b) == nullptr);
    int parent = group.parent;
    if (b > group.block || done) {
      nodes->push_back({members[group.from].begin, members[group.to - 1].end, members[group.from].sequence, group.block,
                        b - group.block, group.parent, done});
      parent = static_cast<int>(nodes->size()) - 1;
    }
    if (done) continue;
    for (size_t m = group.from; m < group.to;) {
      size_t to = m + 1;
      while (to < group.to && block_of(to, b) == block_of(m, b)) ++to;
      work.push_back({m, to, b, parent});
      m = to;
    }
  }
}

float* BatchAttention::StateMemory(const Span& span, int64_t kv_head, int64_t partition) {
  const auto index = static_cast<size_t>(&span - spans_.data());
  const int64_t rows = (span.end - span.begin) * group_;
  return states_.data() + kv_head * state_floats_ + state_offsets_[index] +
         partition * AttentionStateFloats(rows, shape_.head_dim);
}

void BatchAttention::RunPartition(const Span& span, int64_t layer, int64_t kv_head, int64_t partition,
                                  std::vector<float>* scratch) {
  const std::vector<Node>& nodes = partition_nodes_[span.first_node + static_cast<size_t>(partition)];
  const int64_t rows = (span.end - span.begin) * group_;
  const AttentionState result(StateMemory(span, kv_head, partition), rows, shape_.head_dim);
  // States of the inner nodes, one behind the other; a single node works on the result itself.
  std::vector<int64_t> offsets;
  int64_t floats = 0;
  for (const Node& node : nodes) {
    offsets.push_back(floats);
    if (nodes.size() > 1) floats += AttentionStateFloats((node.end - node.begin) * group_, shape_.head_dim);
  }
  if (static_cast<int64_t>(scratch->size()) < floats) scratch->resize(static_cast<size_t>(floats));
  KvBlockView views[kPartitionBlocks];
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    const int64_t node_rows = (node.end - node.begin) * group_;
    const AttentionState state =
        nodes.size() == 1 ? result : AttentionState(scratch->data() + offsets[i], node_rows, shape_.head_dim);
    if (node.parent < 0) {
      state.Reset();
    } else {
      const Node& parent = nodes[static_cast<size_t>(node.parent)];
      const AttentionState from(scratch->data() + offsets[static_cast<size_t>(node.parent)],
                                (parent.end - parent.begin) * group_, shape_.head_dim);
      CopyRows(from, (node.begin - parent.begin) * group_, state, 0, node_rows);
    }
    for (int64_t b = 0; b < node.blocks; ++b) {
      const KvBlock& block = *node.sequence->blocks()[static_cast<size_t>(node.first_block + b)];
      views[b] = block.At(layer, kv_head);
    }
    AttendBlocks(Query(node.begin, kv_head), limits_.data() + node.begin * group_, views, node.blocks, node.first_block,
                 state);
    if (node.leaf && nodes.size() > 1) CopyRows(state, 0, result, (node.begin - span.begin) * group_, node_rows);
  }
}

void BatchAttention::FinishSpan(const Span& span, int64_t kv_head, float* out, std::vector<float>* scratch) {
  const int64_t rows = (span.end - span.begin) * group_;
  const AttentionState total(StateMemory(span, kv_head, 0), rows, shape_.head_dim);
  for (int64_t p = 1; p < span.partitions; ++p) {
    MergeStates(total, AttentionState(StateMemory(span, kv_head, p), rows, shape_.head_dim));
  }
  const int64_t width = group_ * shape_.head_dim;
  if (static_cast<int64_t>(scratch->size()) < rows * shape_.head_dim) {
    scratch->resize(static_cast<size_t>(rows * shape_.head_dim));
  }
  FinishAttention(total, scratch->data(), shape_.head_dim);
  for (int64_t r = span.begin; r < span.end; ++r) {
    std::memcpy(out + r * heads_ * shape_.head_dim + kv_head * width, scratch->data() + (r - span.begin) * width,
                static_cast<size_t>(width) * sizeof(float));
  }
}

void BatchAttention::Run(int64_t layer, float* out) {
  int64_t most_partitions = 0;
  for (const Span& span : spans_) most_partitions = std::max(most_partitions, span.partitions);
  const int64_t heads = shape_.kv_heads;
  const auto spans = static_cast<int64_t>(spans_.size());
  if (most_partitions == 1) {
    pool_.Run(spans * heads, [&](int64_t task, int thread) {
      auto* scratch = &scratch_[static_cast<size_t>(thread)];
      const Span& span = spans_[static_cast<size_t>(task / heads)];
      RunPartition(span, layer, task % heads, 0, scratch);
      FinishSpan(span, task % heads, out, scratch);
    });
    return;
  }
  pool_.Run(spans * heads * most_partitions, [&](int64_t task, int thread) {
    const Span& span = spans_[static_cast<size_t>(task / (heads * most_partitions))];
    const int64_t partition = task % most_partitions;
    if (partition >= span.partitions) return;
    RunPartition(span, layer, task / most_partitions % heads, partition, &scratch_[static_cast<size_t>(thread)]);
  });
  pool_.Run(spans * heads, [&](int64_t task, int thread) {
    FinishSpan(spans_[static_cast<size_t>(task / heads)], task % heads, out, &scratch_[static_cast<size_t>(thread)]);
  });
}

}  // namespace pith
