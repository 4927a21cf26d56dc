// The numbers of bits that are set.
#pragma once

#include "neuron/lanes.hpp"

#include <cstddef>
#include <cstdint>

namespace snnipu {

// So many numbers more than there are bits may be written behind them.
constexpr std::size_t bitsRoom = 16;

// first + the number of each bit that is set, from the lowest one on; with Marked twice that, and 1 more where `marks`
// has the bit. Returns the end. What is not there is written over by the next ones: of the few bits that most words
// have, no branch has to be guessed.
template <bool Marked = false>
inline uint32_t *appendBits(uint32_t *to, uint64_t bits, uint32_t first, [[maybe_unused]] uint64_t marks = 0) {
  constexpr unsigned atOnce = 4;
  const unsigned count = static_cast<unsigned>(__builtin_popcountll(bits));
#if defined(SNNIPU_AVX512)
  if (count > atOnce) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (unsigned part = 0; part < 64; part += 16) {
      const __mmask16 some = static_cast<__mmask16>(bits >> part);
      __m512i number = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(first + part)));
      if constexpr (Marked) {
        const __m512i twice = _mm512_add_epi32(number, number);
        number = _mm512_mask_add_epi32(twice, static_cast<__mmask16>(marks >> part), twice, _mm512_set1_epi32(1));
      }
      _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(some, number));
      to += __builtin_popcount(some);
    }
    return to;
  }
#endif
  uint32_t *const end = to + count;
  do {
    for (unsigned i = 0; i < atOnce; ++i) {
      const unsigned bit = static_cast<unsigned>(__builtin_ctzll(bits | uint64_t{1} << 63));
      to[i] = Marked ? (first + bit) << 1 | static_cast<uint32_t>(marks >> bit & 1) : first + bit;
      bits &= bits - 1;
    }
    to += atOnce;
  } while (to < end);
  return end;
}

// Of 64 numbers, which are not 0, and which have the highest bit.
struct NumberBits {
  uint64_t any, highest;
};
inline NumberBits numberBits(const uint32_t *from) {
  NumberBits bits{0, 0};
#if defined(SNNIPU_AVX512)
  for (unsigned i = 0; i < 64; i += 16) {
    const __m512i numbers = _mm512_loadu_si512(from + i);
    bits.any |= static_cast<uint64_t>(_mm512_test_epi32_mask(numbers, numbers)) << i;
    bits.highest |= static_cast<uint64_t>(_mm512_movepi32_mask(numbers)) << i;
  }
#elif defined(SNNIPU_SSE2)
  for (unsigned i = 0; i < 64; i += 4) {
    const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i));
    const __m128i none = _mm_cmpeq_epi32(numbers, _mm_setzero_si128());
    bits.any |= static_cast<uint64_t>(15 & ~_mm_movemask_ps(_mm_castsi128_ps(none))) << i;
    bits.highest |= static_cast<uint64_t>(_mm_movemask_ps(_mm_castsi128_ps(numbers))) << i;
  }
#else
  for (unsigned i = 0; i < 64; ++i) {
    bits.any |= static_cast<uint64_t>(from[i] != 0) << i;
    bits.highest |= static_cast<uint64_t>(from[i] >> 31) << i;
  }
#endif
  return bits;
}

} // namespace snnipu
