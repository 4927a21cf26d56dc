// Matrix transposition by tiles of registers.
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
  // Rows i and i + 4 share a register, so that all further shuffles stay within 128 bits.
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

#if defined(SNNIPU_AVX512)
// to[j][i] = scale * from[i][j] for i < rows and j < columns, up to 16 each.
inline void transposePart(const float *from, size_t fromStride, size_t rows, size_t columns, float *to, size_t toStride,
                          float scale) {
  // The masked intrinsics are used because the plain ones make GCC 12 warn of undefined values.
  constexpr __mmask16 all = 0xffff;
  const auto first = [](size_t count) { return static_cast<__mmask16>((1u << count) - 1); };
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 row[16], pair[16];
  for (size_t i = 0; i < 16; ++i)
    row[i] = i < rows ? _mm512_mul_ps(_mm512_maskz_loadu_ps(first(columns), from + i * fromStride), factor)
                      : _mm512_setzero_ps();
  // Transpose 4 rows at a time within 128 bits: part k of row i + c then has column 4 k + c of rows i to i + 3.
  for (size_t i = 0; i < 16; i += 4) {
    const __m512 a = _mm512_maskz_unpacklo_ps(all, row[i], row[i + 1]);
    const __m512 b = _mm512_maskz_unpackhi_ps(all, row[i], row[i + 1]);
    const __m512 c = _mm512_maskz_unpacklo_ps(all, row[i + 2], row[i + 3]);
    const __m512 d = _mm512_maskz_unpackhi_ps(all, row[i + 2], row[i + 3]);
    row[i] = _mm512_maskz_shuffle_ps(all, a, c, 0x44);
    row[i + 1] = _mm512_maskz_shuffle_ps(all, a, c, 0xee);
    row[i + 2] = _mm512_maskz_shuffle_ps(all, b, d, 0x44);
    row[i + 3] = _mm512_maskz_shuffle_ps(all, b, d, 0xee);
  }
  // Combine parts of 128 bits: first of two groups of rows, then of all four.
  for (size_t c = 0; c < 4; ++c)
    for (size_t half = 0; half < 2; ++half) {
      const __m512 upper = row[8 * half + c], lower = row[8 * half + 4 + c];
      pair[4 * half + c] = _mm512_maskz_shuffle_f32x4(all, upper, lower, 0x88);
      pair[8 + 4 * half + c] = _mm512_maskz_shuffle_f32x4(all, upper, lower, 0xdd);
    }
  for (size_t odd = 0; odd < 2; ++odd)
    for (size_t c = 0; c < 4; ++c) {
      const __m512 upper = pair[8 * odd + c], lower = pair[8 * odd + 4 + c];
      const size_t column = 4 * odd + c;
      if (column < columns)
        _mm512_mask_storeu_ps(to + column * toStride, first(rows), _mm512_maskz_shuffle_f32x4(all, upper, lower, 0x88));
      if (column + 8 < columns)
        _mm512_mask_storeu_ps(to + (column + 8) * toStride, first(rows),
                              _mm512_maskz_shuffle_f32x4(all, upper, lower, 0xdd));
    }
}
#endif

// to[j][i] = scale * from[i][j] for i < rows and j < columns. A tile covers whole cache lines on both sides.
template <typename C>
void transpose(const C *from, size_t fromStride, size_t rows, size_t columns, C *to, size_t toStride, C scale) {
#if defined(SNNIPU_AVX512)
  if constexpr (std::is_same_v<C, float>) {
    for (size_t i = 0; i < rows; i += 16)
      for (size_t j = 0; j < columns; j += 16)
        transposePart(from + i * fromStride + j, fromStride, std::min<size_t>(16, rows - i),
                      std::min<size_t>(16, columns - j), to + j * toStride + i, toStride, scale);
    return;
  }
#endif
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
