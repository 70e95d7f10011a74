// Keys and values of sequences, in blocks of 64 positions that sequences share.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "model/config.h"

namespace pith {

// What made one position of a KV cache. The keys and values of a position depend on all tokens up to it and on the
// adapter that was on at each of them, so a prefix may be reused only where every entry matches (demands 01, 02).
struct KvOrigin {
  int32_t token = -1;
  uint64_t adapter = 0;  // Adapter::id(), or 0 for the base

  bool operator==(const KvOrigin&) const = default;
};

// What is the same for all blocks of a pool: which model, in which weights, with which cache format made them.
struct KvIdentity {
  std::string model;  // fingerprint of the checkpoint and the weight format
  KvType type = KvType::kInt8;

  bool operator==(const KvIdentity&) const = default;
};

// Sizes of one block.
struct KvShape {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  KvType type = KvType::kInt8;

  int64_t HeadBytes() const;   // K and V of one (layer, kv head), scales included
  int64_t BlockBytes() const;  // all layers and heads
  int64_t BytesPerToken() const { return BlockBytes() / kKvBlockTokens; }
};

// Keys and values of 64 positions in all layers.
class KvBlock {
 public:
  explicit KvBlock(const KvShape& shape);

  MutableKvBlock At(int64_t layer, int64_t kv_head);
  KvBlockView At(int64_t layer, int64_t kv_head) const;

 private:
  friend class KvPool;
  KvShape shape_;
  std::vector<std::byte> data_;
};

// Makes blocks and takes them back for reuse. Thread-safe.
class KvPool {
 public:
  KvPool(KvShape shape, KvIdentity identity) : shape_(shape), identity_(std::move(identity)) {}

  const KvShape& shape() const { return shape_; }
  const KvIdentity& identity() const { return identity_; }

  // A block whose places all hold finite values (a new one zeros, a used one what was there).
  std::shared_ptr<KvBlock> Allocate();
  // An own copy of a block.
  std::shared_ptr<KvBlock> Copy(const KvBlock& block);

  int64_t blocks_in_use() const;
  int64_t bytes_in_use() const { return blocks_in_use() * shape_.BlockBytes(); }

 private:
  struct Shelf;
  std::shared_ptr<KvBlock> Wrap(std::unique_ptr<KvBlock> block);

  KvShape shape_;
  KvIdentity identity_;
  std::shared_ptr<Shelf> shelf_ = MakeShelf();
  static std::shared_ptr<Shelf> MakeShelf();
};

// The tokens that a model has seen in one context, with their keys and values. Copying is cheap: full blocks are
// shared, and a block is copied before it is written while another sequence holds it. Not thread-safe; copies are
// independent.
class Sequence {
 public:
  explicit Sequence(std::shared_ptr<KvPool> pool) : pool_(std::move(pool)) {}

  int64_t length() const { return static_cast<int64_t>(origins_.size()); }
  const std::vector<KvOrigin>& origins() const { return origins_; }
  const std::shared_ptr<KvPool>& pool() const { return pool_; }

  // Forgets the positions from `length` on.
  void Truncate(int64_t length);

  // How many leading positions of this sequence are exactly these tokens made by these adapters.
  // `adapter_from`: positions >= it were made with adapter `adapter`, the earlier ones by the base.
  int64_t CommonPrefix(std::span<const int32_t> tokens, uint64_t adapter, int64_t adapter_from) const;

  // The blocks that hold positions [0, length()).
  const std::vector<std::shared_ptr<KvBlock>>& blocks() const { return blocks_; }

  // Appends the origins of new positions and makes room for them; their keys and values are then written through
  // blocks(). Only the engine calls this.
  void Extend(std::span<const int32_t> tokens, uint64_t adapter);

 private:
  std::shared_ptr<KvPool> pool_;
  std::vector<std::shared_ptr<KvBlock>> blocks_;
  std::vector<KvOrigin> origins_;
};

}  // namespace pith
