#include "model/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "model/byte_alphabet.h"

namespace pith {

namespace {

// Multiply-and-fold over 8-byte pieces; quality is enough for tables of power-of-two size that use the top bits.
uint64_t HashBytes(std::string_view text) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ULL;
  uint64_t hash = text.size() * kMultiplier;
  const char* data = text.data();
  size_t left = text.size();
  while (left >= 8) {
    uint64_t piece = 0;
    std::memcpy(&piece, data, 8);
    hash = (std::rotl(hash, 23) ^ piece) * kMultiplier;
    data += 8;
    left -= 8;
  }
  if (left > 0) {
    uint64_t piece = 0;
    std::memcpy(&piece, data, left);
    hash = (std::rotl(hash, 23) ^ piece) * kMultiplier;
  }
  hash ^= hash >> 32;
  return hash * kMultiplier;
}

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

uint64_t HashPair(uint64_t pair) { return (pair ^ (pair >> 29)) * 0xD6E8FEB86659FD93ULL; }

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxShown = 64;
  return "'" + std::string(text.substr(0, kMaxShown)) + (text.size() > kMaxShown ? "...'" : "'");
}

}  // namespace

void StringTable::Reserve(size_t count) {
  const size_t wanted = std::bit_ceil(std::max<size_t>(16, count * 2));
  if (wanted > slots_.size()) Grow(wanted);
}

void StringTable::Grow(size_t slot_count) {
  std::vector<Slot> old(slot_count);
  old.swap(slots_);
  used_ = 0;
  for (const Slot& slot : old) {
    if (slot.id >= 0) Insert({slot.data, slot.size}, slot.id);
  }
}

int32_t StringTable::Insert(std::string_view text, int32_t id) {
  if (used_ * 2 >= slots_.size()) Grow(std::max<size_t>(16, slots_.size() * 2));
  const uint64_t hash = HashBytes(text);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  const size_t mask = slots_.size() - 1;
  size_t i = static_cast<size_t>(hash) & mask;
  for (; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (slots_[i].tag == tag && std::string_view(slots_[i].data, slots_[i].size) == text) return slots_[i].id;
  }
  slots_[i] = {tag, id, text.data(), static_cast<uint32_t>(text.size())};
  ++used_;
  return -1;
}

int32_t StringTable::Find(std::string_view text) const {
  if (slots_.empty()) return -1;
  const uint64_t hash = HashBytes(text);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  const size_t mask = slots_.size() - 1;
  for (size_t i = static_cast<size_t>(hash) & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (slots_[i].tag == tag && std::string_view(slots_[i].data, slots_[i].size) == text) return slots_[i].id;
  }
  return -1;
}

std::string_view BpeModel::TokenBytes(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  const Span& span = bytes_[static_cast<size_t>(id)];
  return {span.data, span.size};
}

bool BpeModel::CoversAllBytes() const {
  return std::all_of(std::begin(byte_ids_), std::end(byte_ids_), [](int32_t id) { return id >= 0; });
}

const BpeModel::MergeSlot* BpeModel::FindMerge(int32_t left, int32_t right) const {
  const uint64_t pair = PairKey(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t i = static_cast<size_t>(HashPair(pair) >> merge_shift_);; i = (i + 1) & mask) {
    if (merges_[i].pair == pair) return &merges_[i];
    if (merges_[i].pair == kNoPair) return nullptr;
  }
}

void BpeModel::Encode(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* out) const {
  if (ignore_merges_) {
    if (const int32_t id = by_bytes_.Find(word); id >= 0) {
      out->push_back(id);
      return;
    }
  }
  scratch->ids.clear();
  for (const char byte : word) {
    if (const int32_t id = byte_ids_[static_cast<uint8_t>(byte)]; id >= 0) scratch->ids.push_back(id);
  }
  constexpr size_t kShort = 48;  // below this, scanning for the best pair is faster than a heap
  if (scratch->ids.size() <= kShort) {
    MergeShort(scratch, out);
  } else {
    MergeLong(scratch, out);
  }
}

