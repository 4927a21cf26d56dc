// Common parts of the sparse operators on the host: spikes, blocks of neurons, and the gradients of weights that are
// gathered by spike id.
#pragma once

#include "host/dtypes.hpp"
#include "host/parallel.hpp"
#include "host/sparse.h"
#include "host/workers.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "neuron/sparse.hpp"

namespace snnipu {

// The fewest additions that are worth a thread, because waking one takes tens of microseconds.
constexpr size_t additionsPerThread = 262144;
// Bytes of one block's membrane gradients in a chunk of time. Each is read once for every slot of its row, so they stay
// in the second-level cache. Measured: with 1 % of the inputs spiking, smaller chunks cost more than they save.
constexpr size_t chunkBytes = 128 * 1024;
// Groups of blocks, each with its own partial sums of the gradient of the input's values: as many as fit into
// partialBytes, within these bounds. The number depends on sizes alone, so that the order of additions does not depend
// on the number of threads.
constexpr size_t fewestGroups = 8, mostGroups = 16;
constexpr size_t partialBytes = 8 * 1024 * 1024;

enum Status { Done = 0, Unknown = 1, OutOfMemory = 2, BadSpikes = 3, NoRoom = 4 };

// Return the number of threads for this work, at most maxThreads.
inline unsigned threadsFor(size_t additions, int32_t maxThreads) {
  const size_t worthwhile = additions / additionsPerThread + 1;
  return maxThreads > 0 && worthwhile > static_cast<size_t>(maxThreads) ? static_cast<unsigned>(maxThreads)
                                                                        : static_cast<unsigned>(worthwhile);
}

template <typename C> struct Spikes {
  const int32_t *ids;
  const C *values; // null: all are 1, or not read
  const int32_t *counts;
  size_t steps, batch, slots, neurons;

  size_t rows() const { return steps * batch; }
  // Return true if the ids of a row's carried slots are those of neurons. The counts must be valid.
  bool idsInRange(size_t row) const {
    const size_t carried = static_cast<size_t>(counts[2 * row + 1]);
    const int32_t *const from = ids + row * slots;
    uint32_t highest = 0; // as unsigned, a negative id is larger than any neuron
    for (size_t slot = 0; slot < carried; ++slot)
      highest = std::max(highest, static_cast<uint32_t>(from[slot]));
    return carried == 0 || highest < neurons;
  }
  // Return the values of a row's spikes, or null if all are 1.
  const C *valuesOf(size_t row) const {
    if (!values)
      return nullptr;
    const C *const from = values + row * slots;
    const size_t firing = static_cast<size_t>(counts[2 * row]);
    unsigned others = 0;
    for (size_t slot = 0; slot < firing; ++slot)
      others |= from[slot] != C(1);
    return others ? from : nullptr;
  }
};

inline size_t size(int64_t value) { return static_cast<size_t>(value); }

// The arguments of a call with the types of the kernels.
template <typename C> struct Call {
  snnipu_sparse_call &c;

  const C *in(const void *array) const { return static_cast<const C *>(array); }
  C *out(void *array) const { return static_cast<C *>(array); }
  size_t rows() const { return size(c.steps) * size(c.batch); }
  int32_t threads() const { return static_cast<int32_t>(c.threads); }
  int32_t reset() const { return static_cast<int32_t>(c.reset); }
  C number(double value) const { return static_cast<C>(value); }
  // The input spikes; `inputs` is the number of neurons that ids may name.
  Spikes<C> spikes(size_t inputs) const {
    return {c.ids, in(c.values), c.counts, size(c.steps), size(c.batch), size(c.slots), inputs};
  }
  // The output spikes, without their values.
  Spikes<C> outputSpikes(size_t neurons) const {
    return {c.ids_out, nullptr, c.counts_out, size(c.steps), size(c.batch), size(c.output_slots), neurons};
  }
};

// Define the C function of an operator, which passes its call to a function of Call<C>.
#define SNNIPU_RUN(NAME, ...)                                                                                          \
  SNNIPU_SPARSE(NAME) {                                                                                                \
    return snnipu::forType(call->dtype,                                                                                \
                           [call](auto type) { return snnipu::__VA_ARGS__(snnipu::Call<decltype(type)>{*call}); });    \
  }

// An array that is not initialised.
template <typename T> class Uninitialised {
public:
  Uninitialised() = default;
  explicit Uninitialised(size_t size) : data_(new T[size]) {}
  T *data() { return data_.get(); }
  const T *data() const { return data_.get(); }
  T &operator[](size_t at) { return data_[at]; }
  const T &operator[](size_t at) const { return data_[at]; }

private:
  std::unique_ptr<T[]> data_;
};

// An array that grows at its end.
template <typename C> class Stream {
public:
  size_t size() const { return size_; }
  const C &operator[](size_t at) const { return data_[at]; }
  const C *data() const { return data_.data(); }
  // Return a pointer to room for `count` elements; advance(n) then appends the first n of them.
  C *room(size_t count) {
    if (size_ + count > capacity_) {
      const size_t capacity = size_ ? 2 * (size_ + count) : count;
      Uninitialised<C> larger(capacity);
      std::copy_n(data_.data(), size_, larger.data());
      data_ = std::move(larger);
      capacity_ = capacity;
    }
    return data_.data() + size_;
  }
  void advance(size_t count) { size_ += count; }

private:
  Uninitialised<C> data_;
  size_t size_ = 0, capacity_ = 0;
};

// The largest size that any of several streams has had. The next stream reserves as much, because growth copies the
// stream.
class LargestSize {
public:
  size_t most() const { return most_; }
  size_t expected() const { return most_ + most_ / 16; }
  void record(size_t size) {
    size_t before = most_;
    while (before < size && !most_.compare_exchange_weak(before, size)) {
    }
  }

private:
  std::atomic<size_t> most_{0};
};

// Spikes in the form that the kernels read once for each block: checked, ids in 16 bits if the number of neurons
// allows, and rows as short as the fullest one.
template <typename C> class CheckedSpikes {
public:
  // Check the counts; fill() checks the ids. which: 0 for the spikes, 1 for all carried slots. copy: false if ids are
  // not read.
  CheckedSpikes(const Spikes<C> &spikes, int which, bool copy = true)
      : spikes_(spikes), which_(static_cast<size_t>(which)), narrow_(copy && spikes.neurons <= 65536),
        unit_(spikes.values == nullptr) {
    for (size_t row = 0; row < spikes.rows(); ++row) {
      const int32_t firing = spikes.counts[2 * row], carried = spikes.counts[2 * row + 1];
      valid_ = valid_ && firing >= 0 && carried >= firing && static_cast<size_t>(carried) <= spikes.slots;
      total_[0] += valid_ ? static_cast<size_t>(firing) : 0;
      total_[1] += valid_ ? static_cast<size_t>(carried) : 0;
      most_ = valid_ ? std::max(most_, static_cast<size_t>(spikes.counts[2 * row + which_])) : 0;
    }
  }

  bool fill(int32_t maxThreads) {
    if (!valid_)
      return false;
    if (narrow_)
      ids_ = Uninitialised<uint16_t>(spikes_.rows() * most_);
    std::atomic<bool> valid{true}, unit{true};
    parallelPieces(spikes_.rows(), 32, threadsFor(4 * total_[1], maxThreads), [&](size_t begin, size_t end) {
      bool partValid = true, partUnit = true;
      for (size_t row = begin; row < end; ++row) {
        partValid = spikes_.idsInRange(row) && partValid;
        partUnit = partUnit && !spikes_.valuesOf(row);
        if (narrow_)
          copyRow(row);
      }
      if (!partValid)
        valid = false;
      if (!partUnit)
        unit = false;
    });
    unit_ = unit;
    return valid_ = valid;
  }

  bool countsFit() const { return valid_; } // before fill()
  bool unitValues() const { return unit_; }
  size_t total(int which) const { return total_[which]; }
  // Distance between rows, in slots: of ids, and of values if not all are 1.
  size_t slots() const { return narrow_ ? most_ : spikes_.slots; }
  size_t valueSlots() const { return spikes_.slots; }
  size_t fullestRow() const { return most_; }
  // Call body(ids of the row). The ids of later rows follow in memory.
  template <typename Body> void withIds(size_t row, const Body &body) const {
    if (narrow_)
      body(ids_.data() + row * most_);
    else
      body(reinterpret_cast<const uint32_t *>(spikes_.ids) + row * spikes_.slots);
  }

private:
  void copyRow(size_t row) {
    const size_t count = static_cast<size_t>(spikes_.counts[2 * row + which_]);
    const int32_t *const from = spikes_.ids + row * spikes_.slots;
    uint16_t *const to = ids_.data() + row * most_;
    for (size_t slot = 0; slot < count; ++slot)
      to[slot] = static_cast<uint16_t>(from[slot]);
  }

  Spikes<C> spikes_;
  size_t which_;
  bool narrow_, valid_ = true, unit_;
  size_t total_[2] = {}, most_ = 0;
  Uninitialised<uint16_t> ids_;
};

// Sums of weights over the spikes of rows, for a few inputs at a time. Their weights stay in the first-level cache
// while the sums of all rows are updated. That is faster if a row has many spikes per tile of inputs; it needs
// ascending ids.
template <typename C> class InputTiles {
public:
  InputTiles(const CheckedSpikes<C> &checked, const Spikes<C> &spikes, int32_t maxThreads)
      : checked_(checked), spikes_(spikes), tiles_((spikes.neurons + inputs - 1) / inputs) {
    const size_t rows = spikes.rows();
    if (tiles_ < 2 || checked.total(0) < fewestSpikes * tiles_ * rows)
      return;
    end_ = Uninitialised<uint32_t>((tiles_ + 1) * rows);
    std::atomic<bool> ascending{true};
    parallelPieces(rows, 32, threadsFor(4 * checked.total(0), maxThreads), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row)
        checked_.withIds(row, [&](const auto *ids) {
          if (!split(ids, row))
            ascending = false;
        });
    });
    worthwhile_ = ascending;
  }

  bool worthwhile() const { return worthwhile_; }

  // Write sums[row][lane] of the rows [first, first + rows). weight: a block's, [inputs][lanes].
  void sum(const C *weight, unsigned lanes, size_t first, size_t rows, C *sums) const {
    checked_.unitValues() ? sumOf<true>(weight, lanes, first, rows, sums)
                          : sumOf<false>(weight, lanes, first, rows, sums);
  }

