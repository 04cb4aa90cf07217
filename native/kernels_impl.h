// The kernels, compiled once per instruction level (kernels_<level>.cpp).
//
// Nothing here may instantiate a template of the standard library or leave a symbol that another
// level could share: the linker would keep one copy, perhaps one that the host cannot run. So: only
// <cstdint>, <cstddef> and the intrinsics, everything in an anonymous namespace, and one exported
// table.
#include "kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

using fedtally::ExtensionField;
using fedtally::GadgetCalls;
using fedtally::Halves;
using fedtally::kBlock;
using fedtally::kDecodeBlock;
using fedtally::kLanes;
using fedtally::kPad;
using fedtally::SketchCircuit;
using fedtally::Subtable;
using fedtally::whole_slabs;
using u32 = uint32_t;
using u64 = uint64_t;
using i32 = int32_t;
using i64 = int64_t;

#include "median_networks.h"
#include "messages.h"
#include "proofs.h"
#include "transpose.h"

constexpr size_t kStride = kBlock + kPad, kDecodeStride = kDecodeBlock + kPad;
constexpr size_t kChunk = 256;  // consecutive ids whose upper 56 bits agree

// How a word gives its location: its upper 24 bits, scaled to 0 .. width - 1. For a width of 2^k
// these are its top k bits, so that one shift is enough. `top` is the shift: 32 - k, or 32 for a
// width that is no such power (and for a width of 1, since shifting a u32 by 32 is undefined).
struct Cells {
  u32 width, top;
  explicit Cells(u32 w) : width(w), top(32) {
    if (w > 1 && (w & (w - 1)) == 0)
      for (; w > 1; w >>= 1) top--;
  }
};

// index[q] = (location << bits) | the word's bits from `shift` on, where the word is words[q] ^
// upper.
inline void index_of(const u32* words, u32 upper, Cells cells, u32 shift, u32 bits, size_t count,
                     u32* index) {
  const u32 mask = (1u << bits) - 1;
  // The test stands outside the loops, so that each of them is vectorised.
  if (cells.top < 32) {
    for (size_t q = 0; q < count; q++) {
      const u32 word = words[q] ^ upper;
      index[q] = (word >> cells.top) << bits | ((word >> shift) & mask);
    }
  } else {
    for (size_t q = 0; q < count; q++) {
      const u32 word = words[q] ^ upper;
      index[q] = (u32)(((u64)(word >> 8) * cells.width) >> 24) << bits | ((word >> shift) & mask);
    }
  }
}

// ---- words of a list of ids ----
//
// kLanes rows (a slab) are hashed at a time, so that one id costs one vector load and XOR per byte.
// More lanes would mean fewer loads, but tables that no longer fit the first-level cache: 16 are no
// faster, even with AVX-512.

// mixed [slabs][8][256][kLanes]: the entries of a slab's rows for one byte lie together, for one
// load. Rows that the last slab lacks are zeros: their words are never read.
void interleave(const u32* tables, size_t rows, u32* mixed) {
  for (size_t first = 0; first < rows; first += kLanes, mixed += kLanes * 2048)
    for (size_t entry = 0; entry < 2048; entry++)
      for (size_t lane = 0; lane < kLanes; lane++)
        mixed[entry * kLanes + lane] =
            first + lane < rows ? tables[(first + lane) * 2048 + entry] : 0;
}

// Simple tabulation: the word of an id is the XOR of one table entry for each of its bytes.
inline void mix(const u32* mixed, u64 id, int used_bytes, u32* out) {
  u32 acc[kLanes];
  const u32* entry = mixed + (id & 255) * kLanes;
  for (size_t lane = 0; lane < kLanes; lane++) acc[lane] = entry[lane];
  for (int byte = 1; byte < used_bytes; byte++) {
    const u32* next = mixed + (byte * 256 + ((id >> (8 * byte)) & 255)) * kLanes;
    for (size_t lane = 0; lane < kLanes; lane++) acc[lane] ^= next[lane];
  }
  for (size_t lane = 0; lane < kLanes; lane++) out[lane] = acc[lane];
}

