#include "graph/lif_sequence.hpp"

#include "graph/neuron_sequence.hpp"
#include "graph/spread.hpp"
#include "graph/vertex_builder.hpp"

#include <algorithm>
#include <stdexcept>

namespace snnipu {
namespace graph {
namespace {

using poplar::Tensor;

// LifSequence's operands are those of the equation; the kernels take beta clamped.
constexpr const char *threshold = "threshold", *decay = "clamp(beta, 0.0, 1.0)", *graded = "graded_spikes_factor";

const NeuronInfo &leaky() {
  static const NeuronInfo &found = *findNeuron("leaky");
  return found;
}

std::size_t place(const char *parameter) {
  const std::vector<std::string> &names = leaky().parameterNames;
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), parameter) - names.begin());
}

NeuronOptions optionsOf(const LifSequenceOptions &options, bool membranes) {
  const std::size_t choice = 2 * static_cast<std::size_t>(options.reset) + (options.resetDelay ? 0 : 1);
  return {&leaky(),          leaky().choices.at(choice), membranes ? 1u : 0u,
          options.surrogate, options.surrogateA,         options.surrogateB};
}

// A vertex for each piece of a vector, on values and others.
void onPieces(poplar::Graph &graph, const Spread &spread, const std::string &vertex, const Tensor &values,
              const Tensor &others, poplar::program::Sequence &prog, const poplar::DebugContext &debug) {
  const poplar::ComputeSet cs = graph.addComputeSet(debug);
  for (std::size_t piece = 0; piece < spread.pieces(); ++piece) {
    VertexBuilder builder(graph, cs, vertex, spread.tile(piece));
    builder.connect("values", spread.part(values, piece)).count("size", spread.count(piece));
    if (others.valid())
      builder.connect("raw", spread.part(others, piece));
  }
  prog.add(poplar::program::Execute(cs));
}

// like: a tensor of x's shape.
NeuronInputs inputsOf(poplar::Graph &graph, const LifSequenceInputs &in, const Tensor &like,
                      poplar::program::Sequence &prog, const poplar::DebugInfo &info) {
  const std::size_t elements = like.rank() && like.dim(0) ? like.numElements() / like.dim(0) : 0;
  const std::size_t size = in.beta.numElements();
  if (elements == 0)
    throw std::invalid_argument("lif_sequence: x must have shape [steps, ...] with at least one element, got " +
                                like.shapeToString());
  const auto check = [&](const std::string &name, const Tensor &tensor, bool fits) {
    if (!fits)
      throw std::invalid_argument("lif_sequence: " + name + " must fit one step of x, " + std::to_string(elements) +
                                  " elements, got " + tensor.shapeToString());
    if (tensor.elementType() != poplar::FLOAT)
      throw std::invalid_argument("lif_sequence: " + name + " must be FLOAT, got " + tensor.elementType().toString());
  };
  const auto divides = [&](const Tensor &of) { return of.numElements() > 0 && elements % of.numElements() == 0; };
  check("mem0", in.mem0, in.mem0.numElements() == elements);
  check("beta", in.beta, divides(in.beta));
  check("threshold", in.threshold, divides(in.threshold));
  check("graded", in.graded, divides(in.graded));
  const Spread spread(graph, size, poplar::FLOAT);
  const Tensor clamped = spread.variable(graph, poplar::FLOAT, 1, {info, "beta"});
  prog.add(poplar::program::Copy(in.beta.flatten(), clamped.flatten(), false, {info, "beta"}));
  onPieces(graph, spread, vertexName("ClampUnit", poplar::FLOAT), clamped, {}, prog, {info, "clamp"});
  NeuronInputs neuron{in.x, {in.mem0}, std::vector<Tensor>(leaky().parameters)};
  neuron.parameters.at(place(threshold)) = in.threshold;
  neuron.parameters.at(place(decay)) = clamped.reshape(in.beta.shape());
  neuron.parameters.at(place(graded)) = in.graded;
  return neuron;
}

} // namespace

Tensor createLifSequenceInput(poplar::Graph &graph, const poplar::Type &type, const std::vector<std::size_t> &shape,
                              const poplar::DebugContext &debug) {
  return createNeuronInput(graph, type, shape, debug);
}

LifSequenceOutputs lifSequence(poplar::Graph &graph, const LifSequenceInputs &in, poplar::program::Sequence &prog,
                               const LifSequenceOptions &options, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const NeuronOutputs out =
      neuronSequence(graph, inputsOf(graph, in, in.x, prog, info), prog, optionsOf(options, true), {info, "lif"});
  return {out.spk, out.states.at(0)};
}

LifSequenceInputs lifSequenceGrad(poplar::Graph &graph, const Tensor &gradSpk, const Tensor &gradMem, const Tensor &mem,
                                  const LifSequenceInputs &in, poplar::program::Sequence &prog,
                                  const LifSequenceOptions &options, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const Tensor &like = options.resetDelay ? mem : in.x;
  const NeuronInputs gradients =
      neuronSequenceGrad(graph, {gradSpk, {gradMem}}, {{}, {mem}}, inputsOf(graph, in, like, prog, info), like.shape(),
                         like.elementType(), prog, optionsOf(options, options.resetDelay), {info, "lif"});
  LifSequenceInputs out{gradients.x, gradients.initial.at(0), gradients.parameters.at(place(decay)),
                        gradients.parameters.at(place(threshold)), gradients.parameters.at(place(graded))};
  // A beta that is clamped has no gradient.
  const Spread spread(graph, in.beta.numElements(), poplar::FLOAT);
  const Tensor gradient = spread.variable(graph, poplar::FLOAT, 1, {info, "gradBeta"});
  prog.add(poplar::program::Copy(out.beta.flatten(), gradient.flatten(), false, {info, "gradBeta"}));
  onPieces(graph, spread, vertexName("InsideUnit", poplar::FLOAT), gradient,
           in.beta.reshape({1, in.beta.numElements()}), prog, {info, "inside"});
  out.beta = gradient.reshape(in.beta.shape());
  return out;
}

} // namespace graph
} // namespace snnipu