private:
  static constexpr size_t inputs = 48 * 1024 / (blockLanes * sizeof(C));
  // Spikes of a row in a tile that repay loading and storing its sums. Measured.
  static constexpr size_t fewestSpikes = 8;

  // Set the end of each tile in the row's spikes; return true if the ids ascend.
  template <typename Id> bool split(const Id *ids, size_t row) {
    const size_t rows = spikes_.rows(), count = static_cast<size_t>(spikes_.counts[2 * row]);
    bool ascending = true;
    size_t tile = 0;
    end_[row] = 0;
    for (size_t slot = 0; slot < count; ++slot) {
      ascending = ascending && (slot == 0 || ids[slot - 1] < ids[slot]);
      for (; ascending && tile < ids[slot] / inputs; ++tile)
        end_[(tile + 1) * rows + row] = static_cast<uint32_t>(slot);
    }
    for (; tile < tiles_; ++tile)
      end_[(tile + 1) * rows + row] = static_cast<uint32_t>(count);
    return ascending;
  }

  template <bool Unit> void sumOf(const C *weight, unsigned lanes, size_t first, size_t rows, C *sums) const {
    checked_.withIds(first, [&](const auto *ids) {
      for (size_t tile = 0; tile < tiles_; ++tile) {
        const uint32_t *const begin = end_.data() + tile * spikes_.rows() + first, *const end = begin + spikes_.rows();
        for (size_t row = 0; row < rows; ++row) {
          if (tile > 0 && begin[row] == end[row])
            continue;
          C *const to = sums + row * lanes;
          const auto *const from = ids + row * checked_.slots() + begin[row];
          const C *const values = Unit ? nullptr : spikes_.values + (first + row) * spikes_.slots + begin[row];
          forLaneGroups<C>(lanes, [&](unsigned lane, auto group) {
            auto sum = group;
            sum.clear();
            if (tile > 0)
              sum.loadFrom(to + lane);
            gather<Unit>(sum, weight + lane, lanes, from, values, end[row] - begin[row]);
            sum.storeTo(to + lane);
          });
        }
      }
    });
  }

  const CheckedSpikes<C> &checked_;
  Spikes<C> spikes_;
  size_t tiles_;
  bool worthwhile_ = false;
  Uninitialised<uint32_t> end_; // [tiles + 1][rows]: end of the tile before
};

