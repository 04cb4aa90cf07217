// Arithmetic of the proofs of valid vectors, over GF(p^K) = GF(p)[X] / (X^K - g) with p < 2^32
// (docs/protocol.md). fedtally/flp is the definition, in NumPy; all of it is exact, so that the
// results are equal.
//
// Elements are handled kWide at a time: a vector holds the same coefficient of each of them. Lists
// of elements are kept as planes, [K][stride]: all coefficients 0, then all coefficients 1, and so
// on. Included inside of the anonymous namespace. No branch and no address depends on a word that
// is below p.

#if defined(__AVX512F__)
constexpr size_t kWide = 8;
#elif defined(__AVX2__)
constexpr size_t kWide = 4;
#else
constexpr size_t kWide = 2;
#endif
typedef u64 Vec __attribute__((vector_size(8 * kWide)));
typedef u64 LooseVec __attribute__((vector_size(8 * kWide), aligned(8), may_alias));

inline Vec load(const u64* from) { return *(const LooseVec*)from; }
inline void store(u64* to, Vec values) { *(LooseVec*)to = values; }
inline Vec all(u64 value) { return Vec{} + value; }
constexpr size_t whole(size_t count) { return (count + kWide - 1) / kWide * kWide; }

// The products of the lower halves of the lanes, 64 bits each.
inline Vec times(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Vec)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Vec)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

// Montgomery's reduction: it divides by 2^32 at each step, mod p. So each result of `reduced` lacks
// a factor of 2^64, two steps, which a later product with raised[] makes up for.
struct Modulus {
  u64 p, inverse;  // 1 / p mod 2^32
  u64 raised[9];   // 2^(32 i) mod p
  u64 turned[9];   // g 2^(32 i) mod p: for X^K = g

  Modulus(u64 prime, u64 g) : p(prime), inverse(prime) {
    // Newton's steps: p p = 1 mod 2^3, and each step doubles the bits that hold
    for (int i = 0; i < 4; i++) inverse *= 2 - p * inverse;
    raised[0] = 1;
    for (int i = 1; i < 9; i++) raised[i] = (raised[i - 1] << 32) % p;
    for (int i = 0; i < 9; i++) turned[i] = raised[i] * (g % p) % p;
  }
};

// x / 2^32 mod p, for all x < 2^64: at most p + x / 2^32, and above 0. The lower halves of x and of
// (x / p mod 2^32) p are equal, so that the difference of the upper halves is exact.
inline Vec step(const Modulus& q, Vec x) {
  return (x >> 32) + q.p - (times(times(x, all(q.inverse)), all(q.p)) >> 32);
}

// Subtract p where x is not below it, for x < p + 2^32.
inline Vec canonical(const Modulus& q, Vec x) {
  const Vec less = x - q.p;  // negative: its upper half is all ones
  return less + ((less >> 32) & q.p);
}

// The second step has x < 2^32 + p < 2^33, so that what it returns is at most p + 1.
inline Vec reduced(const Modulus& q, Vec x) { return canonical(q, step(q, step(q, x))); }

// A sum of products of words. It is below 2^63: kernels/linear_proofs.py checks 4096 K p^2 < 2^63, and no
// sum here has more than 4096 K products.
template <bool kSplit> struct Sum {
  Vec total = {};
  void add(Vec a, Vec b) { total += times(a, b); }
  Vec reduced_by(const Modulus& q) const { return reduced(q, total); }
  // After so many steps it is below 2^32. One is enough, since p < 2^25: 2^31 + p.
  static constexpr int kSteps = 1;
  Vec lowered(const Modulus& q) const { return step(q, total); }
};

