// Poplar programs for the spikes of a dense membrane, by two thresholds, and the surrogate gradient at their slots.
// Semantics: snnipu.ops.select_spikes.
#pragma once

#include "graph/slots.hpp"
#include "graph/vertex_name.hpp"

namespace snnipu {
namespace graph {

struct SelectSpikesOptions {
  size_t capacity = 0;
  bool rotate = false;
  bool second = false; // true: there is a second threshold, gradThreshold
  float gradThreshold = 0;
  Surrogate surrogate = Surrogate::Atan;
  float surrogateA = 2.0f, surrogateB = 0.0f;
};

// Return slots with values of mem's type. mem: FLOAT or HALF [steps, batch, neurons]; threshold: FLOAT, one element or
// one for each neuron. Throw std::invalid_argument for other shapes and types.
SlotTensors selectSpikes(Graph &graph, const Tensor &mem, const Tensor &threshold, Sequence &prog,
                         const SelectSpikesOptions &options, const DebugContext &debug);

struct SelectSpikesGradients {
  Tensor mem, threshold;
};

// Return the gradients of mem and threshold. gradValues: gradient of the slots' values. ids, counts: of the forward
// pass.
SelectSpikesGradients selectSpikesGrad(Graph &graph, const Tensor &gradValues, const Tensor &mem,
                                       const Tensor &threshold, const Tensor &ids, const Tensor &counts, Sequence &prog,
                                       const SelectSpikesOptions &options, const DebugContext &debug);

// Bits of neurons. bitsAbove() compares x [rows][neurons] with the thresholds; if threshold is invalid, it sets the
// bits of nonzero elements.
struct Bits {
  Tensor fired, carried; // UNSIGNED_INT [rows][words]
};
Bits bitsAbove(Graph &graph, const RowMapping &mapping, const Tensor &x, const Tensor &threshold, bool second,
               float gradThreshold, Sequence &prog, const DebugContext &debug);

} // namespace graph
} // namespace snnipu
