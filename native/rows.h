// Rows of tables: ids counted, rows of clients brought together, and the quotes of a CSV.
// fedtally/kernels/reference.py has the definitions.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fedtally {

// The upper 6 bits of a client times this number are the number of its bucket.
static constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
static constexpr unsigned kBucketShift = 64 - 6;
static constexpr size_t kBuckets = 64;

static inline size_t bucket_of(uint64_t client) { return (client * kGolden) >> kBucketShift; }

// Numbers distinct ids in the order in which they are met. Nobody knows the seed, or a table could
// hold ids that all want one slot.
class Numbers {
 public:
  Numbers() : slots_(size_t(1) << 12, Slot{0, -1}) {}

  int64_t of(uint64_t id) {
    for (size_t at = place(id);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].number >= 0) {
        if (slots_[at].id == id) return slots_[at].number;
        continue;
      }
      slots_[at] = {id, (int64_t)known_};
      if (++known_ * 2 > slots_.size()) grow();
      return (int64_t)known_ - 1;
    }
  }

  size_t known() const { return known_; }

 private:
  struct Slot {
    uint64_t id;
    int64_t number;
  };

  static uint64_t seed() {
    static const uint64_t drawn = [] {
      std::random_device device;
      return (uint64_t)device() << 32 | device();
    }();
    return drawn;
  }

  size_t place(uint64_t id) const {
    const unsigned __int128 product = (unsigned __int128)(id ^ seed_) * kGolden;
    return ((uint64_t)product ^ (uint64_t)(product >> 64)) & (slots_.size() - 1);
  }

  void grow() {
    std::vector<Slot> before(slots_.size() * 4, Slot{0, -1});
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.number < 0) continue;
      size_t at = place(slot.id);
      while (slots_[at].number >= 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t known_ = 0;
  const uint64_t seed_ = seed();
};

// first, counts: with room for `count` values. Returns the number of distinct ids.
inline size_t group(const uint64_t* ids, size_t count, int64_t* first, int64_t* counts) {
  Numbers numbers;
  for (size_t i = 0; i < count; i++) {
    const size_t known = numbers.known(), number = (size_t)numbers.of(ids[i]);
    if (number == known) {
      first[number] = (int64_t)i;
      counts[number] = 0;
    }
    counts[number]++;
  }
  return numbers.known();
}

// rows [columns][count], in the order of the buckets of the first column; starts [kBuckets + 1]
inline void spread(const std::vector<const uint64_t*>& columns, size_t count, uint64_t* rows,
                   int64_t* starts) {
  std::fill(starts, starts + kBuckets + 1, 0);
  for (size_t i = 0; i < count; i++) starts[bucket_of(columns[0][i]) + 1]++;
  for (size_t b = 0; b < kBuckets; b++) starts[b + 1] += starts[b];
  for (size_t c = 0; c < columns.size(); c++, rows += count) {
    int64_t next[kBuckets];
    std::copy(starts, starts + kBuckets, next);
    for (size_t i = 0; i < count; i++) rows[next[bucket_of(columns[0][i])]++] = columns[c][i];
  }
}

// What a row has besides its client: its id, or its round and its id.
struct RoundAndId {
  uint64_t round, id;
  bool operator<(const RoundAndId& other) const {
    return round != other.round ? round < other.round : id < other.id;
  }
  bool operator==(const RoundAndId& other) const { return round == other.round && id == other.id; }
};

// rows [2 or 3][count]: client, id, round. Fills `out`, of the same shape, from the left of each of
// its columns, and returns the number of distinct rows.
template <class Rest, class Load, class Store>
size_t sort_rows(const uint64_t* clients, size_t count, uint64_t* out, Load load, Store store) {
  Numbers numbers;
  std::vector<uint32_t> owner(count);
  std::vector<uint64_t> who;
  std::vector<size_t> next;
  for (size_t i = 0; i < count; i++) {
    owner[i] = (uint32_t)numbers.of(clients[i]);
    if (owner[i] == who.size()) {
      who.push_back(clients[i]);
      next.push_back(0);
    }
    next[owner[i]]++;
  }
  std::vector<uint32_t> order(who.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = (uint32_t)i;
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const size_t own = bucket_of(who[a]), other = bucket_of(who[b]);
    return own != other ? own < other : who[a] < who[b];
  });
  size_t begin = 0;
  for (const uint32_t number : order) {
    const size_t size = next[number];
    next[number] = begin;
    begin += size;
  }
  std::vector<Rest> rests(count);
  for (size_t i = 0; i < count; i++) rests[next[owner[i]]++] = load(i);
  size_t done = 0;
  begin = 0;
  for (const uint32_t number : order) {
    Rest *const from = rests.data() + begin, *const to = rests.data() + next[number];
    begin = next[number];
    std::sort(from, to);
    Rest* const last = std::unique(from, to);
    for (Rest* rest = from; rest < last; rest++, done++) {
      out[done] = who[number];
      store(*rest, done);
    }
  }
  return done;
}

