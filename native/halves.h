// Ids of a range whose cells are heavy, found without a look at each id. An id is x 2^16 + y, and
// its word in a row is the word of x (by its six upper bytes) XOR that of y (by its two lower
// bytes). The `key` of a word, its top bits and its sign bits, is XOR-linear, too. So for each x
// and each key that a heavy cell has, one bucket holds just the y that lead to this key.

constexpr size_t kTile = 16;  // members that are looked at together
constexpr size_t kHeld = 256;

// found[t] = the value, in the index's row `turn` after its own, of the y at words[t].
inline void tile_values(const Halves& index, const float* values, size_t turn, const u32* words,
                        u32 upper, Cells cells, float* found) {
  alignas(64) u32 at[kTile];
  index_of(words, upper, cells, 0, index.bits, kTile, at);
  const size_t row = (index.row + turn) % index.rows;
  gather(values + ((row * index.width) << index.bits), at, 0, kTile, found);
}

struct Meeting {
  const Halves& index;
  const float* values;
  const Cells cells;
  const u32 need;
  const float least;  // what a sum, or a value that counts, must exceed
  u64* const out;
  const size_t capacity;
  size_t found;
  u32 upper[fedtally::kMaxRows];  // the words of an x, from the index's row on
  u64 first;                      // the x, times 2^16

  const u32* words(size_t turn) const {
    return index.words + turn * (fedtally::kLowIds + kTile);
  }

  void keep(u32 member) {
    if (found < capacity) out[found] = first | index.places[member];
    found++;
  }

  // Keep the members whose values add up to more than `least` in each of the first 1, 2, .. rows.
  void add_up(const u32* members, size_t count) {
    alignas(64) u32 word[kTile];
    alignas(64) float value[kTile], sum[kTile];
    for (size_t i = 0; i < count; i += kTile) {
      u32 lives[kTile];
      for (size_t t = 0; t < kTile; t++) {
        sum[t] = 0;
        lives[t] = i + t < count;
      }
      for (size_t turn = 0; turn < index.rows; turn++) {
        const u32* from = words(turn);
        for (size_t t = 0; t < kTile; t++) word[t] = from[members[i + t < count ? i + t : i]];
        tile_values(index, values, turn, word, upper[turn], cells, value);
        u32 any = 0;
        for (size_t t = 0; t < kTile; t++) {
          sum[t] += value[t];
          any |= lives[t] &= sum[t] > least;
        }
        if (!any) break;
      }
      for (size_t t = 0; t < kTile; t++)
        if (lives[t]) keep(members[i + t]);
    }
  }

  // The members of a bucket whose first two values add up to more than `least`, if the first is
  // `top`; the others are dropped here, most of all.
  size_t first_two(u32 start, u32 end, float top, u32* held, size_t count) {
    alignas(64) float value[kTile];
    for (u32 j = start; j < end; j += kTile) {
      tile_values(index, values, 1, words(1) + j, upper[1], cells, value);
      for (u32 t = 0; t < kTile; t++) {
        held[count] = j + t;
        count += (top + value[t] > least) & (j + t < end);
      }
      if (count >= kHeld) {
        add_up(held, count);
        count = 0;
      }
    }
    return count;
  }

  // Keep the members of a bucket that exceed `least` in their first row and in `need` in all. Those
  // that do so in an earlier row are left out: they were found there.
  void count_rows(u32 start, u32 end) {
    const size_t rows = index.rows - index.row;
    alignas(64) float value[kTile];
    alignas(64) u32 times[kTile];
    for (u32 j = start; j < end; j += kTile) {
      for (u32 t = 0; t < kTile; t++) times[t] = 0;
      bool any = true;
      for (size_t turn = 0; turn < rows && any; turn++) {
        tile_values(index, values, turn, words(turn) + j, upper[turn], cells, value);
        const u32 left = (u32)(rows - 1 - turn);
        u32 may = 0;
        for (u32 t = 0; t < kTile; t++) {
          times[t] += value[t] > least;
          may |= times[t] + left >= need;
        }
        any = may;
      }
      for (u32 t = 0; t < kTile && any; t++)
        if (times[t] >= need && j + t < end) keep(j + t);
    }
  }
};

size_t meet(const Halves& index, const float* values, const u32* keys, const float* tops,
            size_t num_keys, u32 need, float least, u64 first_x, const u32* uppers, size_t num_x,
            u64* out, size_t capacity) {
  Meeting m{index, values, Cells(index.width), need, least, out, capacity, 0, {}, 0};
  const u32 mask = (1u << index.bits) - 1;
  u32 held[kHeld + kTile + 1];
  for (size_t x = 0; x < num_x; x++) {
    for (size_t turn = 0; turn < index.rows; turn++)
      m.upper[turn] = uppers[x * index.rows + (index.row + turn) % index.rows];
    m.first = (first_x + x) << 16;
    const u32 own = (m.upper[0] >> index.top) << index.bits | (m.upper[0] & mask);
    size_t count = 0;
    for (size_t i = 0; i < num_keys; i++) {
      const u32 start = index.starts[keys[i] ^ own], end = index.starts[(keys[i] ^ own) + 1];
      if (need) m.count_rows(start, end);
      else count = m.first_two(start, end, tops[i], held, count);
    }
    m.add_up(held, count);
  }
  return m.found;
}
