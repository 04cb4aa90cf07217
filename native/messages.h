// The messages of belief propagation. kernels/propagation.py is the definition; the operations here
// are the same, in nearly the same order. Included by kernels_impl.h.
//
// Items are handled kItems at a time, one per lane: all loops over q are vectorised, whatever the
// numbers of rows and batches are. Lanes beyond the last item are computed and thrown away.

using fedtally::kItems;
using fedtally::MessageRule;
using fedtally::MessageStats;
using fedtally::MessageSums;
using fedtally::Messages;

// The natural logarithm of positive normal numbers, with a relative error below 1e-12. That of the
// C library would be called for one lane at a time.
inline double logarithm(double x) {
  u64 bits;
  __builtin_memcpy(&bits, &x, 8);
  // The exponent of the nearest power of two: x = 2^power m with m from sqrt(1/2) to sqrt(2).
  const u64 shifted = bits - 0x3fe6a09e667f3bcdu;
  const i32 power = (i32)((i64)shifted >> 52);
  const u64 mantissa = bits - ((shifted >> 52) << 52);
  double m;
  __builtin_memcpy(&m, &mantissa, 8);
  const double t = (m - 1) / (m + 1), u = t * t;  // log m = 2 artanh t
  const double series =
      1 + u * (1.0 / 3 + u * (1.0 / 5 + u * (1.0 / 7 + u * (1.0 / 9 + u * (1.0 / 11 + u / 13)))));
  return power * 0.6931471805599453 + 2 * t * series;
}

typedef double Lanes[kItems];

// A loop over the lanes. No lane depends on another, so the compiler need not check, each time it
// comes to the loop, whether arrays overlap.
#if defined(__clang__)
#define FEDTALLY_LANES                               \
  _Pragma("clang loop vectorize(assume_safety)") for (size_t q = 0; q < kItems; q++)
#elif defined(__GNUC__)
#define FEDTALLY_LANES _Pragma("GCC ivdep") for (size_t q = 0; q < kItems; q++)
#else
#define FEDTALLY_LANES for (size_t q = 0; q < kItems; q++)
#endif

inline double at_least(double x, double least) { return x > least ? x : least; }
inline double at_most(double x, double most) { return x < most ? x : most; }

// mean and variance of the counts given values with normal noise, from the rule's table.
inline void posterior(const MessageRule& rule, const double* value, const double* square,
                      const double* scale, double* mean, double* variance) {
  // Copies: a store into an array of lanes might change the rule, as far as the compiler knows.
  const i32 columns = (i32)rule.columns, last = (i32)rule.scales - 2;
  const double first = rule.first, per_ratio = rule.per_ratio, per_step = rule.per_step,
               far = rule.far, least = rule.least, rows = last + 1.0, most = columns - 1.0;
  alignas(64) i32 place[kItems];
  alignas(64) Lanes down, right;
  FEDTALLY_LANES {
    const double row =
        at_most(at_least((0.5 * logarithm(square[q]) - first) * per_ratio, 0), rows);
    const double column = at_most(at_least((value[q] / scale[q] + far) * per_step, 0), most);
    i32 i = (i32)row, j = (i32)column;
    i = i < last ? i : last;
    j = j < columns - 2 ? j : columns - 2;
    down[q] = row - i;
    right[q] = column - j;
    place[q] = i * columns + j;
  }
  FEDTALLY_LANES {
    // [entry][2]: the mean and the variance lie together
    const double* const upper = rule.table + 2 * (size_t)place[q];
    const double* const lower = upper + 2 * columns;
    const double r = right[q], d = down[q];
    mean[q] =
        (upper[0] * (1 - r) + upper[2] * r) * (1 - d) + (lower[0] * (1 - r) + lower[2] * r) * d;
    variance[q] =
        (upper[1] * (1 - r) + upper[3] * r) * (1 - d) + (lower[1] * (1 - r) + lower[3] * r) * d;
  }
  FEDTALLY_LANES {
    const bool near = value[q] < far * scale[q];
    mean[q] = near ? mean[q] * scale[q] : value[q];
    variance[q] = (near ? at_least(variance[q], least) : 1.0) * square[q];
  }
}