void slab_words(const u32* mixed, const u64* ids, size_t count, u32* words, size_t stride) {
  // High bytes that are 0 in all ids of the block add the same entries to every word. They are
  // added once: ids of a small domain have 2 or 3 bytes, not 8.
  u64 all = 0;
  for (size_t i = 0; i < count; i++) all |= ids[i];
  int used = 1;
  while (used < 8 && (all >> (8 * used))) used++;
  alignas(64) u32 rest[kLanes] = {0};  // the constant of the unused high bytes: table[c][0]
  for (int byte = used; byte < 8; byte++)
    for (size_t lane = 0; lane < kLanes; lane++) rest[lane] ^= mixed[byte * 256 * kLanes + lane];
  alignas(64) u32 tile[kLanes * kLanes];
  for (size_t i = 0; i < count; i += kLanes) {
    for (size_t item = 0; item < kLanes; item++) {
      // The last tile repeats the last id; its surplus words go to the padding.
      const u64 id = ids[i + item < count ? i + item : count - 1];
      u32* out = tile + item * kLanes;
      // The same call twice: with the constant 8 the compiler unrolls the loop over the bytes.
      if (used == 8) mix(mixed, id, 8, out);
      else mix(mixed, id, used, out);
      for (size_t lane = 0; lane < kLanes; lane++) out[lane] ^= rest[lane];
    }
    transpose(tile, words + i, stride);  // kPad leaves room for the last tile
  }
}

// words [rows, rounded up to whole slabs][stride]
void block_words(const u32* mixed, size_t rows, const u64* ids, size_t count, u32* words,
                 size_t stride = kStride) {
  for (size_t first = 0; first < rows; first += kLanes)
    slab_words(mixed + first * 2048, ids, count, words + first * stride, stride);
}

void hash_words(const u32* tables, size_t rows, const u64* ids, size_t count, u32* words,
                size_t stride, u32* scratch) {
  u32 *mixed = scratch, *block = scratch + whole_slabs(rows) * 2048;
  interleave(tables, rows, mixed);
  for (size_t i = 0; i < count; i += kBlock) {
    const size_t n = count - i < kBlock ? count - i : kBlock;
    block_words(mixed, rows, ids + i, n, block);
    // Through a block of its own: whole tiles would write past the end of the caller's rows.
    for (size_t row = 0; row < rows; row++)
      for (size_t q = 0; q < n; q++) words[row * stride + i + q] = block[row * kStride + q];
  }
}

// ---- encoding ----

// Bring the sign bit to bit 0 of the location's word where it comes from another word. The location
// does not use the low 8 bits, so nothing is lost, and one word then holds all.
inline void merge_signs(u32* location, const u32* sign, u32 sign_bit, size_t count) {
  for (size_t q = 0; q < count; q++)
    location[q] = (location[q] & ~(u32)1) | ((sign[q] >> sign_bit) & 1);
}

// Count each id once, in the counter of its location and sign: split [width][2]. Without a sign to
// multiply by, an id costs one increment of a 32-bit counter; the caller subtracts the halves.
inline void add_units(const u32* words, u32 sign_bit, Cells cells, size_t count, i32* split) {
  alignas(64) u32 index[512];  // few enough to stay in the first-level cache
  for (size_t i = 0; i < count; i += 512) {
    const size_t n = count - i < 512 ? count - i : 512;
    index_of(words + i, 0, cells, sign_bit, 1, n, index);
    size_t q = 0;  // four at a time by hand: GCC's -O3 does not unroll such loops
    for (; q + 4 <= n; q += 4) {
      split[index[q]]++;
      split[index[q + 1]]++;
      split[index[q + 2]]++;
      split[index[q + 3]]++;
    }
    for (; q < n; q++) split[index[q]]++;
  }
}

