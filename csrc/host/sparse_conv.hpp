// Convolutions of spike ids: where a spike leads to, and the weights as the kernels read them.
//
// A block is up to 64 output channels; its map lies channels last, [place][lane], and so do its weights,
// [input channel of the group][kernel row][kernel column][lane]. Kernel columns are in such an order that those which
// lead to neighbouring places are neighbours: what a spike adds to a row of the map is then one run.
#pragma once

#include "host/sparse.hpp"

namespace snnipu {

// Bytes of a block's map: with the block's weights it is to stay in the second-level cache.
constexpr size_t mapBytes = 512 * 1024;
// Partial sums of a weight's gradient, each of its own samples: as many as these bytes hold, within the bounds. They
// depend on sizes alone, so that the order of additions does not depend on the number of threads.
constexpr size_t mostSampleGroups = 16;
constexpr size_t sampleGroupBytes = 64 * 1024 * 1024;

// n / d for a d that is known beforehand.
class Divider {
public:
  explicit Divider(uint32_t d) : magic_(d > 1 ? ~uint64_t{0} / d + 1 : 0) {}
  uint32_t operator()(uint32_t n) const {
    return magic_ == 0 ? n : static_cast<uint32_t>((static_cast<unsigned __int128>(magic_) * n) >> 64);
  }

private:
  uint64_t magic_;
};

// What a coordinate of the input leads to: kernel indices [kernel, kernel + length), as packed, to as many neighbouring
// places from `place` on.
struct Run {
  uint32_t kernel, place, length;
};

class Axis {
public:
  Axis(size_t size, size_t outSize, size_t kernel, size_t stride, size_t padding, size_t dilation, bool join)
      : order_(kernel), begin_(size + 1) {
    for (size_t k = 0; k < kernel; ++k)
      order_[k] = static_cast<uint32_t>(k);
    if (join)
      std::sort(order_.begin(), order_.end(), [=](uint32_t a, uint32_t b) {
        const size_t classA = a * dilation % stride, classB = b * dilation % stride;
        return classA != classB ? classA < classB : a > b;
      });
    for (size_t at = 0; at < size; ++at) {
      begin_[at] = static_cast<uint32_t>(runs_.size());
      for (uint32_t packed = 0; packed < kernel; ++packed) {
        const size_t reach = order_[packed] * dilation;
        if (at + padding < reach || (at + padding - reach) % stride != 0 || (at + padding - reach) / stride >= outSize)
          continue;
        const uint32_t place = static_cast<uint32_t>((at + padding - reach) / stride);
        const bool follows = join && runs_.size() > begin_[at] && runs_.back().kernel + runs_.back().length == packed &&
                             runs_.back().place + runs_.back().length == place;
        if (follows)
          ++runs_.back().length;
        else
          runs_.push_back({packed, place, 1});
      }
    }
    begin_[size] = static_cast<uint32_t>(runs_.size());
  }

  const Run *begin(size_t at) const { return runs_.data() + begin_[at]; }
  const Run *end(size_t at) const { return runs_.data() + begin_[at + 1]; }
  // The kernel index that stands at a packed one's place.
  size_t kernelAt(size_t packed) const { return order_[packed]; }

private:
  std::vector<uint32_t> order_, begin_;
  std::vector<Run> runs_;
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
};

// Blocks of output channels of one group, group after group.
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
  // With padding. The same for every instruction set.
  unsigned lanes(size_t block) const { return (held(block) + 15) / 16 * 16; }
};

// to[0 .. n) += from[0 .. n), or value * from; n is a multiple of 16.
template <typename C> inline void addRun(C *to, const C *from, size_t n) {
  using V = Register<C>;
  for (size_t i = 0; i < n; i += registerLanes<C>)
    store(to + i, load<V>(to + i) + load<V>(from + i));
}
template <typename C> inline void addRun(C *to, C value, const C *from, size_t n) {
  using V = Register<C>;
  for (size_t i = 0; i < n; i += registerLanes<C>)
    store(to + i, load<V>(to + i) + splat<V>(value) * load<V>(from + i));
}

