// Runs steps of the kernels with their secrets marked as undefined: valgrind counts each branch and
// each address that depends on them. tools/constant_time.py builds this and has the table.
#include <valgrind/memcheck.h>

#include <cstdio>
#include <vector>

#include "../native/integers.h"
#include "../native/kernels.h"

using namespace fedtally;
using Words = std::vector<int64_t>;

static const Kernels& kernels = FEDTALLY_KERNELS;

static uint64_t random64() {  // any values do: what is looked at is which bits have an influence
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state ^ state >> 29;
}

template <class T> static void fill(std::vector<T>& values, uint64_t below) {
  for (T& value : values) value = (T)(random64() % below);
}

template <class T> static void secret(std::vector<T>& values) {
  VALGRIND_MAKE_MEM_UNDEFINED(values.data(), values.size() * sizeof(T));
}

// ---- noise ----

static constexpr size_t kBounds = 32, kSlots = 1024;
static std::vector<uint64_t> bounds_of_a_table() {
  std::vector<uint64_t> bounds(kBounds);
  for (size_t i = 0; i < kBounds; i++) bounds[i] = i * (UINT64_MAX / (kBounds - 1));
  bounds.back() = UINT64_MAX;
  return bounds;
}

static void noise_scan() {
  std::vector<uint64_t> words(1000), bounds = bounds_of_a_table();
  fill(words, UINT64_MAX);
  secret(words);
  kernels.invert_scan(bounds.data(), kBounds, -15, words.data(), words.size());
}

static void noise_guide() {
  std::vector<uint64_t> words(1000), bounds = bounds_of_a_table();
  std::vector<uint32_t> guide(kSlots);
  fill(words, UINT64_MAX - 1);
  for (size_t s = 0; s < kSlots; s++)
    for (size_t i = 0; i < kBounds; i++) guide[s] += bounds[i] < (uint64_t)s << 54;
  secret(words);
  kernels.invert(bounds.data(), guide.data(), 54, -15, words.data(), words.size());
}

// ---- encoding ----

static void item_cells() {
  constexpr size_t kRows = 5, kWidth = 1000;
  std::vector<uint32_t> tables(kRows * 2048), scratch(list_scratch(kRows, 1));
  std::vector<uint64_t> ids(1, 123456);
  std::vector<int64_t> counters(kRows * kWidth);
  fill(tables, UINT32_MAX);
  secret(ids);
  kernels.accumulate(tables.data(), tables.data(), 0, kRows, kWidth, ids.data(), nullptr, 1,
                     counters.data(), nullptr, scratch.data());
}

// ---- masks and proofs of two servers ----

static void mask_words() {
  std::vector<uint8_t> data(3000);
  fill(data, 256);
  secret(data);
  Words out(900);
  read_integers<3>(data.data(), 1000, (1 << 24) - 1, 16777213, out.data(), out.size());
}

static void shares_reduced() {  // differences of two words below p
  Words words(1001), out(1001);
  fill(words, 4294967291);
  secret(words);
  kernels.reduce_words(4294967291, words.data(), words.size(), out.data());
}

static const ExtensionField kFields[] = {
    {4294967291, 2, 4}, {33554393, 3, 6}, {65537, 3, 9}};  // the compiled degrees

static void proof_inputs() {
  for (const ExtensionField& field : kFields) {
    const uint32_t widths[] = {50, 50, 37};
    const SketchCircuit circuit{widths, 3, 8, 7, 138, 12, 1, true};
    Words words(138), joint(3 * field.degree), pairs(12 * 2 * field.degree);
    fill(words, field.prime);
    fill(joint, field.prime);
    std::vector<uint64_t> scratch(sketch_scratch(circuit, field.degree));
    secret(words);
    kernels.sketch_inputs(field, circuit, words.data(), joint.data(), 1, pairs.data(),
                          scratch.data());
  }
}

static constexpr size_t kNodes = 4, kCalls = 3, kChunk = 4, kWires = 2 * kChunk;

static void proof_prove() {
  for (const ExtensionField& field : kFields) {
    const GadgetCalls gadget{kNodes, kCalls, kChunk};
    Words inputs(kCalls * kWires * field.degree), seeds(kWires * field.degree),
        between(kNodes * kNodes), proof((kWires + 2 * kNodes - 1) * field.degree);
    fill(inputs, field.prime);
    fill(seeds, field.prime);
    fill(between, field.prime);
    std::vector<uint64_t> scratch(gadget_scratch(gadget, field.degree));
    secret(inputs);
    secret(seeds);
    kernels.prove(field, gadget, inputs.data(), seeds.data(), between.data(), 1, proof.data(),
                  scratch.data());
  }
}

static void proof_query() {
  for (const ExtensionField& field : kFields) {
    const GadgetCalls gadget{kNodes, kCalls, kChunk};
    Words inputs(kCalls * kWires * field.degree), proof((kWires + 2 * kNodes - 1) * field.degree),
        points(field.degree), wires(kNodes * kNodes), basis(2 * kNodes * (2 * kNodes - 1)),
        verifier((kWires + 2) * field.degree);
    for (Words* each : {&inputs, &proof, &points, &wires, &basis}) fill(*each, field.prime);
    std::vector<uint64_t> scratch(gadget_scratch(gadget, field.degree));
    secret(inputs);
    secret(proof);
    secret(points);
    kernels.query(field, gadget, inputs.data(), proof.data(), points.data(), wires.data(),
                  basis.data(), 1, verifier.data(), scratch.data());
  }
}

// ---- planted: a check that does not see these sees nothing ----

static void planted_branch() {  // a comparison that ends at the first byte that differs
  std::vector<uint8_t> tag(32), given(32);
  fill(given, 256);
  secret(tag);
  volatile size_t same = 0;
  while (same < 32 && tag[same] == given[same]) same = same + 1;
}

static void planted_lookup() {
  std::vector<uint8_t> key(32);
  std::vector<uint32_t> table(256);
  secret(key);
  volatile uint32_t sum = 0;
  for (uint8_t byte : key) sum = sum + table[byte];
}

static const struct {
  const char* name;
  void (*run)();
} kSteps[] = {
    {"noise, scanned", noise_scan},     {"noise, by a guide", noise_guide},
    {"cells of an item", item_cells},   {"words of a mask", mask_words},
    {"shares mod p", shares_reduced},   {"proof: inputs", proof_inputs},
    {"proof: made", proof_prove},       {"proof: checked", proof_query},
    {"planted: a branch", planted_branch}, {"planted: a lookup", planted_lookup},
};

int main() {
  for (const auto& step : kSteps) {
    const auto before = VALGRIND_COUNT_ERRORS;
    step.run();
    std::printf("%s\t%ld\n", step.name, (long)(VALGRIND_COUNT_ERRORS - before));
  }
  return RUNNING_ON_VALGRIND ? 0 : 2;
}