inline void add_signed(const u32* words, const u32* sign_words, u32 sign_bit, Cells cells,
                       const i64* counts, size_t count, i64* counters) {
  alignas(64) u32 index[512];
  alignas(64) i64 value[512];
  for (size_t i = 0; i < count; i += 512) {
    const size_t n = count - i < 512 ? count - i : 512;
    index_of(words + i, 0, cells, 0, 0, n, index);
    for (size_t q = 0; q < n; q++) {
      // All bits of flip are the sign bit, so (x ^ flip) - flip is x or -x: no branch to
      // mispredict.
      const i64 flip = -(i64)((sign_words[i + q] >> sign_bit) & 1);
      value[q] = ((counts ? counts[i + q] : 1) ^ flip) - flip;
    }
    for (size_t q = 0; q < n; q++) counters[index[q]] += value[q];
  }
}

void accumulate(const u32* location, const u32* sign, u32 sign_bit, size_t rows, u32 width,
                const u64* ids, const i64* counts, size_t count, i64* counters, i32* split,
                u32* scratch) {
  const bool other = sign != location;  // the same tables give the same words: hash only once
  const Cells cells(width);
  const size_t tables = whole_slabs(rows) * 2048, block = whole_slabs(rows) * kStride;
  u32 *mixed = scratch, *words = mixed + tables, *sign_mixed = words + block,
      *sign_words = sign_mixed + tables;
  interleave(location, rows, mixed);
  if (other) interleave(sign, rows, sign_mixed);
  for (size_t i = 0; i < count; i += kBlock) {
    const size_t n = count - i < kBlock ? count - i : kBlock;
    block_words(mixed, rows, ids + i, n, words);
    if (other) block_words(sign_mixed, rows, ids + i, n, sign_words);
    for (size_t row = 0; row < rows; row++) {
      u32* w = words + row * kStride;
      if (other) merge_signs(w, sign_words + row * kStride, sign_bit, n);
      const u32 bit = other ? 0 : sign_bit;
      if (split) add_units(w, bit, cells, n, split + row * (size_t)width * 2);
      else
        add_signed(w, w, bit, cells, counts ? counts + i : nullptr, n,
                   counters + row * (size_t)width);
    }
  }
}

// ---- ids first, first + 1, ...: within 256 of them only the lowest byte moves ----

inline u32 upper_word(const u32* tables, u64 id) {
  u32 word = 0;
  for (int byte = 1; byte < 8; byte++) word ^= tables[byte * 256 + ((id >> (8 * byte)) & 255)];
  return word;
}

inline void range_words(const u32* tables, u64 first, size_t count, u32* words) {
  for (size_t i = 0; i < count;) {
    const u32 low = (u32)((first + i) & 255), upper = upper_word(tables, first + i);
    const size_t n = count - i < kChunk - low ? count - i : kChunk - low;
    for (size_t q = 0; q < n; q++) words[i + q] = upper ^ tables[low + q];
    i += n;
  }
}

void accumulate_range(const u32* location, const u32* sign, u32 sign_bit, size_t rows, u32 width,
                      u64 first, const i64* counts, size_t count, i64* counters) {
  alignas(64) u32 words[1024], sign_words[1024];
  const Cells cells(width);
  // By blocks, and all rows within a block: its counts are then read from memory once, and one row
  // of counters is in use at a time.
  for (size_t block = 0; block < count; block += 8 * kBlock) {
    const size_t end = count - block < 8 * kBlock ? count : block + 8 * kBlock;
    for (size_t row = 0; row < rows; row++)
      for (size_t i = block; i < end; i += 1024) {
        const size_t n = end - i < 1024 ? end - i : 1024;
        range_words(location + row * 2048, first + i, n, words);
        if (sign != location) range_words(sign + row * 2048, first + i, n, sign_words);
        add_signed(words, sign != location ? sign_words : words, sign_bit, cells, counts + i, n,
                   counters + row * (size_t)width);
      }
  }
}

// ---- decoding ----

