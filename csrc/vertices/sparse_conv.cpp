// A convolution of spike ids, for one tile: up to 64 output channels of one group, `lanes` including padding, and a
// band of `lines` lines of their maps.
//
// Rows of (time, sample) use the weights [channel of the group][kernel row][kernel column][lanes]. Channels of maps are
// innermost, so that a spike adds consecutive lanes to a place. Row r starts at [r * slots] and has counts[2r] spikes,
// followed by slots that only carry gradient, up to counts[2r + 1].
#include "neuron/maps.hpp"
#include "neuron/sparse.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// Convert ids of [channels, height, width], which are floats between operators, to packed positions. Ids are clamped to
// valid ones, because others would address memory outside the tensors.
class PlacesOfFloats : public poplar::MultiVertex {
public:
  In<float> from;
  Out<unsigned> to;
  unsigned size;
  unsigned channels;
  unsigned height;
  unsigned width;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, 2);
    const int map = static_cast<int>(height * width), across = static_cast<int>(width);
    const float last = static_cast<float>(channels * height * width) - 1.0f;
    const float byMap = 1.0f / static_cast<float>(map), byLine = 1.0f / static_cast<float>(across);
    const PackedPositions places(height, width);
    for (unsigned i = range.begin; i < range.end; ++i) {
      const float id = from[i];
      // The comparison is written so that NaN becomes 0.
      const Quotient channel = quotient(id > 0.0f ? static_cast<int>(id < last ? id : last) : 0, map, byMap);
      const Quotient line = quotient(channel.remainder, across, byLine);
      to[i] = places.pack(static_cast<unsigned>(channel.whole), static_cast<unsigned>(line.whole),
                          static_cast<unsigned>(line.remainder));
    }
  }
};

// out[row] = bias + the sum over the spikes of value * weight, at the places that the kernel leads to.
template <typename S> class SparseConvForward : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> weight;        // [channels][kernelHeight][kernelWidth][lanes]
  In<C> bias;          // [lanes]
  In<unsigned> places; // [rows][slots]
  In<C> values;        // [rows][slots]
  In<int> counts;      // [rows][2]
  Out<C> out;          // [rows][lines][width][lanes]
  unsigned rows;
  unsigned slots;
  unsigned lanes;
  unsigned firstChannel; // of the input
  unsigned channels;
  unsigned firstLine;
  unsigned lines;
  unsigned width;
  unsigned kernelHeight;
  unsigned kernelWidth;
  unsigned strideY;
  unsigned strideX;
  unsigned paddingY;
  unsigned paddingX;
  unsigned dilationY;
  unsigned dilationX;
  unsigned inHeight;
  unsigned inWidth;
  unsigned shares; // number of parts of a row's lines, if there are fewer rows than workers

  void compute(unsigned workerId) {
    const unsigned groups = (lanes + groupLanes - 1) / groupLanes;
    const WorkerRange range = workerShare(workerId, numWorkers(), rows * groups * shares);
    const KernelAxis down(strideY, paddingY, dilationY), across(strideX, paddingX, dilationX);
    unsigned row = 0, group = 0, share = range.begin;
    const auto carry = [&] {
      share -= shares;
      if (++group == groups) {
        group = 0;
        ++row;
      }
    };
    while (share >= shares)
      carry();
    for (unsigned item = range.begin; item < range.end; ++item) {
      const WorkerRange ownLines = workerShare(share, shares, lines);
      const unsigned lane = group * groupLanes, left = (lanes - lane) / registerLanes<C>;
      if (left >= 4)
        add(Registers<Register<C>, 4>{}, row, lane, ownLines, down, across);
      else if (left == 3)
        add(Registers<Register<C>, 3>{}, row, lane, ownLines, down, across);
      else if (left == 2)
        add(Registers<Register<C>, 2>{}, row, lane, ownLines, down, across);
      else
        add(Registers<Register<C>, 1>{}, row, lane, ownLines, down, across);
      if (++share == shares)
        carry();
    }
  }

private:
  static constexpr unsigned groupLanes = 4 * registerLanes<C>;

  // The first argument only carries the type.
  template <typename Group>
  void add(Group, unsigned row, unsigned lane, WorkerRange ownLines, const KernelAxis &down, const KernelAxis &across) {
    using V = Register<C>;
    const PackedPositions packed(inHeight, inWidth);
    const unsigned step = lanes, columns = width;
    C *const map = &out[static_cast<std::size_t>(row) * lines * columns * step + lane];
    Group start;
    start.loadFrom(&bias[lane]);
    for (unsigned place = ownLines.begin * columns; place < ownLines.end * columns; ++place)
      start.storeTo(map + static_cast<std::size_t>(place) * step);
    const std::size_t first = static_cast<std::size_t>(row) * slots;
    for (unsigned slot = 0; slot < static_cast<unsigned>(counts[2 * row]); ++slot) {
      const unsigned from = places[first + slot], channel = packed.channel(from) - firstChannel;
      if (channel >= channels)
        continue;
      const V value = splat<V>(values[first + slot]);
      const Quotient left = across.at(packed.column(from));
      Quotient y = down.at(packed.row(from));
      const S *weights = &weight[static_cast<std::size_t>(channel) * kernelHeight * kernelWidth * step + lane];
      for (unsigned ky = 0; ky < kernelHeight; ++ky, down.next(y), weights += kernelWidth * step) {
        if (!within(y, firstLine + ownLines.begin, ownLines.end - ownLines.begin))
          continue;
        C *const line = map + static_cast<std::size_t>(static_cast<unsigned>(y.whole) - firstLine) * columns * step;
        addKernelLine(Group{}, line, columns, weights, kernelWidth, step, value, across, left);
      }
    }
  }
};

