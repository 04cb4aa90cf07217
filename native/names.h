// Names of hashes, spelled by symbols: what each byte is likely to be, and words to try.
// fedtally/kernels/letters.py has the definitions, in NumPy.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace fedtally {

static constexpr size_t kBytes = 256;
static constexpr double kTiny = 1e-300;  // stands for a probability of 0

// What follows a byte: pairs that were seen, and single bytes for what was not. Row a of the chain
// is (pairs[a] + weight single) / (totals[a] + weight). Few pairs were ever seen, so that a product
// with the chain takes as long as these, and not as long as 2^16 numbers.
class Chain {
 public:
  Chain(const double* pairs, const double* totals, const double* single, double weight)
      : single_(single), weight_(weight), starts_(kBytes + 1), share_(kBytes) {
    for (size_t a = 0; a < kBytes; a++) {
      share_[a] = 1.0 / (totals[a] + weight);
      starts_[a] = next_.size();
      for (size_t b = 0; b < kBytes; b++) {
        if (pairs[a * kBytes + b] == 0.0) continue;
        next_.push_back((uint8_t)b);
        number_.push_back(pairs[a * kBytes + b]);
      }
    }
    starts_[kBytes] = next_.size();
  }

  // out[b] = sum over a of state[a] times what follows a.
  void forward(const double* state, double* out) const {
    double all = 0.0;
    double shares[kBytes];
    for (size_t a = 0; a < kBytes; a++) all += shares[a] = state[a] * share_[a];
    for (size_t b = 0; b < kBytes; b++) out[b] = weight_ * single_[b] * all;
    for (size_t a = 0; a < kBytes; a++)
      for (size_t at = starts_[a]; at < starts_[a + 1]; at++)
        out[next_[at]] += shares[a] * number_[at];
  }

  // out[a] = sum over b of what follows a times state[b].
  void backward(const double* state, double* out) const {
    double all = 0.0;
    for (size_t b = 0; b < kBytes; b++) all += single_[b] * state[b];
    for (size_t a = 0; a < kBytes; a++) {
      double sum = weight_ * all;
      for (size_t at = starts_[a]; at < starts_[a + 1]; at++) sum += number_[at] * state[next_[at]];
      out[a] = sum * share_[a];
    }
  }

 private:
  const double* single_;
  double weight_;
  std::vector<size_t> starts_;
  std::vector<double> share_, number_;
  std::vector<uint8_t> next_;
};

// own [places][256]: the likelihoods of the bytes at each place; first [256]: the prior of the
// first one; last [256]: of the end mark behind each byte. found [places][256]: the probability of
// each byte at each place, given all places (forward-backward).
static inline void posteriors(const Chain& chain, const double* first, const double* last,
                              const double* own, size_t places, double* found) {
  double state[kBytes], next[kBytes];
  std::copy(first, first + kBytes, state);
  for (size_t place = 0; place < places; place++) {
    double* const before = found + place * kBytes;
    double sum = 0.0;
    for (size_t b = 0; b < kBytes; b++) sum += before[b] = state[b] * own[place * kBytes + b];
    sum = std::max(sum, kTiny);
    for (size_t b = 0; b < kBytes; b++) before[b] /= sum;
    chain.forward(before, state);
  }
  std::copy(last, last + kBytes, state);
  for (size_t place = places; place-- > 0;) {
    double* const both = found + place * kBytes;
    double most = kTiny, sum = 0.0;
    for (size_t b = 0; b < kBytes; b++) most = std::max(most, state[b]);
    for (size_t b = 0; b < kBytes; b++) {
      state[b] /= most;
      sum += both[b] *= state[b];
      next[b] = own[place * kBytes + b] * state[b];
    }
    sum = std::max(sum, kTiny);
    for (size_t b = 0; b < kBytes; b++) both[b] /= sum;
    chain.backward(next, state);
  }
}

// The bytes of the largest numbers, in that order; of equal ones the lesser byte comes first.
static inline void largest_bytes(const double* numbers, size_t most, uint8_t* bytes) {
  size_t count = 0;
  for (size_t b = 0; b < kBytes; b++) {
    if (count == most && !(numbers[b] > numbers[bytes[most - 1]])) continue;
    size_t at = count < most ? count++ : most - 1;
    for (; at > 0 && numbers[b] > numbers[bytes[at - 1]]; at--) bytes[at] = bytes[at - 1];
    bytes[at] = (uint8_t)b;
  }
}

