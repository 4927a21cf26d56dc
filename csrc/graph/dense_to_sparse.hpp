// Poplar programs for the nonzero elements of a dense tensor as spikes. The adjoint is sparseToDense().
#pragma once

#include "graph/slots.hpp"

namespace snnipu {
namespace graph {

// Semantics: snnipu.ops.dense_to_sparse.
//
// x: FLOAT or HALF [steps, batch, neurons]. capacity: slots of a row. rotate: as of the operator. Return slots with
// values of x's type. Throw std::invalid_argument if x or capacity is invalid.
SlotTensors denseToSparse(Graph &graph, const Tensor &x, size_t capacity, bool rotate, Sequence &prog,
                          const DebugContext &debug);

} // namespace graph
} // namespace snnipu