template <class T> inline T selected_median(
    T* x, size_t rows) {  // insertion sort: only for more rows than the networks have
  for (size_t i = 1; i < rows; i++) {
    const T value = x[i];
    size_t j = i;
    for (; j > 0 && x[j - 1] > value; j--) x[j] = x[j - 1];
    x[j] = value;
  }
  return rows % 2 ? x[rows / 2] : (x[rows / 2 - 1] + x[rows / 2]) * T(0.5);
}

template <class T> struct Column {  // one id's values: no array, and no loop over rows to unroll
  const T* first;
  T operator[](size_t row) const { return first[row * kDecodeStride]; }
};

// The rows are a constant here, so that the generated network of comparators is straight-line code
// in registers, which the compiler can vectorise over q.
template <int ROWS, class T> void median_of(const T* gathered, size_t count, double* out) {
  for (size_t q = 0; q < count; q++)
    out[q] = (double)Median<ROWS>::template of<T>(Column<T>{gathered + q});
}

// More rows than fit into registers: the comparators come from a table. Each is applied in place
// to some ids at once, whose values then stay in the nearest cache from one comparator to the next.
template <class T> void median_by_table(T* gathered, size_t rows, size_t count, double* out) {
  constexpr size_t kTogether = 64;
  const int* end = kNetworkEnds + (rows - kLargestStraight - 1);
  for (size_t i = 0; i < count; i += kTogether) {
    // Always kTogether of a row, a constant trip count: what is behind the last id is sorted too.
    for (int c = end[0]; c < end[1]; c++) {
      T* __restrict low = gathered + kComparators[c].low * kDecodeStride + i;
      T* __restrict high = gathered + kComparators[c].high * kDecodeStride + i;
      for (size_t q = 0; q < kTogether; q++) {
        const T least = lesser(low[q], high[q]);
        high[q] = greater(low[q], high[q]);
        low[q] = least;
      }
    }
    const T *low = gathered + (rows - 1) / 2 * kDecodeStride + i,
            *high = gathered + rows / 2 * kDecodeStride + i;
    const size_t n = count - i < kTogether ? count - i : kTogether;
    for (size_t q = 0; q < n; q++)
      out[i + q] = (double)(rows % 2 ? low[q] : (low[q] + high[q]) * T(0.5));
  }
}

// Turn the number of rows into a constant, by trying one after the other.
template <int ROWS, class T> void median_dispatch(T* gathered, size_t rows, size_t count,
                                                  double* out) {
  if constexpr (ROWS > kLargestStraight) {
    if (rows <= kLargestNetwork) return median_by_table(gathered, rows, count, out);
    T x[fedtally::kMaxRows];
    for (size_t q = 0; q < count; q++) {
      for (size_t row = 0; row < rows; row++) x[row] = gathered[row * kDecodeStride + q];
      out[q] = (double)selected_median(x, rows);
    }
  } else if (rows == ROWS) {
    median_of<ROWS, T>(gathered, count, out);
  } else {
    median_dispatch<ROWS + 1, T>(gathered, rows, count, out);
  }
}

// Sixteen ids at a time, in registers over all rows. Each loop over them has a constant length, so
// the compiler makes it vectors of the level. A vector type of eight doubles it spilled, where a
// level has none: that took ten times as long.
template <class T> void mean_of(const T* gathered, size_t rows, size_t count, double* out) {
  constexpr size_t kTogether = 16;
  const double share = 1.0 / (double)rows;
  size_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    double sums[kTogether];
    for (size_t q = 0; q < kTogether; q++) sums[q] = (double)gathered[i + q];
    for (size_t row = 1; row < rows; row++)
      for (size_t q = 0; q < kTogether; q++)
        sums[q] += (double)gathered[row * kDecodeStride + i + q];
    for (size_t q = 0; q < kTogether; q++) out[i + q] = sums[q] * share;
  }
  for (; i < count; i++) {
    double sum = (double)gathered[i];
    for (size_t row = 1; row < rows; row++) sum += (double)gathered[row * kDecodeStride + i];
    out[i] = sum * share;
  }
}