// The words of the largest scores: of each place the `branches` bytes of `order` [places][branches]
// are tried behind each of the `most` words so far. prior [257][256], copies [places][256]: logs.
// words: uint8 [most][places]; returns how many there are, the likeliest first.
static inline size_t likeliest(const double* copies, const double* prior, const uint8_t* order,
                               size_t places, size_t branches, size_t most, uint8_t* words) {
  struct Grown {
    double score;
    uint32_t parent;
    uint8_t byte;
  };
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const auto better = [](const Grown& a, const Grown& b) { return a.score > b.score; };
  const auto larger = [](double a, double b) { return a > b; };
  std::vector<std::vector<Grown>> levels(places);
  constexpr size_t kFew = 4;  // children of each parent that bound the others
  std::vector<double> joint(branches * branches), scores, tops;
  std::vector<Grown> grown;
  uint32_t slot_of[kBytes + 1] = {0};
  for (size_t place = 0; place < places; place++) {
    const uint8_t* const bytes = order + place * branches;
    // The bytes of the parents are the branches of the place before: a row for each of these.
    const size_t slots = place ? branches : 1;
    for (size_t slot = 0; slot < slots; slot++) {
      const size_t byte = place ? order[(place - 1) * branches + slot] : kBytes;
      slot_of[byte] = (uint32_t)slot;
      for (size_t branch = 0; branch < branches; branch++)
        joint[slot * branches + branch] =
            prior[byte * kBytes + bytes[branch]] + copies[place * kBytes + bytes[branch]];
    }
    static const std::vector<Grown> root = {{0.0, 0, 0}};
    const std::vector<Grown>& parents = place ? levels[place - 1] : root;
    // What is kept has scores of at least `low`, since `most` of the first few children have.
    double low = kNone;
    const size_t few = std::min<size_t>(branches, kFew);
    if (parents.size() * few > most && place) {
      tops = joint;
      for (size_t slot = 0; slot < slots; slot++) {
        double* const own = tops.data() + slot * branches;
        std::partial_sort(own, own + few, own + branches, larger);
      }
      scores.clear();
      for (const Grown& from : parents)
        for (size_t i = 0; i < few; i++)
          scores.push_back(tops[slot_of[from.byte] * branches + i] + from.score);
      const auto last = scores.begin() + (std::ptrdiff_t)(most - 1);
      std::nth_element(scores.begin(), last, scores.end(), larger);
      low = *last;
    }
    grown.resize(parents.size() * branches);
    size_t count = 0;
    for (size_t parent = 0; parent < parents.size(); parent++) {
      const Grown& from = parents[parent];
      const double* const follows =
          joint.data() + slot_of[place ? from.byte : kBytes] * branches;
      for (size_t branch = 0; branch < branches; branch++) {
        const double score = follows[branch] + from.score;
        grown[count] = {score, (uint32_t)parent, bytes[branch]};
        count += score >= low;
      }
    }
    std::vector<Grown>& level = levels[place];
    if (count <= most) {
      level.assign(grown.begin(), grown.begin() + (std::ptrdiff_t)count);
      continue;
    }
    scores.resize(count);
    for (size_t i = 0; i < count; i++) scores[i] = grown[i].score;
    const auto last = scores.begin() + (std::ptrdiff_t)(most - 1);
    std::nth_element(scores.begin(), last, scores.end(), larger);
    const double bound = *last;
    size_t equal = most;  // the first ones of those at the bound
    for (size_t i = 0; i < most; i++) equal -= scores[i] > bound;
    level.reserve(most);
    for (size_t i = 0; i < count; i++)
      if (grown[i].score > bound || (grown[i].score == bound && equal && equal--))
        level.push_back(grown[i]);
  }
  std::vector<uint32_t> sorted(levels[places - 1].size());
  for (size_t i = 0; i < sorted.size(); i++) sorted[i] = (uint32_t)i;
  const std::vector<Grown>& last = levels[places - 1];
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](uint32_t a, uint32_t b) { return better(last[a], last[b]); });
  size_t found = 0;
  for (uint32_t at : sorted) {
    if (!(last[at].score > -std::numeric_limits<double>::infinity())) continue;
    uint32_t from = at;
    for (size_t place = places; place-- > 0;) {
      words[found * places + place] = levels[place][from].byte;
      from = levels[place][from].parent;
    }
    found++;
  }
  return found;
}

// GF(256), as in fedtally/domain/symbols.py: powers of 2, and their logarithms.
struct Field256 {
  uint8_t power[510];
  int log[kBytes];
  Field256() {
    int value = 1;
    for (int i = 0; i < 255; i++) {
      power[i] = power[i + 255] = (uint8_t)value;
      log[value] = i;
      value = value << 1 ^ (value & 0x80 ? 0x11D : 0);
    }
    log[0] = 0;
  }
  uint8_t times(uint8_t a, uint8_t b) const { return a && b ? power[log[a] + log[b]] : 0; }
};

