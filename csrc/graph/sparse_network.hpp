// Poplar programs for a network of fully connected spiking layers on spike ids, and for its adjoint.
//
// All layers compute a step at the same time. In each step a layer reads the previous layer's spikes of the step
// before; the first layer reads the input of the same step. A recurrent layer also reads its own spikes of the step
// before. Weights and membranes stay on the tiles of their neurons, and only spikes are exchanged. Semantics:
// snnipu.SparseNetwork with delay=1, and snnipu.ops.sparse_lif_sequence for a layer.
#pragma once

#include "graph/slots.hpp"
#include "graph/vertex_name.hpp"

#include <vector>

namespace snnipu {
namespace graph {

// The tiles of a layer. Its groups of tiles follow each other from firstTile on. Each has all neurons, for groups[g]
// samples of the batch, with neurons[i] on its tile i. Tile firstSelectionTile + i selects the spikes of rows[i]
// samples.
struct LayerPlan {
  size_t firstTile = 0;
  std::vector<size_t> neurons;
  std::vector<size_t> groups;
  size_t firstSelectionTile = 0;
  std::vector<size_t> rows;
};

struct NetworkLayer {
  size_t inputs = 0, neurons = 0;
  size_t slots = 0;    // for its spikes
  bool second = false; // true: there is a second threshold, gradThreshold
  float gradThreshold = 0;
  float inputScale = 1;
  bool recurrent = false;
};

struct SparseNetworkOptions {
  std::vector<NetworkLayer> layers;
  std::vector<LayerPlan> plan; // from snnipu.ipu.plan, by a model of the machine
  Reset reset = Reset::Zero;
  bool rotate = false;
  bool unitInput = false;     // every input spike's value is 1
  bool inputGradient = false; // compute the gradient of the input's values
  Surrogate surrogate = Surrogate::Atan;
  float surrogateA = 2.0f, surrogateB = 0.0f;
};

struct NetworkParameters {
  Tensor weight;          // FLOAT or HALF [neurons, inputs]
  Tensor beta, threshold; // FLOAT, one element or one for each neuron
  Tensor bias;            // FLOAT [neurons], or invalid
  Tensor recurrentWeight; // of weight's type, [neurons, neurons]; only of a recurrent layer
};

struct NetworkOutputs {
  SlotTensors spikes;
  Tensor mem; // FLOAT [steps, batch, neurons], for the backward pass and in its layout
};

// Return a variable for the weight of a layer, or its recurrent weight, in the network's layout.
Tensor createNetworkWeight(Graph &graph, const SparseNetworkOptions &options, size_t layer, bool recurrent,
                           size_t batch, const Type &type, const DebugContext &debug);

// Return the outputs of the layers. Values of their spikes have the type of the input's; membranes, sums and gradients
// are in float. Throw std::invalid_argument for wrong shapes, types or plans.
std::vector<NetworkOutputs> sparseNetwork(Graph &graph, const SlotTensors &input,
                                          const std::vector<NetworkParameters> &parameters, Sequence &prog,
                                          const SparseNetworkOptions &options, const DebugContext &debug);

// Return a variable for the membranes of a layer, NetworkOutputs::mem, in the layout of the backward pass.
Tensor createNetworkMembranes(Graph &graph, const SparseNetworkOptions &options, size_t layer, size_t steps,
                              size_t batch, const DebugContext &debug);

struct NetworkGradients {
  Tensor inputValues; // in the values' type; zeros without options.inputGradient
  std::vector<NetworkParameters> parameters;
};

// Return the gradients of input values and parameters. gradValues: of each layer's values, or invalid. outputs: of the
// forward pass; ids, counts and mem are read.
NetworkGradients sparseNetworkGrad(Graph &graph, const std::vector<Tensor> &gradValues, const SlotTensors &input,
                                   const std::vector<NetworkParameters> &parameters,
                                   const std::vector<NetworkOutputs> &outputs, Sequence &prog,
                                   const SparseNetworkOptions &options, const DebugContext &debug);

} // namespace graph
} // namespace snnipu