inline size_t distinct_rows(const uint64_t* rows, size_t columns, size_t count, uint64_t* out) {
  const uint64_t *const ids = rows + count, *const rounds = rows + 2 * count;
  uint64_t *const out_ids = out + count, *const out_rounds = out + 2 * count;
  if (columns == 2)
    return sort_rows<uint64_t>(
        rows, count, out, [&](size_t i) { return ids[i]; },
        [&](uint64_t id, size_t at) { out_ids[at] = id; });
  return sort_rows<RoundAndId>(
      rows, count, out, [&](size_t i) { return RoundAndId{rounds[i], ids[i]}; },
      [&](const RoundAndId& rest, size_t at) {
        out_ids[at] = rest.id;
        out_rounds[at] = rest.round;
      });
}

// A bit for each of 64 bytes, the first of them lowest: whether it is a quote, and whether it ends
// a field.
struct Letters {
  uint64_t quotes, ends;
};

#if defined(__SSE2__)
inline Letters letters_of(const uint8_t* block, uint8_t delimiter) {
  Letters found{0, 0};
  for (size_t part = 0; part < 64; part += 16) {
    const __m128i bytes = _mm_loadu_si128((const __m128i*)(block + part));
    const auto is = [&](uint8_t letter) {
      return _mm_cmpeq_epi8(bytes, _mm_set1_epi8((char)letter));
    };
    const __m128i ends = _mm_or_si128(is(delimiter), _mm_or_si128(is('\n'), is('\r')));
    found.quotes |= (uint64_t)_mm_movemask_epi8(is('"')) << part;
    found.ends |= (uint64_t)_mm_movemask_epi8(ends) << part;
  }
  return found;
}
#else
inline Letters letters_of(const uint8_t* block, uint8_t delimiter) {
  Letters found{0, 0};
  for (size_t i = 0; i < 64; i++) {
    found.quotes |= (uint64_t)(block[i] == '"') << i;
    found.ends |= (uint64_t)(block[i] == delimiter || block[i] == '\n' || block[i] == '\r') << i;
  }
  return found;
}
#endif

// Whether each quote that begins a field is closed at the end of one, quotes inside it are doubled,
// and no other field has any.
inline bool quotes_are_closed(const uint8_t* data, size_t count, uint8_t delimiter) {
  uint64_t inside = 0;   // all bits, if the block begins between two quotes
  uint64_t follows = 1;  // the lowest bit: whether a field, or a quote in quotes, may begin here
  bool waits = false;    // a quote at the end of the last block must be followed by an end
  for (size_t i = 0; i < count; i += 64) {
    uint8_t rest[64];
    const uint8_t* block = data + i;
    if (count - i < 64) {
      std::memset(rest, '\n', 64);
      std::memcpy(rest, data + i, count - i);
      block = rest;
    }
    const auto [quotes, ends] = letters_of(block, delimiter);
    if (waits && !((ends | quotes) & 1)) return false;
    uint64_t within = quotes;  // whether the number of quotes up to here is odd
    for (int by = 1; by < 64; by *= 2) within ^= within << by;
    within ^= inside;
    const uint64_t opening = quotes & within, closing = quotes & ~within;
    if (opening & ~((ends | closing) << 1 | follows)) return false;
    if (closing & ~(uint64_t(1) << 63) & ~((ends | quotes) >> 1)) return false;
    waits = closing >> 63;
    follows = (ends | closing) >> 63;
    inside = within >> 63 ? ~uint64_t(0) : 0;
  }
  return !inside && !waits;
}

}  // namespace fedtally