// Output neurons in blocks of 64. The last block is padded to whole registers of any instruction set.
struct Blocks {
  size_t neurons, inputs;

  size_t count() const { return (neurons + blockLanes - 1) / blockLanes; }
  size_t first(size_t block) const { return block * blockLanes; }
  unsigned held(size_t block) const {
    return static_cast<unsigned>(std::min<size_t>(blockLanes, neurons - first(block)));
  }
  // Lanes including padding. Packed weights are the same for every instruction set, so this is, too.
  unsigned lanes(size_t block) const { return (held(block) + 15) / 16 * 16; }
  // Index of a block's first weight in the packed matrix.
  size_t offset(size_t block) const { return first(block) * inputs; }
  size_t packedSize() const { return neurons == 0 ? 0 : offset(count() - 1) + inputs * lanes(count() - 1); }
  size_t words() const { return (neurons + 31) / 32; }
};

// A buffer that its thread keeps for the next call, because mapping it again costs more than a block's work.
template <typename T> class ThreadBuffer {
public:
  T *reserve(size_t count) {
    if (count > capacity_) {
      data_.reset();
      capacity_ = 0; // stays 0 if the allocation fails
      data_.reset(static_cast<T *>(::operator new(count * sizeof(T), std::align_val_t(64))));
      capacity_ = count;
    }
    return data_.get();
  }
  T *zeros(size_t count) {
    T *const data = reserve(count);
    std::fill_n(data, count, T(0));
    return data;
  }

private:
  struct Free {
    void operator()(T *data) const { ::operator delete(data, std::align_val_t(64)); }
  };
  std::unique_ptr<T, Free> data_;
  size_t capacity_ = 0;
};