// out[q] = values[index[q] ^ flip]. Four floats are written with one store: the fewest instructions
// of all ways without vector gathers, which some processors run slowly, for near and far tables.
inline size_t gather_fours(const float* values, const u32* index, u32 flip, size_t count,
                           float* out) {
  typedef float Four __attribute__((vector_size(16)));
  size_t q = 0;
  for (; q + 8 <= count; q += 8)
    for (size_t i = q; i < q + 8; i += 4) {
      const Four found = {values[index[i] ^ flip], values[index[i + 1] ^ flip],
                          values[index[i + 2] ^ flip], values[index[i + 3] ^ flip]};
      __builtin_memcpy(out + i, &found, sizeof found);
    }
  return q;
}

inline size_t gather_fours(const double*, const u32*, u32, size_t, double*) { return 0; }

// What is left over is gathered one by one, in eights so that the compiler unrolls.
template <class T>
inline void gather(const T* values, const u32* index, u32 flip, size_t count, T* out) {
  size_t q = gather_fours(values, index, flip, count, out);
  for (; q + 8 <= count; q += 8)
    for (size_t i = q; i < q + 8; i++) out[i] = values[index[i] ^ flip];
  for (; q < count; q++) out[q] = values[index[q] ^ flip];
}

// out[q] = values[index[q]] for the indices that `index_of` gives, from a table of `size` floats,
// where four registers hold it: a value needs no memory access then, and an index is never written
// down. Returns whether they do. It takes about four fifths of the time of two passes.
#if defined(__AVX512F__)
inline bool gather_held(const float* values, size_t size, const u32* words, u32 upper, Cells cells,
                        u32 shift, u32 bits, size_t count, float* out) {
  if (size > 64) return false;
  const u64 held = size < 64 ? ((u64)1 << size) - 1 : ~(u64)0;
  const __m512 a = _mm512_maskz_loadu_ps((__mmask16)held, values),
               b = _mm512_maskz_loadu_ps((__mmask16)(held >> 16), values + 16),
               c = _mm512_maskz_loadu_ps((__mmask16)(held >> 32), values + 32),
               d = _mm512_maskz_loadu_ps((__mmask16)(held >> 48), values + 48);
  const __m512i flip = _mm512_set1_epi32((i32)upper), mask = _mm512_set1_epi32((1 << bits) - 1),
                width = _mm512_set1_epi32((i32)cells.width), half = _mm512_set1_epi32(32);
  const __m128i top = _mm_cvtsi32_si128((i32)cells.top), by = _mm_cvtsi32_si128((i32)shift),
                up = _mm_cvtsi32_si128((i32)bits);
  for (size_t q = 0; q < count; q += 16) {
    const __mmask16 lanes = count - q < 16 ? (__mmask16)((1u << (count - q)) - 1) : 0xffff;
    const __m512i word = _mm512_xor_si512(_mm512_maskz_loadu_epi32(lanes, words + q), flip);
    // A table of 64 values has no more than 64 cells, so that the product fits 32 bits.
    const __m512i location =
        cells.top < 32
            ? _mm512_srl_epi32(word, top)
            : _mm512_srli_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(word, 8), width), 24);
    const __m512i at = _mm512_or_si512(_mm512_sll_epi32(location, up),
                                       _mm512_and_si512(_mm512_srl_epi32(word, by), mask));
    __m512 found = _mm512_permutex2var_ps(a, at, b);  // by the lowest five bits
    if (size > 32) {
      const __mmask16 in_upper = _mm512_test_epi32_mask(at, half);
      found = _mm512_mask_blend_ps(in_upper, found, _mm512_permutex2var_ps(c, at, d));
    }
    _mm512_mask_storeu_ps(out + q, lanes, found);
  }
  return true;
}
#else
inline bool gather_held(const float*, size_t, const u32*, u32, Cells, u32, u32, size_t, float*) {
  return false;
}
#endif

inline bool gather_held(const double*, size_t, const u32*, u32, Cells, u32, u32, size_t, double*) {
  return false;
}

