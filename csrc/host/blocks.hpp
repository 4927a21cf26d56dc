// Blocks of neurons that fit into the cache and are distributed over threads, with their scratch memory and the sums
// over blocks.
#pragma once

#include "host/parallel.hpp"
#include "neuron/lanes.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace snnipu {
// Internal linkage: each library has its own copy.
namespace {

// The most elements of a block. A block's state stays in the second-level cache, and a row is long enough to stream.
// Measured: every row is a new page, so rows of 4 KiB run at a third of the speed of rows of 64 KiB.
constexpr size_t blockElements = 16384;
// Blocks are multiples of this, so that sums do not depend on the size of the blocks.
constexpr size_t sumElements = 256;
// Bytes of membranes that a block of the backward pass recomputes: about the second-level cache.
constexpr size_t recomputedBytes = 1024 * 1024;
// The fewest neuron updates that are worth a thread, because waking one takes microseconds.
constexpr size_t updatesPerThread = 32768;

// Return the number of threads for this work, at most maxThreads.
inline unsigned usefulThreads(size_t steps, size_t elements, std::int32_t maxThreads) {
  const size_t fed = steps * elements / updatesPerThread + 1;
  return maxThreads > 0 && fed > static_cast<size_t>(maxThreads) ? static_cast<unsigned>(maxThreads)
                                                                 : static_cast<unsigned>(fed);
}

// Return the elements of a block: two blocks per thread, within [sumElements, most].
inline size_t blockSize(size_t elements, unsigned threads, size_t most) {
  const size_t shares = 2 * static_cast<size_t>(threads);
  const size_t share = (elements + shares - 1) / shares;
  const size_t rounded = (share + sumElements - 1) / sumElements * sumElements;
  return std::min(rounded, std::max(sumElements, most / sumElements * sumElements));
}

// A pass over more bytes than this writes past the caches. Measured with 32 MiB of last-level cache per core complex:
// never slower, and up to a quarter faster from here on, because no line is read before it is overwritten.
constexpr size_t cachedBytes = 8 * 1024 * 1024;

// Return true if every row of an array starts at a multiple of a register's size.
inline bool rowsAligned(const void *array, size_t rowBytes) {
  return (reinterpret_cast<std::uintptr_t>(array) | rowBytes) % SNNIPU_LANE_BYTES == 0;
}

// Memory for one block's intermediate values. The thread keeps it, because mapping it again costs more than a block's
// work.
class Scratch {
public:
  // Make room for `bytes` and discard the contents; return false if out of memory.
  bool reserve(size_t bytes) {
    bytes += alignment;
    if (bytes > capacity_) {
      buffer_.reset(new (std::nothrow) char[bytes]);
      capacity_ = buffer_ ? bytes : 0;
    }
    void *start = buffer_.get();
    next_ = buffer_ ? static_cast<char *>(std::align(alignment, 1, start, bytes)) : nullptr;
    return next_ != nullptr;
  }

  template <typename T> T *take(size_t count) {
    T *const taken = reinterpret_cast<T *>(next_);
    next_ += roundUp(count * sizeof(T));
    return taken;
  }

  static size_t roundUp(size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

private:
  static constexpr size_t alignment = 64;
  std::unique_ptr<char[]> buffer_;
  size_t capacity_ = 0;
  char *next_ = nullptr;
};

inline Scratch &threadScratch() {
  static thread_local Scratch scratch;
  return scratch;
}

template <typename C> struct Parameter {
  const C *values;
  size_t size;

  // Write the values of elements [begin, begin + count), one each.
  void expand(C *to, size_t begin, size_t count) const {
    size_t from = begin % size;
    for (size_t i = 0; i < count; ++i) {
      to[i] = values[from];
      if (++from == size)
        from = 0;
    }
  }
};

// Call body(begin, count, scratch) for every block. Scratch has `bytesPerElement` for each element and `fixedBytes`
// more. Return 0, or 2 if out of memory.
template <typename Body>
int forBlocks(size_t elements, unsigned threads, size_t most, size_t bytesPerElement, const Body &body,
              size_t fixedBytes = 0) {
  const size_t size = blockSize(elements, threads, most);
  std::atomic<bool> outOfMemory{false};
  parallelFor((elements + size - 1) / size, threads, [&](size_t block) {
    const size_t begin = block * size;
    const size_t count = std::min(size, elements - begin);
    Scratch &scratch = threadScratch();
    // take() rounds up to the alignment; a body takes at most 64 arrays.
    if (scratch.reserve(count * bytesPerElement + fixedBytes + 64 * Scratch::roundUp(1)))
      body(begin, count, scratch);
    else
      outOfMemory = true;
  });
  return outOfMemory ? 2 : 0;
}

// The sum of one parameter's gradient over elements. One value for all: sums of sumElements each, then their total, in
// double. One per neuron: each element's sum is stored, and those of the same neuron are added at the end. The order of
// additions depends on neither blocks nor threads.
template <typename C> class ParameterSum {
public:
  ParameterSum(C *result, size_t size, size_t elements) : result_(result), size_(size), elements_(elements) {
    if (result)
      size == 1 ? partialSums_.resize((elements + sumElements - 1) / sumElements) : elementSums_.resize(elements);
  }

  void addBlock(const C *sums, size_t begin, size_t count) {
    if (!result_)
      return;
    if (size_ > 1) {
      std::copy_n(sums, count, elementSums_.data() + begin);
      return;
    }
    for (size_t start = 0; start < count; start += sumElements) {
      double total = 0;
      for (size_t i = start; i < std::min(start + sumElements, count); ++i)
        total += static_cast<double>(sums[i]);
      partialSums_[(begin + start) / sumElements] = total;
    }
  }

  void finish() {
    if (!result_)
      return;
    if (size_ == 1) {
      double total = 0;
      for (const double sum : partialSums_)
        total += sum;
      result_[0] = static_cast<C>(total);
      return;
    }
    std::vector<double> totals(size_);
    for (size_t row = 0; row < elements_; row += size_)
      for (size_t i = 0; i < size_; ++i)
        totals[i] += static_cast<double>(elementSums_[row + i]);
    std::transform(totals.begin(), totals.end(), result_, [](double total) { return static_cast<C>(total); });
  }

private:
  C *result_;
  size_t size_, elements_;
  std::vector<double> partialSums_;
  std::vector<C> elementSums_;
};

} // namespace
} // namespace snnipu