void BpeModel::MergeShort(BpeScratch* scratch, std::vector<int32_t>* out) const {
  auto& ids = scratch->ids;
  auto& ranks = scratch->ranks;    // rank of the merge of symbol i with symbol i + 1
  auto& merged = scratch->merged;  // and the token that it makes
  size_t count = ids.size();
  ranks.assign(count, kNoRank);
  merged.resize(count);
  const auto set_pair = [&](size_t i) {
    const MergeSlot* merge = i + 1 < count ? FindMerge(ids[i], ids[i + 1]) : nullptr;
    ranks[i] = merge == nullptr ? kNoRank : merge->rank;
    if (merge != nullptr) merged[i] = merge->id;
  };
  for (size_t i = 0; i < count; ++i) set_pair(i);
  while (count > 1) {
    const auto end = ranks.begin() + static_cast<ptrdiff_t>(count);
    const auto best = std::min_element(ranks.begin(), end);  // the leftmost of equals
    if (*best == kNoRank) break;
    const auto at = best - ranks.begin();
    const auto i = static_cast<size_t>(at);
    ids[i] = merged[i];
    const auto shift = [&](auto& values) {
      std::copy(values.begin() + at + 2, values.begin() + static_cast<ptrdiff_t>(count), values.begin() + at + 1);
    };
    shift(ids);
    shift(ranks);
    shift(merged);
    --count;
    set_pair(i);
    if (i > 0) set_pair(i - 1);
  }
  out->insert(out->end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count));
}

void BpeModel::MergeLong(BpeScratch* scratch, std::vector<int32_t>* out) const {
  // Symbols form a linked list, candidate pairs a heap ordered by (rank, position). A heap entry is stale, and skipped,
  // when the pair at its position has changed since.
  auto& ids = scratch->ids;
  auto& ranks = scratch->ranks;
  auto& merged = scratch->merged;
  auto& next = scratch->next;
  auto& previous = scratch->previous;
  auto& heap = scratch->heap;
  constexpr uint32_t kEnd = ~uint32_t{0};
  const auto count = static_cast<uint32_t>(ids.size());
  ranks.assign(count, kNoRank);
  merged.resize(count);
  next.resize(count);
  previous.resize(count);
  heap.clear();
  const auto set_pair = [&](uint32_t i) {
    const MergeSlot* merge = next[i] == kEnd ? nullptr : FindMerge(ids[i], ids[next[i]]);
    ranks[i] = merge == nullptr ? kNoRank : merge->rank;
    if (merge == nullptr) return false;
    merged[i] = merge->id;
    return true;
  };
  const auto entry = [&](uint32_t i) { return (static_cast<uint64_t>(ranks[i]) << 32) | i; };
  for (uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == count ? kEnd : i + 1;
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (set_pair(i)) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](uint32_t i) {
    if (!set_pair(i)) return;
    heap.push_back(entry(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<uint32_t>(top);
    if (ranks[i] != static_cast<uint32_t>(top >> 32)) continue;  // stale
    const uint32_t gone = next[i];
    ids[i] = merged[i];
    next[i] = next[gone];
    if (next[i] != kEnd) previous[next[i]] = i;
    ranks[gone] = kNoRank;
    push(i);
    if (previous[i] != kEnd) push(previous[i]);
  }
  for (uint32_t i = 0; i != kEnd; i = next[i]) out->push_back(ids[i]);
}

void BpeBuilder::Reserve(size_t tokens, size_t merges, size_t bytes) {
  tokens_.reserve(tokens);
  merges_.reserve(merges);
  arena_.reserve(bytes);
}

Status BpeBuilder::AddToken(std::string_view form, int64_t id) {
  if (id < 0 || id >= kMaxTokens) {
    return Malformed("token " + Quoted(form) + " has the id " + std::to_string(id) + ", which is out of range");
  }
  if (form.size() > std::numeric_limits<uint32_t>::max()) return Malformed("a token is too long");
  tokens_.push_back({arena_.size(), static_cast<uint32_t>(form.size()), static_cast<int32_t>(id)});
  arena_.insert(arena_.end(), form.begin(), form.end());
  return {};
}

Status BpeBuilder::AddMerge(std::string_view left, std::string_view right) {
  if (left.empty() || right.empty() || left.size() + right.size() > std::numeric_limits<uint32_t>::max()) {
    return Malformed("merge " + std::to_string(merges_.size()) + " (" + Quoted(left) + " + " + Quoted(right) +
                     ") has an empty part or is too long");
  }
  merges_.push_back({arena_.size(), static_cast<uint32_t>(left.size()), static_cast<uint32_t>(right.size())});
  arena_.insert(arena_.end(), left.begin(), left.end());
  arena_.insert(arena_.end(), right.begin(), right.end());
  return {};
}

Status BpeBuilder::AddMergeLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    return Malformed("merge " + std::to_string(merges_.size()) + " (" + Quoted(line) + ") is not two tokens with a space between");
  }
  return AddMerge(line.substr(0, space), line.substr(space + 1));
}

