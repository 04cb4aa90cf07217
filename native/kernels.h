// The functions that exist once per instruction level. kernels_impl.h defines them;
// kernels_baseline.cpp, kernels_v3.cpp and kernels_v4.cpp compile that file for their level, and
// module.cpp picks one table at run time.
//
// Shapes: hash tables are uint32 [rows][8][256], counters int64 [rows][width], both contiguous. See
// docs/protocol.md.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fedtally {

// Ids are handled in blocks. A block of words of one row stays in the cache while its counters are
// visited.
static constexpr size_t kBlock = 4096;
// Words between the rows of a block: room for its last tile. A stride of exactly 2^12 words would
// also put all rows on the same sets of the cache, where they would evict each other.
static constexpr size_t kPad = 32;
static constexpr size_t kMaxRows = 1024;
// Decoders handle more ids at once: a row's tables are often larger than the nearest cache, and
// come from far away once for each block.
static constexpr size_t kDecodeBlock = 1 << 14;

// Rows are hashed kLanes at a time: 8 words of 32 bits are one vector of AVX2.
static constexpr size_t kLanes = 8;
static constexpr size_t whole_slabs(size_t rows) { return (rows + kLanes - 1) / kLanes * kLanes; }

// Working memory, in uint32, of a kernel that takes a list of ids, `block` at once, through
// `groups` sets of tables.
inline constexpr size_t list_scratch(size_t rows, size_t groups, size_t block = kBlock) {
  return groups * whole_slabs(rows) * (8 * 256 + block + kPad);
}

// One table that a decoder gathers from: values [rows][width][stride], where the pattern of a cell
// is `bits` sign bits, from bit `shift` on, of the word of hash group `group`. The tables of a cell
// lie side by side, so that a look into the second one finds it in the nearest cache.
struct Subtable {
  const void* values;  // float or double; of the first cell
  uint32_t group, shift, bits;
};

// GF(p^degree) = GF(p)[X] / (X^degree - generator), p < 2^32. Degrees 4, 6 and 9 are compiled, and
// 4 alone may have p of more than 25 bits (`compiles` in kernels/linear_proofs.py has the bounds). Words
// are int64 below p, an element is `degree` words.
struct ExtensionField {
  uint64_t prime, generator;
  uint32_t degree;
};

// The circuit SignedOneHot of fedtally/flp/one_hot.py.
struct SketchCircuit {
  const uint32_t* widths;     // [rows]
  size_t rows, side, lines;   // side: the cells of a line; lines: of the widest row
  size_t length, slots;       // the words of a vector; the products with room for them
  uint64_t share;             // 1 / the number of shares
  bool abstain;
};

// The calls of a circuit's gadget, each the sum of `chunk` products; nodes: a power of two above
// them.
struct GadgetCalls {
  size_t nodes, calls, chunk;
};

// Working memory, in uint64, of the kernels below; a vector has at most 8 lanes.
static constexpr size_t with_lanes(size_t count) { return count + 24; }

inline size_t sketch_scratch(const SketchCircuit& circuit, size_t degree) {
  const size_t longest = circuit.side > circuit.lines ? circuit.side : circuit.lines;
  return 8 * circuit.side +
         degree * (2 * (circuit.lines + circuit.side) + with_lanes(2 * circuit.rows + 2) +
                   with_lanes(longest));
}

inline size_t gadget_scratch(const GadgetCalls& gadget, size_t degree) {
  const size_t room = with_lanes(2 * gadget.nodes);
  return room * (3 * gadget.nodes + degree * (4 * gadget.chunk + 3));
}

// The ids below 2^16 of one row, by their keys. The key of a word is its bits from `top` on, and
// then its low `bits` bits, the signs of as many batches.
static constexpr size_t kLowIds = size_t(1) << 16;
struct Halves {
  const uint32_t* starts;  // [keys + 1]: where the ids of a key begin in `places`
  const uint32_t* places;  // [2^16]: the ids, by key
  const uint32_t* words;   // [rows][2^16 + 16]: theirs, in this row, the next one, ..., in turn
  size_t rows, row;        // row: this one
  uint32_t width, top, bits;
};

