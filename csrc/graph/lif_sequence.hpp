// Leaky integrate-and-fire over a sequence, and its adjoint, as Poplar programs. Equations: snnipu/equations.py.
#pragma once

#include "graph/vertex_name.hpp"

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

namespace snnipu {
namespace graph {

struct LifSequenceOptions {
  Reset reset = Reset::Subtract;
  bool resetDelay = true;
  Surrogate surrogate = Surrogate::Atan;
  float surrogateA = 2.0f, surrogateB = 0.0f;
};

// Each of the parameters has one element, or one for each element of a step modulo its size; all of them and mem0 are
// FLOAT, whatever x is.
struct LifSequenceInputs {
  poplar::Tensor x;    // [steps, ...]; FLOAT or HALF
  poplar::Tensor mem0; // one step's shape
  poplar::Tensor beta, threshold, graded;
};

struct LifSequenceOutputs {
  poplar::Tensor spk, mem; // x's shape and type
};

// x laid out as lifSequence() works on it: each tile has its elements of all steps.
poplar::Tensor createLifSequenceInput(poplar::Graph &graph, const poplar::Type &type,
                                      const std::vector<std::size_t> &shape, const poplar::DebugContext &debug);

// Throws std::invalid_argument where a shape or type does not fit.
LifSequenceOutputs lifSequence(poplar::Graph &graph, const LifSequenceInputs &in, poplar::program::Sequence &prog,
                               const LifSequenceOptions &options, const poplar::DebugContext &debug);

// gradSpk, gradMem: either may be invalid, for no gradient. mem: of the forward pass, read where options.resetDelay;
// else the membranes are computed anew from in.x, and mem may be invalid. Likewise in.x otherwise.
// Returns the gradients of the inputs.
LifSequenceInputs lifSequenceGrad(poplar::Graph &graph, const poplar::Tensor &gradSpk, const poplar::Tensor &gradMem,
                                  const poplar::Tensor &mem, const LifSequenceInputs &in,
                                  poplar::program::Sequence &prog, const LifSequenceOptions &options,
                                  const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