// For p up to 2^32 the halves of the products are added up on their own: 2^32 of them fit.
template <> struct Sum<true> {
  Vec low = {}, high = {};
  void add(Vec a, Vec b) {
    const Vec product = times(a, b);
    low += product & 0xffffffff;
    high += product >> 32;
  }
  // step(low) + high is the whole sum / 2^32 mod p. It is below 2^33 + n p^2 / 2^32, so that the
  // second step returns at most p + 2 + n p^2 / 2^64, which is below 2 p.
  Vec reduced_by(const Modulus& q) const { return canonical(q, step(q, step(q, low) + high)); }
  static constexpr int kSteps = 2;
  Vec lowered(const Modulus& q) const { return reduced_by(q); }
};

// The polynomial that a sum of products of elements is before X^K = g: 2K - 1 coefficients.
template <int K> struct Product {
  Sum<K == 4> at[2 * K - 1];

  void add(const Vec* a, const Vec* b) {
    for (int i = 0; i < K; i++)
      for (int j = 0; j < K; j++) at[i + j].add(a[i], b[j]);
  }

  // The element. `lack` is how many of the two lists of factors lack 2^64.
  void fold(const Modulus& q, int lack, Vec* out) const {
    const int steps = Sum<K == 4>::kSteps + 2 + 2 * lack;
    for (int k = 0; k < K; k++) {
      Sum<K == 4> sum;
      sum.add(at[k].lowered(q), all(q.raised[steps]));
      if (k < K - 1) sum.add(at[k + K].lowered(q), all(q.turned[steps]));
      out[k] = sum.reduced_by(q);
    }
  }
};

template <int K> inline void multiply(const Modulus& q, const Vec* a, const Vec* b, Vec* out) {
  Product<K> product;
  product.add(a, b);
  product.fold(q, 0, out);
}

// The powers 0 .. count - 1 of an element, as planes. stride: at least whole(count) + 2 kWide.
template <int K> void powers(const Modulus& q, const i64* base, size_t count, u64* planes,
                             size_t stride) {
  for (size_t i = 0; i < K * stride; i++) planes[i] = 0;
  planes[0] = 1;
  for (int k = 0; k < K; k++) planes[k * stride + 1] = (u64)base[k];
  // The powers 0 .. last, times the last one, are those from last to 2 last. A vector may write
  // more than these: what is too much is written again later, or never read.
  for (size_t last = 1; last + 1 < count; last *= 2) {
    Vec by[K], x[K];
    for (int k = 0; k < K; k++) by[k] = all(planes[k * stride + last]);
    for (size_t i = 0; i <= last && last + i < count; i += kWide) {
      for (int k = 0; k < K; k++) x[k] = load(planes + k * stride + i);
      multiply<K>(q, x, by, x);
      for (int k = 0; k < K; k++) store(planes + k * stride + last + i, x[k]);
    }
  }
}

// lists [2][count][K]: the powers of an element, then those of its square.
template <int K> void powers_and_squares(const Modulus& q, const i64* base, size_t count,
                                         u64* lists, u64* planes) {
  const size_t stride = whole(count) + 2 * kWide;
  powers<K>(q, base, count, planes, stride);
  for (int square = 0; square < 2; square++, lists += count * K) {
    for (size_t i = 0; square && i < count; i += kWide) {
      Vec x[K];
      for (int k = 0; k < K; k++) x[k] = load(planes + k * stride + i);
      multiply<K>(q, x, x, x);
      for (int k = 0; k < K; k++) store(planes + k * stride + i, x[k]);
    }
    for (size_t i = 0; i < count; i++)
      for (int k = 0; k < K; k++) lists[i * K + k] = planes[k * stride + i];
  }
}

// The upper bit is set where a word is not below p. Words may be any int64.
inline Vec outside(const Modulus& q, Vec x) { return x | (q.p - 1 - x); }
inline u64 outside(const Modulus& q, u64 x) { return x | (q.p - 1 - x); }
inline u64 outside(const Modulus& q, const i64* words, size_t count) {
  u64 bits = 0;
  for (size_t i = 0; i < count; i++) bits |= outside(q, (u64)words[i]);
  return bits;
}

// ---- the circuit of a sketch ----

