// Common parts of the codelets in this folder: short names of field types, and a worker's share of the work.
#pragma once

#include <poplar/Vertex.hpp>

#include "neuron/lanes.hpp"

namespace snnipu {

// Alignment of a field, in bytes. Floating-point fields are accessed in vectors of 64 bits. Workers share types smaller
// than a word by whole words from the start. Integers are accessed one at a time.
template <typename T> constexpr unsigned fieldAlignment = std::is_integral_v<T> ? alignof(T) : 8;
template <typename T> using Elements = poplar::Vector<T, poplar::VectorLayout::ONE_PTR, fieldAlignment<T>>;
template <typename T> using In = poplar::Input<Elements<T>>;
template <typename T> using Out = poplar::Output<Elements<T>>;
template <typename T> using Through = poplar::InOut<Elements<T>>;

// True if a vertex on storage type S chooses its variants at run time, as late as possible: slower code that compiles
// faster.
#if defined(SNNIPU_COMPACT_CODE)
template <typename S> constexpr bool compactCode = true;
#else
template <typename S> constexpr bool compactCode = false;
#endif

struct WorkerRange {
  unsigned begin, end;
};

// Return the worker's share of `size` items, in multiples of `step`.
inline WorkerRange workerShare(unsigned worker, unsigned workers, unsigned size, unsigned step = 1) {
  const unsigned steps = (size + step - 1) / step;
  const unsigned share = (steps + workers - 1) / workers * step;
  const unsigned begin = worker * share < size ? worker * share : size;
  return {begin, share < size - begin ? begin + share : size};
}

} // namespace snnipu
