#include "model/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "model/byte_alphabet.h"

namespace pith {

namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

uint64_t HashPair(uint64_t pair) { return (pair ^ (pair >> 29)) * 0xD6E8FEB86659FD93ULL; }

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxShown = 64;
  return "'" + std::string(text.substr(0, kMaxShown)) + (text.size() > kMaxShown ? "...'" : "'");
}

}  // namespace

std::string_view BpeModel::TokenBytes(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  const StringTable::Range& range = byte_ranges_[static_cast<size_t>(id)];
  return {byte_arena_.data() + range.begin, range.size};
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
    if (const int32_t id = by_bytes_.Find(word, bytes()); id >= 0) {
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

bool BpeBuilder::Store(std::string_view text) {
  if (text.size() > std::numeric_limits<uint32_t>::max() - arena_.size()) return false;
  arena_.insert(arena_.end(), text.begin(), text.end());
  return true;
}

Status BpeBuilder::AddToken(std::string_view form, int64_t id) {
  if (id < 0 || id >= kMaxTokens) {
    return Malformed("token " + Quoted(form) + " has the id " + std::to_string(id) + ", which is out of range");
  }
  const auto begin = static_cast<uint32_t>(arena_.size());
  if (!Store(form)) return Malformed("the vocabulary is larger than 4 GiB");
  tokens_.push_back({{begin, static_cast<uint32_t>(form.size())}, static_cast<int32_t>(id)});
  return {};
}

Status BpeBuilder::AddMerge(std::string_view left, std::string_view right) {
  if (left.empty() || right.empty()) {
    return Malformed("merge " + std::to_string(merges_.size()) + " (" + Quoted(left) + " + " + Quoted(right) +
                     ") has an empty part");
  }
  const auto begin = static_cast<uint32_t>(arena_.size());
  if (!Store(left) || !Store(right)) return Malformed("the merges are larger than 4 GiB");
  merges_.push_back({begin, static_cast<uint32_t>(left.size()), static_cast<uint32_t>(right.size())});
  return {};
}

Status BpeBuilder::AddMergeLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    return Malformed("merge " + std::to_string(merges_.size()) + " (" + Quoted(line) +
                     ") is not two tokens with a space between");
  }
  return AddMerge(line.substr(0, space), line.substr(space + 1));
}

Result<BpeModel> BpeBuilder::Build(bool ignore_merges) && {
  if (tokens_.empty()) return Malformed("the vocabulary is empty");
  BpeModel model;
  model.ignore_merges_ = ignore_merges;
  PITH_RETURN_IF_ERROR(IndexTokens(&model));
  PITH_RETURN_IF_ERROR(IndexMerges(&model));
  return model;
}