// cells [side][kWide]: the counters from `start` on of n rows, and 0 after the end of a row.
inline void transpose_line(const u32* widths, const i64* const* rows, size_t n, size_t start,
                           size_t side, u64* cells) {
  size_t whole_until = start + side;  // all rows have these cells
  for (size_t lane = 0; lane < n; lane++)
    whole_until = widths[lane] < whole_until ? widths[lane] : whole_until;
  size_t w = start;
  for (; w < whole_until; w++, cells += kWide)
    for (size_t lane = 0; lane < n; lane++) cells[lane] = (u64)rows[lane][w];
  for (; w < start + side; w++, cells += kWide)
    for (size_t lane = 0; lane < n; lane++) cells[lane] = w < widths[lane] ? (u64)rows[lane][w] : 0;
}

// kWide rows at a time, one in each lane.
template <int K> bool sketch_inputs(const Modulus& q, const SketchCircuit& circuit,
                                    const i64* words, const i64* joint, size_t reports, i64* pairs,
                                    u64* scratch) {
  const size_t rows = circuit.rows, side = circuit.side, lines = circuit.lines;
  const size_t stride = whole(2 * rows + 2) + 2 * kWide;
  u64 *cells = scratch, *down = cells + side * kWide, *along = down + 2 * lines * K,
      *weights = along + 2 * side * K, *planes = weights + stride * K;
  u64 bits = 0;
  for (size_t report = 0; report < reports; report++) {
    const i64 *x = words + report * circuit.length, *r = joint + report * 3 * K;
    i64* const out = pairs + report * circuit.slots * 2 * K;
    bits |= outside(q, r, 3 * K);
    powers_and_squares<K>(q, r, lines, down, planes);
    powers_and_squares<K>(q, r + K, side, along, planes);
    powers<K>(q, r + 2 * K, 2 * rows + 2, weights, stride);
    for (size_t first = 0; first < rows; first += kWide) {
      const size_t n = rows - first < kWide ? rows - first : kWide;
      const i64* row[kWide];
      size_t widest = 0;
      for (size_t lane = 0; lane < n; lane++) {
        const size_t width = circuit.widths[first + lane];
        row[lane] = x;
        x += width;
        widest = width > widest ? width : widest;
      }
      for (size_t i = 0; i < side * kWide; i++) cells[i] = 0;  // the lanes that have no row

      Vec total = {}, over = {};  // total: below 2^24 2^32
      Product<K> sums[2];         // z and y
      for (size_t line = 0; line * side < widest; line++) {
        transpose_line(circuit.widths + first, row, n, line * side, side, cells);
        for (size_t b = 0; b < side; b++) {
          total += load(cells + b * kWide);
          over |= outside(q, load(cells + b * kWide));
        }
        for (int square = 0; square < 2; square++) {
          const u64 *factor = along + square * side * K,
                    *power = down + (square * lines + line) * K;
          Sum<K == 4> sum[K];
          for (size_t b = 0; b < side; b++, factor += K) {
            const Vec counters = load(cells + b * kWide);
            for (int k = 0; k < K; k++) sum[k].add(counters, all(factor[k]));
          }
          Vec inner[K], outer[K];
          for (int k = 0; k < K; k++) inner[k] = sum[k].reduced_by(q), outer[k] = all(power[k]);
          sums[square].add(inner, outer);
        }
      }
      for (size_t lane = 0; lane < kWide; lane++) bits |= over[lane];

      // lefts and rights of the three products of a row
      Vec left[3][K], right[3][K] = {}, odd[K] = {}, even[K] = {};
      Vec* const z = right[0];
      sums[0].fold(q, 1, z);
      sums[1].fold(q, 1, right[1]);
      for (int k = 0; k < K; k++)
        for (size_t lane = 0; lane < n; lane++) {
          odd[k][lane] = weights[k * stride + 2 * (first + lane) + 1];
          even[k][lane] = weights[k * stride + 2 * (first + lane) + 2];
        }
      const Vec s = reduced(q, total);                            // lacks 2^64
      const Vec raised = reduced(q, times(s, all(q.raised[6])));  // 2^64 s
      right[2][0] = reduced(q, times(s, all(q.raised[4])));       // s
      multiply<K>(q, odd, z, left[0]);
      for (int k = 0; k < K; k++) {
        left[1][k] = canonical(q, q.p - reduced(q, times(odd[k], raised)));
        left[2][k] = reduced(q, times(even[k], raised));
      }
      for (size_t lane = 0; lane < n; lane++)
        for (int i = 0; i < 3; i++)
          for (int k = 0; k < K; k++) {
            i64* const pair = out + (3 * (first + lane) + i) * 2 * K;
            pair[k] = (i64)left[i][k][lane];
            pair[K + k] = (i64)right[i][k][lane];
          }
    }
    bits |= outside(q, words + (report + 1) * circuit.length - circuit.abstain, circuit.abstain);
    for (size_t i = 3 * rows * 2 * K; i < circuit.slots * 2 * K; i++) out[i] = 0;
    if (circuit.abstain) {
      // e is secret, and the time of a division would depend on it
      const Vec e = all((u64)words[(report + 1) * circuit.length - 1] & 0xffffffff);
      const Vec raised = reduced(q, times(e, all(q.raised[4])));  // 2^64 e
      i64* const pair = out + 3 * rows * 2 * K;
      for (int k = 0; k < K; k++)
        pair[k] = (i64)reduced(q, times(all(weights[k * stride + 2 * rows + 1]), raised))[0];
      pair[K] = (i64)canonical(q, e + q.p - circuit.share)[0];
    }
  }
  return !(bits >> 63);
}

