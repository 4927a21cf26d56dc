// Pools of maps on spike ids. What a window holds is found in an array of all windows of a row; which of them get a
// slot is then up to SelectSpikes, and GatherSlots fetches what they hold.
#include "neuron/maps.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// Of each window: the maximum or the sum of its carried slots, how many there are, and the slot of the maximum, the
// first in rows where several attain it. NaN is above any number. A slot behind counts[2 * row] has the value 0.
template <typename C> class SparsePoolWindows : public poplar::MultiVertex {
public:
  In<unsigned> places; // [rows][slots], as PackedPlaces
  In<C> values;        // [rows][slots]
  In<int> counts;      // [rows][2]
  Out<C> value;        // [rows][channels][height][width]
  Out<int> reached;    // likewise
  Out<C> source;       // likewise; undefined where nothing is reached, and not written for sums
  unsigned rows;
  unsigned slots;
  unsigned channels;
  unsigned height; // of the output
  unsigned width;
  unsigned kernelHeight;
  unsigned kernelWidth;
  unsigned strideY;
  unsigned strideX;
  unsigned paddingY;
  unsigned paddingX;
  unsigned inHeight;
  unsigned inWidth;
  unsigned shares; // of a row's channels, where there are fewer rows than workers
  bool max;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows * shares);
    unsigned row = 0, share = range.begin;
    for (; share >= shares; share -= shares)
      ++row;
    const KernelAxis down(strideY, paddingY, 1), across(strideX, paddingX, 1);
    for (unsigned item = range.begin; item < range.end; ++item) {
      pool(row, workerShare(share, shares, channels), down, across);
      if (++share == shares) {
        share = 0;
        ++row;
      }
    }
  }

private:
  static bool above(C a, C b) { return a > b || (a != a && b == b); }

  void pool(unsigned row, WorkerRange own, const KernelAxis &down, const KernelAxis &across) {
    const unsigned map = height * width;
    const std::size_t base = static_cast<std::size_t>(row) * channels * map;
    for (unsigned i = own.begin * map; i < own.end * map; ++i) {
      value[base + i] = C(0);
      reached[base + i] = 0;
    }
    const PackedPlaces packed(inHeight, inWidth);
    const std::size_t first = static_cast<std::size_t>(row) * slots;
    const unsigned fired = static_cast<unsigned>(counts[2 * row]);
    for (unsigned slot = 0; slot < static_cast<unsigned>(counts[2 * row + 1]); ++slot) {
      const unsigned from = places[first + slot], channel = packed.channel(from);
      if (channel - own.begin >= own.end - own.begin)
        continue;
      const C held = slot < fired ? values[first + slot] : C(0);
      const Quotient left = across.at(packed.column(from));
      Quotient y = down.at(packed.row(from));
      for (unsigned ky = 0; ky < kernelHeight; ++ky, down.next(y)) {
        if (!within(y, 0, height))
          continue;
        const std::size_t line = base + channel * map + static_cast<unsigned>(y.whole) * width;
        Quotient x = left;
        for (unsigned kx = 0; kx < kernelWidth; ++kx, across.next(x))
          if (within(x, 0, width))
            put(line + static_cast<unsigned>(x.whole), held, slot, first);
      }
    }
  }

  void put(std::size_t at, C found, unsigned slot, std::size_t first) {
    const int before = reached[at];
    reached[at] = before + 1;
    if (!max) {
      value[at] += found;
      return;
    }
    if (before != 0) {
      const C best = value[at];
      if (!above(found, best) &&
          (above(best, found) || places[first + slot] >= places[first + static_cast<unsigned>(source[at])]))
        return;
    }
    value[at] = found;
    source[at] = static_cast<C>(slot);
  }
};

