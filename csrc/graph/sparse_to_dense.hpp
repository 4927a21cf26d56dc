// Spikes as a dense tensor, and a dense tensor at the slots of spikes, as Poplar programs: each is the other's adjoint.
#pragma once

#include "graph/slots.hpp"

namespace snnipu {
namespace graph {

// Dense [steps, batch, neurons] of what the carried slots hold, in the type of the values.
poplar::Tensor sparseToDense(poplar::Graph &graph, const SlotTensors &spikes, std::size_t neurons,
                             poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// What dense, FLOAT or HALF [steps, batch, neurons], holds at the carried slots, 0 in padding: [steps, batch, slots] of
// its type.
poplar::Tensor sparseToDenseGrad(poplar::Graph &graph, const poplar::Tensor &dense, const poplar::Tensor &ids,
                                 const poplar::Tensor &counts, poplar::program::Sequence &prog,
                                 const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