// gradWeight += value * grad at the places that the kernel leads to, for every spike. A worker has its own kernel
// indices, and for a small kernel only some of their lanes.
template <typename C> class SparseConvWeightUpdate : public poplar::MultiVertex {
public:
  In<unsigned> places;   // [rows][slots]
  In<C> values;          // [rows][slots]
  In<int> counts;        // [rows][2]
  In<C> grad;            // [rows][lines][width][lanes]
  Through<C> gradWeight; // [channels][kernelHeight][kernelWidth][lanes]
  unsigned rows;
  unsigned slots;
  unsigned lanes;
  unsigned firstChannel;
  unsigned channels;
  unsigned firstLine;
  unsigned lines;
  unsigned width;
  unsigned kernelHeight;
  unsigned kernelWidth;
  unsigned strideY;
  unsigned strideX;
  unsigned paddingY;
  unsigned paddingX;
  unsigned dilationY;
  unsigned dilationX;
  unsigned inHeight;
  unsigned inWidth;

  void compute(unsigned workerId) {
    using V = Register<C>;
    constexpr unsigned groupLanes = 4 * registerLanes<C>;
    const unsigned groups = (lanes + groupLanes - 1) / groupLanes, taps = kernelHeight * kernelWidth;
    const WorkerRange range = workerShare(workerId, numWorkers(), taps * groups);
    if (range.begin == range.end)
      return;
    // The first and last kernel index of the range, with their lanes.
    unsigned tap = 0, lane = range.begin;
    for (; lane >= groups; lane -= groups)
      ++tap;
    unsigned lastTap = tap, lastLane = lane + (range.end - range.begin);
    for (; lastLane > groups; lastLane -= groups)
      ++lastTap;
    lane *= groupLanes;
    lastLane = lastLane * groupLanes < lanes ? lastLane * groupLanes : lanes;
    unsigned firstRow = 0, firstColumn = tap;
    for (; firstColumn >= kernelWidth; firstColumn -= kernelWidth)
      ++firstRow;
    const KernelAxis down(strideY, paddingY, dilationY), across(strideX, paddingX, dilationX);
    const PackedPositions packed(inHeight, inWidth);
    for (unsigned row = 0; row < rows; ++row) {
      const std::size_t first = static_cast<std::size_t>(row) * slots;
      const C *const map = &grad[static_cast<std::size_t>(row) * lines * width * lanes];
      for (unsigned slot = 0; slot < static_cast<unsigned>(counts[2 * row]); ++slot) {
        const unsigned from = places[first + slot], channel = packed.channel(from) - firstChannel;
        if (channel >= channels)
          continue;
        const V value = splat<V>(values[first + slot]);
        const Quotient left = across.at(packed.column(from));
        Quotient x = across.at(packed.column(from), firstColumn), y = down.at(packed.row(from), firstRow);
        C *to = &gradWeight[static_cast<std::size_t>(channel * taps + tap) * lanes];
        for (unsigned at = tap, kx = firstColumn; at <= lastTap; ++at, to += lanes) {
          if (within(y, firstLine, lines) && within(x, 0, width)) {
            const unsigned place =
                (static_cast<unsigned>(y.whole) - firstLine) * width + static_cast<unsigned>(x.whole);
            const C *const source = map + static_cast<std::size_t>(place) * lanes;
            const unsigned begin = at == tap ? lane : 0, end = at == lastTap ? lastLane : lanes;
            forLaneGroups<C>(end - begin, [&](unsigned i, auto group) {
              group.loadFrom(to + begin + i);
              group.addScaled(value, source + begin + i);
              group.storeTo(to + begin + i);
            });
          }
          if (++kx == kernelWidth) {
            kx = 0;
            x = left;
            down.next(y);
          } else {
            across.next(x);
          }
        }
      }
    }
  }
};