// Bits of the windows that get a slot, 32 to a word: carried where a slot is reached, fired where the value is not 0.
// The maximum of a window below 0 is that of a neuron without a slot, where there is one. With averages, divides.
template <typename C> class SparsePoolBits : public poplar::MultiVertex {
public:
  Through<C> value;    // [rows][channels][height][width]
  In<int> reached;     // likewise
  Out<unsigned> fired; // [rows][words]
  Out<unsigned> carried;
  C divisor;
  unsigned rows;
  unsigned channels;
  unsigned height;
  unsigned width;
  unsigned inHeight;
  unsigned inWidth;
  unsigned kernelHeight;
  unsigned kernelWidth;
  unsigned strideY;
  unsigned strideX;
  unsigned paddingY;
  unsigned paddingX;
  bool max;

  void compute(unsigned workerId) {
    const unsigned neurons = channels * height * width, words = (neurons + 31) / 32;
    const WorkerRange range = workerShare(workerId, numWorkers(), rows * words);
    unsigned row = 0, word = range.begin;
    for (; word >= words; word -= words)
      ++row;
    for (unsigned item = range.begin; item < range.end; ++item) {
      const unsigned begin = 32 * word, held = neurons - begin < 32 ? neurons - begin : 32;
      const std::size_t first = static_cast<std::size_t>(row) * neurons + begin;
      unsigned spikes = 0, all = 0;
      for (unsigned i = 0; i < held; ++i) {
        const int found = reached[first + i];
        if (found == 0)
          continue;
        const C total = value[first + i];
        if (max && total < C(0) && static_cast<unsigned>(found) < windowSize(begin + i))
          continue;
        const C result = max ? total : total / divisor;
        value[first + i] = result;
        spikes |= static_cast<unsigned>(result != C(0)) << i;
        all |= 1u << i;
      }
      fired[item] = spikes;
      carried[item] = all;
      if (++word == words) {
        word = 0;
        ++row;
      }
    }
  }

private:
  // Inputs that a window has: not those of the padding.
  unsigned windowSize(unsigned neuron) const {
    const int map = static_cast<int>(height * width), across = static_cast<int>(width);
    const int place = quotient(static_cast<int>(neuron), map, 1.0f / static_cast<float>(map)).rest;
    const Quotient at = quotient(place, across, 1.0f / static_cast<float>(across));
    return inside(static_cast<unsigned>(at.whole) * strideY, paddingY, kernelHeight, inHeight) *
           inside(static_cast<unsigned>(at.rest) * strideX, paddingX, kernelWidth, inWidth);
  }
  static unsigned inside(unsigned at, unsigned padding, unsigned kernel, unsigned size) {
    const unsigned end = at + kernel < padding + size ? at + kernel : padding + size;
    return end - (at > padding ? at : padding);
  }
};

// gradValues[row][slot] = the sum of dense over the windows of a carried slot, over the divisor; 0 in padding.
template <typename C> class SparsePoolGradient : public poplar::MultiVertex {
public:
  In<unsigned> places; // [rows][slots]
  In<int> counts;      // [rows][2]
  In<C> dense;         // [rows][channels][height][width]
  Out<C> gradValues;   // [rows][slots]
  C divisor;
  unsigned rows;
  unsigned slots;
  unsigned channels;
  unsigned height;
  unsigned width;
  unsigned kernelHeight;
  unsigned kernelWidth;
  unsigned strideY;
  unsigned strideX;
  unsigned paddingY;
  unsigned paddingX;
  unsigned inHeight;
  unsigned inWidth;

  void compute(unsigned workerId) {
    const KernelAxis down(strideY, paddingY, 1), across(strideX, paddingX, 1);
    const PackedPlaces packed(inHeight, inWidth);
    for (unsigned row = 0; row < rows; ++row) {
      const std::size_t first = static_cast<std::size_t>(row) * slots;
      const WorkerRange range = workerShare(workerId, numWorkers(), slots);
      for (unsigned slot = range.begin; slot < range.end; ++slot) {
        C total = C(0);
        if (slot < static_cast<unsigned>(counts[2 * row + 1])) {
          const unsigned from = places[first + slot];
          const std::size_t map = (static_cast<std::size_t>(row) * channels + packed.channel(from)) * height * width;
          const Quotient left = across.at(packed.column(from));
          Quotient y = down.at(packed.row(from));
          for (unsigned ky = 0; ky < kernelHeight; ++ky, down.next(y)) {
            if (!within(y, 0, height))
              continue;
            Quotient x = left;
            for (unsigned kx = 0; kx < kernelWidth; ++kx, across.next(x))
              if (within(x, 0, width))
                total += dense[map + static_cast<unsigned>(y.whole) * width + static_cast<unsigned>(x.whole)];
          }
        }
        gradValues[first + slot] = total / divisor;
      }
    }
  }
};

#if defined(__POPC__)
template class SparsePoolWindows<float>;
template class SparsePoolBits<float>;
template class SparsePoolGradient<float>;
#endif

} // namespace snnipu
