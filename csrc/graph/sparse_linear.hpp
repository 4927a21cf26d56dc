// A linear layer on spike ids, with delays or without, and its adjoint, as Poplar programs. Semantics:
// snnipu.ops.sparse_linear, snnipu.DelayLinear.
#pragma once

#include "graph/slots.hpp"

namespace snnipu {
namespace graph {

struct SparseLinearInputs {
  SlotTensors spikes;    // of `inputs` neurons
  poplar::Tensor weight; // FLOAT or HALF [neurons, inputs]; with lags [inputs, neurons, taps]
  poplar::Tensor bias;   // FLOAT [neurons], or invalid
  // FLOAT [inputs, neurons] where synapses have a time each: after how many steps a spike arrives by the first tap. By
  // each further one it arrives a step later; what would arrive behind the last step is lost.
  poplar::Tensor lags;
};

// How the work is spread over tiles: groups of them that each have all neurons, and a share of the rows (time, sample),
// with delays of the samples. snnipu.planning.linear makes the plan.
struct SparseLinearPlan {
  std::size_t neurons; // of a tile
  std::size_t rows;    // of a group
};

// The weight laid out as sparseLinear() works on it for spikes of `rows` (time, sample): the tiles that have the same
// neurons, each for other rows, hold an equal share of their inputs.
poplar::Tensor createSparseLinearWeight(poplar::Graph &graph, std::size_t neurons, std::size_t inputs, std::size_t rows,
                                        const SparseLinearPlan &plan, const poplar::Type &type,
                                        const poplar::DebugContext &debug);

// unitValues: every spike's value is 1, and values are not read. Returns [steps, batch, neurons] in the type of the
// values; sums are in float.
poplar::Tensor sparseLinear(poplar::Graph &graph, const SparseLinearInputs &in, const SparseLinearPlan &plan,
                            bool unitValues, poplar::program::Sequence &prog, const poplar::DebugContext &debug);

struct SparseLinearGradients {
  poplar::Tensor values, weight;
  poplar::Tensor bias; // invalid without one
};

// grad: FLOAT or HALF. Gradients are of their inputs' types.
SparseLinearGradients sparseLinearGrad(poplar::Graph &graph, const poplar::Tensor &grad, const SparseLinearInputs &in,
                                       const SparseLinearPlan &plan, bool unitValues, poplar::program::Sequence &prog,
                                       const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
