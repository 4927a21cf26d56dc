// A matrix turned over, a tile of registers at a time.
#pragma once

#include "neuron/lanes.hpp"

#include <algorithm>
#include <cstddef>

namespace snnipu {

using std::size_t;

// to[j][i] = scale * from[i][j] for i, j < tile<C>.
template <typename C> constexpr size_t tile = 4;
template <typename C> void transposeTile(const C *from, size_t fromStride, C *to, size_t toStride, C scale) {
  for (size_t i = 0; i < tile<C>; ++i)
    for (size_t j = 0; j < tile<C>; ++j)
      to[j * toStride + i] = scale * from[i * fromStride + j];
}
#if defined(__AVX__)
template <> inline constexpr size_t tile<float> = 8;
template <>
inline void transposeTile<float>(const float *from, size_t fromStride, float *to, size_t toStride, float scale) {
  __m256 half[8], quad[8];
  // Left and right halves of rows i and i + 4 side by side: what is left to do stays within 128 bits.
  for (size_t i = 0; i < 4; ++i)
    for (size_t right = 0; right < 2; ++right) {
      const __m128 low = _mm_loadu_ps(from + i * fromStride + 4 * right);
      const __m128 high = _mm_loadu_ps(from + (i + 4) * fromStride + 4 * right);
      half[i + 4 * right] =
          _mm256_mul_ps(_mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1), _mm256_set1_ps(scale));
    }
  for (size_t i = 0; i < 8; i += 4) {
    const __m256 a = _mm256_unpacklo_ps(half[i], half[i + 1]), b = _mm256_unpackhi_ps(half[i], half[i + 1]);
    const __m256 c = _mm256_unpacklo_ps(half[i + 2], half[i + 3]), d = _mm256_unpackhi_ps(half[i + 2], half[i + 3]);
    quad[i] = _mm256_shuffle_ps(a, c, 0x44);
    quad[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
    quad[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
    quad[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
  }
  for (size_t j = 0; j < 8; ++j)
    _mm256_storeu_ps(to + j * toStride, quad[j]);
}
#elif defined(__SSE2__)
template <>
inline void transposeTile<float>(const float *from, size_t fromStride, float *to, size_t toStride, float scale) {
  __m128 row[4];
  for (size_t i = 0; i < 4; ++i)
    row[i] = _mm_mul_ps(_mm_loadu_ps(from + i * fromStride), _mm_set1_ps(scale));
  _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
  for (size_t i = 0; i < 4; ++i)
    _mm_storeu_ps(to + i * toStride, row[i]);
}
#endif

// to[j][i] = scale * from[i][j] for i < rows, j < columns: whole cache lines of either side are worked on together.
template <typename C>
void transpose(const C *from, size_t fromStride, size_t rows, size_t columns, C *to, size_t toStride, C scale) {
  constexpr size_t side = tile<C>, line = 64 / sizeof(C);
  for (size_t left = 0; left < columns; left += line) {
    const size_t right = std::min(columns, left + line);
    size_t i = 0;
    for (; i + side <= rows; i += side) {
      size_t j = left;
      for (; j + side <= right; j += side)
        transposeTile(from + i * fromStride + j, fromStride, to + j * toStride + i, toStride, scale);
      for (; j < right; ++j)
        for (size_t k = i; k < i + side; ++k)
          to[j * toStride + k] = scale * from[k * fromStride + j];
    }
    for (; i < rows; ++i)
      for (size_t j = left; j < right; ++j)
        to[j * toStride + i] = scale * from[i * fromStride + j];
  }
}

} // namespace snnipu
