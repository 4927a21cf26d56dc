// Host implementation of pools on spike ids.
#include "host/sparse_conv.hpp"

#include <limits>

namespace snnipu {
namespace {

struct PoolSizes {
  size_t channels, inHeight, inWidth, outHeight, outWidth, kernelHeight, kernelWidth, strideY, strideX, paddingY,
      paddingX;

  explicit PoolSizes(const int64_t *sizes) { std::copy_n(sizes, 11, &channels); }

  size_t inputs() const { return channels * inHeight * inWidth; }
  size_t outPlaces() const { return outHeight * outWidth; }
  size_t neurons() const { return channels * outPlaces(); }
};

enum PoolMode { Max = 0, Average = 1, Sum = 2 };

class Pool {
public:
  explicit Pool(const PoolSizes &sizes)
      : sizes(sizes), byMap_(static_cast<uint32_t>(sizes.inHeight * sizes.inWidth)),
        byRow_(static_cast<uint32_t>(sizes.inWidth)),
        rows_(windows(sizes.inHeight, sizes.outHeight, sizes.kernelHeight, sizes.strideY, sizes.paddingY)),
        columns_(windows(sizes.inWidth, sizes.outWidth, sizes.kernelWidth, sizes.strideX, sizes.paddingX)) {
    if (!nonOverlapping())
      return;
    windowOfPlace_.reserve(sizes.inHeight * sizes.inWidth);
    for (const Windows row : rows_)
      for (const Windows column : columns_)
        windowOfPlace_.push_back(
            row.count && column.count ? row.first * static_cast<uint32_t>(sizes.outWidth) + column.first : none);
  }

  const PoolSizes sizes;

  // Call body(output neuron, place in its window) for the windows that contain an input. Places are numbered row by
  // row.
  template <typename Body> void forWindows(uint32_t id, const Body &body) const {
    const uint32_t channel = byMap_(id), place = id - channel * static_cast<uint32_t>(sizes.inHeight * sizes.inWidth);
    const uint32_t y = byRow_(place), x = place - y * static_cast<uint32_t>(sizes.inWidth);
    const Windows row = rows_[y], column = columns_[x];
    // The next window's number is larger by one; the input's place in it is smaller by a stride.
    size_t first = channel * sizes.outPlaces() + row.first * sizes.outWidth + column.first;
    size_t line = row.within * sizes.kernelWidth + column.within;
    for (uint32_t i = 0; i < row.count; ++i, first += sizes.outWidth, line -= sizes.strideY * sizes.kernelWidth)
      for (uint32_t j = 0; j < column.count; ++j)
        body(first + j, line - j * sizes.strideX);
  }

  // Return true if no input is in more than one window.
  bool nonOverlapping() const { return sizes.strideY >= sizes.kernelHeight && sizes.strideX >= sizes.kernelWidth; }
  // Return the output neuron of an input, or the number of neurons if it is in no window. Only for nonOverlapping()
  // pools.
  uint32_t outputOf(uint32_t id) const {
    const uint32_t channel = byMap_(id), place = id - channel * static_cast<uint32_t>(sizes.inHeight * sizes.inWidth);
    const uint32_t window = windowOfPlace_[place];
    return window == none ? static_cast<uint32_t>(sizes.neurons())
                          : channel * static_cast<uint32_t>(sizes.outPlaces()) + window;
  }

  // Return the number by which sums over windows are divided.
  template <typename C> C divisor(int64_t mode) const {
    return mode == Average ? C(sizes.kernelHeight * sizes.kernelWidth) : C(1);
  }

