// Convolutions of spike ids: the outputs that a spike reaches, and the weights in the kernels' layout.
//
// A block has up to 64 output channels. Its map is [place][lane], channels last, and its weights are [input channel of
// the group][kernel row][kernel column, reversed][lane]. An input's weights for a row of outputs are thus consecutive,
// and so are these outputs: both are runs.
//
// If stride and dilation are 1, the currents of a line are summed in registers, a few places at a time, from spikes
// sorted by column of the input. Gradients are computed channel by channel, on a map with enough zeros around it that
// no run leaves it. Otherwise, and if there are few spikes, each spike adds its runs of weights to the map, and reads
// its gradient from the runs of the map.
#pragma once

#include "host/sparse_layer.hpp"

namespace snnipu {

// Bytes of a block's map. With the block's weights it stays in the second-level cache.
constexpr size_t mapBytes = 512 * 1024;
// Groups of samples, each with its own partial sums of the weight's gradient: as many as fit into sampleGroupBytes, at
// most mostSampleGroups. The number depends on sizes alone, so that the order of additions does not depend on the
// number of threads.
constexpr size_t mostSampleGroups = 16;
constexpr size_t sampleGroupBytes = 64 * 1024 * 1024;

// Computes n / d for a fixed d; both below 2^31.
class Divider {
public:
  explicit Divider(uint32_t d) : magic_((uint64_t{1} << 63) / d + 1) {}
  uint32_t operator()(uint32_t n) const {
    return static_cast<uint32_t>((static_cast<unsigned __int128>(magic_) * n) >> 63);
  }

private:
  uint64_t magic_;
};

// Computes n / d for many n at once, with n below 2^31: a double represents these and their halves exactly.
class WholeQuotient {
public:
  explicit WholeQuotient(uint32_t d) : inverse_(1.0 / d) {}
  // The added half keeps the quotient away from integers, so that rounding does not change the result.
  uint32_t operator()(uint32_t n) const {
    return static_cast<uint32_t>(static_cast<int32_t>((static_cast<int32_t>(n) + 0.5) * inverse_));
  }

private:
  double inverse_;
};

// Splits ids of neurons in maps into channel, row and column.
class MapPlaces {
public:
  struct Place {
    uint32_t channel, y, x;
  };

  MapPlaces(size_t height, size_t width)
      : height_(static_cast<uint32_t>(height)), width_(static_cast<uint32_t>(width)), lineOf_(width_),
        channelOf_(height_) {}
  Place operator()(uint32_t id) const {
    const uint32_t line = lineOf_(id), channel = channelOf_(line);
    return {channel, line - channel * height_, id - line * width_};
  }

private:
  uint32_t height_, width_;
  WholeQuotient lineOf_, channelOf_;
};

// Call body(std::integral_constant) for the number among K... that equals `value`; return false if none does.
template <unsigned... K, typename Body> bool forConstant(size_t value, const Body &body) {
  return ((value == K && (body(std::integral_constant<unsigned, K>()), true)) || ...);
}

// The outputs that a coordinate of the input reaches: kernel indices [kernel, kernel + length), in packed order, lead
// to as many consecutive places from `place` on.
struct KernelRun {
  uint32_t kernel, place, length;
};

class Axis {
public:
  // packed: kernel indices are reversed, so that they join to runs.
  Axis(size_t size, size_t outSize, size_t kernel, size_t stride, size_t padding, size_t dilation, bool packed)
      : begin_(size + 1) {
    for (size_t at = 0; at < size; ++at) {
      begin_[at] = static_cast<uint32_t>(runs_.size());
      for (size_t index = 0; index < kernel; ++index) {
        const size_t reach = (packed ? kernel - 1 - index : index) * dilation;
        if (at + padding < reach || (at + padding - reach) % stride != 0 || (at + padding - reach) / stride >= outSize)
          continue;
        const uint32_t place = static_cast<uint32_t>((at + padding - reach) / stride);
        KernelRun *const last = runs_.size() > begin_[at] ? &runs_.back() : nullptr;
        if (packed && last && last->kernel + last->length == index && last->place + last->length == place)
          ++last->length;
        else
          runs_.push_back({static_cast<uint32_t>(index), place, 1});
      }
    }
    begin_[size] = static_cast<uint32_t>(runs_.size());
  }

  const KernelRun *begin(size_t at) const { return runs_.data() + begin_[at]; }
  const KernelRun *end(size_t at) const { return runs_.data() + begin_[at + 1]; }

private:
  std::vector<uint32_t> begin_;
  std::vector<KernelRun> runs_;
};

// A convolution's sizes, in the order of the C interface.
struct ConvSizes {
  size_t inChannels, inHeight, inWidth, outChannels, outHeight, outWidth, kernelHeight, kernelWidth, strideY, strideX,
      paddingY, paddingX, dilationY, dilationX, groups;

  explicit ConvSizes(const int64_t *sizes) { std::copy_n(sizes, 15, &inChannels); }

