// Bit masks: the indices of set bits, transposition of masks, and packing.
#pragma once

#include "neuron/lanes.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace snnipu {

// appendBits() may write this many elements past the indices that it returns.
constexpr size_t bitsRoom = 16;

// Append first + i for each set bit i, in ascending order, and return the end. The loop writes `atOnce` indices at a
// time; the next call overwrites the surplus. Most words have few bits, and a branch for each would be mispredicted.
inline uint32_t *appendBits(uint32_t *to, uint64_t bits, uint32_t first) {
  constexpr unsigned atOnce = 4;
  const unsigned count = static_cast<unsigned>(__builtin_popcountll(bits));
#if defined(SNNIPU_AVX512)
  if (count > atOnce) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (unsigned part = 0; part < 64; part += 16) {
      const __mmask16 some = static_cast<__mmask16>(bits >> part);
      const __m512i number = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(first + part)));
      _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(some, number));
      to += __builtin_popcount(some);
    }
    return to;
  }
#endif
  uint32_t *const end = to + count;
  do {
    for (unsigned i = 0; i < atOnce; ++i) {
      to[i] = first + static_cast<unsigned>(__builtin_ctzll(bits | uint64_t{1} << 63));
      bits &= bits - 1;
    }
    to += atOnce;
  } while (to < end);
  return end;
}

// Return one bit for each lane, the first lane's lowest: set if the lane is not 0. NaN counts as not 0.
template <typename V> inline uint64_t bitsNonzero(V a) {
#if defined(SNNIPU_AVX512)
  if constexpr (sizeof(V) == 64 && std::is_same_v<Element<V>, float>)
    return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(a), _mm512_setzero_ps(), _CMP_NEQ_UQ);
  if constexpr (sizeof(V) == 64 && std::is_same_v<Element<V>, double>)
    return _mm512_cmp_pd_mask(reinterpret_cast<__m512d>(a), _mm512_setzero_pd(), _CMP_NEQ_UQ);
#endif
#if defined(SNNIPU_AVX)
  if constexpr (sizeof(V) == 32 && std::is_same_v<Element<V>, float>)
    return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(a != splat<V>(0))));
  if constexpr (sizeof(V) == 32 && std::is_same_v<Element<V>, double>)
    return static_cast<unsigned>(_mm256_movemask_pd(reinterpret_cast<__m256d>(a != splat<V>(0))));
#endif
  uint64_t bits = 0;
  for (unsigned i = 0; i < lanes<V>; ++i)
    bits |= static_cast<uint64_t>(a[i] != 0) << i;
  return bits;
}

// The smallest integer type with one bit for each lane.
template <unsigned lanes> using LaneMask = std::conditional_t<(lanes > 8), uint16_t, uint8_t>;

// Transpose 8 x 8 bits: bit j of byte i becomes bit i of byte j.
inline uint64_t transposed(uint64_t bits) {
  const auto swap = [&](unsigned distance, uint64_t mask) {
    const uint64_t both = (bits ^ bits >> distance) & mask;
    bits ^= both ^ both << distance;
  };
  swap(7, 0x00AA00AA00AA00AA);
  swap(14, 0x0000CCCC0000CCCC);
  swap(28, 0x00000000F0F0F0F0);
  return bits;
}

// Transpose 64 masks: bit i of to[lane * stride] is bit `lane` of masks[i].
template <typename M> void transposeBits(const M *masks, unsigned lanes, uint64_t *to, size_t stride) {
#if !defined(SNNIPU_AVX512)
  static_assert(sizeof(M) == 1, "registers of 16 lanes are AVX-512's");
#endif
#if defined(SNNIPU_AVX512)
  if constexpr (sizeof(M) == 2) {
    // The masks are shifted so that the last lane's bit is the highest, which one instruction extracts. An addition of
    // the mask to itself then brings up the lane below.
    const __m128i above = _mm_cvtsi32_si128(static_cast<int>(16 - lanes));
    __m512i low = _mm512_sll_epi16(_mm512_loadu_si512(masks), above);
    __m512i high = _mm512_sll_epi16(_mm512_loadu_si512(masks + 32), above);
    for (unsigned lane = lanes; lane-- > 0;) {
      to[lane * stride] = _mm512_movepi16_mask(low) | static_cast<uint64_t>(_mm512_movepi16_mask(high)) << 32;
      low = _mm512_add_epi16(low, low);
      high = _mm512_add_epi16(high, high);
    }
    return;
  }
#endif
#if defined(SNNIPU_SSE2)
  if constexpr (sizeof(M) == 1) {
    for (unsigned lane = 0; lane < lanes; ++lane)
      to[lane * stride] = 0;
    for (unsigned part = 0; part < 64; part += 16) {
      const __m128i above = _mm_cvtsi32_si128(static_cast<int>(8 - lanes));
      __m128i bytes = _mm_sll_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(masks + part)), above);
      for (unsigned lane = lanes; lane-- > 0;) {
        to[lane * stride] |= static_cast<uint64_t>(_mm_movemask_epi8(bytes)) << part;
        bytes = _mm_add_epi8(bytes, bytes);
      }
    }
    return;
  }
#endif
  if constexpr (sizeof(M) == 1) {
    for (unsigned lane = 0; lane < lanes; ++lane)
      to[lane * stride] = 0;
    for (unsigned part = 0; part < 64; part += 8) {
      uint64_t bits = 0;
      for (unsigned i = 0; i < 8; ++i)
        bits |= static_cast<uint64_t>(masks[part + i]) << 8 * i;
      bits = transposed(bits);
      for (unsigned lane = 0; lane < lanes; ++lane)
        to[lane * stride] |= (bits >> 8 * lane & 255) << part;
    }
  }
}

// Appends groups of bits to 32-bit words, without gaps.
class BitWriter {
public:
  explicit BitWriter(uint32_t *to) : to_(to) {}
  // Append the lowest `count` bits, 64 at most. Higher bits must be 0.
  void append(uint64_t bits, unsigned count) {
    const uint64_t low = pending_ | bits << numPending_, high = (bits >> 1) >> (63 - numPending_);
    const unsigned total = numPending_ + count;
    if (count == 64) {
      to_[0] = static_cast<uint32_t>(low);
      to_[1] = static_cast<uint32_t>(low >> 32);
      to_ += 2;
      pending_ = high;
      return;
    }
    pending_ = low;
    if (total >= 32) {
      *to_++ = static_cast<uint32_t>(low);
      pending_ = low >> 32;
    }
    if (total >= 64) {
      *to_++ = static_cast<uint32_t>(pending_);
      pending_ = high;
    }
    numPending_ = total % 32;
  }
  void end() {
    if (numPending_ > 0)
      *to_ = static_cast<uint32_t>(pending_);
  }

private:
  uint32_t *to_;
  uint64_t pending_ = 0; // bits that do not fill a word yet
  unsigned numPending_ = 0;
};

} // namespace snnipu
