// Pools of maps on spike ids. SparsePoolWindows computes all windows of a row in a dense array, SelectSpikes selects
// those that get a slot, and GatherSlots reads their values.
#include "neuron/maps.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// Compute for each window the maximum or sum of its carried slots, their number, and the slot of the maximum: the first
// in row order if several attain it. NaN is larger than any number. The value of a slot after counts[2 * row] is 0.
template <typename C> class SparsePoolWindows : public poplar::MultiVertex {
public:
  In<unsigned> places; // [rows][slots], as PackedPositions
  In<C> values;        // [rows][slots]
  In<int> counts;      // [rows][2]
  Out<C> value;        // [rows][channels][height][width]
  Out<int> reached;    // likewise
  Out<C> source;       // likewise; undefined if nothing is reached, and not written for sums
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
  unsigned shares; // number of parts of a row's channels, if there are fewer rows than workers
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

  void pool(unsigned row, WorkerRange ownChannels, const KernelAxis &down, const KernelAxis &across) {
    const unsigned map = height * width;
    const std::size_t base = static_cast<std::size_t>(row) * channels * map;
    for (unsigned i = ownChannels.begin * map; i < ownChannels.end * map; ++i) {
      value[base + i] = C(0);
      reached[base + i] = 0;
    }
    const PackedPositions packed(inHeight, inWidth);
    const std::size_t first = static_cast<std::size_t>(row) * slots;
    const unsigned fired = static_cast<unsigned>(counts[2 * row]);
    for (unsigned slot = 0; slot < static_cast<unsigned>(counts[2 * row + 1]); ++slot) {
      const unsigned from = places[first + slot], channel = packed.channel(from);
      if (channel - ownChannels.begin >= ownChannels.end - ownChannels.begin)
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
            addToWindow(line + static_cast<unsigned>(x.whole), held, slot, first);
      }
    }
  }

  void addToWindow(std::size_t at, C candidate, unsigned slot, std::size_t first) {
    const int before = reached[at];
    reached[at] = before + 1;
    if (!max) {
      value[at] += candidate;
      return;
    }
    if (before != 0) {
      const C best = value[at];
      if (!above(candidate, best) &&
          (above(best, candidate) || places[first + slot] >= places[first + static_cast<unsigned>(source[at])]))
        return;
    }
    value[at] = candidate;
    source[at] = static_cast<C>(slot);
  }
};

// Write bits of the windows that get a slot, 32 in a word: carried if a slot is in the window, fired if the value is
// not 0. If a window's maximum is below 0 and an input without a slot is in it, the maximum is that input's 0, without
// gradient. Averages are divided here.
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
        const int numReached = reached[first + i];
        if (numReached == 0)
          continue;
        const C total = value[first + i];
        if (max && total < C(0) && static_cast<unsigned>(numReached) < windowSize(begin + i))
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
  // Return the number of inputs in a window, without those of the padding.
  unsigned windowSize(unsigned neuron) const {
    const int map = static_cast<int>(height * width), across = static_cast<int>(width);
    const int place = quotient(static_cast<int>(neuron), map, 1.0f / static_cast<float>(map)).remainder;
    const Quotient at = quotient(place, across, 1.0f / static_cast<float>(across));
    return overlap(static_cast<unsigned>(at.whole) * strideY, paddingY, kernelHeight, inHeight) *
           overlap(static_cast<unsigned>(at.remainder) * strideX, paddingX, kernelWidth, inWidth);
  }
  static unsigned overlap(unsigned at, unsigned padding, unsigned kernel, unsigned size) {
    const unsigned end = at + kernel < padding + size ? at + kernel : padding + size;
    return end - (at > padding ? at : padding);
  }
};

// gradValues[row][slot] = the sum of dense over the windows of a carried slot, divided by divisor; 0 in padding.
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
    const PackedPositions packed(inHeight, inWidth);
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
