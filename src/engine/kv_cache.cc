#include "engine/kv_cache.h"

#include <atomic>

namespace pith {
namespace {

constexpr int64_t kAlign = 64;

int64_t RoundUp(int64_t value) { return (value + kAlign - 1) / kAlign * kAlign; }

}  // namespace

int64_t KvShape::HeadBytes() const {
  const int64_t scales = type == KvType::kInt8 ? 2 * kKvBlockTokens * static_cast<int64_t>(sizeof(float)) : 0;
  return RoundUp(2 * KvBlockBytes(type, head_dim) + scales);
}

int64_t KvShape::BlockBytes() const { return layers * kv_heads * HeadBytes(); }

KvBlock::KvBlock(const KvShape& shape) : shape_(shape), data_(static_cast<size_t>(shape.BlockBytes())) {}

MutableKvBlock KvBlock::At(int64_t layer, int64_t kv_head) {
  std::byte* base = data_.data() + (layer * shape_.kv_heads + kv_head) * shape_.HeadBytes();
  const int64_t part = KvBlockBytes(shape_.type, shape_.head_dim);
  MutableKvBlock view{shape_.type, base, base + part, nullptr, nullptr};
  if (shape_.type == KvType::kInt8) {
    view.k_scale = reinterpret_cast<float*>(base + 2 * part);
    view.v_scale = view.k_scale + kKvBlockTokens;
  }
  return view;
}

KvBlockView KvBlock::At(int64_t layer, int64_t kv_head) const { return const_cast<KvBlock*>(this)->At(layer, kv_head); }

// Blocks that no sequence holds. It outlives the pool while blocks do.
struct KvPool::Shelf {
  std::mutex mutex;
  std::vector<std::unique_ptr<KvBlock>> free;
  std::atomic<int64_t> in_use{0};
};

std::shared_ptr<KvPool::Shelf> KvPool::MakeShelf() { return std::make_shared<Shelf>(); }

std::shared_ptr<KvBlock> KvPool::Wrap(std::unique_ptr<KvBlock> block) {
  shelf_->in_use.fetch_add(1);
  return {block.release(), [shelf = shelf_](KvBlock* raw) {
            std::unique_ptr<KvBlock> returned(raw);
            shelf->in_use.fetch_sub(1);
            const std::lock_guard lock(shelf->mutex);
            shelf->free.push_back(std::move(returned));
          }};
}

std::shared_ptr<KvBlock> KvPool::Allocate() {
  std::unique_ptr<KvBlock> block;
  {
    const std::lock_guard lock(shelf_->mutex);
    if (!shelf_->free.empty()) {
      block = std::move(shelf_->free.back());
      shelf_->free.pop_back();
    }
  }
  if (block == nullptr) block = std::make_unique<KvBlock>(shape_);
  return Wrap(std::move(block));
}

std::shared_ptr<KvBlock> KvPool::Copy(const KvBlock& block) {
  auto copy = Allocate();
  copy->data_ = block.data_;
  return copy;
}

int64_t KvPool::blocks_in_use() const { return shelf_->in_use.load(); }

void Sequence::Truncate(int64_t length) {
  if (length >= this->length()) return;
  origins_.resize(static_cast<size_t>(length));
  blocks_.resize(static_cast<size_t>((length + kKvBlockTokens - 1) / kKvBlockTokens));
}

int64_t Sequence::CommonPrefix(std::span<const int32_t> tokens, uint64_t adapter, int64_t adapter_from) const {
  int64_t n = 0;
  const auto limit = std::min<int64_t>(length(), static_cast<int64_t>(tokens.size()));
  while (n < limit) {
    const KvOrigin want{tokens[static_cast<size_t>(n)], n >= adapter_from ? adapter : 0};
    if (!(origins_[static_cast<size_t>(n)] == want)) break;
    ++n;
  }
  return n;
}

void Sequence::Extend(std::span<const int32_t> tokens, uint64_t adapter) {
  const int64_t begin = length();
  if (tokens.empty()) return;
  if (begin % kKvBlockTokens != 0 && blocks_.back().use_count() > 1) blocks_.back() = pool_->Copy(*blocks_.back());
  for (const int32_t token : tokens) origins_.push_back({token, adapter});
  const int64_t needed = (length() + kKvBlockTokens - 1) / kKvBlockTokens;
  while (static_cast<int64_t>(blocks_.size()) < needed) blocks_.push_back(pool_->Allocate());
}

}  // namespace pith
