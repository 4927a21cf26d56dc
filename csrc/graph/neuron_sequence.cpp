#include "graph/neuron_sequence.hpp"

#include "generated_neurons.hpp"
#include "graph/tile_mapping.hpp"
#include "graph/vertex_builder.hpp"

#include <algorithm>
#include <cmath>

namespace snnipu {
namespace graph {
namespace {

template <typename Neuron> NeuronInfo infoOf(const char *type) {
  return {Neuron::name,
          type,
          Neuron::states,
          Neuron::parameters,
          Neuron::variants,
          {std::begin(Neuron::stateNames), std::end(Neuron::stateNames)},
          {std::begin(Neuron::parameterNames), std::end(Neuron::parameterNames)},
          Neuron::outputState,
          [] {
            std::vector<AdjointReads> reads;
            for (unsigned variant = 0; variant < Neuron::variants; ++variant)
              reads.push_back(allReads<Neuron>(variant)); // all parameters have gradients
            return reads;
          }(),
          {std::begin(Neuron::gradients), std::end(Neuron::gradients)}};
}

// The names are one string, "snnipu::A, snnipu::B".
template <typename... Neuron> std::vector<NeuronInfo> infosOf(const std::string &types) {
  std::vector<NeuronInfo> all;
  size_t at = 0;
  const auto next = [&] {
    const size_t end = std::min(types.find(',', at), types.size());
    const std::string type = types.substr(at, end - at);
    at = std::min(end + 2, types.size());
    return type;
  };
  (all.push_back(infoOf<Neuron>(next().c_str())), ...);
  return all;
}

#define SNNIPU_TEXT_OF(...) #__VA_ARGS__
#define SNNIPU_TEXT(...) SNNIPU_TEXT_OF(__VA_ARGS__)

const std::vector<NeuronInfo> &neurons() {
  static const std::vector<NeuronInfo> all = infosOf<SNNIPU_GENERATED_NEURONS>(SNNIPU_TEXT(SNNIPU_GENERATED_NEURONS));
  return all;
}

// Sizes, and the distribution of elements over tiles.
struct Layout {
  size_t steps, elements;
  bool perElement = false;
  Type type;
  ElementMapping mapping;

  Layout(const Graph &graph, const std::vector<size_t> &shape, const Type &type_, const NeuronInputs &in,
         const NeuronInfo &neuron)
      : steps(shape.empty() ? 0 : shape[0]), elements(stepElements(shape)), type(type_),
        mapping(graph, elements, type_) {
    const std::string name = "neuron_sequence, " + neuron.name;
    if (steps == 0 || elements == 0)
      refuse(name, "x must have shape [steps, ...] with at least one element");
    for (size_t s = 0; s < in.initial.size(); ++s)
      check(name, neuron.stateNames[s], in.initial[s], in.initial[s].numElements() == elements);
    for (size_t p = 0; p < in.parameters.size(); ++p) {
      const size_t size = in.parameters[p].numElements();
      check(name, neuron.parameterNames[p], in.parameters[p], size > 0 && elements % size == 0);
      perElement = perElement || size > 1;
    }
  }

