// Places of maps, and where a kernel leads to from them.
#pragma once

#include "neuron/lanes.hpp"

namespace snnipu {

struct Quotient {
  int whole, rest;
};

// n = whole * d + rest with 0 <= rest < d, of an n within 2^24 around 0; inverse: 1 / d, rounded. A tile has no integer
// division.
inline Quotient quotient(int n, int d, float inverse) {
  int whole = static_cast<int>(static_cast<float>(n) * inverse), rest = n - whole * d;
  for (; rest < 0; rest += d)
    --whole;
  for (; rest >= d; rest -= d)
    ++whole;
  return {whole, rest};
}

// Channel, row and column of a neuron of maps in one number. Numbers of one channel ascend as its ids do.
struct PackedPlaces {
  unsigned rowBits = 0, columnBits = 0;

  PackedPlaces(unsigned height, unsigned width) {
    while ((1u << rowBits) < height)
      ++rowBits;
    while ((1u << columnBits) < width)
      ++columnBits;
  }

  unsigned pack(unsigned channel, unsigned row, unsigned column) const {
    return (channel << rowBits | row) << columnBits | column;
  }
  unsigned channel(unsigned packed) const { return packed >> (rowBits + columnBits); }
  unsigned row(unsigned packed) const { return packed >> columnBits & ((1u << rowBits) - 1); }
  unsigned column(unsigned packed) const { return packed & ((1u << columnBits) - 1); }
};

// Along one axis: from coordinate `at` of the input, index k of the kernel leads to the place
// (at + padding - k * dilation) / stride of the output, where that is a whole number.
struct KernelAxis {
  int stride, padding, dilation;
  float inverse;
  Quotient back; // by which an index leads further back than the one before it

  KernelAxis(unsigned stride_, unsigned padding_, unsigned dilation_)
      : stride(static_cast<int>(stride_)), padding(static_cast<int>(padding_)), dilation(static_cast<int>(dilation_)),
        inverse(1.0f / static_cast<float>(stride_)), back(quotient(dilation, stride, inverse)) {}

  // whole: the place; rest: 0 where it is one.
  Quotient at(unsigned coordinate, unsigned index = 0) const {
    const int n = static_cast<int>(coordinate) + padding - static_cast<int>(index) * dilation;
    return stride == 1 ? Quotient{n, 0} : quotient(n, stride, inverse);
  }
  // From one index to the next one.
  void next(Quotient &place) const {
    place.whole -= back.whole;
    place.rest -= back.rest;
    if (place.rest < 0) {
      place.rest += stride;
      --place.whole;
    }
  }
};

// Whether it is a place of [begin, begin + count).
inline bool within(const Quotient &place, unsigned begin, unsigned count) {
  return place.rest == 0 && static_cast<unsigned>(place.whole) - begin < count;
}

// Of a map's line, with the channels of a group of registers last: += value * weight at the places of a kernel's line,
// from its first index on, which leads to x. Places and weights are `step` apart; the first argument only carries a
// type.
template <typename Group, typename C, typename S, typename V>
inline void addKernelLine(Group, C *line, unsigned width, const S *weight, unsigned taps, unsigned step, V value,
                          const KernelAxis &across, Quotient x) {
  for (unsigned k = 0; k < taps; ++k, across.next(x), weight += step) {
    if (!within(x, 0, width))
      continue;
    C *const to = line + static_cast<std::size_t>(static_cast<unsigned>(x.whole)) * step;
    Group sum;
    sum.loadFrom(to);
    sum.addScaled(value, weight);
    sum.storeTo(to);
  }
}

} // namespace snnipu
