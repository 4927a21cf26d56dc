// What every codelet of this folder uses: short names of the field types, and a worker's share of the work.
#pragma once

#include <poplar/Vertex.hpp>

#include "neuron/lanes.hpp"

namespace snnipu {

// Bytes that a field's start is a multiple of. Numbers are read and written in vectors of 64 bits, and those smaller
// than a word by several workers, which share them in words from the start on; integers one at a time.
template <typename T> constexpr unsigned fieldAlignment = std::is_integral_v<T> ? alignof(T) : 8;
template <typename T> using Elements = poplar::Vector<T, poplar::VectorLayout::ONE_PTR, fieldAlignment<T>>;
template <typename T> using In = poplar::Input<Elements<T>>;
template <typename T> using Out = poplar::Output<Elements<T>>;
template <typename T> using Through = poplar::InOut<Elements<T>>;

// Whether a vertex on storage type S chooses between variants as late as it can: slower, and compiled faster.
#if defined(SNNIPU_COMPACT_CODE)
template <typename S> constexpr bool compactCode = true;
#else
template <typename S> constexpr bool compactCode = false;
#endif

struct WorkerRange {
  unsigned begin, end;
};

// Worker's share of size items, in whole steps.
inline WorkerRange workerShare(unsigned worker, unsigned workers, unsigned size, unsigned step = 1) {
  const unsigned steps = (size + step - 1) / step;
  const unsigned share = (steps + workers - 1) / workers * step;
  const unsigned begin = worker * share < size ? worker * share : size;
  return {begin, share < size - begin ? begin + share : size};
}

} // namespace snnipu
