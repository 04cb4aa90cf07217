// fedtally.kernels._native: the compiled kernels. The Python package fedtally/kernels is their
// typed door: it checks shapes and contiguity, picks the level and splits work over threads. Every
// function here releases the GIL and trusts its arguments.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "integers.h"
#include "kernels.h"
#include "names.h"
#include "rows.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace fedtally;

template <class T, size_t Dims> using Array =
    nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu, nb::numpy>;
template <class T, size_t Dims> using In =
    nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;

// Uninitialised working memory that starts on a cache line. An entry of an interleaved table must
// not straddle two lines: that would take 1.1 to 1.3 times as long.
template <class T> class Scratch {
 public:
  explicit Scratch(size_t count)
      : data_(static_cast<T*>(::operator new(count * sizeof(T), kLine))) {}
  ~Scratch() { ::operator delete(data_, kLine); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() const { return data_; }

 private:
  static constexpr std::align_val_t kLine{64};
  T* data_;
};

// Increments after which the split counters are folded: below 2^31, so that no int32 can overflow.
static constexpr size_t kInt32Safe = size_t(1) << 30;

static std::vector<std::string> levels() {
  std::vector<std::string> names{"baseline"};
#if defined(__x86_64__) && defined(__GNUC__)
  // The features that the compiler may use at the levels x86-64-v3 and -v4.
  __builtin_cpu_init();
  [[maybe_unused]] const bool v3 = __builtin_cpu_supports("avx2") &&
                                   __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#ifdef FEDTALLY_HAVE_v3
  if (v3) names.push_back("v3");
#endif
#ifdef FEDTALLY_HAVE_v4
  if (v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    names.push_back("v4");
#endif
#endif
  return names;
}

static const Kernels& kernels_of(const std::string& level) {
#ifdef FEDTALLY_HAVE_v3
  if (level == "v3") return kernels_v3;
#endif
#ifdef FEDTALLY_HAVE_v4
  if (level == "v4") return kernels_v4;
#endif
  if (level == "baseline") return kernels_baseline;
  throw std::invalid_argument("unknown kernel level " + level);
}

static void hash_words(const std::string& level, In<uint32_t, 3> tables, In<uint64_t, 1> ids,
                       Array<uint32_t, 2> words) {
  const Kernels& k = kernels_of(level);
  nb::gil_scoped_release release;
  Scratch<uint32_t> scratch(list_scratch(tables.shape(0), 1));
  k.hash_words(tables.data(), tables.shape(0), ids.data(), ids.shape(0), words.data(),
               words.shape(1), scratch.data());
}

static void accumulate(const std::string& level, In<uint32_t, 3> location, In<uint32_t, 3> sign,
                       uint32_t sign_bit, In<uint64_t, 1> ids, std::optional<In<int64_t, 1>> counts,
                       Array<int64_t, 2> counters) {
  const Kernels& k = kernels_of(level);
  const size_t rows = counters.shape(0), width = counters.shape(1), count = ids.shape(0);
  nb::gil_scoped_release release;
  Scratch<uint32_t> scratch(list_scratch(rows, sign.data() == location.data() ? 1 : 2));
  std::vector<int32_t> split;
  // Splitting pays once most counters are visited: before, clearing and folding costs more.
  const bool many = !counts && count >= width;
  for (size_t i = 0; i < count; i += kInt32Safe) {
    const size_t n = count - i < kInt32Safe ? count - i : kInt32Safe;
    if (many) split.assign(rows * width * 2, 0);
    k.accumulate(location.data(), sign.data(), sign_bit, rows, (uint32_t)width, ids.data() + i,
                 counts ? counts->data() + i : nullptr, n, counters.data(),
                 many ? split.data() : nullptr, scratch.data());
    for (size_t cell = 0; many && cell < rows * width; cell++)
      counters.data()[cell] += (int64_t)split[2 * cell] - split[2 * cell + 1];
  }
}

static void accumulate_range(const std::string& level, In<uint32_t, 3> location,
                             In<uint32_t, 3> sign, uint32_t sign_bit, uint64_t first,
                             In<int64_t, 1> counts, Array<int64_t, 2> counters) {
  const Kernels& k = kernels_of(level);
  nb::gil_scoped_release release;
  k.accumulate_range(location.data(), sign.data(), sign_bit, counters.shape(0),
                     (uint32_t)counters.shape(1), first, counts.data(), counts.shape(0),
                     counters.data());
}

template <class T> struct Gather;
template <> struct Gather<float> {
  static constexpr auto kernel = &Kernels::decode_f32;
};
template <> struct Gather<double> {
  static constexpr auto kernel = &Kernels::decode_f64;
};

// layout: (group, shift, bits) of each subtable; values [rows][width][stride]: the subtables of a
// cell one after the other.
template <class T>
static void decode(const std::string& level, In<uint32_t, 4> tables, uint32_t width,
                   In<uint32_t, 2> layout, In<T, 3> values, bool mean,
                   std::optional<In<uint64_t, 1>> ids, uint64_t first, Array<double, 1> estimates) {
  const Kernels& k = kernels_of(level);
  const size_t groups = tables.shape(0), rows = tables.shape(1);
  nb::gil_scoped_release release;
  std::vector<Subtable> subtables;
  size_t offset = 0;
  for (size_t s = 0; s < layout.shape(0); s++) {
    const uint32_t* entry = layout.data() + 3 * s;
    subtables.push_back({values.data() + offset, entry[0], entry[1], entry[2]});
    offset += size_t(1) << entry[2];
  }
  Scratch<uint32_t> scratch(ids ? list_scratch(rows, groups, kDecodeBlock) : 0);
  Scratch<T> gathered(rows * (kDecodeBlock + kPad));
  (k.*Gather<T>::kernel)(tables.data(), groups, rows, width, subtables.data(), subtables.size(),
                         (uint32_t)values.shape(2), mean, ids ? ids->data() : nullptr, first,
                         estimates.shape(0), estimates.data(), gathered.data(), scratch.data());
}

static size_t sift(const std::string& level, In<uint32_t, 4> tables, uint32_t width,
                   In<uint32_t, 2> layout, In<float, 3> values, bool mean, In<uint8_t, 3> codes,
                   uint64_t first, Array<int64_t, 1> places, Array<double, 1> estimates) {
  const Kernels& k = kernels_of(level);
  const size_t rows = tables.shape(1);
  nb::gil_scoped_release release;
  const uint32_t* entry = layout.data();
  Scratch<float> gathered(rows * (kDecodeBlock + kPad));
  return k.sift(tables.data(), rows, width, {values.data(), entry[0], entry[1], entry[2]}, mean,
                codes.data(), first, places.shape(0), places.data(), estimates.data(),
                gathered.data());
}

// patterns [rows][width][stride] get, for each cell, from `offset` on, the sums of the batches
// under each pattern of signs. A batch is negated where its bit of the pattern is 1. So each
// further bit doubles the patterns: the new half is the old one less twice the batch.
// batches [batches][rows][width] may have any strides.
template <class From, class T>
static void fill_patterns(nb::ndarray<const From, nb::ndim<3>, nb::device::cpu> batches,
                          size_t offset, Array<T, 3> patterns) {
  const size_t bits = batches.shape(0), rows = batches.shape(1), width = batches.shape(2),
               stride = patterns.shape(2);
  const int64_t by_batch = batches.stride(0), by_row = batches.stride(1),
                by_cell = batches.stride(2);
  nb::gil_scoped_release release;
  T* out = patterns.data() + offset;
  for (size_t row = 0; row < rows; row++)
    for (size_t cell = 0; cell < width; cell++, out += stride) {
      const From* const first =
          batches.data() + (int64_t)row * by_row + (int64_t)cell * by_cell;
      T sum = (T)first[0];
      for (size_t b = 1; b < bits; b++) sum += (T)first[(int64_t)b * by_batch];
      out[0] = sum;
      for (size_t b = 0; b < bits; b++) {
        const T twice = 2 * (T)first[(int64_t)b * by_batch];
        for (size_t p = 0; p < size_t(1) << b; p++) out[(size_t(1) << b) + p] = out[p] - twice;
      }
    }
}

// Two numbers side by side, at any place of an array.
typedef double Pair __attribute__((vector_size(16), aligned(8), may_alias));
typedef uint64_t PairBits __attribute__((vector_size(16)));

// Products with two signs, +1 or -1: a sign flips the highest bit of a double, or leaves it. To
// look the bits up in a table takes less time than to turn signs into doubles.
class SignPairs {
 public:
  SignPairs() {
    for (const int8_t a : {1, -1})
      for (const int8_t b : {1, -1}) {
        const int8_t signs[] = {a, b};
        flips_[place(signs)] = PairBits{a < 0 ? kTop : 0, b < 0 ? kTop : 0};
      }
  }
  Pair times(const int8_t* signs, Pair values) const {
    return (Pair)((PairBits)values ^ flips_[place(signs)]);
  }

 private:
  static constexpr uint64_t kTop = uint64_t(1) << 63;
  static size_t place(const int8_t* signs) {  // by the highest bits of both
    uint16_t both;
    std::memcpy(&both, signs, 2);
    return (both >> 7) & 0x101;
  }
  PairBits flips_[0x102];
};

// An item's cells in residual r: the index in each row of the first batch, which the others follow;
// and signs [rows][batches]. Batches are handled by pairs, four of which stay in registers.
struct ItemCells {
  const SignPairs& pairs;
  const int64_t* cell;
  const int8_t* sign;
  size_t rows, batches;
  double* r;

  void fetch() const {  // from memory, long before it is needed: the places are random
    for (size_t row = 0; row < rows; row++) {
      __builtin_prefetch(r + cell[row], 1);
      __builtin_prefetch(r + cell[row] + batches - 1, 1);
    }
  }

  // z[m] = the sum over rows of sign * residual
  void read(double* z) const {
    size_t m = 0;
    for (; m + 8 <= batches; m += 8) read_pairs<4>(m, z + m);
    for (; m + 2 <= batches; m += 2) read_pairs<1>(m, z + m);
    if (m == batches) return;
    z[m] = 0;
    for (size_t row = 0; row < rows; row++) z[m] += sign[row * batches + m] * at(row, m)[0];
  }

  // residual -= sign * change[m] in each row
  void subtract(const double* change) const {
    size_t m = 0;
    for (; m + 8 <= batches; m += 8) subtract_pairs<4>(m, change + m);
    for (; m + 2 <= batches; m += 2) subtract_pairs<1>(m, change + m);
    if (m == batches) return;
    for (size_t row = 0; row < rows; row++) at(row, m)[0] -= sign[row * batches + m] * change[m];
  }

 private:
  double* at(size_t row, size_t m) const { return r + cell[row] + m; }

  template <size_t kPairs> void read_pairs(size_t m, double* z) const {
    Pair sum[kPairs] = {};
    for (size_t row = 0; row < rows; row++)
      for (size_t p = 0; p < kPairs; p++)
        sum[p] += pairs.times(sign + row * batches + m + 2 * p, *(Pair*)at(row, m + 2 * p));
    std::memcpy(z, sum, sizeof sum);
  }

  template <size_t kPairs> void subtract_pairs(size_t m, const double* change) const {
    Pair by[kPairs];
    std::memcpy(by, change, sizeof by);
    for (size_t row = 0; row < rows; row++)
      for (size_t p = 0; p < kPairs; p++)
        *(Pair*)at(row, m + 2 * p) -= pairs.times(sign + row * batches + m + 2 * p, by[p]);
  }
};

// kernels.reference.refit is the definition. The operations here are the same, in nearly the same
// order. kStep is 1 where the batches of a cell lie together, 0 where each has a cell of its own.
// kBatches is their number where it is known when this is compiled (the loops are then unrolled),
// else 0.
template <size_t kStep, size_t kBatches>
static void refit_sweeps(const int64_t* cells, const int8_t* signs, const double* clients,
                         double* r, double* values, double* shrinkage, size_t items, size_t rows,
                         size_t width, size_t any_batches, uint32_t sweeps, bool frozen) {
  const size_t batches = kBatches ? kBatches : any_batches, step = kStep ? kStep : batches;
  std::vector<double> weight(batches), poisson(batches), z(batches), change(batches),
      noise(batches);
  double total = 0, squares = 0;
  for (size_t m = 0; m < batches; m++) total += clients[m];
  for (size_t m = 0; m < batches; m++) squares += (weight[m] = clients[m] / total) * weight[m];
  const double effective = 1 / squares;
  const bool several = effective > 1 + 1e-9;  // one batch, up to rounding, has no spread to look at
  const SignPairs pairs;
  const double slack = several ? 3 * std::sqrt(2 / (effective - 1)) : 0;
  for (uint32_t sweep = 0; sweep < sweeps; sweep++) {
    double mean_noise = 0;
    if (!frozen) {
      std::fill(noise.begin(), noise.end(), 0.0);
      for (size_t cell = 0; cell < rows * width; cell++)
        for (size_t m = 0; m < batches; m++)
          noise[m] += r[cell * batches + m] * r[cell * batches + m];
      for (size_t m = 0; m < batches; m++)
        mean_noise += weight[m] * (noise[m] /= (double)(rows * width * rows));
    }
    for (size_t item = 0; item < items; item++) {
      const int64_t* const cell = cells + item * rows * step;
      const int8_t* const sign = signs + item * rows * batches;
      double *const x = values + item * batches, *const k = shrinkage + item * batches;
      [[maybe_unused]] const ItemCells together{pairs, cell, sign, rows, batches, r};
      if constexpr (kStep == 1) {
        if (item + 1 < items) ItemCells{pairs, cell + rows, sign, rows, batches, r}.fetch();
        together.read(z.data());
      } else {
        for (size_t m = 0; m < batches; m++) z[m] = 0;
        for (size_t row = 0; row < rows; row++)
          for (size_t m = 0; m < batches; m++)
            z[m] += sign[row * batches + m] * r[cell[row * step + m]];
      }
      double mean = 0;
      for (size_t m = 0; m < batches; m++) mean += weight[m] * (z[m] = x[m] + z[m] / (double)rows);
      if (!frozen) {
        double expected = 0, spread = 0;
        for (size_t m = 0; several && m < batches; m++) {
          const double n = clients[m];
          poisson[m] = n > 0 && mean > 0 ? mean / n : 0;
          expected += weight[m] * poisson[m];
          spread += weight[m] * (z[m] - mean) * (z[m] - mean);
        }
        spread = several ? spread / (1 - squares) - mean_noise : 0;
        const bool wide = several && spread > expected + slack * (mean_noise + expected);
        for (size_t m = 0; m < batches; m++) {
          const double variance = wide ? spread : poisson[m];
          k[m] = several ? variance / (variance + noise[m] + 1e-300) : 1;  // 1e-300: never 0 / 0
        }
      }
      for (size_t m = 0; m < batches; m++) {
        const double now = clients[m] > 0 ? mean + k[m] * (z[m] - mean) : 0;
        change[m] = now - x[m];
        x[m] = now;
      }
      if constexpr (kStep == 1) {
        together.subtract(change.data());
      } else {
        for (size_t row = 0; row < rows; row++)
          for (size_t m = 0; m < batches; m++)
            r[cell[row * step + m]] -= sign[row * batches + m] * change[m];
      }
    }
  }
}

static void refit(In<int64_t, 3> cells, In<int8_t, 3> signs, In<double, 1> clients,
                  Array<double, 3> residual, Array<double, 2> values, Array<double, 2> shrinkage,
                  uint32_t sweeps, bool frozen) {
  const size_t items = signs.shape(0), rows = signs.shape(1), batches = signs.shape(2),
               width = residual.shape(1);
  nb::gil_scoped_release release;
  const auto run = [&](auto sweep) {
    sweep(cells.data(), signs.data(), clients.data(), residual.data(), values.data(),
          shrinkage.data(), items, rows, width, batches, sweeps, frozen);
  };
  // Constants for one batch, and for ten: a usual number of rounds.
  if (batches == 1) run(refit_sweeps<1, 1>);
  else if (cells.shape(2) > 1) run(refit_sweeps<0, 0>);
  else if (batches == 10) run(refit_sweeps<1, 10>);
  else run(refit_sweeps<1, 0>);
}

static constexpr uint64_t kPrime = (uint64_t(1) << 61) - 1;

// kernels.reference.symbol_means is the definition. The operations here are the same, in the same
// order, so that the results are equal bit by bit.
static void symbol_means(In<uint32_t, 4> tables, In<double, 3> sums, uint64_t first,
                         In<double, 1> most, Array<double, 2> means) {
  const size_t sketches = sums.shape(0), rows = sums.shape(1), width = sums.shape(2);
  nb::gil_scoped_release release;
  for (size_t sketch = 0; sketch < sketches; sketch++) {
    const double bound = most.data()[sketch];
    double* const mean = means.data() + sketch * 256;
    std::fill(mean, mean + 256, 0.0);
    for (size_t row = 0; row < rows; row++) {
      const uint32_t* const table = tables.data() + (sketch * rows + row) * 2048;
      const double* const counters = sums.data() + (sketch * rows + row) * width;
      uint32_t upper = 0;
      for (int byte = 1; byte < 8; byte++)
        upper ^= table[byte * 256 + ((first >> (8 * byte)) & 255)];
      double values[256];
      for (size_t symbol = 0; symbol < 256; symbol++) {
        const uint32_t word = table[symbol] ^ upper;
        uint64_t bits;
        std::memcpy(&bits, counters + (((uint64_t)(word >> 8) * width) >> 24), sizeof bits);
        bits ^= (uint64_t)(word & 1) << 63;  // the sign
        std::memcpy(values + symbol, &bits, sizeof bits);
      }
      for (size_t symbol = 0; symbol < 256; symbol++) {
        const double value = values[symbol] < -bound ? -bound : values[symbol];
        mean[symbol] += value > bound ? bound : value;
      }
    }
    for (size_t symbol = 0; symbol < 256; symbol++) mean[symbol] /= (double)rows;
  }
}

// a * b mod 2^61 - 1, not fully reduced: for a, b < 2^62 the result is < 2^62. Since 2^61 = 1 mod
// the prime, the bits above the 61st are added to those below.
static inline uint64_t multiply_mod(uint64_t a, uint64_t b) {
  const unsigned __int128 product = (unsigned __int128)a * b;
  const uint64_t folded = (uint64_t)(product & kPrime) + (uint64_t)(product >> 61);
  return (folded & kPrime) + (folded >> 61);
}

static void fingerprint(In<uint8_t, 1> data, In<int64_t, 1> offsets, uint64_t k, uint64_t k2,
                        Array<uint64_t, 1> out) {
  nb::gil_scoped_release release;
  const uint8_t* const end = data.data() + data.shape(0);
  for (size_t i = 0; i + 1 < offsets.shape(0); i++) {
    const uint8_t* p = data.data() + offsets.data()[i];
    size_t left = (size_t)(offsets.data()[i + 1] - offsets.data()[i]);
    uint64_t h = left + 1;  // the length first: strings that end in zero bytes must differ
    for (; left > 0;) {
      const size_t take = left < 7 ? left : 7;
      uint64_t chunk = 0;
      if (end - p >= 8) {  // one load of 8 bytes, of which at most 7 are kept, where all are there
        std::memcpy(&chunk, p, 8);
        chunk &= (uint64_t(1) << (8 * take)) - 1;
      } else {
        std::memcpy(&chunk, p, take);
      }
      h = multiply_mod(h, k) + chunk;
      h = (h & kPrime) + (h >> 61);
      p += take;
      left -= take;
    }
    h = multiply_mod(h, k2);
    out.data()[i] = h >= kPrime ? h - kPrime : h;
  }
}

static size_t group_ids(In<uint64_t, 1> ids, Array<int64_t, 1> first, Array<int64_t, 1> counts) {
  nb::gil_scoped_release release;
  return group(ids.data(), ids.shape(0), first.data(), counts.data());
}

static void spread_rows(const std::vector<In<uint64_t, 1>>& columns, Array<uint64_t, 2> rows,
                        Array<int64_t, 1> starts) {
  std::vector<const uint64_t*> each;
  for (const In<uint64_t, 1>& column : columns) each.push_back(column.data());
  nb::gil_scoped_release release;
  spread(each, rows.shape(1), rows.data(), starts.data());
}

static size_t sorted_rows(In<uint64_t, 2> rows, Array<uint64_t, 2> out) {
  nb::gil_scoped_release release;
  return distinct_rows(rows.data(), rows.shape(0), rows.shape(1), out.data());
}

static bool closed_quotes(In<uint8_t, 1> data, uint8_t delimiter) {
  nb::gil_scoped_release release;
  return quotes_are_closed(data.data(), data.shape(0), delimiter);
}

static bool invert(const std::string& level, In<uint64_t, 1> bounds, In<uint32_t, 1> guide,
                   int64_t base, bool scan, Array<uint64_t, 1> words) {
  const Kernels& k = kernels_of(level);
  uint32_t shift = 64;  // 64 - log2(slots): the top bits of a word are its slot in the guide
  for (size_t slots = guide.shape(0); slots > 1; slots /= 2) shift--;
  nb::gil_scoped_release release;
  if (scan)
    return k.invert_scan(bounds.data(), bounds.shape(0), base, words.data(), words.shape(0));
  return k.invert(bounds.data(), guide.data(), shift, base, words.data(), words.shape(0));
}

// ---- proofs of valid vectors ----

static void reduce_words(const std::string& level, uint64_t prime, In<int64_t, 1> words,
                         Array<int64_t, 1> out) {
  const Kernels& k = kernels_of(level);
  nb::gil_scoped_release release;
  k.reduce_words(prime, words.data(), words.shape(0), out.data());
}

// Returns how many of the integers are below the prime: `out` has these, as many as it holds.
static size_t read_words(nb::bytes data, uint32_t word_bytes, uint64_t mask, uint64_t prime,
                         Array<int64_t, 1> out) {
  const uint8_t* const octets = (const uint8_t*)data.data();
  const size_t count = data.size() / word_bytes;
  nb::gil_scoped_release release;
  const auto read = word_bytes == 1   ? read_integers<1>
                    : word_bytes == 2 ? read_integers<2>
                    : word_bytes == 3 ? read_integers<3>
                                      : read_integers<4>;
  return read(octets, count, mask, prime, out.data(), out.shape(0));
}

static bool sketch_inputs(const std::string& level, uint64_t prime, uint64_t generator,
                          In<uint32_t, 1> widths, size_t side, bool abstain, uint64_t share,
                          In<int64_t, 2> words, In<int64_t, 3> joint, Array<int64_t, 4> pairs) {
  const Kernels& k = kernels_of(level);
  const uint32_t degree = (uint32_t)pairs.shape(3);
  nb::gil_scoped_release release;
  size_t lines = 0;
  for (size_t row = 0; row < widths.shape(0); row++)
    lines = std::max(lines, (widths.data()[row] + side - 1) / side);
  const SketchCircuit circuit{widths.data(),  widths.shape(0), side,  lines,
                              words.shape(1), pairs.shape(1),  share, abstain};
  Scratch<uint64_t> scratch(sketch_scratch(circuit, degree));
  return k.sketch_inputs({prime, generator, degree}, circuit, words.data(), joint.data(),
                         words.shape(0), pairs.data(), scratch.data());
}

static bool prove(const std::string& level, uint64_t prime, uint64_t generator,
                  In<int64_t, 4> inputs, In<int64_t, 3> seeds, In<int64_t, 2> between,
                  Array<int64_t, 3> proof) {
  const Kernels& k = kernels_of(level);
  const uint32_t degree = (uint32_t)inputs.shape(3);
  const GadgetCalls gadget{between.shape(0), inputs.shape(1), inputs.shape(2) / 2};
  nb::gil_scoped_release release;
  Scratch<uint64_t> scratch(gadget_scratch(gadget, degree));
  return k.prove({prime, generator, degree}, gadget, inputs.data(), seeds.data(), between.data(),
                 inputs.shape(0), proof.data(), scratch.data());
}

static bool query(const std::string& level, uint64_t prime, uint64_t generator,
                  In<int64_t, 4> inputs, In<int64_t, 3> proof, In<int64_t, 2> points,
                  In<int64_t, 2> wire_basis, In<int64_t, 2> gadget_basis,
                  Array<int64_t, 3> verifier) {
  const Kernels& k = kernels_of(level);
  const uint32_t degree = (uint32_t)inputs.shape(3);
  const GadgetCalls gadget{wire_basis.shape(0), inputs.shape(1), inputs.shape(2) / 2};
  nb::gil_scoped_release release;
  Scratch<uint64_t> scratch(gadget_scratch(gadget, degree));
  return k.query({prime, generator, degree}, gadget, inputs.data(), proof.data(), points.data(),
                 wire_basis.data(), gadget_basis.data(), inputs.shape(0), verifier.data(),
                 scratch.data());
}

static float gather_limit(const std::string& level, In<float, 1> table, In<uint32_t, 1> index) {
  const Kernels& k = kernels_of(level);
  nb::gil_scoped_release release;
  return k.gather_limit(table.data(), index.data(), index.shape(0));
}

// rule: first, per_ratio, per_step, far, least, tiny, spread, clearly, update, gate. stats: least,
// largest, moves, unknown, surprise [3], number [3]. Without a table messages are only read.
static void exchange(const std::string& level, In<uint32_t, 4> words, In<double, 3> residual,
                     In<double, 3> variance, bool fresh, double inflation, double own_share,
                     std::optional<Array<float, 4>> beliefs, std::optional<Array<float, 4>> unsure,
                     Array<double, 1> value, Array<double, 1> stddev,
                     std::optional<In<double, 3>> table, In<double, 1> weights,
                     In<double, 1> shares, In<double, 1> rule,
                     Array<double, 3> explained, Array<double, 3> unknown,
                     Array<double, 1> stats) {
  const Kernels& k = kernels_of(level);
  nb::gil_scoped_release release;
  const Messages system{residual.data(),
                        variance.data(),
                        residual.shape(0),
                        residual.shape(1),
                        residual.shape(2),
                        fresh,
                        inflation,
                        own_share};
  const double* r = rule.data();
  MessageRule with{};
  if (table)
    with = {table->data(), weights.data(), shares.data(), table->shape(0), table->shape(1),
            r[0],          r[1],           r[2],          r[3],            r[4],
            r[5],          r[6],           r[7],          r[8],            r[9]};
  MessageStats found{1e300, 0, 0, 0, {0, 0, 0}, {0, 0, 0}};
  Scratch<double> scratch(message_scratch(system));
  k.exchange(system, words.data(), beliefs ? beliefs->data() : nullptr,
             unsure ? unsure->data() : nullptr, value.shape(0), value.data(), stddev.data(),
             table ? &with : nullptr, {explained.data(), unknown.data()}, &found, scratch.data());
  const double out[] = {found.least,       found.largest,     found.moves,     found.unknown,
                        found.surprise[0], found.surprise[1], found.surprise[2], found.number[0],
                        found.number[1],   found.number[2]};
  std::copy(out, out + 10, stats.data());
}

// Returns how many ids there are, of which `out` holds the first.
static size_t meet(const std::string& level, In<uint32_t, 1> starts, In<uint32_t, 1> places,
                   In<uint32_t, 2> words, size_t row, uint32_t top, In<float, 3> values,
                   In<uint32_t, 1> keys, In<float, 1> tops, uint32_t need, float least,
                   uint64_t first, In<uint32_t, 2> uppers, Array<uint64_t, 1> out) {
  const Kernels& k = kernels_of(level);
  nb::gil_scoped_release release;
  uint32_t bits = 0;
  while (size_t(1) << bits < values.shape(2)) bits++;
  const Halves index{starts.data(), places.data(), words.data(),
                     words.shape(0), row,          (uint32_t)values.shape(1), top, bits};
  return k.meet(index, values.data(), keys.data(), tops.data(), keys.shape(0), need, least, first,
                uppers.data(), uppers.shape(0), out.data(), out.shape(0));
}

static void scatter_limit(const std::string& level, Array<int32_t, 1> table,
                          In<uint32_t, 1> index) {
  const Kernels& k = kernels_of(level);
  nb::gil_scoped_release release;
  k.scatter_limit(table.data(), index.data(), index.shape(0));
}

// ---- names of hashes: kernels/letters.py has the definitions ----

// own [places of all names][256] in the order of the names, starts [names + 1]: of each one's
// places. pairs [257][256], totals [257]: the last row is the first byte of a name.
static void read_posteriors(In<double, 2> pairs, In<double, 1> totals, In<double, 1> single,
                       double weight, uint32_t end, In<double, 2> own, In<int64_t, 1> starts,
                       Array<double, 2> found) {
  nb::gil_scoped_release release;
  const Chain chain(pairs.data(), totals.data(), single.data(), weight);
  double first[kBytes], last[kBytes];
  for (size_t byte = 0; byte < kBytes; byte++) {
    first[byte] = (pairs.data()[kBytes * kBytes + byte] + weight * single.data()[byte]) /
                  (totals.data()[kBytes] + weight);
    last[byte] = (pairs.data()[byte * kBytes + end] + weight * single.data()[end]) /
                 (totals.data()[byte] + weight);
  }
  for (size_t name = 0; name + 1 < starts.shape(0); name++) {
    const size_t from = (size_t)starts.data()[name] * kBytes;
    posteriors(chain, first, last, own.data() + from,
               (size_t)(starts.data()[name + 1] - starts.data()[name]), found.data() + from);
  }
}

static size_t likeliest_words(In<double, 2> copies, In<double, 2> posterior, In<double, 2> prior,
                              size_t branches, Array<uint8_t, 2> words) {
  const size_t places = copies.shape(0);
  nb::gil_scoped_release release;
  std::vector<uint8_t> order(places * branches);
  for (size_t place = 0; place < places; place++)
    largest_bytes(posterior.data() + place * kBytes, branches, order.data() + place * branches);
  return likeliest(copies.data(), prior.data(), order.data(), places, branches, words.shape(0),
                   words.data());
}

static size_t interpolated_words(In<double, 2> posterior, In<double, 2> parity, size_t replaced,
                                 size_t flips, In<int64_t, 1> by_flips, uint32_t end,
                                 uint32_t unused, Array<uint8_t, 2> words) {
  const size_t size = posterior.shape(0) + 1, places = size + parity.shape(0);
  nb::gil_scoped_release release;
  std::vector<uint8_t> best(places), second(places);
  std::vector<double> gap(places);
  std::vector<int64_t> order(places);
  for (size_t place = 0; place < places; place++) {
    order[place] = (int64_t)place;
    if (place == size - 1) {  // the end mark, which is certain
      best[place] = (uint8_t)end;
      gap[place] = std::numeric_limits<double>::infinity();
    } else {
      const double* const logs = place < size ? posterior.data() + place * kBytes
                                              : parity.data() + (place - size) * kBytes;
      gap[place] = two_best(logs, &best[place], &second[place]);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return gap[(size_t)a] > gap[(size_t)b]; });
  return interpolated(best.data(), second.data(), order.data(), size, replaced, flips,
                      by_flips.data(), (uint8_t)end, (uint8_t)unused, words.data());
}

NB_MODULE(_native, m) {
  m.def("levels", &levels);
  m.def("hash_words", &hash_words, "level"_a, "tables"_a, "ids"_a, "words"_a);
  m.def("accumulate", &accumulate, "level"_a, "location"_a, "sign"_a, "sign_bit"_a, "ids"_a,
        "counts"_a.none(), "counters"_a);
  m.def("accumulate_range", &accumulate_range, "level"_a, "location"_a, "sign"_a, "sign_bit"_a,
        "first"_a, "counts"_a, "counters"_a);
  m.def("decode", &decode<float>, "level"_a, "tables"_a, "width"_a, "layout"_a, "values"_a,
        "mean"_a, "ids"_a.none(), "first"_a, "estimates"_a);
  m.def("decode", &decode<double>, "level"_a, "tables"_a, "width"_a, "layout"_a, "values"_a,
        "mean"_a, "ids"_a.none(), "first"_a, "estimates"_a);
  m.def("sift", &sift, "level"_a, "tables"_a, "width"_a, "layout"_a, "values"_a, "mean"_a,
        "codes"_a, "first"_a, "places"_a, "estimates"_a);
  m.def("fill_patterns", &fill_patterns<int64_t, float>, "batches"_a, "offset"_a,
        "patterns"_a);
  m.def("fill_patterns", &fill_patterns<int64_t, double>, "batches"_a, "offset"_a,
        "patterns"_a);
  m.def("fill_patterns", &fill_patterns<float, float>, "batches"_a, "offset"_a,
        "patterns"_a);
  m.def("fill_patterns", &fill_patterns<double, double>, "batches"_a, "offset"_a,
        "patterns"_a);
  m.def("refit", &refit, "cells"_a, "signs"_a, "clients"_a, "residual"_a, "values"_a, "shrinkage"_a,
        "sweeps"_a, "frozen"_a);
  m.def("symbol_means", &symbol_means, "tables"_a, "sums"_a, "first"_a, "most"_a, "means"_a);
  m.def("fingerprint", &fingerprint, "data"_a, "offsets"_a, "k"_a, "k2"_a, "out"_a);
  m.def("group_ids", &group_ids, "ids"_a, "first"_a, "counts"_a);
  m.def("spread_rows", &spread_rows, "columns"_a, "rows"_a, "starts"_a);
  m.def("sorted_rows", &sorted_rows, "rows"_a, "out"_a);
  m.def("closed_quotes", &closed_quotes, "data"_a, "delimiter"_a);
  m.def("invert", &invert, "level"_a, "bounds"_a, "guide"_a, "base"_a, "scan"_a, "words"_a);
  m.def("reduce_words", &reduce_words, "level"_a, "prime"_a, "words"_a, "out"_a);
  m.def("read_words", &read_words, "data"_a, "word_bytes"_a, "mask"_a, "prime"_a, "out"_a);
  m.def("sketch_inputs", &sketch_inputs, "level"_a, "prime"_a, "generator"_a, "widths"_a, "side"_a,
        "abstain"_a, "share"_a, "words"_a, "joint"_a, "pairs"_a);
  m.def("prove", &prove, "level"_a, "prime"_a, "generator"_a, "inputs"_a, "seeds"_a, "between"_a,
        "proof"_a);
  m.def("query", &query, "level"_a, "prime"_a, "generator"_a, "inputs"_a, "proof"_a, "points"_a,
        "wire_basis"_a, "gadget_basis"_a, "verifier"_a);
  m.def("exchange", &exchange, "level"_a, "words"_a, "residual"_a, "variance"_a, "fresh"_a,
        "inflation"_a, "own_share"_a, "beliefs"_a.none(), "unsure"_a.none(), "value"_a, "stddev"_a,
        "table"_a.none(), "weights"_a, "shares"_a, "rule"_a, "explained"_a, "unknown"_a,
        "stats"_a);
  m.def("posteriors", &read_posteriors, "pairs"_a, "totals"_a, "single"_a, "weight"_a, "end"_a, "own"_a,
        "starts"_a, "found"_a);
  m.def("likeliest", &likeliest_words, "copies"_a, "posterior"_a, "prior"_a, "branches"_a,
        "words"_a);
  m.def("interpolated", &interpolated_words, "posterior"_a, "parity"_a, "replaced"_a, "flips"_a,
        "by_flips"_a, "end"_a, "unused"_a, "words"_a);
  m.def("meet", &meet, "level"_a, "starts"_a, "places"_a, "words"_a, "row"_a, "top"_a, "values"_a,
        "keys"_a, "tops"_a, "need"_a, "least"_a, "first"_a, "uppers"_a, "out"_a);
  m.def("gather_limit", &gather_limit, "level"_a, "table"_a, "index"_a);
  m.def("scatter_limit", &scatter_limit, "level"_a, "table"_a, "index"_a);
}
