// NeuronSequence and its gradient: a neuron of snnipu/equations.py over a sequence.
//   inputs   x [T, ...] (FLOAT or FLOAT16); the states before the first step [...], in the equation's order, and the
//            parameters of the generated kernels (FLOAT; n elements, of which element i of a step uses i % n)
//   outputs  spk, and the states after each step for which `states` has a bit, in order: [T, ...] of x's type
//   attributes: neuron (the equation's name), variant (index of a choice of its options), states, surrogate,
//            surrogate_a, surrogate_b. The backward pass recomputes states that it reads and that are not outputs from
//            x
#include "operator.hpp"

#include "graph/neuron_sequence.hpp"

namespace snnipu {
namespace ops {

struct NeuronAttributes {
  std::string neuron;
  int64_t variant = 0, states = 0;
  SurrogateAttributes surrogate;

  template <typename Visitor> void each(Visitor &&visit) {
    visit("neuron", neuron);
    visit("variant", variant, 0);
    visit("states", states, 0);
    surrogate.each(visit);
  }

  const graph::NeuronInfo &info() const { return *graph::findNeuron(neuron); }
  graph::NeuronOptions options() const {
    return {&info(),    static_cast<unsigned>(variant), static_cast<unsigned>(states), surrogate.kind, surrogate.a,
            surrogate.b};
  }
  int stateCount() const { return static_cast<int>(info().states); }
  int parameterCount() const { return static_cast<int>(info().parameters); }
  // Indices of the inputs; x is 0.
  int initial(int state) const { return 1 + state; }
  int parameter(int number) const { return 1 + stateCount() + number; }
  int inputs() const { return parameter(parameterCount()); }
  // Return the index of a state among the outputs, after spk; -1 if it is not an output.
  int output(int state) const {
    if (!(states >> state & 1))
      return -1;
    int place = 1;
    for (int other = 0; other < state; ++other)
      place += static_cast<int>(states >> other & 1);
    return place;
  }
  int outputs() const {
    int count = 1;
    for (int state = 0; state < stateCount(); ++state)
      count += output(state) > 0;
    return count;
  }
  // Return true if the adjoint reads an output.
  bool reads(int place) const {
    const graph::NeuronOptions neuronOptions = options();
    for (int state = 0; state < stateCount() && !neuronOptions.recomputes(); ++state)
      if (neuronOptions.reads().states() >> state & 1 &&
          place == (state == neuronOptions.neuron->outputState ? 0 : output(state)))
        return true;
    return false;
  }
};

struct NeuronSequence : Described<NeuronSequence, NeuronAttributes> {
  static constexpr const char *name = "NeuronSequence";
  // A neuron has several states and parameters; inputsOf() lists them.
  static Fields inputs() { return {{"x", FloatOrHalf}, {"initial"}, {"parameters"}}; }
  static Fields outputs() { return {{"spk", FloatOrHalf}, {"states", FloatOrHalf}}; }
  static Fields inputsOf(const Attributes &attributes) {
    Fields fields = {{"x", FloatOrHalf}};
    fields.insert(fields.end(), static_cast<std::size_t>(attributes.stateCount()), {"state"});
    fields.insert(fields.end(), static_cast<std::size_t>(attributes.parameterCount()), {"parameter"});
    return fields;
  }