  size_t inputs() const { return inChannels * inHeight * inWidth; }
  size_t places() const { return outHeight * outWidth; }
  size_t neurons() const { return outChannels * places(); }
  size_t words() const { return (neurons() + 31) / 32; }
  size_t groupInputs() const { return inChannels / groups; }
  size_t taps() const { return kernelHeight * kernelWidth; }
  size_t weights() const { return outChannels * groupInputs() * taps(); }
  // Return true if strides and dilations are 1: every input then reaches consecutive places with the whole kernel.
  bool unitSteps() const { return strideY == 1 && strideX == 1 && dilationY == 1 && dilationX == 1; }
};

// Blocks of output channels, group by group. A block belongs to one group.
template <typename C> struct ChannelBlocks {
  size_t channels, most, perGroup, groups;

  explicit ChannelBlocks(const ConvSizes &sizes)
      : channels(sizes.outChannels / sizes.groups), most(blockLanes), groups(sizes.groups) {
    while (most > 16 && sizes.places() * most * sizeof(C) > mapBytes)
      most /= 2;
    perGroup = (channels + most - 1) / most;
  }

  size_t count() const { return groups * perGroup; }
  size_t group(size_t block) const { return block / perGroup; }
  size_t first(size_t block) const { return group(block) * channels + block % perGroup * most; }
  unsigned held(size_t block) const {
    return static_cast<unsigned>(std::min(most, channels - block % perGroup * most));
  }
  // Lanes including padding, the same for every instruction set.
  unsigned lanes(size_t block) const { return (held(block) + 15) / 16 * 16; }
};

// to[0 .. n) += value * from[0 .. n); n is a multiple of 16.
template <typename C> inline void addRun(C *to, C value, const C *from, size_t n) {
  using V = Register<C>;
  for (size_t i = 0; i < n; i += registerLanes<C>)
    store(to + i, load<V>(to + i) + splat<V>(value) * load<V>(from + i));
}

// to[0 .. n) += from[0 .. n); n is a multiple of 16, and not 0.
template <typename C> inline void addRun(C *to, const C *from, size_t n) {
  using V = Register<C>;
  size_t i = 0;
  do {
    store(to + i, load<V>(to + i) + load<V>(from + i));
    i += registerLanes<C>;
  } while (i < n);
}

// Call body(first lane, Registers<V, K>{}) for all lanes of a place. K times the kernel's columns registers hold the
// weights or sums of a kernel's row.
template <typename C, unsigned Most, typename Body> inline void forPlaceGroups(unsigned lanes, const Body &body) {
  unsigned lane = 0;
  if constexpr (Most >= 4)
    for (; lane + 4 * registerLanes<C> <= lanes; lane += 4 * registerLanes<C>)
      body(lane, Registers<Register<C>, 4>{});
  if constexpr (Most >= 2)
    for (; lane + 2 * registerLanes<C> <= lanes; lane += 2 * registerLanes<C>)
      body(lane, Registers<Register<C>, 2>{});
  for (; lane < lanes; lane += registerLanes<C>)
    body(lane, Registers<Register<C>, 1>{});
}
#if SNNIPU_LANE_BYTES >= 64
constexpr unsigned registersForKernelRow = 10;
#else
constexpr unsigned registersForKernelRow = 6;
#endif

// The same limit for sums of places.
#if SNNIPU_LANE_BYTES >= 64
constexpr unsigned registersForColumns = 20;
#else
constexpr unsigned registersForColumns = 10;
#endif

// Cost of advancing by a column of the input, in registers of weights added. Measured for 12 to 128 output channels.
constexpr size_t columnCost = 24;
// The most columns of a kernel whose places are summed together.
constexpr unsigned columnsAtOnce = 5;

// The spikes of one row sorted by place of the input, column by column.
template <typename C> struct SpikesByPlace {
  std::vector<uint32_t> begin; // [places of the input + 1]
  std::vector<uint32_t> key;   // index of the spike's first weight, minus that of the row's first kernel line
  std::vector<C> value;
  std::vector<uint32_t> place, keyOf; // of each spike, unsorted
};

// A map with zeros around it. Row y begins at place (above + y) * stride + before.
struct PaddedMap {
  size_t above = 0, before = 0, stride = 0, size = 0;

