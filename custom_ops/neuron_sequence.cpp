// NeuronSequence and its gradient: a neuron of snnipu/equations.py over a sequence.
//   inputs   x [T, ...] (FLOAT or FLOAT16); the states before the first step [...], in the equation's order, and what
//   the
//            generated kernels take as parameters (FLOAT; one element each, or one for each element of a step modulo
//            their size)
//   outputs  spk and, in order, those states after each step that `states` has bits for: [T, ...] of x's type
//   attributes: neuron (the equation's name), variant (the number of a choice of its options), states, surrogate,
//            surrogate_a, surrogate_b. What the backward pass reads of the states and is not among the outputs, it
//            computes again from x
#include "common.hpp"

#include "graph/neuron_sequence.hpp"

namespace snnipu {
namespace ops {
namespace neuron_sequence { // named: the IPU model compiles all operators as one file

struct NeuronAttributes {
  std::string neuron;
  int64_t variant, states;
  SurrogateAttributes surrogate;

  static NeuronAttributes read(const popart::Attributes &attributes) {
    const NeuronAttributes found{attributes.getAttribute<popart::Attributes::String>("neuron"),
                                 wholeNumber(attributes, "variant", 0), wholeNumber(attributes, "states", 0),
                                 SurrogateAttributes::read(attributes)};
    const graph::NeuronInfo *const info = graph::findNeuron(found.neuron);
    if (!info)
      throw popart::error("Attribute neuron must be one of {}, got {}", graph::neuronNames(), found.neuron);
    if (found.variant >= info->variants)
      throw popart::error("Attribute variant of {} must be from 0 to {}, got {}", info->name, info->variants - 1,
                          found.variant);
    if (found.states >> info->states)
      throw popart::error("Attribute states of {} has bits for {} states, got {}", info->name, info->states,
                          found.states);
    if (info->outputState >= 0 && found.states >> info->outputState & 1)
      throw popart::error("Attribute states of {} has a bit for state {}, which is its output", info->name,
                          info->outputState);
    return found;
  }
  void append(popart::OpSerialiserBase &to) const {
    to.appendAttribute("neuron", neuron);
    to.appendAttribute("variant", variant);
    to.appendAttribute("states", states);
    surrogate.append(to);
  }

  const graph::NeuronInfo &info() const { return *graph::findNeuron(neuron); }
  graph::NeuronOptions options() const {
    return {&info(),    static_cast<unsigned>(variant), static_cast<unsigned>(states), surrogate.kind, surrogate.a,
            surrogate.b};
  }
  int stateCount() const { return static_cast<int>(info().states); }
  int parameterCount() const { return static_cast<int>(info().parameters); }
  // Places of the inputs; x is the first one.
  int initial(int state) const { return 1 + state; }
  int parameter(int number) const { return 1 + stateCount() + number; }
  int inputs() const { return parameter(parameterCount()); }
  // Place of a state among the outputs, behind spk; -1: it is none.
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
};

popart::OperatorIdentifier neuronId() { return identifier("NeuronSequence"); }
popart::OperatorIdentifier gradId() { return identifier("NeuronSequenceGrad"); }

class NeuronSequenceGradOp : public OpWith<NeuronAttributes> {
public:
  NeuronSequenceGradOp(const popart::Op &forward, const NeuronAttributes &attributes)
      : OpWith(gradId(), forward.settings, attributes), x_(forward.inInfo(0)) {
    using popart::GradOpInType;
    const graph::NeuronOptions options = attributes.options();
    const auto add = [this](int of, GradOpInType kind) {
      const int place = static_cast<int>(inputs_.size());
      inputs_.emplace_back(place, of, kind);
      return place;
    };
    for (int i = 0; i < attributes.inputs(); ++i)
      own_.push_back(i > 0 || options.readsInput() ? add(i, GradOpInType::In) : absent);
    for (int o = 0; o < attributes.outputs(); ++o)
      gradients_.push_back(add(o, GradOpInType::GradOut));
    for (int o = 0; o < attributes.outputs(); ++o)
      read_.push_back(!options.recomputes() && reads(options, o) ? add(o, GradOpInType::Out) : absent);
    for (int i = 0; i < attributes.inputs(); ++i) {
      const int number = i - attributes.parameter(0);
      if (number < 0 || (options.neuron->gradients[options.variant] >> number & 1))
        outputs_.emplace(static_cast<int>(outputs_.size()), i);
    }
  }

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<NeuronSequenceGradOp>(*this); }
  void setup() override {
    for (const auto &gradientOf : outputs_)
      outInfo(gradientOf.first) = gradientOf.second == 0 ? x_ : inInfo(own(gradientOf.second));
  }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override { return inputs_; }
  const std::map<int, int> &gradOutToNonGradIn() const override { return outputs_; }
  // A loss may depend on any of the outputs.
  std::set<popart::InIndex> optionalInputs() const override { return {gradients_.begin(), gradients_.end()}; }