// A convolution with its weights packed.
template <typename C> class Convolution {
public:
  // weight: [out channels][in channels / groups][kernel height][kernel width], or null; packed, it is times `scale`.
  Convolution(const ConvSizes &sizes, const C *weight, C scale)
      : sizes(sizes), blocks(sizes), rows_(sizes.inHeight, sizes.outHeight, sizes.kernelHeight, sizes.strideY,
                                           sizes.paddingY, sizes.dilationY, false),
        columns_(sizes.inWidth, sizes.outWidth, sizes.kernelWidth, sizes.strideX, sizes.paddingX, sizes.dilationX,
                 true),
        byMap_(static_cast<uint32_t>(sizes.inHeight * sizes.inWidth)), byRow_(static_cast<uint32_t>(sizes.inWidth)) {
    if (weight)
      pack(weight, scale);
  }

  const ConvSizes sizes;
  const ChannelBlocks<C> blocks;

  // Numbers of a block's weights, packed.
  size_t packedSize(size_t block) const { return sizes.groupInputs() * sizes.taps() * blocks.lanes(block); }
  const C *packed(size_t block) const { return packed_ + block * stride(); }

  // body(weights from the block's first one on, places of the map, numbers) for each run of one input neuron of the
  // block's group; both in numbers of C. False: it is of another group.
  template <typename Body> bool forRuns(size_t block, uint32_t id, const Body &body) const {
    const uint32_t channel = byMap_(id), first = static_cast<uint32_t>(blocks.group(block) * sizes.groupInputs());
    if (channel - first >= sizes.groupInputs())
      return false;
    const uint32_t place = id - channel * static_cast<uint32_t>(sizes.inHeight * sizes.inWidth), y = byRow_(place);
    const uint32_t x = place - y * static_cast<uint32_t>(sizes.inWidth);
    const size_t lanes = blocks.lanes(block), kernel = (channel - first) * sizes.kernelHeight;
    const Run *const columnsBegin = columns_.begin(x), *const columnsEnd = columns_.end(x),
                     *const rowsEnd = rows_.end(y);
    for (const Run *row = rows_.begin(y); row != rowsEnd; ++row) {
      const size_t weights = (kernel + row->kernel) * sizes.kernelWidth * lanes;
      const size_t places = row->place * sizes.outWidth * lanes;
      for (const Run *run = columnsBegin; run != columnsEnd; ++run)
        body(weights + run->kernel * lanes, places + run->place * lanes, run->length * lanes);
    }
    return true;
  }

  // map += the spikes of one row.
  void add(size_t block, const int32_t *ids, const C *values, size_t count, C *map) const {
    const C *const weights = packed(block);
    for (size_t spike = 0; spike < count; ++spike) {
      const uint32_t id = static_cast<uint32_t>(ids[spike]);
      if (values)
        forRuns(block, id,
                [&](size_t from, size_t to, size_t n) { addRun(map + to, values[spike], weights + from, n); });
      else
        forRuns(block, id, [&](size_t from, size_t to, size_t n) { addRun(map + to, weights + from, n); });
    }
  }
  // The gradient of the weights from that of the map.
  void addWeightGradient(size_t block, const int32_t *ids, const C *values, size_t count, const C *grad,
                         C *sums) const {
    for (size_t spike = 0; spike < count; ++spike) {
      const uint32_t id = static_cast<uint32_t>(ids[spike]);
      if (values)
        forRuns(block, id, [&](size_t to, size_t from, size_t n) { addRun(sums + to, values[spike], grad + from, n); });
      else
        forRuns(block, id, [&](size_t to, size_t from, size_t n) { addRun(sums + to, grad + from, n); });
    }
  }
  // The gradient of the values of one row's slots; left as it is at those of other groups.
  void valueGradient(size_t block, const int32_t *ids, size_t count, const C *grad, C *to) const {
    using V = Register<C>;
    const C *const weights = packed(block);
    for (size_t slot = 0; slot < count; ++slot) {
      V sum{};
      const bool own = forRuns(block, static_cast<uint32_t>(ids[slot]), [&](size_t weight, size_t place, size_t n) {
        for (size_t i = 0; i < n; i += registerLanes<C>)
          sum += load<V>(weights + weight + i) * load<V>(grad + place + i);
      });
      if (!own)
        continue;
      C total = 0;
      for (unsigned lane = 0; lane < lanes<V>; ++lane)
        total += sum[lane];
      to[slot] = total;
    }
  }

  // A block's sums, in the order of packed weights, to where the weight has them, times scale.
  void unpack(size_t block, const C *sums, C scale, C *weight) const {
    forWeights(block, [&](size_t at, size_t from, size_t) { weight[at] = scale * sums[from]; });
  }

private:
  size_t stride() const {
    return sizes.groupInputs() * sizes.taps() * ((std::min(blocks.most, blocks.channels) + 15) / 16 * 16);
  }

  // body(index of the weight, index among the block's packed ones, lane)
  template <typename Body> void forWeights(size_t block, const Body &body) const {
    const size_t lanes = blocks.lanes(block), held = blocks.held(block), first = blocks.first(block);
    const size_t inputs = sizes.groupInputs(), taps = sizes.taps();
    for (size_t input = 0; input < inputs; ++input)
      for (size_t y = 0; y < sizes.kernelHeight; ++y)
        for (size_t x = 0; x < sizes.kernelWidth; ++x) {
          const size_t tap = y * sizes.kernelWidth + columns_.kernelAt(x);
          const size_t to = ((input * sizes.kernelHeight + y) * sizes.kernelWidth + x) * lanes;
          for (size_t lane = 0; lane < held; ++lane)
            body(((first + lane) * inputs + input) * taps + tap, to + lane, lane);
        }
  }

  void pack(const C *weight, C scale) {
    packed_ = memory_.reserve(blocks.count() * stride());
    for (size_t block = 0; block < blocks.count(); ++block) {
      C *const to = packed_ + block * stride();
      if (blocks.held(block) < blocks.lanes(block))
        std::fill_n(to, packedSize(block), C(0));
      forWeights(block, [&](size_t at, size_t packed, size_t) { to[packed] = scale * weight[at]; });
    }
  }

  const Axis rows_, columns_;
  const Divider byMap_, byRow_;
  ThreadBuffer<C> memory_; // aligned
  C *packed_ = nullptr;
};