  size_t place(size_t y, size_t x) const { return (above + y) * stride + before + x; }
  // Return the end of a map of this height; its begin is place(0, 0).
  size_t end(size_t height) const { return (above + height) * stride; }
};

// A convolution with its weights packed.
template <typename C> class Convolution {
public:
  // weight: [out channels][in channels / groups][kernel height][kernel width], or null.
  Convolution(const ConvSizes &sizes, const C *weight)
      : sizes(sizes), blocks(sizes), rows_(sizes.inHeight, sizes.outHeight, sizes.kernelHeight, sizes.strideY,
                                           sizes.paddingY, sizes.dilationY, false),
        columns_(sizes.inWidth, sizes.outWidth, sizes.kernelWidth, sizes.strideX, sizes.paddingX, sizes.dilationX,
                 true),
        mapSize_(static_cast<uint32_t>(sizes.inHeight * sizes.inWidth)), byMap_(mapSize_),
        placeOf_(sizes.inHeight, sizes.inWidth) {
    // With unit steps positions are computed instead.
    for (uint32_t y = 0; !sizes.unitSteps() && y < sizes.inHeight; ++y)
      for (uint32_t x = 0; x < sizes.inWidth; ++x)
        positions_.push_back({y, x});
    map.stride = sizes.outWidth;
    if (sizes.unitSteps()) {
      const size_t missing = sizes.kernelWidth - 1, missingAbove = sizes.kernelHeight - 1;
      map.before = missing > sizes.paddingX ? missing - sizes.paddingX : 0;
      map.above = missingAbove > sizes.paddingY ? missingAbove - sizes.paddingY : 0;
      map.stride += map.before;
    }
    map.size = (sizes.outHeight + 2 * map.above) * map.stride + map.before;
    if (weight)
      pack(weight);
  }
  explicit Convolution(const Call<C> &a) : Convolution(ConvSizes(a.c.geometry), a.in(a.c.weight)) {}

  static constexpr bool idsByRow = true;
  size_t inputs() const { return sizes.inputs(); }
  size_t neurons() const { return sizes.neurons(); }
  size_t units() const { return sizes.outChannels; }
  size_t additions(size_t spikes, size_t rows) const {
    return spikes * sizes.taps() * sizes.outChannels + 2 * rows * sizes.neurons();
  }

  int currents(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, const C *bias, C *out,
               int32_t maxThreads) const;
  int gradients(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, const C *grad, C *gradValues, C *gradWeight,
                C *gradBias, int32_t maxThreads) const;

  const ConvSizes sizes;
  const ChannelBlocks<C> blocks;
  PaddedMap map; // of gradients

  // Number of a block's packed weights.
  size_t packedSize(size_t block) const { return sizes.groupInputs() * sizes.taps() * blocks.lanes(block); }

  // to += scale * the currents of one row's spikes: [place][lane].
  void addCurrents(size_t block, const int32_t *ids, const C *values, size_t count, C scale, C *to) const {
    const size_t registers = sizes.kernelWidth * (blocks.lanes(block) / registerLanes<C>);
    const size_t added = count / sizes.groups * sizes.kernelHeight * registers;
    if (!sizes.unitSteps() || added < columnCost * sizes.outHeight * sizes.inWidth)
      values || scale != C(1) ? scattered<false>(block, ids, values, count, scale, to)
                              : scattered<true>(block, ids, values, count, scale, to);
    else
      values ? byColumns<false>(block, ids, values, count, scale, to)
             : byColumns<true>(block, ids, values, count, scale, to);
  }

  // Compute gradients from the gradient of the block's padded map: of the weights (sums, from the slots [0, spikes))
  // and of the values of the slots [0, carried) (to). Either may be null. Slots of other groups are not written. scale:
  // factor of each lane of the map; only read with unit steps.
  void gradients(size_t block, const int32_t *ids, const C *values, size_t spikes, size_t carried, const C *grad,
                 const C *scale, C *sums, C *to) const {
    if (!sizes.unitSteps())
      return gradientsByRuns(block, ids, values, spikes, carried, grad, sums, to);
    const auto gradients = [&](auto columns) {
      gradientsOf<columns()>(block, ids, values, spikes, carried, grad, scale, sums, to);
    };
    if (!forConstant<2, 3, 5>(sizes.kernelWidth, gradients))
      gradients(std::integral_constant<unsigned, 0>());
  }

  // weight = scale * a block's packed sums.
  void unpack(size_t block, const C *sums, C scale, C *weight) const {
    forWeights(block, [&](size_t at, size_t from) { weight[at] = scale * sums[from]; });
  }

private:
  struct Position {
    uint32_t y, x;
  };
  // The channel of inputs. Most inputs belong to the same channel as the one before.
  struct Channel {
    const Convolution &convolution;
    uint32_t channel = 0, first = 0; // first: id of its first input

    // Return an input's place in its map.
    uint32_t placeOf(int32_t id) {
      if (static_cast<uint32_t>(id) - first >= convolution.mapSize_) {
        channel = convolution.byMap_(static_cast<uint32_t>(id));
        first = channel * convolution.mapSize_;
      }
      return static_cast<uint32_t>(id) - first;
    }
  };
  uint32_t firstInput(size_t block) const { return static_cast<uint32_t>(blocks.group(block) * sizes.groupInputs()); }

  size_t stride() const {
    return sizes.groupInputs() * sizes.taps() * ((std::min(blocks.most, blocks.channels) + 15) / 16 * 16);
  }
  const C *packed(size_t block) const { return packed_ ? packed_ + block * stride() : nullptr; }

  // ---- currents

  void sortByPlace(size_t block, const int32_t *ids, const C *values, size_t count, SpikesByPlace<C> &sorted) const {
    const uint32_t height = static_cast<uint32_t>(sizes.inHeight);
    const uint32_t taps = static_cast<uint32_t>(sizes.taps()), kernel = static_cast<uint32_t>(sizes.kernelWidth);
    const uint32_t firstChannel = firstInput(block), channels = static_cast<uint32_t>(sizes.groupInputs());
    const uint32_t lanes = blocks.lanes(block), noPlace = mapSize_;
    const MapPlaces placeOf = placeOf_;
    // The last place is for the spikes of other groups.
    sorted.begin.assign(mapSize_ + 2, 0);
    for (auto *each : {&sorted.place, &sorted.keyOf, &sorted.key})
      each->resize(std::max(each->size(), count));
    if (values)
      sorted.value.resize(std::max(sorted.value.size(), count));
    uint32_t *const place = sorted.place.data(), *const key = sorted.keyOf.data(), *const begin = sorted.begin.data();
    for (size_t spike = 0; spike < count; ++spike) {
      const auto from = placeOf(static_cast<uint32_t>(ids[spike]));
      const uint32_t groupChannel = from.channel - firstChannel;
      place[spike] = groupChannel < channels ? from.x * height + from.y : noPlace;
      key[spike] = (groupChannel * taps + from.y * kernel) * lanes;
    }
    for (size_t spike = 0; spike < count; ++spike)
      ++begin[place[spike]];
    uint32_t total = 0;
    for (size_t at = 0; at <= mapSize_; ++at) {
      total += begin[at];
      begin[at] = total;
    }
    for (size_t spike = count; spike-- > 0;) {
      const uint32_t to = --begin[place[spike]];
      sorted.key[to] = key[spike];
      if (values)
        sorted.value[to] = values[spike];
    }
  }

  template <bool Unit>
  void byColumns(size_t block, const int32_t *ids, const C *values, size_t count, C scale, C *to) const {
    static thread_local SpikesByPlace<C> sorted;
    sortByPlace(block, ids, values, count, sorted);
    for (size_t first = 0; first < sizes.kernelWidth; first += columnsAtOnce)
      forConstant<1, 2, 3, 4, columnsAtOnce>(
          std::min<size_t>(columnsAtOnce, sizes.kernelWidth - first),
          [&](auto columns) { columnsOf<columns(), Unit>(block, first, sorted, scale, to); });
  }

  // Add the currents through the columns [first, first + Columns) of the kernel, in packed order.
  template <unsigned Columns, bool Unit>
  void columnsOf(size_t block, size_t first, const SpikesByPlace<C> &sorted, C scale, C *to) const {
    constexpr unsigned most = std::max(1u, registersForColumns / Columns);
    const unsigned lanes = blocks.lanes(block);
    const auto signedOf = [](size_t number) { return static_cast<std::ptrdiff_t>(number); };
    const std::ptrdiff_t height = signedOf(sizes.inHeight), outWidth = signedOf(sizes.outWidth);
    // A column x of the input reaches the places from x - ahead on.
    const std::ptrdiff_t ahead = signedOf(sizes.kernelWidth) - 1 - signedOf(sizes.paddingX + first);
    const std::ptrdiff_t begin = std::max<std::ptrdiff_t>(0, ahead - (signedOf(Columns) - 1));
    const std::ptrdiff_t end = std::min(signedOf(sizes.inWidth), outWidth + ahead);
    const uint32_t *const key = sorted.key.data();
    const C *const value = sorted.value.data();
    for (size_t oy = 0; oy < sizes.outHeight; ++oy) {
      const std::ptrdiff_t top = signedOf(oy) - signedOf(sizes.paddingY);
      const std::ptrdiff_t until = std::min(height, top + signedOf(sizes.kernelHeight));
      const std::ptrdiff_t from = std::max<std::ptrdiff_t>(0, top);
      if (from >= until)
        continue;
      forPlaceGroups<C, most>(lanes, [&](unsigned lane, auto group) {
        const C *const weights =
            packed(block) + (signedOf(first) - top * signedOf(sizes.kernelWidth)) * signedOf(lanes) + lane;
        C *const line = to + oy * sizes.outWidth * lanes + lane;
        const auto addToPlace = [&](std::ptrdiff_t place, auto &sum) {
          if (place >= 0 && place < outWidth)
            sum.forEach([line, lanes, place, scale](unsigned offset, const auto &current) {
              C *const at = line + place * lanes + offset;
              store(at, multiplyAdd(current, splat<Register<C>>(scale), load<Register<C>>(at)));
            });
        };
        decltype(group) sum[Columns];
        for (auto &registers : sum)
          registers.clear();
        const auto add = [&](auto &registers, uint32_t spike, unsigned column) {
          if constexpr (Unit)
            registers.add(weights + key[spike] + column * lanes);
          else
            registers.addScaled(splat<Register<C>>(value[spike]), weights + key[spike] + column * lanes);
        };
        for (std::ptrdiff_t x = begin; x < end; ++x) {
          const uint32_t *const column = sorted.begin.data() + x * height;
          const std::ptrdiff_t place = x - ahead;
          if (place >= 0 && place + signedOf(Columns) <= outWidth) {
            for (uint32_t spike = column[from]; spike < column[until]; ++spike)
              for (unsigned i = 0; i < Columns; ++i)
                add(sum[i], spike, i);
          } else {
            // Some of the places are outside the map.
            for (uint32_t spike = column[from]; spike < column[until]; ++spike)
              for (unsigned i = 0; i < Columns; ++i)
                if (place + signedOf(i) >= 0 && place + signedOf(i) < outWidth)
                  add(sum[i], spike, i);
          }
          addToPlace(place, sum[0]);
          for (unsigned i = 0; i + 1 < Columns; ++i)
            sum[i] = sum[i + 1];
          sum[Columns - 1].clear();
        }
        for (unsigned i = 0; i + 1 < Columns; ++i)
          addToPlace(end - ahead + signedOf(i), sum[i]);
      });
    }
  }

  // Unit: values and scale are 1.
  template <bool Unit>
  void scattered(size_t block, const int32_t *ids, const C *values, size_t count, C scale, C *to) const {
    const C *const weights = packed(block);
    const size_t lanes = blocks.lanes(block);
    if (!sizes.unitSteps()) {
      const uint32_t first = firstInput(block);
      for (size_t spike = 0; spike < count; ++spike) {
        const C value = Unit || !values ? scale : scale * values[spike];
        forRuns(first, lanes, ids[spike], [&](size_t weight, size_t place, size_t n) {
          if constexpr (Unit)
            addRun(to + place, weights + weight, n);
          else
            addRun(to + place, value, weights + weight, n);
        });
      }
      return;
    }
    static thread_local Rectangles located;
    locate(block, ids, count, located);
    const std::ptrdiff_t ahead = static_cast<std::ptrdiff_t>(sizes.outWidth * lanes);
    const size_t kernel = sizes.kernelWidth * lanes, registersOfPlace = lanes / registerLanes<C>;
    for (size_t spike = 0; spike < count; ++spike) {
      const C value = Unit || !values ? scale : scale * values[spike];
      const C *weight = weights + located.weight[spike] * lanes;
      C *place = to + located.place[spike] * lanes;
      const uint32_t rows = located.rows[spike];
      const auto add = [&](auto sum) {
        for (uint32_t y = 0; y < rows; ++y, weight += kernel, place -= ahead) {
          sum.loadFrom(place);
          if constexpr (Unit)
            sum.add(weight);
          else
            sum.addScaled(splat<Register<C>>(value), weight);
          sum.storeTo(place);
        }
      };
      switch (located.columns[spike] * registersOfPlace) {
      case 0:
        break;
      case 1:
        add(Registers<Register<C>, 1>{});
        break;
      case 2:
        add(Registers<Register<C>, 2>{});
        break;
      case 3:
        add(Registers<Register<C>, 3>{});
        break;
      case 4:
        add(Registers<Register<C>, 4>{});
        break;
      case 5:
        add(Registers<Register<C>, 5>{});
        break;
      case 6:
        add(Registers<Register<C>, 6>{});
        break;
      case 8:
        add(Registers<Register<C>, 8>{});
        break;
      case 10:
        add(Registers<Register<C>, 10>{});
        break;
      default:
        for (uint32_t y = 0; y < rows; ++y, weight += kernel, place -= ahead)
          if constexpr (Unit)
            addRun(place, weight, located.columns[spike] * lanes);
          else
            addRun(place, value, weight, located.columns[spike] * lanes);
      }
    }
  }

  // For each spike: its first weight and the place that this weight leads to, both in units of lanes, and the numbers
  // of kernel columns and rows that lead into the map. Each row leads to the line above the previous row's. columns is
  // 0 for spikes of other groups.
  struct Rectangles {
    std::vector<uint32_t> weight, place, rows, columns;
  };
  // Only with unit steps.
  void locate(size_t block, const int32_t *ids, size_t count, Rectangles &located) const {
    for (auto *each : {&located.weight, &located.place, &located.rows, &located.columns})
      each->resize(std::max(each->size(), count));
    const auto whole = [](size_t number) { return static_cast<int32_t>(number); };
    const int32_t paddingX = whole(sizes.paddingX), paddingY = whole(sizes.paddingY);
    const int32_t outWidth = whole(sizes.outWidth), outHeight = whole(sizes.outHeight);
    const int32_t kernelWidth = whole(sizes.kernelWidth), kernelHeight = whole(sizes.kernelHeight);
    const int32_t firstChannel = whole(firstInput(block)), channels = whole(sizes.groupInputs());
    const MapPlaces placeOf = placeOf_;
    uint32_t *__restrict__ const weight = located.weight.data(), *__restrict__ const place = located.place.data();
    uint32_t *__restrict__ const rows = located.rows.data(), *__restrict__ const columns = located.columns.data();
    for (size_t spike = 0; spike < count; ++spike) {
      const auto from = placeOf(static_cast<uint32_t>(ids[spike]));
      const int32_t groupChannel = whole(from.channel) - firstChannel;
      const int32_t x = whole(from.x) + paddingX, y = whole(from.y) + paddingY;
      const int32_t left = std::max(0, x - (kernelWidth - 1)), right = std::min(outWidth - 1, x);
      const int32_t above = std::max(0, y - (outHeight - 1)), below = std::min(kernelHeight - 1, y);
      // There are no branches, so that the loop is vectorised.
      const bool leads = (groupChannel >= 0) & (groupChannel < channels) & (left <= right) & (above <= below);
      const int32_t tap = (groupChannel * kernelHeight + above) * kernelWidth + kernelWidth - 1 - x + left;
      weight[spike] = leads ? static_cast<uint32_t>(tap) : 0;
      place[spike] = leads ? static_cast<uint32_t>((y - above) * outWidth + left) : 0;
      rows[spike] = static_cast<uint32_t>(below - above + 1);
      columns[spike] = leads ? static_cast<uint32_t>(right - left + 1) : 0;
    }
  }

  // Call body(index among the block's weights, index in the map, count) for each run of one input neuron, in elements.
  // Return false if it is of another group.
  template <typename Body> bool forRuns(uint32_t firstInput, size_t lanes, int32_t id, const Body &body) const {
    Channel current{*this};
    const Position from = positions_[current.placeOf(id)];
    const uint32_t channel = current.channel - firstInput;
    if (channel >= sizes.groupInputs())
      return false;
    const size_t kernel = channel * sizes.kernelHeight;
    const KernelRun *const columnsBegin = columns_.begin(from.x), *const columnsEnd = columns_.end(from.x);
    const KernelRun *const rowsEnd = rows_.end(from.y);
    for (const KernelRun *row = rows_.begin(from.y); row != rowsEnd; ++row) {
      const size_t weights = (kernel + row->kernel) * sizes.kernelWidth * lanes;
      const size_t places = row->place * sizes.outWidth * lanes;
      for (const KernelRun *run = columnsBegin; run != columnsEnd; ++run)
        body(weights + run->kernel * lanes, places + run->place * lanes, run->length * lanes);
    }
    return true;
  }

  // ---- gradients

  void gradientsByRuns(size_t block, const int32_t *ids, const C *values, size_t spikes, size_t carried, const C *grad,
                       C *sums, C *to) const {
    using V = Register<C>;
    const uint32_t first = firstInput(block);
    const size_t lanes = blocks.lanes(block);
    for (size_t slot = 0; sums && slot < spikes; ++slot) {
      const C value = values ? values[slot] : C(1);
      forRuns(first, lanes, ids[slot],
              [&](size_t weight, size_t place, size_t n) { addRun(sums + weight, value, grad + place, n); });
    }
    for (size_t slot = 0; to && slot < carried; ++slot) {
      V sum{};
      const bool inGroup = forRuns(first, lanes, ids[slot], [&](size_t weight, size_t place, size_t n) {
        for (size_t i = 0; i < n; i += registerLanes<C>)
          sum += load<V>(packed(block) + weight + i) * load<V>(grad + place + i);
      });
      if (inGroup)
        to[slot] = sumLanes(sum);
    }
  }

  // Slots of the block's group, sorted by line of the input.
  struct SlotsByLine {
    std::vector<uint32_t> begin;          // [lines of the group's channels + 1]
    std::vector<uint32_t> lines, offsets; // of places, as if the padded maps of all channels were stacked vertically
    const C *values;                      // null: all are 1
    size_t count, first;                  // first: slot of the first, if slots are consecutive
    // Only if the ids do not ascend.
    std::vector<uint32_t> slots;
    std::vector<int32_t> ids;
    std::vector<C> ordered;

    size_t slot(size_t at) const { return slots.empty() ? first + at : slots[first + at]; }
  };

  void byLine(size_t block, const int32_t *ids, const C *values, size_t begin, size_t end, SlotsByLine &to) const {
    to.slots.clear();
    to.first = begin;
    to.values = values ? values + begin : nullptr;
    const int32_t *from = ids + begin, *until = ids + end;
    unsigned descends = 0; // without branches, so that the loop is vectorised
    for (size_t slot = begin + 1; slot < end; ++slot)
      descends |= ids[slot] < ids[slot - 1];
    if (descends) {
      sortById(ids, values, begin, end, to);
      from = to.ids.data();
      until = from + to.ids.size();
    }
    const uint32_t height = static_cast<uint32_t>(sizes.inHeight), width = static_cast<uint32_t>(sizes.inWidth);
    const uint32_t firstLine = firstInput(block) * height;
    const size_t lines = sizes.groupInputs() * height;
    if (sizes.groups > 1) {
      const int32_t *const unfiltered = from, firstId = static_cast<int32_t>(firstLine * width);
      from = std::lower_bound(from, until, firstId);
      until = std::lower_bound(from, until, firstId + static_cast<int32_t>(lines * width));
      to.first += static_cast<size_t>(from - unfiltered);
      to.values = values ? to.values + (from - unfiltered) : nullptr;
    }
    const size_t count = to.count = static_cast<size_t>(until - from);
    to.lines.resize(std::max(to.lines.size(), count));
    to.offsets.resize(std::max(to.offsets.size(), count));
    to.begin.assign(lines + 1, static_cast<uint32_t>(count));
    uint32_t *const line = to.lines.data(), *const offset = to.offsets.data(), *const starts = to.begin.data();
    const WholeQuotient lineOf(width);
    const uint32_t padding = static_cast<uint32_t>(map.stride) - width;
    for (size_t at = 0; at < count; ++at) {
      const uint32_t inputLine = lineOf(static_cast<uint32_t>(from[at]));
      line[at] = inputLine - firstLine;
      offset[at] = static_cast<uint32_t>(from[at]) + inputLine * padding;
    }
    for (size_t at = count; at-- > 0;)
      starts[line[at]] = static_cast<uint32_t>(at);
    for (size_t at = lines; at-- > 0;)
      starts[at] = std::min(starts[at], starts[at + 1]);
  }
  static void sortById(const int32_t *ids, const C *values, size_t begin, size_t end, SlotsByLine &to) {
    for (size_t slot = begin; slot < end; ++slot)
      to.slots.push_back(static_cast<uint32_t>(slot));
    std::stable_sort(to.slots.begin(), to.slots.end(), [ids](uint32_t a, uint32_t b) { return ids[a] < ids[b]; });
    to.ids.clear();
    to.ordered.clear();
    for (const uint32_t slot : to.slots) {
      to.ids.push_back(ids[slot]);
      to.ordered.push_back(values ? values[slot] : C(1));
    }
    to.first = 0;
    to.values = values ? to.ordered.data() : nullptr;
  }

  // Process the slots channel by channel, with the weights or sums of a kernel's row in registers. Columns 0: any
  // number.
  template <unsigned Columns>
  void gradientsOf(size_t block, const int32_t *ids, const C *values, size_t spikes, size_t carried, const C *grad,
                   const C *scale, C *sums, C *to) const {
    static thread_local SlotsByLine firing, others;
    static thread_local ThreadBuffer<C> products;
    const size_t lanes = blocks.lanes(block), lines = sizes.inHeight;
    byLine(block, ids, values, 0, spikes, firing);
    byLine(block, ids, nullptr, spikes, to ? carried : spikes, others);
    C *const partial = to ? products.reserve((firing.count + others.count) * registerLanes<C>) : nullptr;
    C *const partialOfOthers = to ? partial + firing.count * registerLanes<C> : nullptr;
    // The first place of a kernel row, which is that of the last column.
    const size_t column = sizes.paddingX + map.before - (sizes.kernelWidth - 1);
    const C *const lastColumn = grad + ((sizes.paddingY + map.above) * map.stride + column) * lanes;
    constexpr unsigned columns = Columns ? Columns : 1;
    constexpr unsigned most = registersForKernelRow / columns < 1 ? 1 : registersForKernelRow / columns;
    // For any number of columns, process one after another.
    const size_t parts = Columns ? 1 : sizes.kernelWidth;
    // The end of the input lines from which a kernel line leads into the map.
    const auto bottomOf = [&](size_t ky) {
      return std::min(lines, std::max(ky + sizes.outHeight, sizes.paddingY) - sizes.paddingY);
    };
    for (size_t channel = 0; channel < sizes.groupInputs(); ++channel) {
      // The kernel's first line initialises the products of the slots that it is read for. Clear those of the others.
      const auto clear = [&](const SlotsByLine &slots, C *products) {
        const size_t begin = slots.begin[channel * lines + bottomOf(0)], end = slots.begin[(channel + 1) * lines];
        std::fill_n(products + begin * registerLanes<C>, (end - begin) * registerLanes<C>, C(0));
      };
      if (to) {
        clear(firing, partial);
        clear(others, partialOfOthers);
      }
      for (size_t ky = 0; ky < sizes.kernelHeight; ++ky) {
        const size_t top = ky > sizes.paddingY ? ky - sizes.paddingY : 0, bottom = bottomOf(ky);
        if (top >= bottom)
          continue;
        const auto span = [&](const SlotsByLine &slots, C *products) {
          const size_t first = channel * lines;
          return Span{slots.offsets.data(), slots.values, products, slots.begin[first + top],
                      slots.begin[first + bottom]};
        };
        const Span fired = span(firing, partial), other = span(others, partialOfOthers);
        if (fired.begin == fired.end && other.begin == other.end)
          continue;
        const size_t above = (firstInput(block) + channel) * lines + ky;
        for (size_t part = 0; part < parts; ++part)
          forPlaceGroups<C, most>(static_cast<unsigned>(lanes), [&](unsigned lane, auto group) {
            const size_t weight = ((channel * sizes.kernelHeight + ky) * sizes.kernelWidth + part) * lanes + lane;
            const KernelRow row{lastColumn + lane + part * lanes -
                                    static_cast<std::ptrdiff_t>(above * map.stride * lanes),
                                scale + lane, to ? packed(block) + weight : nullptr, sums ? sums + weight : nullptr,
                                ky + part + lane == 0};
            if (sums && to)
              ofRow<columns, true, true>(row, fired, other, group, lanes);
            else if (sums)
              ofRow<columns, true, false>(row, fired, other, group, lanes);
            else
              ofRow<columns, false, true>(row, fired, other, group, lanes);
          });
      }
    }
    if (to) {
      sumPartials(partial, firing, to);
      sumPartials(partialOfOthers, others, to);
    }
  }

  static void sumPartials(const C *partial, const SlotsByLine &slots, C *to) {
    for (size_t at = 0; at < slots.count; ++at)
      to[slots.slot(at)] = sumLanes(load<Register<C>>(partial + at * registerLanes<C>));
  }

  // Slots of some lines of one channel, and the products with their weights: a register each.
  struct Span {
    const uint32_t *offset;
    const C *value; // null: all are 1
    C *product;
    size_t begin, end;
  };
  // Some lanes of a kernel's row: the gradients for a slot of offset 0, and the weights and their sums.
  struct KernelRow {
    const C *grad, *scale, *weights;
    C *sums;
    bool first; // true: initialise the slots' products instead of adding to them
  };

  // Read each slot's gradients once, for the sums of its weights (if it fired) and for its products.
  template <unsigned Columns, bool Sums, bool Products, typename Group>
  static void ofRow(const KernelRow row, const Span fired, const Span others, Group, const size_t lanes) {
    Group sum[Columns], weight[Columns];
    for (unsigned column = 0; column < Columns; ++column) {
      sum[column].clear();
      if constexpr (Products)
        scaledWeights(weight[column], row.weights + column * lanes, row.scale);
    }
    // Call addTo(sum, slot, gradients) for each slot and column.
    const auto forSlots = [&](const Span &span, const auto &addTo) {
      for (size_t slot = span.begin; slot < span.end; ++slot) {
        const C *const from = row.grad + span.offset[slot] * lanes;
        if constexpr (Products) {
          C *const at = span.product + slot * registerLanes<C>;
          // Two sums of alternating columns have shorter dependency chains.
          Register<C> even{}, odd{};
          if (!row.first)
            even = load<Register<C>>(at);
          for (unsigned column = 0; column < Columns; ++column) {
            addTo(sum[column], slot, from + column * lanes);
            (column % 2 ? odd : even) = weight[column].addProducts(column % 2 ? odd : even, from + column * lanes);
          }
          store(at, even + odd);
        } else {
          for (unsigned column = 0; column < Columns; ++column)
            addTo(sum[column], slot, from + column * lanes);
        }
      }
    };
    const auto skip = [](auto &, size_t, const C *) {};
    // Values of 1 need additions only, which do not wait for the multiplications.
    if (!Sums)
      forSlots(fired, skip);
    else if (!fired.value)
      forSlots(fired, [](auto &to, size_t, const C *from) { to.add(from); });
    else
      forSlots(fired, [values = fired.value](auto &to, size_t slot, const C *from) {
        to.addScaled(splat<Register<C>>(values[slot]), from);
      });
    if constexpr (Products)
      forSlots(others, skip);
    for (unsigned column = 0; Sums && column < Columns; ++column)
      addScaled(sum[column], row.scale, row.sums + column * lanes);
  }
  template <typename Group> static void scaledWeights(Group &to, const C *weights, const C *scale) {
    to.forEach([=](unsigned lane, auto &registers) {
      registers = load<Register<C>>(weights + lane) * load<Register<C>>(scale + lane);
    });
  }
  template <typename Group> static void addScaled(Group &from, const C *scale, C *to) {
    from.forEach([=](unsigned lane, const auto &registers) {
      store(to + lane, multiplyAdd(registers, load<Register<C>>(scale + lane), load<Register<C>>(to + lane)));
    });
  }

  // ---- packing

  // Call body(index of the weight, index among the block's packed weights).
  template <typename Body> void forWeights(size_t block, const Body &body) const {
    const size_t lanes = blocks.lanes(block), held = blocks.held(block), first = blocks.first(block);
    const size_t inputs = sizes.groupInputs(), taps = sizes.taps(), width = sizes.kernelWidth;
    for (size_t input = 0; input < inputs; ++input)
      for (size_t y = 0; y < sizes.kernelHeight; ++y)
        for (size_t x = 0; x < width; ++x) {
          const size_t tap = y * width + width - 1 - x, to = ((input * sizes.kernelHeight + y) * width + x) * lanes;
          for (size_t lane = 0; lane < held; ++lane)
            body(((first + lane) * inputs + input) * taps + tap, to + lane);
        }
  }

  void pack(const C *weight) {
    packed_ = memory_.reserve(blocks.count() * stride());
    for (size_t block = 0; block < blocks.count(); ++block) {
      C *const to = packed_ + block * stride();
      if (blocks.held(block) < blocks.lanes(block))
        std::fill_n(to, packedSize(block), C(0));
      forWeights(block, [&](size_t at, size_t packed) { to[packed] = weight[at]; });
    }
  }

  const Axis rows_, columns_;
  const uint32_t mapSize_; // of the input
  const Divider byMap_;
  const MapPlaces placeOf_;         // of an input
  std::vector<Position> positions_; // of the input's places
  ThreadBuffer<C> memory_;          // aligned
  C *packed_ = nullptr;
};

// Gradients of weights and values from the gradients of maps. A task is one group of samples (or rows) of one block.
template <typename C> class ConvInputGradient {
public:
  // gradWeight and gradValues may be null. count: number of samples; a task has the samples [begin(task), end(task)).
  ConvInputGradient(const Convolution<C> &convolution, const Spikes<C> &spikes, size_t count, C scale, C *gradWeight,
                    C *gradValues, unsigned threads)
      : convolution_(convolution), spikes_(spikes), count_(count), scale_(scale), gradWeight_(gradWeight),
        gradValues_(gradValues) {
    const size_t bytes = std::max<size_t>(1, convolution.sizes.weights() * sizeof(C));
    groups_ = std::max<size_t>(1, std::min({count, mostSampleGroups, sampleGroupBytes / bytes}));
    const size_t size = spikes.rows() * spikes.slots;
    if (gradValues_) {
      parallelPieces(size, 65536, threads,
                     [&](size_t begin, size_t end) { std::fill(gradValues_ + begin, gradValues_ + end, C(0)); });
      if (blocks().perGroup > 1)
        partialValues_.resize((blocks().perGroup - 1) * size);
    }
    if (gradWeight_) {
      sums_.resize(blocks().count());
      for (size_t block = 0; block < blocks().count(); ++block)
        sums_[block].reserve(groups_ * convolution.packedSize(block));
    }
  }

  size_t tasks() const { return groups_ * blocks().count(); }
  size_t block(size_t task) const { return task / groups_; }
  size_t begin(size_t task) const { return task % groups_ * count_ / groups_; }
  size_t end(size_t task) const { return (task % groups_ + 1) * count_ / groups_; }

  void start(size_t task) {
    if (gradWeight_)
      std::fill_n(sums(task), convolution_.packedSize(block(task)), C(0));
  }
  // Add the spikes of one row. grad: the block's padded map, to be multiplied by the lanes' scale.
  void add(size_t task, size_t row, const C *grad, const C *scale) {
    if (!gradWeight_ && !gradValues_)
      return;
    const size_t at = row * spikes_.slots, part = block(task) % blocks().perGroup;
    const int32_t *const ids = spikes_.ids + at, *const counts = spikes_.counts + 2 * row;
    C *to = gradValues_;
    if (to && part > 0)
      to = partialValues_.data() + (part - 1) * spikes_.rows() * spikes_.slots;
    convolution_.gradients(block(task), ids, spikes_.valuesOf(row), static_cast<size_t>(counts[0]),
                           static_cast<size_t>(counts[1]), grad, scale, gradWeight_ ? sums(task) : nullptr,
                           to ? to + at : nullptr);
  }
  // Call after all tasks.
  void finish(unsigned threads) {
    if (gradWeight_)
      parallelFor(blocks().count(), threads, [&](size_t block) {
        const size_t size = convolution_.packedSize(block);
        C *const total = sums_[block].reserve(size);
        for (size_t group = 1; group < groups_; ++group)
          addRun(total, C(1), total + group * size, size);
        convolution_.unpack(block, total, scale_, gradWeight_);
      });
    const size_t size = gradValues_ ? spikes_.rows() * spikes_.slots : 0;
    for (size_t part = 1; part < blocks().perGroup; ++part)
      for (size_t at = 0; at < size; ++at)
        gradValues_[at] += partialValues_[(part - 1) * size + at];
    for (size_t at = 0; scale_ != C(1) && at < size; ++at)
      gradValues_[at] *= scale_;
  }

private:
  const ChannelBlocks<C> &blocks() const { return convolution_.blocks; }
  C *sums(size_t task) {
    const size_t size = convolution_.packedSize(block(task));
    return sums_[block(task)].reserve(groups_ * size) + task % groups_ * size;
  }

  const Convolution<C> &convolution_;
  Spikes<C> spikes_;
  size_t count_;
  C scale_;
  C *gradWeight_, *gradValues_;
  size_t groups_;
  std::vector<C> partialValues_;      // [blocks of a group except the first][rows][slots], initially 0
  std::vector<ThreadBuffer<C>> sums_; // [block][group of samples][packed weight]
};

} // namespace snnipu