// Fill in the symbols of words at places that are not known. known [size]: different places;
// words [count][size]: the symbols at the places below size that are known are there already, and
// given [count][size] has all of them, in the order of `known`.
static inline void interpolate(const Field256& f, const int* known, size_t size,
                               const uint8_t* given, size_t count, uint8_t* words) {
  std::vector<uint8_t> is_known(size, 0), basis(size);
  std::vector<int> among(size, 0);
  for (size_t i = 0; i < size; i++)
    if ((size_t)known[i] < size) is_known[known[i]] = 1;
  for (size_t i = 0; i < size; i++)
    for (size_t j = 0; j < size; j++)
      if (i != j) among[i] += f.log[f.power[known[i]] ^ f.power[known[j]]];
  for (size_t place = 0; place < size; place++) {
    if (is_known[place]) continue;
    int all = 0;
    for (size_t i = 0; i < size; i++) all += f.log[f.power[place] ^ f.power[known[i]]];
    for (size_t i = 0; i < size; i++) {
      const int log = all - f.log[f.power[place] ^ f.power[known[i]]] - among[i];
      basis[i] = f.power[(log % 255 + 255) % 255];
    }
    for (size_t word = 0; word < count; word++) {
      uint8_t sum = 0;
      for (size_t i = 0; i < size; i++) sum ^= f.times(basis[i], given[word * size + i]);
      words[word * size + place] = sum;
    }
  }
}

// The likeliest symbol of a place, and the second one; returns how much less likely this is.
static inline double two_best(const double* logs, uint8_t* best, uint8_t* second) {
  uint8_t two[2];
  largest_bytes(logs, 2, two);
  *best = two[0], *second = two[1];
  return logs[two[0]] - logs[two[1]];
}

// Words that are interpolated from the surest symbols (Fossorier and Lin 1995). best, second
// [places]: symbols; order [places]: the surest places first, that of the end mark before all. words
// [(replaced + 1) 2^flips][size - 1]; returns how many are names. by_flips [2^flips]: the order of
// the combinations.
static inline size_t interpolated(const uint8_t* best, const uint8_t* second, const int64_t* order,
                                  size_t size, size_t replaced, size_t flips,
                                  const int64_t* by_flips, uint8_t end, uint8_t unused,
                                  uint8_t* words) {
  static const Field256 field;
  const size_t count = size_t(1) << flips;
  std::vector<int> places(size);
  std::vector<uint8_t> given((1 + flips) * size), whole((1 + flips) * size), word(count * size);
  size_t found = 0;
  for (size_t out = 0; out <= replaced; out++) {
    for (size_t i = 0; i < size; i++) places[i] = (int)order[i];
    if (out) {
      places.erase(places.begin() + (std::ptrdiff_t)(size - out));
      places.push_back((int)order[size]);
    }
    std::fill(given.begin(), given.end(), 0);
    for (size_t i = 0; i < size; i++) given[i] = best[places[i]];
    for (size_t flip = 0; flip < flips; flip++) {
      const size_t at = size - flips + flip;
      given[(1 + flip) * size + at] = best[places[at]] ^ second[places[at]];
    }
    for (size_t row = 0; row <= flips; row++)
      for (size_t i = 0; i < size; i++)
        if ((size_t)places[i] < size) whole[row * size + places[i]] = given[row * size + i];
    interpolate(field, places.data(), size, given.data(), 1 + flips, whole.data());
    std::copy(whole.begin(), whole.begin() + (std::ptrdiff_t)size, word.begin());
    for (size_t flip = 0; flip < flips; flip++) {
      const uint8_t* const turned = whole.data() + (1 + flip) * size;
      const size_t half = size_t(1) << flip;
      for (size_t i = 0; i < half; i++)
        for (size_t s = 0; s < size; s++)
          word[(half + i) * size + s] = word[i * size + s] ^ turned[s];
    }
    for (size_t i = 0; i < count; i++) {
      const uint8_t* const one = word.data() + (size_t)by_flips[i] * size;
      if (one[size - 1] != end) continue;
      uint8_t largest = 0;
      for (size_t s = 0; s + 1 < size; s++) largest = std::max(largest, one[s]);
      if (size > 1 && largest >= unused) continue;
      std::copy(one, one + size - 1, words + found++ * (size - 1));
    }
  }
  return found;
}

}  // namespace fedtally
