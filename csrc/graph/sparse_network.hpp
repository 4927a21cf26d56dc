// A network of fully connected spiking layers on spike ids, and its adjoint, as Poplar programs.
//
// All layers of a step run at once: a layer reads the spikes that the one before it made in the step before (the first
// one those of the input in the same step), and a recurrent one its own of the step before, too. Weights and membranes
// stay on the tiles of their neurons, and spike ids are what is exchanged. Semantics: snnipu.SparseNetwork with
// delay=1, and snnipu.ops.sparse_lif_sequence for a layer.
#pragma once

#include "graph/slots.hpp"
#include "graph/vertex_name.hpp"

#include <vector>

namespace snnipu {
namespace graph {

// Where a layer is: groups of tiles one behind the other from firstTile on, each with all neurons for groups[g] samples
// of the batch; neurons[i] of them are on tile i of each group. rows[i] samples on the selection tile
// firstSelectionTile
// + i.
struct LayerPlan {
  std::size_t firstTile = 0;
  std::vector<std::size_t> neurons;
  std::vector<std::size_t> groups;
  std::size_t firstSelectionTile = 0;
  std::vector<std::size_t> rows;
};

struct NetworkLayer {
  std::size_t inputs = 0, neurons = 0;
  std::size_t slots = 0; // capacity for its spikes
  bool second = false;   // whether there is a second threshold
  float gradThreshold = 0;
  float inputScale = 1;
  bool recurrent = false;
};

struct SparseNetworkOptions {
  std::vector<NetworkLayer> layers;
  std::vector<LayerPlan> plan; // snnipu.ipu.plan makes it, by a model of the machine
  Reset reset = Reset::Zero;
  bool rotate = false;
  bool unitInput = false;     // every input spike's value is 1
  bool inputGradient = false; // whether the gradient of the input's values is wanted
  Surrogate surrogate = Surrogate::Atan;
  float surrogateA = 2.0f, surrogateB = 0.0f;
};

struct NetworkParameters {
  poplar::Tensor weight;          // FLOAT or HALF [neurons, inputs]
  poplar::Tensor beta, threshold; // FLOAT, of one element or of each neuron
  poplar::Tensor bias;            // FLOAT [neurons], or invalid
  poplar::Tensor recurrentWeight; // of weight's type [neurons, neurons]; of a recurrent layer
};

struct NetworkOutputs {
  SlotTensors spikes;
  poplar::Tensor mem; // FLOAT [steps, batch, neurons]: what the backward pass needs, where it needs it
};

// The weight of a layer, or its recurrent one, laid out as the network works on it.
poplar::Tensor createNetworkWeight(poplar::Graph &graph, const SparseNetworkOptions &options, std::size_t layer,
                                   bool recurrent, std::size_t batch, const poplar::Type &type,
                                   const poplar::DebugContext &debug);

// Values of the layers' spikes are in the type of the input's; membranes, sums and gradients are in float. Throws
// std::invalid_argument where shapes, types or the plan do not belong together.
std::vector<NetworkOutputs> sparseNetwork(poplar::Graph &graph, const SlotTensors &input,
                                          const std::vector<NetworkParameters> &parameters,
                                          poplar::program::Sequence &prog, const SparseNetworkOptions &options,
                                          const poplar::DebugContext &debug);

// The membranes of a layer, NetworkOutputs::mem, laid out as the backward pass reads them.
poplar::Tensor createNetworkMembranes(poplar::Graph &graph, const SparseNetworkOptions &options, std::size_t layer,
                                      std::size_t steps, std::size_t batch, const poplar::DebugContext &debug);

struct NetworkGradients {
  poplar::Tensor inputValues; // in the values' type; zeros without options.inputGradient
  std::vector<NetworkParameters> parameters;
};

// gradValues: of each layer's values, or invalid for none. outputs: of the forward pass; ids, counts and mem are read.
NetworkGradients sparseNetworkGrad(poplar::Graph &graph, const std::vector<poplar::Tensor> &gradValues,
                                   const SlotTensors &input, const std::vector<NetworkParameters> &parameters,
                                   const std::vector<NetworkOutputs> &outputs, poplar::program::Sequence &prog,
                                   const SparseNetworkOptions &options, const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
