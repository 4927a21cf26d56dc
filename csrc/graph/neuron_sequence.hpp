// Poplar programs for a neuron of snnipu/equations.py over a sequence, and for its adjoint.
#pragma once

#include "graph/vertex_name.hpp"
#include "neuron/sequence.hpp"

#include <string>
#include <vector>

namespace snnipu {
namespace graph {

// The constants of a generated struct.
struct NeuronInfo {
  std::string name, type; // of the equation; of the struct
  unsigned states, parameters, variants;
  std::vector<std::string> stateNames, parameterNames;
  int outputState; // index of the state that is the output, or -1
  // For each variant: the values that the adjoint reads, and a bit for each parameter that has a gradient.
  std::vector<AdjointReads> reads;
  std::vector<unsigned> gradients;
};

// Return the constants of a neuron, or nullptr if no neuron has this name.
const NeuronInfo *findNeuron(const std::string &name);
// Return the names of all neurons, for messages.
std::string neuronNames();

struct NeuronOptions {
  const NeuronInfo *neuron;
  unsigned variant;
  // A bit for each state that is returned after every step. The state that is the output has no bit.
  unsigned states;
  Surrogate surrogate;
  float surrogateA, surrogateB;

  // Return the states after each step that the forward pass returns, including the output.
  unsigned savedStates() const {
    return neuron->outputState < 0 ? states : states | 1u << static_cast<unsigned>(neuron->outputState);
  }
  const AdjointReads &reads() const { return neuron->reads[variant]; }
  // Return true if the backward pass recomputes the states from x.
  bool recomputes() const { return (reads().states() & ~savedStates()) != 0; }
  bool readsInput() const { return recomputes() || reads().x; }
};

// A parameter has one element, or n for which element i of a step uses i % n. Parameters and initial states are FLOAT,
// whatever x is.
struct NeuronInputs {
  Tensor x; // [steps, ...]; FLOAT or HALF
  std::vector<Tensor> initial, parameters;
};

// Outputs of x's shape and type. states: in order; invalid if not returned.
struct NeuronOutputs {
  Tensor spk;
  std::vector<Tensor> states;
};

// Return a variable for x in the layout of neuronSequence(): each tile has some elements, at all steps.
Tensor createNeuronInput(Graph &graph, const Type &type, const std::vector<size_t> &shape, const DebugContext &debug);

// Return the outputs. Throw std::invalid_argument for a wrong shape or type.
NeuronOutputs neuronSequence(Graph &graph, const NeuronInputs &in, Sequence &prog, const NeuronOptions &options,
                             const DebugContext &debug);

// Return the gradients of the inputs. A parameter that the variant does not read has an invalid gradient.
//
// upstream: gradients of the outputs, each of which may be invalid. outputs: of the forward pass; only those that the
// adjoint reads. in: the forward pass's; x may be invalid if it is not read. shape, type: of x.
NeuronInputs neuronSequenceGrad(Graph &graph, const NeuronOutputs &upstream, const NeuronOutputs &outputs,
                                const NeuronInputs &in, const std::vector<size_t> &shape, const Type &type,
                                Sequence &prog, const NeuronOptions &options, const DebugContext &debug);

} // namespace graph
} // namespace snnipu
