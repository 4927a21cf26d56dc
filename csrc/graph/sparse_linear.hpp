// Poplar programs for a linear layer on spike ids, with or without delays, and its adjoint. Semantics:
// snnipu.ops.sparse_linear, snnipu.DelayLinear.
#pragma once

#include "graph/slots.hpp"

namespace snnipu {
namespace graph {

struct SparseLinearInputs {
  SlotTensors spikes;    // of `inputs` neurons
  poplar::Tensor weight; // FLOAT or HALF [neurons, inputs]; with lags [inputs, neurons, taps]
  poplar::Tensor bias;   // FLOAT [neurons], or invalid
  // With delays: FLOAT [inputs, neurons], the steps after which a spike arrives at a synapse's first tap; it arrives at
  // each further tap one step later. Spikes that would arrive after the last step are dropped. Without delays: invalid.
  poplar::Tensor lags;
};

// Distribution over tiles. A group of tiles has all neurons and a share of the rows (time, sample), with delays a share
// of the samples. snnipu.planning.linear makes the plan.
struct SparseLinearPlan {
  std::size_t neurons; // of a tile
  std::size_t rows;    // of a group
};

// Return a variable for the weight in the layout of sparseLinear() for spikes of `rows` (time, sample): the tiles with
// the same neurons, one in each group, each hold an equal share of the inputs.
poplar::Tensor createSparseLinearWeight(poplar::Graph &graph, std::size_t neurons, std::size_t inputs, std::size_t rows,
                                        const SparseLinearPlan &plan, const poplar::Type &type,
                                        const poplar::DebugContext &debug);

// Return [steps, batch, neurons] in the type of the values; sums are in float. unitValues: every spike's value is 1,
// and values are not read. Throw std::invalid_argument for wrong shapes, types or plans.
poplar::Tensor sparseLinear(poplar::Graph &graph, const SparseLinearInputs &in, const SparseLinearPlan &plan,
                            bool unitValues, poplar::program::Sequence &prog, const poplar::DebugContext &debug);

struct SparseLinearGradients {
  poplar::Tensor values, weight;
  poplar::Tensor bias; // invalid if there is no bias
};

// Return gradients in the types of their inputs. grad: FLOAT or HALF.
SparseLinearGradients sparseLinearGrad(poplar::Graph &graph, const poplar::Tensor &grad, const SparseLinearInputs &in,
                                       const SparseLinearPlan &plan, bool unitValues, poplar::program::Sequence &prog,
                                       const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