// parallelFor for a body that may run out of memory.
template <typename Body> int parallelTry(size_t blocks, unsigned threads, const Body &body) {
  std::atomic<int> status{Done};
  parallelFor(blocks, threads, [&](size_t block) {
    try {
      if (status == Done)
        body(block);
    } catch (const std::bad_alloc &) {
      status = OutOfMemory;
    }
  });
  return status;
}

// A range of the layer's time steps.
struct Chunk {
  size_t begin, end; // steps
};

inline std::vector<Chunk> timeChunks(size_t steps, size_t batch, size_t bytesPerRow) {
  const size_t rows = std::max<size_t>(1, chunkBytes / bytesPerRow);
  const size_t length = std::max<size_t>(1, rows / std::max<size_t>(1, batch));
  std::vector<Chunk> chunks;
  for (size_t begin = 0; begin < steps; begin += length)
    chunks.push_back({begin, std::min(steps, begin + length)});
  return chunks;
}

// The slots of a chunk sorted by neuron: first its spikes, then its slots that only carry gradient. Each slot has its
// row, counted from the chunk's first.
template <typename C> struct SlotsByNeuron {
  std::vector<uint32_t> begin; // [2 * neurons + 1]: of a neuron's spikes, and of its other slots
  std::vector<uint32_t> rowOf;
  std::vector<C> values; // empty if all are 1

  // Sort the rows [firstRow, firstRow + rows) of `spikes`, which are rows offset, offset + 1, ... of the chunk. place:
  // output [rows][slots], the index of each slot in the sorted order; if null, only spikes are sorted.
  void build(const Spikes<C> &spikes, size_t firstRow, size_t rows, size_t offset, bool unitValues, uint32_t *place) {
    begin.assign(2 * spikes.neurons + 1, 0);
    const auto forSlots = [&](const auto &body) {
      for (size_t row = 0; row < rows; ++row) {
        const size_t from = firstRow + row, first = from * spikes.slots;
        const size_t firing = static_cast<size_t>(spikes.counts[2 * from]);
        const size_t end = place ? static_cast<size_t>(spikes.counts[2 * from + 1]) : firing;
        for (size_t slot = 0; slot < firing; ++slot)
          body(2 * static_cast<size_t>(spikes.ids[first + slot]), row, slot);
        for (size_t slot = firing; slot < end; ++slot)
          body(2 * static_cast<size_t>(spikes.ids[first + slot]) + 1, row, slot);
      }
    };
    forSlots([&](size_t which, size_t, size_t) { ++begin[which + 1]; });
    for (size_t which = 0; which < 2 * spikes.neurons; ++which)
      begin[which + 1] += begin[which];
    rowOf.resize(begin.back());
    values.resize(unitValues ? 0 : begin.back());
    forSlots([&](size_t which, size_t row, size_t slot) {
      const uint32_t to = begin[which]++;
      rowOf[to] = static_cast<uint32_t>(row + offset);
      if (place)
        place[row * spikes.slots + slot] = to;
      if (!unitValues)
        values[to] = spikes.values[(firstRow + row) * spikes.slots + slot];
    });
    // Each begin has been advanced to its end, which is the next one's begin.
    for (size_t which = 2 * spikes.neurons; which > 0; --which)
      begin[which] = begin[which - 1];
    begin[0] = 0;
  }
};

} // namespace snnipu