// A row's words of some ids under each hash group are at(group)[q] ^ upper(group). Listed ids have
// whole words already. For consecutive ids `at` is the table of the lowest byte itself, and `upper`
// the XOR of the other bytes' entries, which is the same for a whole chunk: no hashing at all.
//
// For a width of 2^k and one subtable, the index that `index_of` gives is made of bits of the word:
// that of a ^ b is that of a ^ that of b. So the indices of the lowest byte's entries are made
// once for a row, `lowest`, and those of a chunk are these ^ that of `upper`. Other layouts and
// listed ids have none.
struct ListedWords {
  const u32* words;
  size_t group_size;
  const u32* lowest() const { return nullptr; }
  const u32* at(u32 group) const { return words + group * group_size; }
  u32 upper(u32) const { return 0; }
};

struct RangeWords {  // ids first, first + 1, ... of one chunk
  const u32* tables;
  size_t group_size;
  u64 first;
  const u32* indices;  // [kChunk], or null
  const u32* lowest() const { return indices ? indices + (first & 255) : nullptr; }
  const u32* at(u32 group) const { return tables + group * group_size + (first & 255); }
  u32 upper(u32 group) const { return upper_word(tables + group * group_size, first); }
};

// Sum one row of at most kStep ids over the subtables. The first subtable is of group 0, the only
// one whose word holds the location.
constexpr size_t kStep = 512;

template <class T, class Words>
inline void gather_row(const Words& words, size_t row, Cells cells, const Subtable* subtables,
                       size_t num_subtables, u32 stride, size_t count, T* sum) {
  alignas(64) u32 location[kStep], index[kStep];
  alignas(64) T more[kStep];
  const size_t size = (size_t)cells.width * stride;
  const T* const values = (const T*)subtables[0].values + row * size;
  const u32 upper = words.upper(0);
  if (num_subtables == 1) {
    const u32 shift = subtables[0].shift, bits = subtables[0].bits;
    if (gather_held(values, size, words.at(0), upper, cells, shift, bits, count, sum)) return;
    // The location and the pattern come from the same word: one pass gives the index.
    if (const u32* const lowest = words.lowest()) {
      index_of(&upper, 0, cells, shift, bits, 1, index);
      gather(values, lowest, index[0], count, sum);
    } else {
      index_of(words.at(0), upper, cells, shift, bits, count, index);
      gather(values, index, 0, count, sum);
    }
    return;
  }
  index_of(words.at(0), upper, cells, 0, 0, count, location);
  for (size_t q = 0; q < count; q++) location[q] *= stride;
  for (size_t s = 0; s < num_subtables; s++) {
    const u32 shift = subtables[s].shift, mask = (1u << subtables[s].bits) - 1,
              group = subtables[s].group;
    const u32 *own = words.at(group), flip = words.upper(group);
    for (size_t q = 0; q < count; q++) index[q] = location[q] + (((own[q] ^ flip) >> shift) & mask);
    gather((const T*)subtables[s].values + row * size, index, 0, count, s ? more : sum);
    if (s)
      for (size_t q = 0; q < count; q++) sum[q] += more[q];
  }
}