// Gradients of weights and values from that of the maps, for groups of samples (or rows), each a task for every block.
template <typename C> class ConvInputGradient {
public:
  // Either output may be null. count: samples, of which `group` takes [begin(group), begin(group + 1)).
  ConvInputGradient(const Convolution<C> &convolution, const Spikes<C> &spikes, bool unit, size_t count, C scale,
                    C *gradWeight, C *gradValues)
      : convolution_(convolution), spikes_(spikes), unit_(unit), count_(count), scale_(scale), gradWeight_(gradWeight),
        gradValues_(gradValues) {
    const size_t bytes = std::max<size_t>(1, convolution.sizes.weights() * sizeof(C));
    groups_ = std::max<size_t>(1, std::min({count, mostSampleGroups, sampleGroupBytes / bytes}));
    const size_t size = spikes.rows() * spikes.slots;
    if (gradValues_) {
      std::fill_n(gradValues_, size, C(0));
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
  // Of the spikes of one row, grad: the block's map.
  void add(size_t task, size_t row, const C *grad) {
    const size_t at = row * spikes_.slots;
    const int32_t *const ids = spikes_.ids + at, *const counts = spikes_.counts + 2 * row;
    if (gradWeight_)
      convolution_.addWeightGradient(block(task), ids, unit_ ? nullptr : spikes_.values + at, size_t(counts[0]), grad,
                                     sums(task));
    if (gradValues_) {
      const size_t part = block(task) % blocks().perGroup;
      C *const to = part == 0 ? gradValues_ : partialValues_.data() + (part - 1) * spikes_.rows() * spikes_.slots;
      convolution_.valueGradient(block(task), ids, size_t(counts[1]), grad, to + at);
    }
  }
  // Behind all tasks.
  void finish(unsigned threads) {
    if (gradWeight_)
      parallelFor(blocks().count(), threads, [&](size_t block) {
        const size_t size = convolution_.packedSize(block);
        C *const total = sums_[block].reserve(size);
        for (size_t group = 1; group < groups_; ++group)
          addRun(total, total + group * size, size);
        convolution_.unpack(block, total, scale_, gradWeight_);
      });
    const size_t size = spikes_.rows() * spikes_.slots;
    for (size_t part = 1; gradValues_ && part < blocks().perGroup; ++part)
      for (size_t at = 0; at < size; ++at)
        gradValues_[at] += partialValues_[(part - 1) * size + at];
  }

private:
  const ChannelBlocks<C> &blocks() const { return convolution_.blocks; }
  C *sums(size_t task) {
    const size_t size = convolution_.packedSize(block(task));
    return sums_[block(task)].reserve(groups_ * size) + task % groups_ * size;
  }

  const Convolution<C> &convolution_;
  Spikes<C> spikes_;
  bool unit_;
  size_t count_;
  C scale_;
  C *gradWeight_, *gradValues_;
  size_t groups_;
  std::vector<C> partialValues_;      // [blocks of a group behind the first][rows][slots], zeros at first
  std::vector<ThreadBuffer<C>> sums_; // [block][group of samples][packed weight]
};

} // namespace snnipu