// Items whose messages are handled at a time.
static constexpr size_t kItems = 32;

// The cells that messages are read from: residual [rows][width][batches], and variance [rows]
// [width][batches] if `fresh` (each batch has locations of its own), else [rows][width].
struct Messages {
  const double *residual, *variance;
  size_t rows, width, batches;
  bool fresh;
  double inflation, own_share;  // factors: on variances; the least share left without one's own
};

// How new messages are made. table [scales][columns][2]: mean and variance of a count.
struct MessageRule {
  const double *table, *weights, *shares;  // of batches: of clients, and of a cell's noise
  size_t scales, columns;
  double first, per_ratio, per_step, far, least, tiny;
  double spread, clearly, update, gate;
};

struct MessageSums {
  double *explained, *unknown;  // like Messages.residual and Messages.variance
};

struct MessageStats {
  double least, largest, moves, unknown, surprise[3], number[3];
};

// Working memory, in double, of `exchange`.
inline size_t message_scratch(const Messages& system) {
  const size_t kinds = system.fresh ? system.batches : 1;
  return kItems * (system.rows * (system.batches + 2 * kinds) + 3 * system.batches + kinds);
}

struct Kernels {
  // words[row * stride + i] of ids[i], i < count.
  void (*hash_words)(const uint32_t* tables, size_t rows, const uint64_t* ids, size_t count,
                     uint32_t* words, size_t stride, uint32_t* scratch);
  // counters[row][location] += sign * (counts ? counts[i] : 1). `split` is zeroed int32
  // [rows][width][2] or null; with it, and without counts, increments go there and the caller folds
  // them.
  void (*accumulate)(const uint32_t* location, const uint32_t* sign, uint32_t sign_bit, size_t rows,
                     uint32_t width, const uint64_t* ids, const int64_t* counts, size_t count,
                     int64_t* counters, int32_t* split, uint32_t* scratch);
  // The same for the ids first, first + 1, ... and one count each.
  void (*accumulate_range)(const uint32_t* location, const uint32_t* sign, uint32_t sign_bit,
                           size_t rows, uint32_t width, uint64_t first, const int64_t* counts,
                           size_t count, int64_t* counters);
  // estimates[i] = median, or mean, over rows of the sum over subtables, for ids[i] or, without
  // ids, first + i. tables [groups][rows][8][256], group 0 gives the location; gathered: rows *
  // (kDecodeBlock + kPad) values.
  void (*decode_f32)(const uint32_t* tables, size_t groups, size_t rows, uint32_t width,
                     const Subtable* subtables, size_t num_subtables, uint32_t stride, bool mean,
                     const uint64_t* ids, uint64_t first, size_t count, double* estimates,
                     float* gathered, uint32_t* scratch);
  void (*decode_f64)(const uint32_t* tables, size_t groups, size_t rows, uint32_t width,
                     const Subtable* subtables, size_t num_subtables, uint32_t stride, bool mean,
                     const uint64_t* ids, uint64_t first, size_t count, double* estimates,
                     double* gathered, uint32_t* scratch);
  // Estimates as above of the ids first + i, i < count, whose codes in all rows add up to 255 or
  // more, and the i of each; returns how many there are. There is one subtable, of group 0. codes
  // [rows][width][2^bits]; places, estimates: room for `count`.
  size_t (*sift)(const uint32_t* tables, size_t rows, uint32_t width, const Subtable& subtable,
                 bool mean, const uint8_t* codes, uint64_t first, size_t count, int64_t* places,
                 double* estimates, float* gathered);
  // Inversion of a cumulative table, in place: words[i] becomes base + how many bounds are below
  // it, as int64. Returns whether a word equals a bound. bounds ascend from 0 to 2^64 - 1; guide[s]
  // is how many are below s << shift.
  bool (*invert)(const uint64_t* bounds, const uint32_t* guide, uint32_t shift, int64_t base,
                 uint64_t* words, size_t count);
  // The same, comparing every word with every bound.
  bool (*invert_scan)(const uint64_t* bounds, size_t num_bounds, int64_t base, uint64_t* words,
                      size_t count);
  // out[i] = words[i] mod p, for any int64.
  void (*reduce_words)(uint64_t prime, const int64_t* words, size_t count, int64_t* out);
  // The steps of a fully linear proof, of `reports` reports. They return whether all words were
  // below p; otherwise what they wrote is of no use.
  // words [reports][length], joint [reports][3][degree] -> pairs [reports][slots][2][degree]
  bool (*sketch_inputs)(const ExtensionField& field, const SketchCircuit& circuit,
                        const int64_t* words, const int64_t* joint, size_t reports, int64_t* pairs,
                        uint64_t* scratch);
  // inputs [reports][calls][2 chunk][degree], seeds [reports][2 chunk][degree], between
  // [nodes][nodes]: the share of the value at a node in the value at the next point between nodes
  // -> proof [reports][2 chunk + 2 nodes - 1][degree]
  bool (*prove)(const ExtensionField& field, const GadgetCalls& gadget, const int64_t* inputs,
                const int64_t* seeds, const int64_t* between, size_t reports, int64_t* proof,
                uint64_t* scratch);
  // points [reports][degree]; wire_basis [nodes][nodes] and gadget_basis [2 nodes][2 nodes - 1]:
  // the coefficients of X^j in what a value of a wire, or of the gadget polynomial, is multiplied
  // with -> verifier [reports][2 chunk + 2][degree], all but its first element
  bool (*query)(const ExtensionField& field, const GadgetCalls& gadget, const int64_t* inputs,
                const int64_t* proof, const int64_t* points, const int64_t* wire_basis,
                const int64_t* gadget_basis, size_t reports, int64_t* verifier, uint64_t* scratch);
  // What cells say of `count` items, in blocks of kItems: words [blocks][groups][rows][kItems],
  // beliefs [blocks][rows][batches][kItems], unsure [blocks][rows][batches or 1][kItems]; both may
  // be null. With a rule they become the new messages, and are added to the sums.
  void (*exchange)(const Messages& system, const uint32_t* words, float* beliefs, float* unsure,
                   size_t count, double* value, double* stddev, const MessageRule* rule,
                   MessageSums sums, MessageStats* stats, double* scratch);
  // The ids x 2^16 + y, from first_x on, whose key in the index's row is one of `keys`. values
  // [rows][width][2^bits]; uppers [num_x][rows]: the words of x 2^16, XOR those of 0. Without
  // `need` their values add up to more than `least` in the index's row, in it and the next one,
  // and so on; tops: the largest value that a key has. With `need` that number of values exceed `least`,
  // all of them in the index's row and those after it. Returns how many there are, and writes the
  // first `capacity` of them.
  size_t (*meet)(const Halves& index, const float* values, const uint32_t* keys, const float* tops,
                 size_t num_keys, uint32_t need, float least, uint64_t first_x,
                 const uint32_t* uppers, size_t num_x, uint64_t* out, size_t capacity);
  // The limits of the machine, for benchmarks: the sum of table[index[i]], and table[index[i]]
  // += 1.
  float (*gather_limit)(const float* table, const uint32_t* index, size_t count);
  void (*scatter_limit)(int32_t* table, const uint32_t* index, size_t count);
};

extern const Kernels kernels_baseline;
#ifdef FEDTALLY_HAVE_v3
extern const Kernels kernels_v3;
#endif
#ifdef FEDTALLY_HAVE_v4
extern const Kernels kernels_v4;
#endif

}  // namespace fedtally