template <class T>
void decode(const u32* tables, size_t groups, size_t rows, u32 width, const Subtable* subtables,
            size_t num_subtables, u32 stride, bool mean, const u64* ids, u64 first, size_t count,
            double* estimates, T* gathered, u32* scratch) {
  const size_t slabs = whole_slabs(rows), mixed_size = slabs * 2048,
               words_size = slabs * kDecodeStride;
  const Cells cells(width);
  const bool linear = !ids && num_subtables == 1 && cells.top < 32;
  alignas(64) u32 lowest[kChunk];
  u32 *mixed = scratch, *block = scratch + groups * mixed_size;
  for (size_t g = 0; ids && g < groups; g++)
    interleave(tables + g * rows * 2048, rows, mixed + g * mixed_size);
  for (size_t i = 0; i < count; i += kDecodeBlock) {
    const size_t n = count - i < kDecodeBlock ? count - i : kDecodeBlock;
    for (size_t g = 0; ids && g < groups; g++)
      block_words(mixed + g * mixed_size, rows, ids + i, n, block + g * words_size,
                  kDecodeStride);
    size_t near = 0;  // estimates whose memory was asked for
    for (size_t row = 0; row < rows; row++) {
      T* sum = gathered + row * kDecodeStride;
      if (linear)
        index_of(tables + row * 2048, 0, cells, subtables[0].shift, subtables[0].bits, kChunk,
                 lowest);
      for (size_t q = 0; q < n;) {
        const u64 id = first + i + q;
        const size_t longest = ids ? kStep : kChunk - (id & 255),
                     m = n - q < longest ? n - q : longest;
        if (ids)
          gather_row(ListedWords{block + row * kDecodeStride + q, words_size}, row, cells,
                     subtables, num_subtables, stride, m, sum + q);
        else
          gather_row(
              RangeWords{tables + row * 2048, rows * 2048, id, linear ? lowest : nullptr}, row,
              cells, subtables, num_subtables, stride, m, sum + q);
        q += m;
        // Estimates are written faster than their memory comes from far away, so that it is asked
        // for while rows are looked at, a little at a time.
        for (; near * rows < row * n + q; near += 8) __builtin_prefetch(estimates + i + near, 1, 2);
      }
    }
    if (mean) mean_of(gathered, rows, n, estimates + i);
    else median_dispatch<1, T>(gathered, rows, n, estimates + i);
  }
}

// ---- the few of a range whose values are large ----

// Codes are small numbers above the values, in a table that the nearest cache holds. They add up to
// 255 or more for every id whose value is large enough. So only for these few the values are read.
constexpr size_t kSifted = 8192;

inline bool any_full(const uint8_t* sums) {  // whether one of eight bytes is 255
  u64 eight;
  __builtin_memcpy(&eight, sums, sizeof eight);
  return (~eight - 0x0101010101010101u) & eight & 0x8080808080808080u;
}

// Eight bytes are written with one store; what is behind the last one is written, too.
inline void gather_bytes(const uint8_t* table, const u32* index, size_t count, uint8_t* out) {
  for (size_t q = 0; q < count; q += 8) {
    u64 eight = 0;
    for (int i = 0; i < 8; i++) eight |= (u64)table[index[q + i]] << 8 * i;
    __builtin_memcpy(out + q, &eight, sizeof eight);
  }
}

inline void add_full(const uint8_t* own, size_t count, uint8_t* sums) {  // 255 stays 255
  for (size_t t = 0; t < count; t++) {
    const uint8_t sum = (uint8_t)(sums[t] + own[t]);
    sums[t] = sum < own[t] ? 255 : sum;
  }
}

size_t sift(const u32* tables, size_t rows, u32 width, const Subtable& subtable, bool mean,
            const uint8_t* codes, u64 first, size_t count, i64* places, double* estimates,
            float* gathered) {
  const Cells cells(width);
  const u32 bits = subtable.bits, shift = subtable.shift;
  const size_t size = (size_t)width << bits;
  const float* const values = (const float*)subtable.values;
  alignas(64) uint8_t sums[kSifted + 8], own[kChunk];
  alignas(64) u32 index[kChunk] = {0}, upper[fedtally::kMaxRows][kSifted / kChunk + 1];
  u32 full[kSifted];
  size_t found = 0;
  for (size_t i = 0; i < count; i += kSifted) {
    const size_t n = count - i < kSifted ? count - i : kSifted;
    const u32 low = (u32)((first + i) & 255);
    for (size_t q = 0; q < n + 8; q++) sums[q] = 0;
    for (size_t row = 0; row < rows; row++) {
      const u32* const words = tables + row * 2048;
      const uint8_t* const table = codes + row * size;
      for (size_t q = 0, chunk = 0; q < n; chunk++) {
        const size_t at = (first + i + q) & 255, m = n - q < kChunk - at ? n - q : kChunk - at;
        upper[row][chunk] = upper_word(words, first + i + q);
        index_of(words + at, upper[row][chunk], cells, shift, bits, m, index);
        gather_bytes(table, index, m, own);
        add_full(own, m, sums + q);
        q += m;
      }
    }
    size_t kept = 0;
    for (size_t q = 0; q < n; q += 8) {
      if (!any_full(sums + q)) continue;
      for (size_t t = q; t < q + 8; t++) {
        full[kept] = (u32)t;
        kept += sums[t] == 255;  // never behind the last id, whose sums are 0
      }
    }
    for (size_t row = 0; row < rows; row++) {
      const u32* const words = tables + row * 2048;
      for (size_t k = 0; k < kept; k += kChunk) {
        const size_t m = kept - k < kChunk ? kept - k : kChunk;
        for (size_t t = 0; t < m; t++) {
          const u32 at = full[k + t] + low;
          index[t] = words[at & 255] ^ upper[row][at / kChunk];
        }
        index_of(index, 0, cells, shift, bits, m, index);
        gather(values + row * size, index, 0, m, gathered + row * kDecodeStride + k);
      }
    }
    if (mean) mean_of(gathered, rows, kept, estimates + found);
    else median_dispatch<1, float>(gathered, rows, kept, estimates + found);
    for (size_t k = 0; k < kept; k++) places[found + k] = (i64)(i + full[k]);
    found += kept;
  }
  return found;
}