  // Return the number of inputs in the window of an output, without those of the padding.
  size_t windowSize(size_t neuron) const {
    const size_t place = neuron % sizes.outPlaces();
    return overlap(place / sizes.outWidth * sizes.strideY, sizes.paddingY, sizes.kernelHeight, sizes.inHeight) *
           overlap(place % sizes.outWidth * sizes.strideX, sizes.paddingX, sizes.kernelWidth, sizes.inWidth);
  }

private:
  // The windows that contain a coordinate of the input, and its offset in the first of them.
  struct Windows {
    uint32_t first, count, within;
  };
  static std::vector<Windows> windows(size_t size, size_t outSize, size_t kernel, size_t stride, size_t padding) {
    std::vector<Windows> result(size);
    for (size_t at = 0; at < size; ++at) {
      const size_t padded = at + padding, first = padded < kernel ? 0 : (padded - kernel) / stride + 1;
      const size_t end = std::max(first, std::min(outSize, padded / stride + 1));
      result[at] = {static_cast<uint32_t>(first), static_cast<uint32_t>(end - first),
                    static_cast<uint32_t>(padded - first * stride)};
    }
    return result;
  }
  static size_t overlap(size_t at, size_t padding, size_t kernel, size_t size) {
    return std::min(at + kernel, padding + size) - std::max(at, padding);
  }