  static constexpr int absent = -1;
  const popart::TensorInfo &x() const { return x_; }
  // Places of the operator's own inputs, of the gradients of its outputs, and of the outputs; or absent.
  int own(int input) const { return own_[static_cast<std::size_t>(input)]; }
  int gradient(int output) const { return gradients_[static_cast<std::size_t>(output)]; }
  int read(int output) const { return read_[static_cast<std::size_t>(output)]; }

private:
  bool reads(const graph::NeuronOptions &options, int output) const {
    for (int state = 0; state < attributes.stateCount(); ++state)
      if (options.reads().states() >> state & 1 &&
          output == (state == options.neuron->outputState ? 0 : attributes.output(state)))
        return true;
    return false;
  }

  popart::TensorInfo x_;
  std::vector<int> own_, gradients_, read_;
  std::vector<popart::GradInOutMapper> inputs_;
  std::map<int, int> outputs_;
};

class NeuronSequenceOp : public OpWith<NeuronAttributes> {
public:
  using OpWith::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<NeuronSequenceOp>(*this); }
  void setup() override {
    checkFloatOrHalf(*this, 0, "x");
    for (int i = 1; i <= attributes.inputs(); ++i)
      if (hasInput(i) == (i == attributes.inputs()))
        throw popart::error("{} of {} takes x, {} states and {} parameters", opid, attributes.neuron,
                            attributes.stateCount(), attributes.parameterCount());
    for (int s = 0; s < attributes.stateCount(); ++s)
      checkFloat(*this, attributes.initial(s), "state");
    for (int p = 0; p < attributes.parameterCount(); ++p)
      checkFloat(*this, attributes.parameter(p), "parameter");
    for (int o = 0; o < attributes.outputs(); ++o)
      outInfo(o) = inInfo(0);
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    return gradOps(std::make_unique<NeuronSequenceGradOp>(*this, attributes));
  }

  int own(int input) const { return input; }
};

template <typename OP> class NeuronOpx : public Opx {
public:
  NeuronOpx(popart::Op *op, popart::popx::Devicex *devicex, const popart::OperatorIdentifier &opid) : Opx(op, devicex) {
    verifyOp<OP>(op, opid);
    addCodelets(graph());
  }

  // Sequences: a tile has its elements of all steps.
  popart::popx::InputCreatorType getInputCreatorType(popart::InIndex index) const override {
    for (int i = 1; i < attributes().inputs(); ++i)
      if (own(i) == index)
        return popart::popx::InputCreatorType::Deadend;
    return popart::popx::InputCreatorType::CanCreate;
  }
  poplar::Tensor createInputTensor(popart::InIndex index, const poplar::DebugNameAndId &name) const override {
    const popart::TensorInfo &info = inInfo(index);
    return graph::createNeuronInput(graph(), poplarType(info), info.shape_szt(), {name});
  }
  std::set<popart::TensorId> mustExistBeforeCreate(int) const override { return {}; }

protected:
  const NeuronAttributes &attributes() const { return getOp<OP>().attributes; }
  graph::NeuronInputs inputs() const {
    graph::NeuronInputs in;
    in.x = at(own(0));
    for (int s = 0; s < attributes().stateCount(); ++s)
      in.initial.push_back(getInTensor(own(attributes().initial(s))));
    for (int p = 0; p < attributes().parameterCount(); ++p)
      in.parameters.push_back(getInTensor(own(attributes().parameter(p))));
    return in;
  }
  // The tensor at a place, or an invalid one where there is none.
  poplar::Tensor at(int place) const { return place < 0 ? poplar::Tensor() : optionalInput(place); }

private:
  int own(int input) const { return this->template getOp<OP>().own(input); }
};

class NeuronSequenceOpx : public NeuronOpx<NeuronSequenceOp> {
public:
  NeuronSequenceOpx(popart::Op *op, popart::popx::Devicex *devicex) : NeuronOpx(op, devicex, neuronId()) {}

