// Coordinates of neurons in maps, and the outputs that a kernel connects them to.
#pragma once

#include "neuron/lanes.hpp"

namespace snnipu {

struct Quotient {
  int whole, remainder;
};

// n = whole * d + remainder with 0 <= remainder < d, for |n| < 2^24; inverse is 1 / d, rounded. A tile has no integer
// division.
inline Quotient quotient(int n, int d, float inverse) {
  int whole = static_cast<int>(static_cast<float>(n) * inverse), remainder = n - whole * d;
  for (; remainder < 0; remainder += d)
    --whole;
  for (; remainder >= d; remainder -= d)
    ++whole;
  return {whole, remainder};
}

// Channel, row and column of a neuron in one number. In a channel, numbers ascend as ids do.
struct PackedPositions {
  unsigned rowBits = 0, columnBits = 0;

  PackedPositions(unsigned height, unsigned width) {
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

// An axis of a convolution. Index k of the kernel connects input coordinate `at` to the output coordinate (at +
// padding - k * dilation) / stride, if that is an integer.
struct KernelAxis {
  int stride, padding, dilation;
  float inverse;
  Quotient back; // difference between the coordinates of an index and the next one

  KernelAxis(unsigned stride_, unsigned padding_, unsigned dilation_)
      : stride(static_cast<int>(stride_)), padding(static_cast<int>(padding_)), dilation(static_cast<int>(dilation_)),
        inverse(1.0f / static_cast<float>(stride_)), back(quotient(dilation, stride, inverse)) {}

  // Return the output coordinate in `whole`; `remainder` is 0 if it is an integer.
  Quotient at(unsigned coordinate, unsigned index = 0) const {
    const int n = static_cast<int>(coordinate) + padding - static_cast<int>(index) * dilation;
    return stride == 1 ? Quotient{n, 0} : quotient(n, stride, inverse);
  }
  // Go on to the kernel's next index.
  void next(Quotient &place) const {
    place.whole -= back.whole;
    place.remainder -= back.remainder;
    if (place.remainder < 0) {
      place.remainder += stride;
      --place.whole;
    }
  }
};

// Return true if the coordinate is an integer in [begin, begin + count).
inline bool within(const Quotient &place, unsigned begin, unsigned count) {
  return place.remainder == 0 && static_cast<unsigned>(place.whole) - begin < count;
}

// Add value * weight to a line of a map, at the outputs of a line of the kernel. x is the output coordinate of the
// kernel's first index. The channels of a group of registers are innermost: columns and weights are `step` apart. The
// first argument only carries a type.
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
