// Poplar programs for a linear layer on spike ids, with or without delays, and its adjoint. Semantics:
// snnipu.ops.sparse_linear, snnipu.DelayLinear.
#pragma once

#include "graph/slots.hpp"

namespace snnipu {
namespace graph {

struct SparseLinearInputs {
  SlotTensors spikes; // of `inputs` neurons
  Tensor weight;      // FLOAT or HALF [neurons, inputs]; with lags [inputs, neurons, taps]
  Tensor bias;        // FLOAT [neurons], or invalid
  // With delays: FLOAT [inputs, neurons], the steps after which a spike arrives at a synapse's first tap; it arrives at
  // each further tap one step later. Spikes that would arrive after the last step are dropped. Without delays: invalid.
  Tensor lags;
};

// Distribution over tiles. A group of tiles has all neurons and a share of the rows (time, sample), with delays a share
// of the samples. snnipu.planning.linear makes the plan.
struct SparseLinearPlan {
  size_t neurons; // of a tile
  size_t rows;    // of a group
};

// Return a variable for the weight in the layout of sparseLinear() for spikes of `rows` (time, sample): the tiles with
// the same neurons, one in each group, each hold an equal share of the inputs.
Tensor createSparseLinearWeight(Graph &graph, size_t neurons, size_t inputs, size_t rows, const SparseLinearPlan &plan,
                                const Type &type, const DebugContext &debug);

// Return [steps, batch, neurons] in the type of the values; sums are in float. unitValues: every spike's value is 1,
// and values are not read. Throw std::invalid_argument for wrong shapes, types or plans.
Tensor sparseLinear(Graph &graph, const SparseLinearInputs &in, const SparseLinearPlan &plan, bool unitValues,
                    Sequence &prog, const DebugContext &debug);

struct SparseLinearGradients {
  Tensor values, weight;
  Tensor bias; // invalid if there is no bias
};

// Return gradients in the types of their inputs. grad: FLOAT or HALF.
SparseLinearGradients sparseLinearGrad(Graph &graph, const Tensor &grad, const SparseLinearInputs &in,
                                       const SparseLinearPlan &plan, bool unitValues, Sequence &prog,
                                       const DebugContext &debug);

} // namespace graph
} // namespace snnipu