// What the cells say of the items of one block, and, with a rule, new messages and their sums.
template <bool kFresh>
void message_block(const Messages& system, const u32* words, float* beliefs, float* unsure,
                   size_t live, double* value, double* stddev, const MessageRule* rule,
                   MessageSums sums, MessageStats* stats, double* scratch) {
  const size_t rows = system.rows, batches = system.batches, width = system.width;
  const size_t kinds = kFresh ? batches : 1;  // variances of an item in a row
  double* const heard = scratch;                          // [rows][batches][kItems]
  double* const precision = heard + rows * batches * kItems;  // [rows][kinds][kItems]
  double* const summed = precision + rows * kinds * kItems;   // [batches][kItems]
  double* const total = summed + batches * kItems;            // [kinds][kItems]
  double* const each = total + kinds * kItems;                // [batches][kItems]
  double* const noise = each + batches * kItems;              // [batches][kItems]
  u32* const cells = (u32*)(noise + batches * kItems);        // [rows][kinds][kItems]
  for (size_t i = 0; i < batches * kItems; i++) summed[i] = 0;
  for (size_t i = 0; i < kinds * kItems; i++) total[i] = 0;

  for (size_t row = 0; row < rows; row++) {
    for (size_t k = 0; k < kinds; k++) {
      const u32* const word = words + (k * rows + row) * kItems;
      u32* const cell = cells + (row * kinds + k) * kItems;
      double* const p = precision + (row * kinds + k) * kItems;
      double* const t = total + k * kItems;
      const float* const own = unsure ? unsure + (row * kinds + k) * kItems : nullptr;
      alignas(64) Lanes mine;
      FEDTALLY_LANES mine[q] = own ? (double)own[q] : 0.0;
      FEDTALLY_LANES
        cell[q] = (u32)(row * width + (((u64)(word[q] >> 8) * width) >> 24));
      FEDTALLY_LANES {
        const double all = system.variance[(size_t)cell[q] * kinds + k];
        p[q] = 1 / (system.inflation * at_least(all - mine[q], system.own_share * all));
        t[q] += p[q];
      }
    }
    for (size_t m = 0; m < batches; m++) {
      const size_t k = kFresh ? m : 0;
      const u32* const cell = cells + (row * kinds + k) * kItems;
      const double* const p = precision + (row * kinds + k) * kItems;
      const u32* const word = words + ((kFresh ? m : m / 8) * rows + row) * kItems;
      const u32 bit = kFresh ? 0 : m % 8;
      double *const h = heard + (row * batches + m) * kItems, *const s = summed + m * kItems;
      const float* const b = beliefs ? beliefs + (row * batches + m) * kItems : nullptr;
      FEDTALLY_LANES h[q] = system.residual[(size_t)cell[q] * batches + m];
      FEDTALLY_LANES h[q] *= (double)(1 - 2 * (i32)((word[q] >> bit) & 1));
      if (b)
        FEDTALLY_LANES h[q] += (double)b[q];
      FEDTALLY_LANES s[q] += p[q] * h[q];
    }
  }

  alignas(64) Lanes found = {0}, square = {0};
  for (size_t m = 0; m < batches; m++) {
    const double *const t = total + (kFresh ? m : 0) * kItems, *const s = summed + m * kItems;
    FEDTALLY_LANES found[q] += s[q] / t[q];
  }
  for (size_t k = 0; k < kinds; k++)
    FEDTALLY_LANES square[q] += 1 / total[k * kItems + q];
  for (size_t q = 0; q < live; q++) value[q] = found[q];
  FEDTALLY_LANES found[q] = __builtin_sqrt(square[q]);
  for (size_t q = 0; q < live; q++) {
    stddev[q] = found[q];
    stats->least = at_most(stats->least, found[q]);
  }

  for (size_t row = 0; row < rows; row++) {
    alignas(64) Lanes others = {0}, scale, mean, variance, moved = {0}, all = {0}, known = {0};
    const double* const h = heard + row * batches * kItems;
    FEDTALLY_LANES square[q] = 0;
    for (size_t k = 0; k < kinds; k++) {
      const double *const t = total + k * kItems,
                   *const p = precision + (row * kinds + k) * kItems;
      FEDTALLY_LANES {
        // at least: where a row has nearly all of the precision, the difference is rounding
        noise[k * kItems + q] = 1 / at_least(t[q] - p[q], 1e-9 * p[q]);
        square[q] += noise[k * kItems + q];
        known[q] += 1 / p[q];
      }
    }
    FEDTALLY_LANES scale[q] = __builtin_sqrt(square[q]);
    for (size_t q = 0; q < live; q++) {
      stats->least = at_most(stats->least, scale[q]);
      stats->largest = at_least(stats->largest, scale[q]);
    }
    if (!rule) continue;
    for (size_t m = 0; m < batches; m++) {
      const size_t k = kFresh ? m : 0;
      const double* const p = precision + (row * kinds + k) * kItems;
      const double* const s = summed + m * kItems;
      double* const e = each + m * kItems;
      FEDTALLY_LANES {
        e[q] = (s[q] - p[q] * h[m * kItems + q]) * noise[k * kItems + q];
        others[q] += e[q];
        all[q] += h[m * kItems + q];
      }
    }
    posterior(*rule, others, square, scale, mean, variance);
    alignas(64) Lanes sends, z, surprise;  // sends: 1 where the other rows say enough, else 0
    const double gate = rule->gate, far = rule->far;
    FEDTALLY_LANES {
      const double away = all[q] - mean[q];
      z[q] = others[q] / scale[q];
      sends[q] = z[q] >= gate ? 1.0 : 0.0;
      surprise[q] = sends[q] * at_most(away * away / (known[q] + variance[q]), 25);
    }
    for (size_t q = 0; q < live; q++) {
      const size_t kind = (size_t)(z[q] > 2) + (size_t)(z[q] > far);
      stats->surprise[kind] += surprise[q];
      stats->number[kind] += sends[q];
      stats->unknown += sends[q] * variance[q];
    }
    alignas(64) Lanes poisson, excess, kept_noise = {0}, drift = {0};
    if (rule->spread > 1e-9) {
      FEDTALLY_LANES excess[q] = -square[q] * (2 - rule->spread);
      // From the last batch down: under one variance for all, noise[0] is read until the end.
      for (size_t m = batches; m-- > 0;) {
        const double w = rule->weights[m], share = rule->shares[m];
        const double* const from = noise + (kFresh ? m : 0) * kItems;
        double *const n = noise + m * kItems, *const e = each + m * kItems;
        FEDTALLY_LANES {
          n[q] = from[q] * share;
          e[q] -= w * others[q];
          excess[q] += e[q] * e[q] + 2 * w * n[q];
        }
      }
      FEDTALLY_LANES {
        const double p = at_least(mean[q], 0);
        poisson[q] = excess[q] > (p + rule->clearly * (square[q] + p)) * rule->spread
                         ? excess[q] / rule->spread
                         : p;
      }
      for (size_t m = 0; m < batches; m++) {
        const double w = rule->weights[m];
        double *const n = noise + m * kItems, *const e = each + m * kItems;
        FEDTALLY_LANES {
          const double prior = poisson[q] * w + rule->tiny, kept = prior / (prior + n[q]);
          n[q] *= kept;
          e[q] *= kept;
          kept_noise[q] += n[q];
          drift[q] += e[q];
        }
      }
      FEDTALLY_LANES kept_noise[q] = 1 / kept_noise[q];
    }
    alignas(64) Lanes left = {0};
    const size_t first = row * kinds * kItems;
    for (size_t m = 0; m < batches; m++) {
      const double w = rule->weights[m];
      double *const n = noise + m * kItems, *const e = each + m * kItems;
      float* const b = beliefs + (row * batches + m) * kItems;
      alignas(64) Lanes sent, over;
      FEDTALLY_LANES {
        sent[q] = mean[q] * w;
        over[q] = variance[q] * w * w;
      }
      if (rule->spread > 1e-9)
        FEDTALLY_LANES {
          const double part = n[q] * kept_noise[q];
          sent[q] += e[q] - part * drift[q];
          over[q] += n[q] * (1 - part);
        }
      FEDTALLY_LANES {
        const double change = sends[q] * sent[q] - (double)b[q];
        moved[q] += change;
        b[q] += (float)rule->update * (float)change;
        left[q] += over[q];
      }
      if (kFresh) {
        float* const own = unsure + first + m * kItems;
        FEDTALLY_LANES {
          own[q] += (float)rule->update * (float)(sends[q] * over[q] - (double)own[q]);
        }
      }
    }
    if (!kFresh) {
      float* const own = unsure + first;
      FEDTALLY_LANES
        own[q] += (float)rule->update * (float)(sends[q] * left[q] - (double)own[q]);
    }
    for (size_t q = 0; q < live; q++) stats->moves += moved[q] * moved[q];
    // What all messages explain, and what they do not know.
    for (size_t k = 0; k < kinds; k++) {
      const u32* const cell = cells + (row * kinds + k) * kItems;
      const float* const own = unsure + first + k * kItems;
      for (size_t q = 0; q < live; q++) sums.unknown[(size_t)cell[q] * kinds + k] += (double)own[q];
    }
    for (size_t m = 0; m < batches; m++) {
      const u32* const cell = cells + (row * kinds + (kFresh ? m : 0)) * kItems;
      const u32* const word = words + ((kFresh ? m : m / 8) * rows + row) * kItems;
      const u32 bit = kFresh ? 0 : m % 8;
      const float* const b = beliefs + (row * batches + m) * kItems;
      alignas(64) Lanes signed_belief;
      FEDTALLY_LANES
        signed_belief[q] = (double)b[q] * (double)(1 - 2 * (i32)((word[q] >> bit) & 1));
      for (size_t q = 0; q < live; q++)
        sums.explained[(size_t)cell[q] * batches + m] += signed_belief[q];
    }
  }
}

void exchange(const Messages& system, const u32* words, float* beliefs, float* unsure, size_t count,
              double* value, double* stddev, const MessageRule* rule, MessageSums sums,
              MessageStats* stats, double* scratch) {
  const size_t rows = system.rows, batches = system.batches;
  const size_t groups = system.fresh ? batches : (batches + 7) / 8,
               kinds = system.fresh ? batches : 1;
  const auto block = system.fresh ? message_block<true> : message_block<false>;
  for (size_t first = 0; first < count; first += kItems) {
    const size_t live = count - first < kItems ? count - first : kItems;
    block(system, words + first * groups * rows,
          beliefs ? beliefs + first * rows * batches : nullptr,
          unsure ? unsure + first * rows * kinds : nullptr, live, value + first, stddev + first,
          rule, sums, stats, scratch);
  }
}

#undef FEDTALLY_LANES