Result<BpeModel> BpeBuilder::Build(bool ignore_merges) && {
  if (tokens_.empty()) return Malformed("the vocabulary is empty");
  if (merges_.size() >= BpeModel::kNoRank) return Malformed("there are too many merges");
  BpeModel model;
  model.ignore_merges_ = ignore_merges;
  model.form_arena_ = std::move(arena_);
  const char* const forms = model.form_arena_.data();
  const auto form_of = [&](const Token& token) { return std::string_view(forms + token.begin, token.size); };

  int32_t highest = 0;
  size_t form_bytes = 0;
  for (const Token& token : tokens_) {
    highest = std::max(highest, token.id);
    form_bytes += token.size;
  }
  const auto size = static_cast<size_t>(highest) + 1;
  model.bytes_.resize(size);
  model.by_form_.Reserve(tokens_.size());

  // Raw bytes are never longer than the form, so the arena does not move while spans point into it.
  std::string bytes;
  bytes.reserve(form_bytes);
  std::vector<uint8_t> in_alphabet(size, 0);
  for (const Token& token : tokens_) {
    const std::string_view form = form_of(token);
    if (model.by_form_.Insert(form, token.id) >= 0) return Malformed("token " + Quoted(form) + " occurs twice");
    auto& span = model.bytes_[static_cast<size_t>(token.id)];
    if (span.data != nullptr) return Malformed("two tokens have the id " + std::to_string(token.id));
    const size_t begin = bytes.size();
    in_alphabet[static_cast<size_t>(token.id)] = AppendAlphabetBytes(form, &bytes) ? 1 : 0;
    if (in_alphabet[static_cast<size_t>(token.id)] == 0) bytes += form;
    span = {bytes.data() + begin, static_cast<uint32_t>(bytes.size() - begin)};
  }
  model.byte_arena_.assign(bytes.begin(), bytes.end());
  for (auto& span : model.bytes_) {
    if (span.data != nullptr) span.data = model.byte_arena_.data() + (span.data - bytes.data());
  }
  if (ignore_merges) {
    model.by_bytes_.Reserve(tokens_.size());
    for (const Token& token : tokens_) {
      if (in_alphabet[static_cast<size_t>(token.id)] != 0) {
        model.by_bytes_.Insert(model.TokenBytes(token.id), token.id);
      }
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(static_cast<uint8_t>(byte));
    model.byte_ids_[byte] = model.by_form_.Find(AlphabetForm({&raw, 1}));
  }

  const size_t slot_count = std::bit_ceil(std::max<size_t>(16, merges_.size() * 2));
  model.merges_.resize(slot_count);
  model.merge_shift_ = 64 - static_cast<int>(std::bit_width(slot_count - 1));
  for (size_t rank = 0; rank < merges_.size(); ++rank) {
    const Merge& merge = merges_[rank];
    const std::string_view whole(forms + merge.begin, merge.left_size + merge.right_size);
    const std::string_view left = whole.substr(0, merge.left_size);
    const std::string_view right = whole.substr(merge.left_size);
    const int32_t left_id = model.by_form_.Find(left);
    const int32_t right_id = model.by_form_.Find(right);
    const int32_t id = model.by_form_.Find(whole);
    if (left_id < 0 || right_id < 0 || id < 0) {
      const std::string_view missing = left_id < 0 ? left : right_id < 0 ? right : whole;
      return Malformed("merge " + std::to_string(rank) + " (" + Quoted(left) + " + " + Quoted(right) + ") needs the token " +
                       Quoted(missing) + ", which the vocabulary does not have");
    }
    const uint64_t pair = PairKey(left_id, right_id);
    size_t i = static_cast<size_t>(HashPair(pair) >> model.merge_shift_);
    while (model.merges_[i].pair != BpeModel::kNoPair && model.merges_[i].pair != pair) i = (i + 1) & (slot_count - 1);
    model.merges_[i] = {pair, static_cast<uint32_t>(rank), id};  // of equal merges the last one counts
  }
  return model;
}

}  // namespace pith
