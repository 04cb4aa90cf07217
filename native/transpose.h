// transpose(in, out, stride): out[lane * stride + item] = in[item * kLanes + lane] for kLanes items
// of kLanes words. The portable loop is the definition; the other is the same permutation in
// registers (measured: see benchmarks/kernels.py).
#pragma once
static_assert(kLanes == 8, "the permutation in registers is of 8 items of 8 words");

#if defined(__AVX2__)
static inline void transpose(const uint32_t* in, uint32_t* out, size_t stride) {
  // Three steps, each of which swaps halves at twice the distance: pairs of words, pairs of two
  // words, and the two 128-bit halves of a register.
  __m256i a[8], b[8];
  for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_si256((const __m256i*)(in + 8 * i));
  for (int i = 0; i < 4; i++) {
    b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      a[4 * i + 2 * j] = _mm256_unpacklo_epi64(b[4 * i + j], b[4 * i + 2 + j]);
      a[4 * i + 2 * j + 1] = _mm256_unpackhi_epi64(b[4 * i + j], b[4 * i + 2 + j]);
    }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_si256((__m256i*)(out + i * stride),
                        _mm256_permute2x128_si256(a[i], a[4 + i], 0x20));
    _mm256_storeu_si256((__m256i*)(out + (i + 4) * stride),
                        _mm256_permute2x128_si256(a[i], a[4 + i], 0x31));
  }
}
#else
static inline void transpose(const uint32_t* in, uint32_t* out, size_t stride) {
  for (size_t lane = 0; lane < kLanes; lane++)
    for (size_t item = 0; item < kLanes; item++)
      out[lane * stride + item] = in[item * kLanes + lane];
}
#endif
