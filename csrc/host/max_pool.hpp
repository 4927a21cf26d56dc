// The largest values of the windows of maps, a row of windows at a time.
#pragma once

#include "host/sparse.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace snnipu {
namespace {

// A place in a window is kept in a byte.
constexpr size_t MostPlaces = 256;
constexpr size_t Columns = 256; // of a row, done together
constexpr size_t Lanes = 16;

struct Windows {
  size_t height, width, kernelHeight, kernelWidth, strideHeight, strideWidth, outHeight, outWidth;

  explicit Windows(const int64_t *g)
      : height(size(g[0])), width(size(g[1])), kernelHeight(size(g[2])), kernelWidth(size(g[3])),
        strideHeight(size(g[4])), strideWidth(size(g[5])), outHeight(size(g[6])), outWidth(size(g[7])) {}

  size_t in() const { return height * width; }
  size_t out() const { return outHeight * outWidth; }
  size_t places() const { return kernelHeight * kernelWidth; }
  // Of a place of a window, behind the window's first one.
  std::array<size_t, MostPlaces> offsets() const {
    std::array<size_t, MostPlaces> found{};
    for (size_t place = 0; place < places(); ++place)
      found[place] = place / kernelWidth * width + place % kernelWidth;
    return found;
  }
};

constexpr size_t MapsOfABlock = 16;

template <typename Body> int forMaps(const Windows &w, int64_t maps, int32_t threads, const Body &body) {
  if (w.places() > MostPlaces)
    return BadSpikes;
  const size_t count = size(maps);
  parallelFor((count + MapsOfABlock - 1) / MapsOfABlock, threadsFor(count * w.in(), threads), [&](size_t block) {
    for (size_t map = block * MapsOfABlock; map < std::min(count, (block + 1) * MapsOfABlock); ++map)
      body(map);
  });
  return Done;
}

// The larger of two values, with its place: as in PyTorch the first of equal ones, and the last NaN. Places are of the
// values' size, as the lanes of a vector are.
template <typename C, typename Place> inline void meet(C &largest, Place &which, C other, Place at) {
  const bool taken = (other > largest) | (other != other);
  largest = taken ? other : largest;
  which = taken ? at : which;
}

// The windows of some columns of a row; `Stride` 0: another one, known at run time. Whole vectors, where what lies
// behind the row may be read, up to `end`: rows are short.
template <typename C, size_t Stride>
void columns(const Windows &w, const C *__restrict__ in, const C *end, C *__restrict__ out, uint8_t *__restrict__ which,
             size_t wanted) {
  using Place = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;
  const size_t stride = Stride ? Stride : w.strideWidth;
  const size_t whole = (wanted + Lanes - 1) / Lanes * Lanes;
  const size_t last = (w.kernelHeight - 1) * w.width + (whole - 1) * stride + w.kernelWidth - 1;
  const size_t count = last < static_cast<size_t>(end - in) ? whole : wanted;
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
        meet(value, at, in[2 * x], place);
        meet(value, at, in[2 * x + 1], place + 1);
        largest[x] = value;
        places[x] = at;
      }
      continue;
    }
    for (size_t k = 0; k < w.kernelWidth; ++k)
      for (size_t x = 0; x < count; ++x)
        meet(largest[x], places[x], in[stride * x + k], place + static_cast<Place>(k));
  }
  std::copy(largest, largest + wanted, out);
  std::copy(places, places + wanted, which);
}

// Of a row of windows.
template <typename C> void largestOfRow(const Windows &w, const C *in, const C *end, C *out, uint8_t *which) {
  const auto some = w.strideWidth == 1 ? columns<C, 1> : w.strideWidth == 2 ? columns<C, 2> : columns<C, 0>;
  for (size_t x = 0; x < w.outWidth; x += Columns)
    some(w, in + x * w.strideWidth, end, out + x, which + x, std::min(Columns, w.outWidth - x));
}

} // namespace
} // namespace snnipu
