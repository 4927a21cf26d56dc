// A neuron of snnipu/equations.py over a sequence, and its adjoint, as Poplar programs.
#pragma once

#include "graph/vertex_name.hpp"
#include "neuron/sequence.hpp"

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

#include <string>
#include <vector>

namespace snnipu {
namespace graph {

// What a generated struct says of its neuron.
struct NeuronInfo {
  std::string name, type; // of the equation; of the struct
  unsigned states, parameters, variants;
  std::vector<std::string> stateNames, parameterNames;
  int outputState; // the state that is the output, or -1
  // By variant: what the adjoint reads, and the parameters that have a gradient, by bits.
  std::vector<AdjointReads> reads;
  std::vector<unsigned> gradients;
};

// nullptr: there is none of this name.
const NeuronInfo *findNeuron(const std::string &name);
std::string neuronNames();

struct NeuronOptions {
  const NeuronInfo *neuron;
  unsigned variant;
  // States that are returned after every step, by bits; that which is the output is not among them.
  unsigned states;
  Surrogate surrogate;
  float surrogateA, surrogateB;

  // Of the forward pass, what there is of the states after each step.
  unsigned kept() const {
    return neuron->outputState < 0 ? states : states | 1u << static_cast<unsigned>(neuron->outputState);
  }
  const AdjointReads &reads() const { return neuron->reads[variant]; }
  // Whether the backward pass computes the states again, from x.
  bool recomputes() const { return (reads().states() & ~kept()) != 0; }
  bool readsInput() const { return recomputes() || reads().x; }
};

// Each of the parameters has one element, or one for each element of a step modulo its size; all of them and the
// initial states are FLOAT, whatever x is.
struct NeuronInputs {
  poplar::Tensor x; // [steps, ...]; FLOAT or HALF
  std::vector<poplar::Tensor> initial, parameters;
};

// Of x's shape and type; states: in order, those that are returned, and the rest invalid.
struct NeuronOutputs {
  poplar::Tensor spk;
  std::vector<poplar::Tensor> states;
};

// x laid out as neuronSequence() works on it: each tile has its elements of all steps.
poplar::Tensor createNeuronInput(poplar::Graph &graph, const poplar::Type &type, const std::vector<std::size_t> &shape,
                                 const poplar::DebugContext &debug);

// Throws std::invalid_argument where a shape or type does not fit.
NeuronOutputs neuronSequence(poplar::Graph &graph, const NeuronInputs &in, poplar::program::Sequence &prog,
                             const NeuronOptions &options, const poplar::DebugContext &debug);

// upstream: gradients of the outputs, each of which may be invalid. outputs: of the forward pass, where the adjoint
// reads them and not the input; in.x may be invalid where it is not read. shape: that of x. Returns the gradients of
// the inputs; invalid for a parameter that the variant does not read.
NeuronInputs neuronSequenceGrad(poplar::Graph &graph, const NeuronOutputs &upstream, const NeuronOutputs &outputs,
                                const NeuronInputs &in, const std::vector<std::size_t> &shape, const poplar::Type &type,
                                poplar::program::Sequence &prog, const NeuronOptions &options,
                                const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