  void grow(poplar::program::Sequence &prog) const override {
    const graph::NeuronOutputs out =
        graph::neuronSequence(graph(), inputs(), prog, attributes().options(), debugContext("neuronSequence"));
    setOutTensor(0, out.spk);
    for (int s = 0; s < attributes().stateCount(); ++s)
      if (attributes().output(s) > 0)
        setOutTensor(attributes().output(s), out.states[static_cast<std::size_t>(s)]);
  }
};

class NeuronSequenceGradOpx : public NeuronOpx<NeuronSequenceGradOp> {
public:
  NeuronSequenceGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : NeuronOpx(op, devicex, gradId()) {}

  void grow(poplar::program::Sequence &prog) const override {
    const NeuronSequenceGradOp &op = getOp<NeuronSequenceGradOp>();
    const auto outputs = [&](const auto &place) {
      graph::NeuronOutputs found{at(place(0)), {}};
      for (int s = 0; s < attributes().stateCount(); ++s)
        found.states.push_back(attributes().output(s) > 0 ? at(place(attributes().output(s))) : poplar::Tensor());
      return found;
    };
    const graph::NeuronInputs out = graph::neuronSequenceGrad(
        graph(), outputs([&](int o) { return op.gradient(o); }), outputs([&](int o) { return op.read(o); }), inputs(),
        op.x().shape_szt(), poplarType(op.x()), prog, attributes().options(), debugContext("neuronSequenceGrad"));
    for (const auto &gradientOf : op.gradOutToNonGradIn()) {
      const std::size_t input = static_cast<std::size_t>(gradientOf.second), states = out.initial.size();
      setOutTensor(gradientOf.first, input == 0        ? out.x
                                     : input <= states ? out.initial[input - 1]
                                                       : out.parameters[input - 1 - states]);
    }
  }
};

// As many states and parameters as the neuron has.
const popart::OpDefinition definition(
    popart::OpDefinition::Inputs({{"x", floatsAndHalves()}, {"initial", floats()}, {"parameters", floats()}}),
    popart::OpDefinition::Outputs({{"spk", floatsAndHalves()}, {"states", floatsAndHalves()}}),
    attributesNamed({"neuron", "variant", "states", "surrogate", "surrogate_a", "surrogate_b"}));

const popart::OpCreator<NeuronSequenceOp> creator =
    creatorOf<NeuronSequenceOp, NeuronAttributes>(neuronId(), definition);
const popart::popx::OpxCreator<NeuronSequenceOpx> opxCreator(neuronId());
const popart::popx::OpxCreator<NeuronSequenceGradOpx> gradOpxCreator(gradId());
const popart::RegisterShapeInferenceFunction shapes(neuronId(), [](popart::ShapeInferenceContext &context) {
  const NeuronAttributes attributes = NeuronAttributes::read(context.getAttributes());
  for (int o = 0; o < attributes.outputs(); ++o)
    context.outInfo(o) = context.inInfo(0);
});

} // namespace neuron_sequence
} // namespace ops
} // namespace snnipu
