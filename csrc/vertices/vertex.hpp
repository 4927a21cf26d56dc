// What every codelet of this folder uses: short names of the field types, and a worker's share of the work.
#pragma once

#include <poplar/Vertex.hpp>

#include "neuron/lanes.hpp"

namespace snnipu {

template <typename T> using In = poplar::Input<poplar::Vector<T, poplar::VectorLayout::ONE_PTR>>;
template <typename T> using Out = poplar::Output<poplar::Vector<T, poplar::VectorLayout::ONE_PTR>>;
template <typename T> using Through = poplar::InOut<poplar::Vector<T, poplar::VectorLayout::ONE_PTR>>;

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
