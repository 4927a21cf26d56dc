// Poplar programs for spikes as a dense tensor, and for a dense tensor at the slots of spikes. Each is the adjoint of
// the other.
#pragma once

#include "graph/slots.hpp"

namespace snnipu {
namespace graph {

// Return the values of the carried slots as [steps, batch, neurons], in their type.
poplar::Tensor sparseToDense(poplar::Graph &graph, const SlotTensors &spikes, std::size_t neurons,
                             poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// Return dense at the carried slots, 0 in padding: [steps, batch, slots] of its type. dense: FLOAT or HALF [steps,
// batch, neurons].
poplar::Tensor sparseToDenseGrad(poplar::Graph &graph, const poplar::Tensor &dense, const poplar::Tensor &ids,
                                 const poplar::Tensor &counts, poplar::program::Sequence &prog,
                                 const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
