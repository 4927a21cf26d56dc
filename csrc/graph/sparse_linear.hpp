// A linear layer on spike ids and its adjoint, as Poplar programs. Semantics: snnipu.ops.sparse_linear.
#pragma once

#include "graph/slots.hpp"

namespace snnipu {
namespace graph {

struct SparseLinearInputs {
  SlotTensors spikes;    // of `inputs` neurons
  poplar::Tensor weight; // FLOAT [neurons, inputs]
  poplar::Tensor bias;   // FLOAT [neurons], or invalid
};

// The weight laid out as sparseLinear() works on it: each tile has its neurons' rows.
poplar::Tensor createSparseLinearWeight(poplar::Graph &graph, std::size_t neurons, std::size_t inputs,
                                        const poplar::DebugContext &debug);

// unitValues: every spike's value is 1, and values are not read. Returns FLOAT [steps, batch, neurons].
poplar::Tensor sparseLinear(poplar::Graph &graph, const SparseLinearInputs &in, bool unitValues,
                            poplar::program::Sequence &prog, const poplar::DebugContext &debug);

struct SparseLinearGradients {
  poplar::Tensor values, weight;
  poplar::Tensor bias; // invalid without one
};

SparseLinearGradients sparseLinearGrad(poplar::Graph &graph, const poplar::Tensor &grad, const SparseLinearInputs &in,
                                       bool unitValues, poplar::program::Sequence &prog,
                                       const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
