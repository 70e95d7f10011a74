#include "model/string_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace pith {

namespace {

constexpr size_t kMaxShort = 11;
constexpr uint32_t kLong = 0xFF000000;
constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ULL;

uint64_t Mix(uint64_t hash, uint64_t piece) {
  hash = (std::rotl(hash, 23) ^ piece) * kMultiplier;
  return hash ^ (hash >> 32);
}

}  // namespace

StringTable::Key StringTable::MakeKey(std::string_view text) {
  Key key{0, 0, 0, text};
  if (text.size() <= kMaxShort) {
    unsigned char bytes[12] = {};
    if (!text.empty()) std::memcpy(bytes, text.data(), text.size());
    bytes[kMaxShort] = static_cast<unsigned char>(text.size());
    std::memcpy(&key.head, bytes, 8);
    std::memcpy(&key.tail, bytes + 8, 4);
    key.hash = Mix(Mix(0, key.head), key.tail) * kMultiplier;
    return key;
  }
  const char* data = text.data();
  size_t left = text.size();
  uint64_t hash = left;
  for (; left >= 8; data += 8, left -= 8) {
    uint64_t piece = 0;
    std::memcpy(&piece, data, 8);
    hash = Mix(hash, piece);
  }
  uint64_t piece = 0;
  std::memcpy(&piece, data, left);
  key.head = Mix(hash, piece);
  key.tail = kLong;
  key.hash = key.head * kMultiplier;
  return key;
}

bool StringTable::Equal(const Slot& slot, const Key& key, const Strings& strings) {
  if (slot.head != key.head || slot.tail != key.tail) return false;
  if (key.tail != kLong) return true;
  const Range& range = (*strings.ranges)[static_cast<size_t>(slot.id)];
  return std::string_view(strings.arena + range.begin, range.size) == key.text;
}

void StringTable::Reserve(size_t count) {
  // At most two thirds full.
  const size_t wanted = std::bit_ceil(std::max<size_t>(16, count + count / 2));
  if (used_ == 0 && wanted > slots_.size()) Grow(wanted, {nullptr, nullptr});
}

void StringTable::Grow(size_t slot_count, const Strings& strings) {
  std::vector<Slot> old(slot_count);
  old.swap(slots_);
  shift_ = 64 - static_cast<int>(std::bit_width(slot_count - 1));
  used_ = 0;
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    const Range& range = (*strings.ranges)[static_cast<size_t>(slot.id)];
    Insert(MakeKey({strings.arena + range.begin, range.size}), slot.id, strings);
  }
}

int32_t StringTable::Insert(const Key& key, int32_t id, const Strings& strings) {
  if ((used_ + 1) * 3 > slots_.size() * 2) Grow(std::max<size_t>(16, slots_.size() * 2), strings);
  const size_t mask = slots_.size() - 1;
  size_t i = Start(key);
  for (; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (Equal(slots_[i], key, strings)) return slots_[i].id;
  }
  slots_[i] = {key.head, key.tail, id};
  ++used_;
  return -1;
}

int32_t StringTable::Find(const Key& key, const Strings& strings) const {
  if (slots_.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  for (size_t i = Start(key); slots_[i].id >= 0; i = (i + 1) & mask) {
    if (Equal(slots_[i], key, strings)) return slots_[i].id;
  }
  return -1;
}

}  // namespace pith