// ---- the proof of any circuit ----

// A wire has its seed at node 0, and the inputs of a call at each node after it. All wires at one
// node are [2 chunk][K].
inline const i64* wires_at(const GadgetCalls& gadget, const i64* seeds, const i64* inputs,
                           size_t node, size_t elements) {
  return node ? inputs + (node - 1) * elements : seeds;
}

// Points are in the lanes: first the nodes, then the points between them.
template <int K> bool prove(const Modulus& q, const GadgetCalls& gadget, const i64* inputs,
                            const i64* seeds, const i64* between, size_t reports, i64* proof,
                            u64* scratch) {
  const size_t nodes = gadget.nodes, calls = gadget.calls, wires = 2 * gadget.chunk,
               stride = whole(nodes), plane = wires * K * stride;
  u64 *matrix = scratch, *values = matrix + nodes * stride;  // values [2][wires][K][stride]
  u64 bits = 0;
  for (size_t i = 0; i < nodes * stride; i++) matrix[i] = 0;
  for (size_t i = 0; i < nodes; i++)
    for (size_t point = 0; point < nodes; point++)
      matrix[i * stride + point] = (u64)between[i * nodes + point];
  for (size_t i = 0; i < plane; i++) values[i] = 0;
  for (size_t report = 0; report < reports; report++) {
    const i64 *seed = seeds + report * wires * K, *input = inputs + report * calls * wires * K;
    i64* const out = proof + report * (wires + 2 * nodes - 1) * K;
    bits |= outside(q, seed, wires * K) | outside(q, input, calls * wires * K);
    for (size_t node = 0; node <= calls; node++) {
      const i64* const from = wires_at(gadget, seed, input, node, wires * K);
      for (size_t i = 0; i < wires * K; i++) values[i * stride + node] = (u64)from[i];
    }
    for (size_t i = 0; i < wires * K; i++)
      for (size_t point = 0; point < nodes; point += kWide) {
        Sum<K == 4> sum;  // the nodes after the last call hold 0
        for (size_t node = 0; node <= calls; node++)
          sum.add(load(matrix + node * stride + point), all(values[i * stride + node]));
        store(values + plane + i * stride + point, sum.reduced_by(q));
      }
    for (size_t i = 0; i < wires * K; i++) out[i] = seed[i];
    for (size_t odd = 0; odd < 2; odd++)
      for (size_t point = 0; point < nodes; point += kWide) {
        Product<K> product;
        for (size_t pair = 0; pair < gadget.chunk; pair++) {
          const u64* const left = values + odd * plane + 2 * pair * K * stride + point;
          Vec a[K], b[K];
          for (int k = 0; k < K; k++) {
            a[k] = load(left + k * stride);
            b[k] = load(left + (K + k) * stride);
          }
          product.add(a, b);
        }
        Vec value[K];
        product.fold(q, odd ? 2 : 0, value);
        for (size_t lane = 0; lane < kWide; lane++) {
          const size_t at = 2 * (point + lane) + odd;
          for (int k = 0; k < K && at < 2 * nodes - 1; k++)
            out[(wires + at) * K + k] = (i64)value[k][lane];
        }
      }
  }
  return !(bits >> 63);
}

