// Spikes of a dense membrane, by two thresholds, and the surrogate gradient at their slots, as Poplar programs.
// Semantics: snnipu.ops.select_spikes.
#pragma once

#include "graph/slots.hpp"
#include "graph/vertex_name.hpp"

namespace snnipu {
namespace graph {

struct SelectSpikesOptions {
  std::size_t capacity = 0;
  bool rotate = false;
  bool second = false; // whether there is a second threshold
  float gradThreshold = 0;
  Surrogate surrogate = Surrogate::Atan;
  float surrogateA = 2.0f, surrogateB = 0.0f;
};

// mem: FLOAT or HALF [steps, batch, neurons], and so are the values; threshold: FLOAT, of one element or of each
// neuron.
SlotTensors selectSpikes(poplar::Graph &graph, const poplar::Tensor &mem, const poplar::Tensor &threshold,
                         poplar::program::Sequence &prog, const SelectSpikesOptions &options,
                         const poplar::DebugContext &debug);

struct SelectSpikesGradients {
  poplar::Tensor mem, threshold;
};

// gradValues: gradient of the slots' values. ids, counts: of the forward pass.
SelectSpikesGradients selectSpikesGrad(poplar::Graph &graph, const poplar::Tensor &gradValues,
                                       const poplar::Tensor &mem, const poplar::Tensor &threshold,
                                       const poplar::Tensor &ids, const poplar::Tensor &counts,
                                       poplar::program::Sequence &prog, const SelectSpikesOptions &options,
                                       const poplar::DebugContext &debug);

// Bits of x [rows][neurons]: of what is not 0, where threshold is invalid.
struct Bits {
  poplar::Tensor fired, carried; // UNSIGNED_INT [rows][words]
};
Bits bitsAbove(poplar::Graph &graph, const RowSpread &spread, const poplar::Tensor &x, const poplar::Tensor &threshold,
               bool second, float gradThreshold, poplar::program::Sequence &prog, const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