  static constexpr uint32_t none = ~uint32_t{0};
  Divider byMap_, byRow_;
  std::vector<Windows> rows_, columns_;
  std::vector<uint32_t> windowOfPlace_; // of an input's place in its map; empty if windows overlap
};

// An output of the current row.
template <typename C> struct PooledNeuron {
  C value;
  uint32_t reached; // inputs that have a slot
  int32_t source;   // slot of the maximum
  uint32_t place;   // of the maximum in its window
};

template <typename C> class PoolRow {
public:
  // unit: the spikes' values are all 1.
  PoolRow(const Pool &pool, int mode, bool unit)
      : pool_(pool), mode_(mode), canUseFirst_(unit && mode == Max && pool.nonOverlapping()),
        sources_(canUseFirst_ ? pool.sizes.neurons() + 1 : 0) {
    bits_.resize(pool.sizes.neurons() / 32 + 1); // one more neuron, for inputs in no window
    otherBits_.resize(canUseFirst_ ? bits_.size() : 0);
  }

  // Return the number of slots that the row takes.
  size_t pool(const int32_t *ids, const C *values, const int32_t *counts) {
    std::fill(bits_.begin(), bits_.end(), 0);
    spikes_.clear();
    others_.clear();
    usedFirst_ = canUseFirst_ && ascending(ids, static_cast<size_t>(counts[0])) &&
                 ascending(ids + counts[0], static_cast<size_t>(counts[1] - counts[0]));
    if (usedFirst_)
      firstOfWindows(ids, counts);
    else
      anyWindows(ids, values, counts);
    return spikes_.size() + others_.size();
  }

  void write(int32_t *ids, C *values, int32_t *counts, int32_t *source, size_t slots) const {
    size_t slot = 0;
    for (const std::vector<int32_t> *group : {&spikes_, &others_})
      for (const int32_t neuron : *group) {
        const size_t at = static_cast<size_t>(neuron);
        ids[slot] = neuron;
        values[slot] = usedFirst_ ? C(group == &spikes_) : cells_[at].value;
        if (source)
          source[slot] = usedFirst_ ? sources_[at] : cells_[at].source;
        ++slot;
      }
    counts[0] = static_cast<int32_t>(spikes_.size());
    counts[1] = static_cast<int32_t>(slot);
    std::fill(ids + slot, ids + slots, 0);
    std::fill(values + slot, values + slots, C(0));
    if (source)
      std::fill(source + slot, source + slots, 0);
  }

private:
  static bool ascending(const int32_t *ids, size_t count) {
    unsigned descents = 0;
    for (size_t at = 1; at < count; ++at)
      descents |= ids[at] < ids[at - 1];
    return descents == 0;
  }

  // The source of a window is its first spike's slot, or else its first carried slot: ids ascend, so that is also the
  // first in row order. Slots are visited backwards, so that earlier ones overwrite later ones.
  void firstOfWindows(const int32_t *ids, const int32_t *counts) {
    std::fill(otherBits_.begin(), otherBits_.end(), 0);
    const auto mark = [&](int32_t begin, int32_t end, std::vector<uint32_t> &bits) {
      for (int32_t slot = end; slot-- > begin;) {
        const uint32_t neuron = pool_.outputOf(static_cast<uint32_t>(ids[slot]));
        sources_[neuron] = slot;
        bits[neuron / 32] |= uint32_t{1} << neuron % 32;
      }
    };
    mark(counts[0], counts[1], otherBits_);
    mark(0, counts[0], bits_);
    const size_t noOutput = pool_.sizes.neurons();
    bits_[noOutput / 32] &= ~(uint32_t{1} << noOutput % 32);
    otherBits_[noOutput / 32] &= ~(uint32_t{1} << noOutput % 32);
    for (size_t word = 0; word < bits_.size(); ++word) {
      listBits(bits_[word], word, spikes_);
      listBits(otherBits_[word] & ~bits_[word], word, others_);
    }
  }
  static void listBits(uint32_t bits, size_t word, std::vector<int32_t> &to) {
    for (; bits != 0; bits &= bits - 1)
      to.push_back(static_cast<int32_t>(32 * word + static_cast<size_t>(__builtin_ctz(bits))));
  }

  void anyWindows(const int32_t *ids, const C *values, const int32_t *counts) {
    if (!cells_.data())
      cells_ = Uninitialised<PooledNeuron<C>>(pool_.sizes.neurons());
    for (int32_t slot = 0; slot < counts[1]; ++slot) {
      const C value = slot < counts[0] ? values[slot] : C(0);
      pool_.forWindows(static_cast<uint32_t>(ids[slot]), [&](size_t neuron, size_t place) {
        uint32_t &word = bits_[neuron / 32];
        const uint32_t bit = uint32_t{1} << neuron % 32;
        PooledNeuron<C> &cell = cells_[neuron];
        if (!(word & bit)) {
          word |= bit;
          cell = {value, 1, slot, static_cast<uint32_t>(place)};
          return;
        }
        ++cell.reached;
        if (mode_ != Max) {
          cell.value += value;
        } else if (above(value, cell.value) || (!above(cell.value, value) && place < cell.place)) {
          cell.value = value;
          cell.source = slot;
          cell.place = static_cast<uint32_t>(place);
        }
      });
    }
    const C divisor = pool_.divisor<C>(mode_);
    for (size_t word = 0; word < bits_.size(); ++word)
      for (uint32_t bits = bits_[word]; bits != 0; bits &= bits - 1) {
        const size_t neuron = 32 * word + static_cast<size_t>(__builtin_ctz(bits));
        PooledNeuron<C> &cell = cells_[neuron];
        if (mode_ == Average)
          cell.value /= divisor;
        // An input of the window without a slot is 0, which is then the maximum, and has no gradient.
        if (mode_ == Max && cell.value < C(0) && cell.reached < pool_.windowSize(neuron))
          continue;
        (cell.value != C(0) ? spikes_ : others_).push_back(static_cast<int32_t>(neuron));
      }
  }

  // NaN is larger than any number.
  static bool above(C a, C b) { return a > b || (a != a && b == b); }

  const Pool &pool_;
  int mode_;
  bool canUseFirst_, usedFirst_ = false; // true if firstOfWindows may be used, and if it was for this row
  Uninitialised<PooledNeuron<C>> cells_; // valid where the bit is set
  std::vector<int32_t> sources_;         // likewise
  std::vector<uint32_t> bits_, otherBits_;
  std::vector<int32_t> spikes_, others_;
};

// Call body(begin, end) for pieces of the rows.
template <typename Body> int forRowPieces(size_t rows, unsigned threads, const Body &body) {
  constexpr size_t piece = 16;
  return parallelTry((rows + piece - 1) / piece, threads,
                     [&](size_t part) { body(part * piece, std::min(rows, (part + 1) * piece)); });
}

template <typename C> int poolForward(const Call<C> &a) {
  const Pool pool(PoolSizes(a.c.geometry));
  const Spikes<C> spikes = a.spikes(pool.sizes.inputs());
  if (a.c.mode < Max || a.c.mode > Sum)
    return Unknown;
  CheckedSpikes<C> checked(spikes, 1, false);
  if (!checked.fill(a.threads()))
    return BadSpikes;
  const size_t slots = size(a.c.output_slots), additions = 8 * checked.total(1) + a.rows() * pool.sizes.neurons() / 8;
  LargestSize fullest;
  std::atomic<bool> enoughSlots{true};
  const int status = forRowPieces(a.rows(), threadsFor(additions, a.threads()), [&](size_t begin, size_t end) {
    PoolRow<C> row(pool, static_cast<int>(a.c.mode), checked.unitValues());
    for (size_t at = begin; at < end; ++at) {
      const size_t used =
          row.pool(spikes.ids + at * spikes.slots, spikes.values + at * spikes.slots, spikes.counts + 2 * at);
      fullest.record(used);
      if (used > slots) {
        enoughSlots = false;
        return;
      }
      row.write(a.c.ids_out + at * slots, a.out(a.c.values_out) + at * slots, a.c.counts_out + 2 * at,
                a.c.source ? a.c.source + at * slots : nullptr, slots);
    }
  });
  a.c.most = static_cast<int64_t>(fullest.most());
  return status == Done && !enoughSlots ? Unknown : status;
}

template <typename C> int poolBackward(const Call<C> &a) {
  const Pool pool(PoolSizes(a.c.geometry));
  const Spikes<C> spikes = a.spikes(pool.sizes.inputs()), outputs = a.outputSpikes(pool.sizes.neurons());
  const int64_t mode = a.c.mode;
  if (mode < Max || mode > Sum)
    return Unknown;
  if (!CheckedSpikes<C>(spikes, 1, false).fill(a.threads()) || !CheckedSpikes<C>(outputs, 1, false).fill(a.threads()))
    return BadSpikes;
  const C divisor = pool.divisor<C>(mode);
  const unsigned threads = threadsFor(8 * a.rows() * spikes.slots, a.threads());
  return forRowPieces(a.rows(), threads, [&](size_t begin, size_t end) {
    std::vector<C> dense(mode == Max ? 0 : pool.sizes.neurons());
    for (size_t row = begin; row < end; ++row) {
      C *const to = a.out(a.c.grad_values) + row * spikes.slots;
      const C *const from = a.in(a.c.grad) + row * outputs.slots;
      std::fill_n(to, spikes.slots, C(0));
      const size_t used = static_cast<size_t>(outputs.counts[2 * row + 1]);
      if (mode == Max) {
        for (size_t slot = 0; slot < used; ++slot) {
          const size_t at = static_cast<uint32_t>(a.c.source[row * outputs.slots + slot]);
          if (at < spikes.slots)
            to[at] += from[slot];
        }
        continue;
      }
      const int32_t *const ids = outputs.ids + row * outputs.slots;
      for (size_t slot = 0; slot < used; ++slot)
        dense[static_cast<size_t>(ids[slot])] = from[slot];
      for (int32_t slot = 0; slot < spikes.counts[2 * row + 1]; ++slot) {
        C total = 0;
        pool.forWindows(static_cast<uint32_t>(spikes.ids[row * spikes.slots + static_cast<size_t>(slot)]),
                        [&](size_t neuron, size_t) { total += dense[neuron]; });
        to[slot] = total / divisor;
      }
      for (size_t slot = 0; slot < used; ++slot)
        dense[static_cast<size_t>(ids[slot])] = C(0);
    }
  });
}

} // namespace
} // namespace snnipu

SNNIPU_RUN(sparse_pool2d_fwd, poolForward)
SNNIPU_RUN(sparse_pool2d_bwd, poolBackward)
