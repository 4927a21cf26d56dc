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

} // namespace snnipu