// basis [K][whole(count)] = the sums over j of matrix [j][count] times the power j of the point;
// it lacks 2^64.
template <int K> void basis_at(const Modulus& q, const u64* matrix, size_t powers_used,
                               size_t count, const u64* powers, size_t stride, u64* basis) {
  const size_t room = whole(count);
  for (size_t i = 0; i < count; i += kWide) {
    Sum<K == 4> sum[K];
    for (size_t j = 0; j < powers_used; j++) {
      const Vec factor = load(matrix + j * room + i);
      for (int k = 0; k < K; k++) sum[k].add(factor, all(powers[k * stride + j]));
    }
    for (int k = 0; k < K; k++) store(basis + k * room + i, sum[k].reduced_by(q));
  }
}

inline void padded(const i64* from, size_t lines, size_t count, u64* to) {
  for (size_t line = 0; line < lines; line++)
    for (size_t i = 0; i < whole(count); i++)
      to[line * whole(count) + i] = i < count ? (u64)from[line * count + i] : 0;
}

// Wires are in the lanes, and then the gadget polynomial in all of them.
template <int K> bool query(const Modulus& q, const GadgetCalls& gadget, const i64* inputs,
                            const i64* proof, const i64* points, const i64* wire_basis,
                            const i64* gadget_basis, size_t reports, i64* verifier, u64* scratch) {
  const size_t nodes = gadget.nodes, calls = gadget.calls, wires = 2 * gadget.chunk,
               given = 2 * nodes - 1, stride = whole(2 * nodes) + 2 * kWide;
  u64 *wire_matrix = scratch, *gadget_matrix = wire_matrix + nodes * whole(nodes),
      *power = gadget_matrix + 2 * nodes * whole(given), *wire_at = power + K * stride,
      *gadget_at = wire_at + K * whole(nodes);
  u64 bits = 0;
  padded(wire_basis, nodes, nodes, wire_matrix);
  padded(gadget_basis, 2 * nodes, given, gadget_matrix);
  for (size_t report = 0; report < reports; report++) {
    const i64 *sent = proof + report * (wires + given) * K,
              *input = inputs + report * calls * wires * K, *point = points + report * K;
    i64* const out = verifier + report * (wires + 2) * K;
    bits |= outside(q, sent, (wires + given) * K) | outside(q, input, calls * wires * K) |
            outside(q, point, K);
    powers<K>(q, point, 2 * nodes, power, stride);
    basis_at<K>(q, wire_matrix, nodes, nodes, power, stride, wire_at);
    basis_at<K>(q, gadget_matrix, 2 * nodes, given, power, stride, gadget_at);
    Vec a[K], b[K], value[K];
    for (size_t first = 0; first < wires; first += kWide) {
      const size_t n = wires - first < kWide ? wires - first : kWide;
      Product<K> product;
      for (size_t node = 0; node <= calls; node++) {
        const i64* const from = wires_at(gadget, sent, input, node, wires * K) + first * K;
        alignas(64) u64 lanes[K][kWide] = {};
        for (size_t lane = 0; lane < n; lane++)
          for (int k = 0; k < K; k++) lanes[k][lane] = (u64)from[lane * K + k];
        for (int k = 0; k < K; k++) {
          a[k] = load(lanes[k]);
          b[k] = all(wire_at[k * whole(nodes) + node]);
        }
        product.add(a, b);
      }
      product.fold(q, 1, value);
      for (size_t lane = 0; lane < n; lane++)
        for (int k = 0; k < K; k++) out[(1 + first + lane) * K + k] = (i64)value[k][lane];
    }
    Product<K> product;
    for (size_t i = 0; i < given; i++) {
      for (int k = 0; k < K; k++) {
        a[k] = all((u64)sent[(wires + i) * K + k]);
        b[k] = all(gadget_at[k * whole(given) + i]);
      }
      product.add(a, b);
    }
    product.fold(q, 1, value);
    for (int k = 0; k < K; k++) out[(1 + wires) * K + k] = (i64)value[k][0];
  }
  return !(bits >> 63);
}