  static void check(const Attributes &attributes) {
    const graph::NeuronInfo *const info = graph::findNeuron(attributes.neuron);
    if (!info)
      throw popart::error("Attribute neuron must be one of {}, got {}", graph::neuronNames(), attributes.neuron);
    if (attributes.variant >= info->variants)
      throw popart::error("Attribute variant of {} must be from 0 to {}, got {}", info->name, info->variants - 1,
                          attributes.variant);
    if (attributes.states >> info->states)
      throw popart::error("Attribute states of {} has bits for {} states, got {}", info->name, info->states,
                          attributes.states);
    if (info->outputState >= 0 && attributes.states >> info->outputState & 1)
      throw popart::error("Attribute states of {} has a bit for state {}, which is its output", info->name,
                          info->outputState);
  }
  static Infos shapes(const Attributes &attributes, const InfoOf &in) {
    return Infos(static_cast<std::size_t>(attributes.outputs()), in(0));
  }
  // The loss may depend on any of the outputs.
  static Gradient gradient(const Attributes &attributes) {
    Gradient gradient;
    for (int i = 0; i < attributes.inputs(); ++i)
      if (i > 0 || attributes.options().readsInput())
        gradient.reads.push_back(input(i));
    for (int o = 0; o < attributes.outputs(); ++o)
      gradient.reads.push_back(gradientOf(o, true));
    for (int o = 0; o < attributes.outputs(); ++o)
      if (attributes.reads(o))
        gradient.reads.push_back(output(o));
    for (int i = 0; i < attributes.inputs(); ++i) {
      const int number = i - attributes.parameter(0);
      if (number < 0 || attributes.info().gradients[static_cast<std::size_t>(attributes.variant)] >> number & 1)
        gradient.of.push_back(i);
    }
    return gradient;
  }

  // Sequences are created: a tile has some elements, at all steps.
  static bool createsInput(const Attributes &, const Source &source, bool) {
    return source.kind != popart::GradOpInType::In || source.index == 0;
  }
  static poplar::Tensor createInput(const Lowering<NeuronSequence> &at, const Source &sequence,
                                    const poplar::DebugContext &name) {
    return graph::createNeuronInput(at.graph(), poplarType(at.info(sequence)), at.info(sequence).shape_szt(), name);
  }

  static graph::NeuronInputs tensors(const Lowering<NeuronSequence> &at) {
    graph::NeuronInputs in;
    in.x = at.in(0);
    for (int s = 0; s < at.attributes().stateCount(); ++s)
      in.initial.push_back(at.in(at.attributes().initial(s)));
    for (int p = 0; p < at.attributes().parameterCount(); ++p)
      in.parameters.push_back(at.in(at.attributes().parameter(p)));
    return in;
  }
  static void grow(const Lowering<NeuronSequence> &at, poplar::program::Sequence &prog) {
    const Attributes &attributes = at.attributes();
    const graph::NeuronOutputs out =
        graph::neuronSequence(at.graph(), tensors(at), prog, attributes.options(), at.label());
    at.set(0, out.spk);
    for (int s = 0; s < attributes.stateCount(); ++s)
      if (attributes.output(s) > 0)
        at.set(attributes.output(s), out.states[static_cast<std::size_t>(s)]);
  }
  static void growGradient(const Lowering<NeuronSequence> &at, poplar::program::Sequence &prog) {
    const Attributes &attributes = at.attributes();
    graph::NeuronOutputs gradients{at.at(gradientOf(0)), {}}, outputs{at.at(output(0)), {}};
    for (int s = 0; s < attributes.stateCount(); ++s) {
      gradients.states.push_back(at.at(gradientOf(attributes.output(s))));
      outputs.states.push_back(at.at(output(attributes.output(s))));
    }
    const popart::TensorInfo &x = at.outputInfo(0);
    const graph::NeuronInputs out =
        graph::neuronSequenceGrad(at.graph(), gradients, outputs, tensors(at), x.shape_szt(), poplarType(x), prog,
                                  attributes.options(), at.label());
    at.set(0, out.x);
    for (int s = 0; s < attributes.stateCount(); ++s)
      at.set(attributes.initial(s), out.initial[static_cast<std::size_t>(s)]);
    for (int p = 0; p < attributes.parameterCount(); ++p)
      at.set(attributes.parameter(p), out.parameters[static_cast<std::size_t>(p)]);
  }
};

const Registered<NeuronSequence> neuronSequence;

} // namespace ops
} // namespace snnipu
