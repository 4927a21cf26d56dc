// Pools of dense maps and their adjoints: the maximum, with its index in the window, and the average. Additions are in
// PyTorch's order.
#include "host/sparse.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace snnipu {
namespace {

// The index in a window is stored in a byte.
constexpr size_t MostPlaces = 256;
constexpr size_t Columns = 256; // of a row, processed together
constexpr size_t Lanes = 16;

struct Windows {
  size_t height, width, kernelHeight, kernelWidth, strideHeight, strideWidth, outHeight, outWidth;

  explicit Windows(const int64_t *g)
      : height(size(g[0])), width(size(g[1])), kernelHeight(size(g[2])), kernelWidth(size(g[3])),
        strideHeight(size(g[4])), strideWidth(size(g[5])), outHeight(size(g[6])), outWidth(size(g[7])) {}

  size_t in() const { return height * width; }
  size_t out() const { return outHeight * outWidth; }
  size_t places() const { return kernelHeight * kernelWidth; }
  // Return the offset of each place of a window from its first place.
  std::array<size_t, MostPlaces> offsets() const {
    std::array<size_t, MostPlaces> result{};
    for (size_t place = 0; place < places(); ++place)
      result[place] = place / kernelWidth * width + place % kernelWidth;
    return result;
  }
};

// Take the larger of two values with its place. As in PyTorch, the first of equal values is taken, and the last NaN.
// Place has the size of C, so that both are lanes of equal vectors.
template <typename C, typename Place> inline void takeLarger(C &largest, Place &which, C other, Place at) {
  const bool taken = (other > largest) | (other != other);
  largest = taken ? other : largest;
  which = taken ? at : which;
}

// The windows of some columns of a row. `Stride` 0: the stride is known at run time. Rows are short, so whole vectors
// are processed if the values after the row may be read, up to `end`.
template <typename C, size_t Stride>
void columns(const Windows &w, const C *__restrict__ in, const C *end, C *__restrict__ out, uint8_t *__restrict__ which,
             size_t numColumns) {
  using Place = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;
  const size_t stride = Stride ? Stride : w.strideWidth;
  const size_t whole = (numColumns + Lanes - 1) / Lanes * Lanes;
  const size_t last = (w.kernelHeight - 1) * w.width + (whole - 1) * stride + w.kernelWidth - 1;
  const size_t count = last < static_cast<size_t>(end - in) ? whole : numColumns;
  C largest[Columns];
  Place places[Columns];
  std::fill(largest, largest + count, -std::numeric_limits<C>::infinity());
  std::fill(places, places + count, 0);
  for (size_t y = 0; y < w.kernelHeight; ++y, in += w.width) {
    const auto place = static_cast<Place>(y * w.kernelWidth);
    if (Stride == 2 && w.kernelWidth == 2) {
      for (size_t x = 0; x < count; ++x) {
        C value = largest[x];
        Place at = places[x];
        takeLarger(value, at, in[2 * x], place);
        takeLarger(value, at, in[2 * x + 1], place + 1);
        largest[x] = value;
        places[x] = at;
      }
      continue;
    }
    for (size_t k = 0; k < w.kernelWidth; ++k)
      for (size_t x = 0; x < count; ++x)
        takeLarger(largest[x], places[x], in[stride * x + k], place + static_cast<Place>(k));
  }
  std::copy(largest, largest + numColumns, out);
  std::copy(places, places + numColumns, which);
}

// The windows of a row.
template <typename C> void largestOfRow(const Windows &w, const C *in, const C *end, C *out, uint8_t *which) {
  const auto process = w.strideWidth == 1 ? columns<C, 1> : w.strideWidth == 2 ? columns<C, 2> : columns<C, 0>;
  for (size_t x = 0; x < w.outWidth; x += Columns)
    process(w, in + x * w.strideWidth, end, out + x, which + x, std::min(Columns, w.outWidth - x));
}

template <typename C> void largestOfMap(const Windows &w, const C *in, const C *end, C *out, uint8_t *which) {
  for (size_t y = 0; y < w.outHeight; ++y)
    largestOfRow(w, in + y * w.strideHeight * w.width, end, out + y * w.outWidth, which + y * w.outWidth);
}

template <typename C> void gradientOfMap(const Windows &w, const C *grad, const uint8_t *which, C *gradIn) {
  const std::array<size_t, MostPlaces> offsets = w.offsets();
  std::fill(gradIn, gradIn + w.in(), C(0));
  for (size_t y = 0; y < w.outHeight; ++y)
    for (size_t x = 0; x < w.outWidth; ++x)
      gradIn[y * w.strideHeight * w.width + x * w.strideWidth + offsets[*which++]] += *grad++;
}

template <typename C> void averagesOfMap(const Windows &w, const C *in, C *__restrict__ out) {
  const size_t stride = w.strideWidth, count = w.outWidth;
  const bool pairs = w.strideWidth == 2 && w.kernelWidth == 2;
  const auto places = static_cast<C>(w.places());
  for (size_t y = 0; y < w.outHeight; ++y, out += count) {
    std::fill(out, out + count, C(0));
    for (size_t ky = 0; ky < w.kernelHeight; ++ky) {
      const C *const line = in + (y * w.strideHeight + ky) * w.width;
      if (pairs)
        for (size_t x = 0; x < count; ++x)
          out[x] = (out[x] + line[2 * x]) + line[2 * x + 1];
      else
        for (size_t kx = 0; kx < w.kernelWidth; ++kx)
          for (size_t x = 0; x < count; ++x)
            out[x] += line[stride * x + kx];
    }
    for (size_t x = 0; x < count; ++x)
      out[x] /= places;
  }
}

template <typename C> void gradientOfAverages(const Windows &w, const C *grad, C *__restrict__ gradIn) {
  const size_t stride = w.strideWidth;
  const bool pairs = w.strideWidth == 2 && w.kernelWidth == 2;
  const auto places = static_cast<C>(w.places());
  C shares[Columns];
  std::fill(gradIn, gradIn + w.in(), C(0));
  for (size_t y = 0; y < w.outHeight; ++y, grad += w.outWidth)
    for (size_t first = 0; first < w.outWidth; first += Columns) {
      const size_t count = std::min(Columns, w.outWidth - first);
      for (size_t x = 0; x < count; ++x)
        shares[x] = grad[first + x] / places;
      for (size_t ky = 0; ky < w.kernelHeight; ++ky) {
        C *const line = gradIn + (y * w.strideHeight + ky) * w.width + first * stride;
        if (pairs)
          for (size_t x = 0; x < count; ++x) {
            line[2 * x] += shares[x];
            line[2 * x + 1] += shares[x];
          }
        else // the last place first, so that each value adds its windows in ascending order
          for (size_t kx = w.kernelWidth; kx-- > 0;)
            for (size_t x = 0; x < count; ++x)
              line[stride * x + kx] += shares[x];
      }
    }
}

// Call body(sizes, map) for each map.
template <typename C, typename Body> int forMaps(const Call<C> &a, const Body &body) {
  const Windows w(a.c.geometry);
  if (w.places() > MostPlaces)
    return BadSpikes;
  const size_t count = size(a.c.neurons);
  parallelPieces(count, 16, threadsFor(count * w.in(), a.threads()), [&](size_t begin, size_t end) {
    for (size_t map = begin; map < end; ++map)
      body(w, map);
  });
  return Done;
}

template <typename C> int maxForward(const Call<C> &a) {
  return forMaps(a, [&](const Windows &w, size_t map) {
    const C *const x = a.in(a.c.x), *const end = x + size(a.c.neurons) * w.in();
    largestOfMap(w, x + map * w.in(), end, a.out(a.c.out) + map * w.out(), a.c.which + map * w.out());
  });
}

template <typename C> int maxBackward(const Call<C> &a) {
  return forMaps(a, [&](const Windows &w, size_t map) {
    gradientOfMap(w, a.in(a.c.grad) + map * w.out(), a.c.which + map * w.out(), a.out(a.c.grad_x) + map * w.in());
  });
}

template <typename C> int averageForward(const Call<C> &a) {
  return forMaps(a, [&](const Windows &w, size_t map) {
    averagesOfMap(w, a.in(a.c.x) + map * w.in(), a.out(a.c.out) + map * w.out());
  });
}

template <typename C> int averageBackward(const Call<C> &a) {
  return forMaps(a, [&](const Windows &w, size_t map) {
    gradientOfAverages(w, a.in(a.c.grad) + map * w.out(), a.out(a.c.grad_x) + map * w.in());
  });
}

} // namespace
} // namespace snnipu

SNNIPU_RUN(max_pool2d_fwd, maxForward)
SNNIPU_RUN(max_pool2d_bwd, maxBackward)
SNNIPU_RUN(avg_pool2d_fwd, averageForward)
SNNIPU_RUN(avg_pool2d_bwd, averageBackward)