// ---- inversion ----

// The guide gives a place at or below the answer. Where it has at least as many slots as there
// are bounds the loop seldom turns, and no vector form was faster. The last bound, 2^64 - 1, ends
// every search.
bool invert(const u64* bounds, const u32* guide, u32 shift, i64 base, u64* words, size_t count) {
  bool tied = false;
  for (size_t i = 0; i < count; i++) {
    const u64 word = words[i];
    u64 below = guide[word >> shift];
    while (bounds[below] < word) below++;
    tied |= bounds[below] == word;
    words[i] = (u64)base + below;
  }
  return tied;
}

// Neither branches nor addresses depend on the words, so that the time tells nothing about the
// draws.
bool invert_scan(const u64* bounds, size_t num_bounds, i64 base, u64* words, size_t count) {
  constexpr size_t kScan = 64;
  u64 word[kScan], below[kScan], tied = 0;
  for (size_t i = 0; i < count; i += kScan) {
    const size_t n = count - i < kScan ? count - i : kScan;
    // Always kScan words, the last block filled up with its first one: a constant trip count.
    for (size_t q = 0; q < kScan; q++) {
      word[q] = words[i + (q < n ? q : 0)];
      below[q] = (u64)base;
    }
    for (size_t b = 0; b < num_bounds; b++) {
      const u64 bound = bounds[b];
      for (size_t q = 0; q < kScan; q++) {
        below[q] += bound < word[q];
        tied |= bound == word[q];
      }
    }
    for (size_t q = 0; q < n; q++) words[i + q] = below[q];
  }
  return tied;
}

#include "halves.h"

// ---- limits of the machine ----

// 64 sums, since additions to one would wait for each other: that latency is not what is measured.
float gather_limit(const float* table, const u32* index, size_t count) {
  alignas(64) float sum[64] = {0};
  for (size_t i = 0; i + 64 <= count; i += 64)
    for (int q = 0; q < 64; q++) sum[q] += table[index[i + q]];
  float total = 0;
  for (int q = 0; q < 64; q++) total += sum[q];
  return total;
}

void scatter_limit(i32* table, const u32* index, size_t count) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    table[index[i]]++;
    table[index[i + 1]]++;
    table[index[i + 2]]++;
    table[index[i + 3]]++;
  }
  for (; i < count; i++) table[index[i]]++;
}

}  // namespace

namespace fedtally {
extern const Kernels FEDTALLY_KERNELS;
const Kernels FEDTALLY_KERNELS = {hash_words,    accumulate,     accumulate_range,
                                  decode<float>, decode<double>, sift,
                                  invert,        invert_scan,    reduce_words,
                                  proof_sketch_inputs, proof_prove, proof_query,
                                  exchange,      meet,           gather_limit,
                                  scatter_limit};
}  // namespace fedtally