  // Join arrays of [steps, ...] to [arrays * steps][elements].
  Tensor rows(const std::vector<Tensor> &arrays) const {
    std::vector<Tensor> flat;
    for (const Tensor &array : arrays)
      flat.push_back(array.reshape({array.numElements() / elements, elements}));
    return flat.size() == 1 ? flat[0] : concat(flat, 0);
  }
  Tensor parameters(const std::vector<Tensor> &of, size_t piece) const {
    std::vector<Tensor> parts;
    for (const Tensor &parameter : of)
      parts.push_back(perElement ? cyclic(parameter, mapping.begin(piece), mapping.count(piece)) : parameter.flatten());
    return concat(parts);
  }

private:
  static size_t stepElements(const std::vector<size_t> &shape) {
    size_t elements = shape.empty() ? 0 : 1;
    for (size_t i = 1; i < shape.size(); ++i)
      elements *= shape[i];
    return elements;
  }
  void check(const std::string &op, const std::string &name, const Tensor &tensor, bool valid) const {
    if (!valid)
      refuse(op, name + " must fit one step of x, " + std::to_string(elements) + " elements, got " +
                     tensor.shapeToString());
  }
};

std::string vertexOf(const char *name, const Layout &layout, const NeuronOptions &options) {
  const std::string variant = "snnipu::Variant::V" + std::to_string(options.variant);
  return vertexName(name, layout.type, options.neuron->type.c_str(), variant.c_str());
}

unsigned bits(unsigned mask) {
  unsigned count = 0;
  for (; mask; mask &= mask - 1)
    ++count;
  return count;
}

// Return the steps of a segment for recomputation: all if there is room, else the number with the least memory for the
// states in a segment and between segments.
size_t segmentSteps(const Graph &graph, const Layout &layout, const NeuronOptions &options) {
  const Target &target = graph.getTarget();
  const double perStep = bits(options.reads().states()), between = options.neuron->states;
  const double steps = static_cast<double>(layout.steps);
  size_t most = 0;
  for (size_t piece = 0; piece < layout.mapping.pieces(); ++piece)
    most = std::max(most, layout.mapping.count(piece));
  const double bytes = perStep * steps * static_cast<double>(most * target.getTypeSize(FLOAT));
  if (bytes <= target.getBytesPerTile() / 16.0)
    return layout.steps;
  return std::min(layout.steps, static_cast<size_t>(std::ceil(std::sqrt(steps * between / perStep))));
}

} // namespace

const NeuronInfo *findNeuron(const std::string &name) {
  for (const NeuronInfo &neuron : neurons())
    if (neuron.name == name)
      return &neuron;
  return nullptr;
}

std::string neuronNames() {
  std::string names;
  for (const NeuronInfo &neuron : neurons())
    names += (names.empty() ? "" : ", ") + neuron.name;
  return names;
}

Tensor createNeuronInput(Graph &graph, const Type &type, const std::vector<size_t> &shape, const DebugContext &debug) {
  size_t elements = 1;
  for (size_t i = 1; i < shape.size(); ++i)
    elements *= shape[i];
  if (shape.empty() || shape[0] == 0 || elements == 0)
    refuse("neuron_sequence", "x must have shape [steps, ...] with at least one element");
  return ElementMapping(graph, elements, type).variable(graph, type, shape[0], debug).reshape(shape);
}

NeuronOutputs neuronSequence(Graph &graph, const NeuronInputs &in, Sequence &prog, const NeuronOptions &options,
                             const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const NeuronInfo &neuron = *options.neuron;
  const Layout layout(graph, in.x.shape(), in.x.elementType(), in, neuron);
  const unsigned savedStates = options.savedStates(), count = bits(savedStates);
  const bool storeSpk = neuron.outputState < 0;
  const Tensor unused = emptyVariable(graph, layout.type), x = layout.rows({in.x});
  const Tensor spk = storeSpk ? layout.mapping.variable(graph, layout.type, layout.steps, {info, "spk"}) : unused;
  const Tensor states =
      count ? layout.mapping.variable(graph, layout.type, count * layout.steps, {info, "states"}) : unused;
  const Tensor state = layout.mapping.variable(graph, FLOAT, neuron.states, {info, "state"});
  prog.add(Copy(layout.rows(in.initial).flatten(), state.flatten(), false, {info, "initial"}));
  const ComputeSet cs = graph.addComputeSet({info, "forward"});
  const std::string name = vertexOf("NeuronForward", layout, options);
  for (size_t piece = 0; piece < layout.mapping.pieces(); ++piece) {
    const auto part = [&](const Tensor &of) { return layout.mapping.part(of, piece); };
    VertexBuilder(graph, cs, name, layout.mapping.tile(piece))
        .connect("x", part(x))
        .connect("parameters", layout.parameters(in.parameters, piece))
        .connect("state", part(state))
        .connect("spk", storeSpk ? part(spk) : unused)
        .connect("kept", count ? part(states) : unused)
        .count("steps", layout.steps)
        .count("size", layout.mapping.count(piece))
        .count("keptStates", savedStates)
        .set("perElement", layout.perElement)
        .set("storeSpk", storeSpk);
  }
  prog.add(Execute(cs));
  NeuronOutputs out;
  size_t place = 0;
  for (unsigned s = 0; s < neuron.states; ++s) {
    out.states.emplace_back();
    if (savedStates >> s & 1) {
      out.states.back() = states.slice(place * layout.steps, (place + 1) * layout.steps).reshape(in.x.shape());
      ++place;
    }
  }
  if (storeSpk)
    out.spk = spk.reshape(in.x.shape());
  else
    std::swap(out.spk, out.states[static_cast<size_t>(neuron.outputState)]);
  return out;
}

NeuronInputs neuronSequenceGrad(Graph &graph, const NeuronOutputs &upstream, const NeuronOutputs &outputs,
                                const NeuronInputs &in, const std::vector<size_t> &shape, const Type &type,
                                Sequence &prog, const NeuronOptions &options, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const NeuronInfo &neuron = *options.neuron;
  const Layout layout(graph, shape, type, in, neuron);
  const Tensor unused = emptyVariable(graph, layout.type), unusedState = emptyVariable(graph, FLOAT);
  const bool recompute = options.recomputes(), readsInput = options.readsInput();
  const bool gradSpk = neuron.outputState < 0 && upstream.spk.valid();
  // Return the states of a mask as one array; the output takes the place of the state that it is.
  const auto stacked = [&](const NeuronOutputs &from, unsigned mask) {
    std::vector<Tensor> all;
    for (unsigned s = 0; s < neuron.states; ++s)
      if (mask >> s & 1)
        all.push_back(static_cast<int>(s) == neuron.outputState ? from.spk : from.states.at(s));
    return all.empty() ? unused : layout.rows(all);
  };
  unsigned seeds = 0;
  for (unsigned s = 0; s < neuron.states; ++s)
    if ((static_cast<int>(s) == neuron.outputState ? upstream.spk : upstream.states.at(s)).valid())
      seeds |= 1u << s;
  const unsigned savedStates = recompute ? 0 : options.reads().states();
  const Tensor seed = stacked(upstream, seeds), states = stacked(outputs, savedStates);
  const Tensor x = readsInput ? layout.rows({in.x}) : unused;
  const Tensor spk = gradSpk ? layout.rows({upstream.spk}) : unused;
  const Tensor initial = layout.rows(in.initial);
  const size_t segment = recompute ? segmentSteps(graph, layout, options) : layout.steps;
  const size_t segments = (layout.steps + segment - 1) / segment;
  Tensor recomputed = unusedState, work = unusedState;
  if (recompute) {
    recomputed = layout.mapping.variable(graph, FLOAT, bits(options.reads().states()) * segment, {info, "again"});
    work = layout.mapping.variable(graph, FLOAT, segments * neuron.states, {info, "work"});
  }
  const Tensor gradX = layout.mapping.variable(graph, layout.type, layout.steps, {info, "gradX"});
  const Tensor carry = layout.mapping.variable(graph, FLOAT, neuron.states, {info, "gradStates"});
  const Tensor sums = layout.mapping.variable(graph, FLOAT, neuron.parameters, {info, "gradParameters"});
  const ComputeSet cs = graph.addComputeSet({info, "backward"});
  const std::string name = vertexOf("NeuronBackward", layout, options);
  for (size_t piece = 0; piece < layout.mapping.pieces(); ++piece) {
    const auto part = [&](const Tensor &of) { return of.numElements() ? layout.mapping.part(of, piece) : of; };
    VertexBuilder(graph, cs, name, layout.mapping.tile(piece))
        .connect("x", part(x))
        .connect("gradSpk", part(spk))
        .connect("seeds", part(seed))
        .connect("kept", part(states))
        .connect("parameters", layout.parameters(in.parameters, piece))
        .connect("initial", part(initial))
        .connect("work", part(work))
        .connect("again", part(recomputed))
        .connect("gradX", part(gradX))
        .connect("carry", part(carry))
        .connect("sums", part(sums))
        .set("surrogateA", options.surrogateA)
        .set("surrogateB", options.surrogateB)
        .set("surrogate", static_cast<unsigned>(options.surrogate))
        .count("steps", layout.steps)
        .count("segment", segment)
        .count("size", layout.mapping.count(piece))
        .count("seedStates", seeds)
        .count("keptStates", savedStates)
        .set("perElement", layout.perElement)
        .set("hasGradSpk", gradSpk)
        .set("recompute", recompute);
  }
  prog.add(Execute(cs));
  NeuronInputs out;
  out.x = gradX.reshape(shape);
  for (size_t s = 0; s < in.initial.size(); ++s)
    out.initial.push_back(carry.slice(s, s + 1).reshape(in.initial[s].shape()));
  for (size_t p = 0; p < in.parameters.size(); ++p)
    out.parameters.push_back(neuron.gradients[options.variant] >> p & 1
                                 ? sumModulo(graph, layout.mapping, sums.slice(p, p + 1), in.parameters[p], 1.0f, prog,
                                             {info, "parameter" + std::to_string(p)})
                                 : Tensor());
  return out;
}

} // namespace graph
} // namespace snnipu
