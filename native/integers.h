// Integers below a prime from a stream of random bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fedtally {

// Integers of kBytes bytes, those of their bits that `mask` has. No branch depends on them but the
// one at the end: every integer is written, and the next one takes its place if it is not kept.
template <size_t kBytes>
static size_t read_integers(const uint8_t* data, size_t count, uint64_t mask, uint64_t prime,
                            int64_t* out, size_t wanted) {
  size_t kept = 0;
  for (size_t i = 0; i < count && kept < wanted; i++) {
    uint64_t integer = 0;
    std::memcpy(&integer, data + i * kBytes, kBytes);
    integer &= mask;
    out[kept] = (int64_t)integer;
    kept += integer < prime;
  }
  return kept;
}

}  // namespace fedtally