Status BpeBuilder::IndexTokens(BpeModel* model) {
  int32_t highest = 0;
  size_t form_bytes = 0;
  for (const Token& token : tokens_) {
    highest = std::max(highest, token.id);
    form_bytes += token.form.size;
  }
  const auto size = static_cast<size_t>(highest) + 1;
  model->form_arena_ = std::move(arena_);
  model->form_ranges_.resize(size);
  model->byte_ranges_.resize(size);
  model->by_form_.Reserve(tokens_.size());
  if (model->ignore_merges_) model->by_bytes_.Reserve(tokens_.size());

  std::string bytes;
  bytes.reserve(form_bytes);
  std::vector<bool> seen(size);
  std::vector<bool> in_alphabet(size);
  // Keys are made a few tokens ahead, so that memory accesses overlap.
  constexpr size_t kAhead = 8;
  StringTable::Key keys[kAhead];
  const auto form_of = [&](const Token& token) {
    return std::string_view(model->form_arena_.data() + token.form.begin, token.form.size);
  };
  for (size_t k = 0; k < tokens_.size() + kAhead; ++k) {
    const StringTable::Key key = keys[k % kAhead];
    if (k < tokens_.size()) {
      keys[k % kAhead] = StringTable::MakeKey(form_of(tokens_[k]));
      model->by_form_.Prefetch(keys[k % kAhead]);
    }
    if (k < kAhead) continue;
    const Token& token = tokens_[k - kAhead];
    const auto id = static_cast<size_t>(token.id);
    if (seen[id]) return Malformed("two tokens have the id " + std::to_string(token.id));
    seen[id] = true;
    const std::string_view form = form_of(token);
    model->form_ranges_[id] = token.form;
    if (model->by_form_.Insert(key, token.id, model->forms()) >= 0) {
      return Malformed("token " + Quoted(form) + " occurs twice");
    }
    const size_t begin = bytes.size();
    in_alphabet[id] = AppendAlphabetBytes(form, &bytes);
    if (!in_alphabet[id]) bytes += form;
    model->byte_ranges_[id] = {static_cast<uint32_t>(begin), static_cast<uint32_t>(bytes.size() - begin)};
  }
  model->byte_arena_.assign(bytes.begin(), bytes.end());
  if (model->ignore_merges_) {
    for (const Token& token : tokens_) {
      if (!in_alphabet[static_cast<size_t>(token.id)]) continue;
      model->by_bytes_.Insert(StringTable::MakeKey(model->TokenBytes(token.id)), token.id, model->bytes());
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(static_cast<uint8_t>(byte));
    model->byte_ids_[byte] = model->FindForm(AlphabetForm({&raw, 1}));
  }
  return {};
}

Status BpeBuilder::IndexMerges(BpeModel* model) {
  if (merges_.size() >= BpeModel::kNoRank) return Malformed("there are too many merges");
  const size_t slot_count = std::bit_ceil(std::max<size_t>(16, merges_.size() + merges_.size() / 2));
  model->merges_.resize(slot_count);
  model->merge_shift_ = 64 - static_cast<int>(std::bit_width(slot_count - 1));
  const StringTable::Strings forms = model->forms();

  // In batches, so that the memory accesses of one batch overlap.
  constexpr size_t kBatch = 16;
  StringTable::Key keys[kBatch][3];  // left, right, whole
  int32_t ids[kBatch][3];
  size_t slots[kBatch];
  for (size_t first = 0; first < merges_.size(); first += kBatch) {
    const size_t count = std::min(kBatch, merges_.size() - first);
    for (size_t k = 0; k < count; ++k) {
      const Merge& merge = merges_[first + k];
      const std::string_view whole(forms.arena + merge.begin, size_t{merge.left_size} + merge.right_size);
      keys[k][0] = StringTable::MakeKey(whole.substr(0, merge.left_size));
      keys[k][1] = StringTable::MakeKey(whole.substr(merge.left_size));
      keys[k][2] = StringTable::MakeKey(whole);
      for (const auto& key : keys[k]) model->by_form_.Prefetch(key);
    }
    for (size_t k = 0; k < count; ++k) {
      for (size_t part = 0; part < 3; ++part) {
        ids[k][part] = model->by_form_.Find(keys[k][part], forms);
        if (ids[k][part] >= 0) continue;
        return Malformed("merge " + std::to_string(first + k) + " (" + Quoted(keys[k][0].text) + " + " +
                         Quoted(keys[k][1].text) + ") needs the token " + Quoted(keys[k][part].text) +
                         ", which the vocabulary does not have");
      }
      slots[k] = static_cast<size_t>(HashPair(PairKey(ids[k][0], ids[k][1])) >> model->merge_shift_);
      __builtin_prefetch(&model->merges_[slots[k]], 1);
    }
    for (size_t k = 0; k < count; ++k) {
      const uint64_t pair = PairKey(ids[k][0], ids[k][1]);
      size_t i = slots[k];
      while (model->merges_[i].pair != BpeModel::kNoPair && model->merges_[i].pair != pair)
        i = (i + 1) & (slot_count - 1);
      // Of equal merges the last one counts.
      model->merges_[i] = {pair, static_cast<uint32_t>(first + k), ids[k][2]};
    }
  }
  return {};
}

}  // namespace pith
