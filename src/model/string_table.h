// A hash table from strings to ids, made for vocabularies: most strings are short and are compared inside their slot.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace pith {

// Open addressing with linear probing. The bytes of the strings belong to the caller and are handed to every call, as
// ranges of one arena by id.
class StringTable {
 public:
  struct Range {
    uint32_t begin = 0;
    uint32_t size = 0;
  };
  // The strings by id.
  struct Strings {
    const char* arena;
    const std::vector<Range>* ranges;
  };
  // A string made ready for look-up.
  struct Key {
    uint64_t hash = 0;
    uint64_t head = 0;  // the first 8 bytes of a short string, or the hash of a long one
    uint32_t tail = 0;  // its other bytes and its size, or a mark that it is long
    std::string_view text;
  };

  static Key MakeKey(std::string_view text);

  void Reserve(size_t count);
  // Inserts a string that `strings` has under `id`. Returns the id of an equal string that is there already, or -1.
  int32_t Insert(const Key& key, int32_t id, const Strings& strings);
  int32_t Find(const Key& key, const Strings& strings) const;  // -1 = absent
  int32_t Find(std::string_view text, const Strings& strings) const { return Find(MakeKey(text), strings); }
  // Starts loading the slot of a key that will be looked up soon.
  void Prefetch(const Key& key) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[Start(key)]);
  }

 private:
  struct Slot {
    uint64_t head = 0;
    uint32_t tail = 0;
    int32_t id = -1;  // -1 = free
  };
  size_t Start(const Key& key) const { return static_cast<size_t>(key.hash >> shift_); }
  void Grow(size_t slot_count, const Strings& strings);
  static bool Equal(const Slot& slot, const Key& key, const Strings& strings);

  std::vector<Slot> slots_;
  int shift_ = 63;
  size_t used_ = 0;
};

}  // namespace pith
