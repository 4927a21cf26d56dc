// Poplar programs for spikes as a dense tensor, and for a dense tensor at the slots of spikes. Each is the adjoint of
// the other.
#pragma once

#include "graph/slots.hpp"

namespace snnipu {
namespace graph {

// Return the values of the carried slots as [steps, batch, neurons], in their type.
Tensor sparseToDense(Graph &graph, const SlotTensors &spikes, size_t neurons, Sequence &prog,
                     const DebugContext &debug);

// Return dense at the carried slots, 0 in padding: [steps, batch, slots] of its type. dense: FLOAT or HALF [steps,
// batch, neurons].
Tensor sparseToDenseGrad(Graph &graph, const Tensor &dense, const Tensor &ids, const Tensor &counts, Sequence &prog,
                         const DebugContext &debug);

} // namespace graph
} // namespace snnipu
