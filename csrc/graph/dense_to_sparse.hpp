// The nonzero elements of a dense tensor as spikes, as a Poplar program; its adjoint is sparseToDense().
#pragma once

#include "graph/slots.hpp"

namespace snnipu {
namespace graph {

// x: FLOAT or HALF [steps, batch, neurons], and so are the values. Semantics: snnipu.ops.dense_to_sparse.
SlotTensors denseToSparse(poplar::Graph &graph, const poplar::Tensor &x, std::size_t capacity, bool rotate,
                          poplar::program::Sequence &prog, const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