// ---- words ----

// Any int64 mod p. A negative x is -1 - u with u = ~x, and mod p it is p - 1 less u mod p.
inline Vec modulo(const Modulus& q, Vec x) {
  const Vec sign = 0 - (x >> 63);
  const Vec u = reduced(q, times(reduced(q, x ^ sign), all(q.raised[4])));
  return (u ^ sign) + (sign & q.p);
}

// Most words are differences of two that are reduced: -p < x < p. Then one addition is enough.
inline Vec from_near(const Modulus& q, Vec x) { return x + ((0 - (x >> 63)) & q.p); }

template <class Work> inline void each_vector(const i64* words, size_t count, i64* out, Work work) {
  size_t i = 0;
  for (; i + kWide <= count; i += kWide)
    store((u64*)out + i, work(load((const u64*)words + i)));
  alignas(64) u64 rest[kWide] = {};
  for (size_t j = i; j < count; j++) rest[j - i] = (u64)words[j];
  store(rest, work(load(rest)));
  for (size_t j = i; j < count; j++) out[j] = (i64)rest[j - i];
}

void reduce_words(u64 prime, const i64* words, size_t count, i64* out) {
  const Modulus q(prime, 1);
  Vec bits = {};
  each_vector(words, count, out, [&](Vec x) {
    const Vec near = from_near(q, x);
    bits |= outside(q, near);
    return near;
  });
  u64 far = 0;
  for (size_t lane = 0; lane < kWide; lane++) far |= bits[lane];
  if (far >> 63) each_vector(words, count, out, [&](Vec x) { return modulo(q, x); });
}

// ---- the degrees that are compiled: those of the fields for sums ----

bool proof_sketch_inputs(const ExtensionField& field, const SketchCircuit& circuit,
                         const i64* words, const i64* joint, size_t reports, i64* pairs,
                         u64* scratch) {
  const Modulus q(field.prime, field.generator);
  const auto run = field.degree == 4   ? sketch_inputs<4>
                   : field.degree == 6 ? sketch_inputs<6>
                                       : sketch_inputs<9>;
  return run(q, circuit, words, joint, reports, pairs, scratch);
}

bool proof_prove(const ExtensionField& field, const GadgetCalls& gadget, const i64* inputs,
                 const i64* seeds, const i64* between, size_t reports, i64* proof, u64* scratch) {
  const Modulus q(field.prime, field.generator);
  const auto run = field.degree == 4 ? prove<4> : field.degree == 6 ? prove<6> : prove<9>;
  return run(q, gadget, inputs, seeds, between, reports, proof, scratch);
}

bool proof_query(const ExtensionField& field, const GadgetCalls& gadget, const i64* inputs,
                 const i64* proof, const i64* points, const i64* wire_basis,
                 const i64* gadget_basis, size_t reports, i64* verifier, u64* scratch) {
  const Modulus q(field.prime, field.generator);
  const auto run = field.degree == 4 ? query<4> : field.degree == 6 ? query<6> : query<9>;
  return run(q, gadget, inputs, proof, points, wire_basis, gadget_basis, reports, verifier,
             scratch);
}