// gradValues[row][slot] = the sum of weight * grad over the places that the kernel leads to, at every carried slot: the
// part of it from this block and band.
template <typename S> class SparseConvValueGradient : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> weight;        // [channels][kernelHeight][kernelWidth][lanes]
  In<unsigned> places; // [rows][slots]
  In<int> counts;      // [rows][2]
  In<C> grad;          // [rows][lines][width][lanes]
  Out<C> gradValues;   // [rows][slots]
  unsigned rows;
  unsigned slots;
  unsigned lanes;
  unsigned firstChannel;
  unsigned channels;
  unsigned firstLine;
  unsigned lines;
  unsigned width;
  unsigned kernelHeight;
  unsigned kernelWidth;
  unsigned strideY;
  unsigned strideX;
  unsigned paddingY;
  unsigned paddingX;
  unsigned dilationY;
  unsigned dilationX;
  unsigned inHeight;
  unsigned inWidth;

  void compute(unsigned workerId) {
    using V = Register<C>;
    const KernelAxis down(strideY, paddingY, dilationY), across(strideX, paddingX, dilationX);
    const PackedPositions packed(inHeight, inWidth);
    for (unsigned row = 0; row < rows; ++row) {
      const std::size_t first = static_cast<std::size_t>(row) * slots;
      const C *const map = &grad[static_cast<std::size_t>(row) * lines * width * lanes];
      const WorkerRange range = workerShare(workerId, numWorkers(), static_cast<unsigned>(counts[2 * row + 1]));
      for (unsigned slot = range.begin; slot < range.end; ++slot) {
        const unsigned from = places[first + slot], channel = packed.channel(from) - firstChannel;
        V sum{};
        if (channel < channels) {
          const Quotient left = across.at(packed.column(from));
          Quotient y = down.at(packed.row(from));
          const S *source = &weight[static_cast<std::size_t>(channel) * kernelHeight * kernelWidth * lanes];
          for (unsigned ky = 0; ky < kernelHeight; ++ky, down.next(y)) {
            if (!within(y, firstLine, lines)) {
              source += kernelWidth * lanes;
              continue;
            }
            const unsigned line = (static_cast<unsigned>(y.whole) - firstLine) * width;
            Quotient x = left;
            for (unsigned kx = 0; kx < kernelWidth; ++kx, across.next(x), source += lanes)
              if (within(x, 0, width)) {
                const C *const at = map + static_cast<std::size_t>(line + static_cast<unsigned>(x.whole)) * lanes;
                forLaneGroups<C>(lanes, [&](unsigned lane, auto group) {
                  group.loadFrom(at + lane);
                  sum = group.addProducts(sum, source + lane);
                });
              }
          }
        }
        gradValues[first + slot] = sumLanes(sum);
      }
    }
  }
};

// to [rows][neurons][places] = from [rows][places][lanes].
template <typename S> class ChannelsFirst : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<C> from;
  Out<S> to;
  unsigned rows;
  unsigned places;
  unsigned lanes;
  unsigned neurons;

  void compute(unsigned workerId) {
    // Shares are whole words of two halves.
    const WorkerRange range = workerShare(workerId, numWorkers(), rows * neurons * places, 2);
    unsigned row = 0, neuron = 0, place = range.begin;
    for (; place >= neurons * places; place -= neurons * places)
      ++row;
    for (; place >= places; place -= places)
      ++neuron;
    for (unsigned i = range.begin; i < range.end;) {
      const unsigned end = i + (places - place) < range.end ? i + (places - place) : range.end;
      const C *source = &from[(static_cast<std::size_t>(row) * places + place) * lanes + neuron];
      for (; i < end; ++i, source += lanes)
        to[i] = static_cast<S>(*source);
      place = 0;
      if (++neuron == neurons) {
        neuron = 0;
        ++row;
      }
    }
  }
};

// to [rows][places][lanes] = from [rows][neurons][places], with zeros in lanes of padding.
template <typename S> class ChannelsLast : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> from;
  Out<C> to;
  unsigned rows;
  unsigned places;
  unsigned lanes;
  unsigned neurons;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows * places);
    unsigned row = 0, place = range.begin;
    for (; place >= places; place -= places)
      ++row;
    for (unsigned i = range.begin; i < range.end; ++i) {
      const S *source = &from[static_cast<std::size_t>(row) * neurons * places + place];
      C *const lane = &to[static_cast<std::size_t>(i) * lanes];
      unsigned neuron = 0;
      for (; neuron < neurons; ++neuron, source += places)
        lane[neuron] = static_cast<C>(*source);
      for (; neuron < lanes; ++neuron)
        lane[neuron] = C(0);
      if (++place == places) {
        place = 0;
        ++row;
      }
    }
  }
};

#if defined(__POPC__)
template class SparseConvForward<float>;
template class SparseConvForward<half>;
template class SparseConvWeightUpdate<float>;
template class SparseConvValueGradient<float>;
template class SparseConvValueGradient<half>;
template class ChannelsFirst<float>;
template class ChannelsFirst<half>;
template class ChannelsLast<float>;
template class ChannelsLast<half>;
#endif

} // namespace snnipu
