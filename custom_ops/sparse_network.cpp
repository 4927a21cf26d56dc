// SparseNetwork and its gradient: fully connected spiking layers that exchange spike ids, all layers of a step at once.
//   inputs   ids, values [T, B, S], counts [T, B, 2] of the input; then for each layer weight [N, I], beta, threshold
//            (one element, or one for each neuron), with has_bias bias [N], and of a recurrent layer its recurrent
//            weight [N, N]
//   outputs  for each layer ids, values [T, B, slots], counts, dropped [T, B, 2], mem [T, B, N]
//   attributes, one entry for each layer: slots, has_grad_threshold, grad_threshold, input_scale; for all of them:
//            reset, rotate, has_bias, unit_values, input_gradient, surrogate, surrogate_a, surrogate_b. Optional:
//            recurrent, 0 or 1 for each layer: whether it reads its own spikes of the step before; plan, for each layer
//            its first tile, n, n pairs (neurons on a tile, how many such tiles follow one another), g, g pairs
//            (samples of a group of such tiles, how many such groups follow one another), its first selection tile, m,
//            m pairs (samples on a tile, how many such tiles)
// Values, of the input and of all layers, are FLOAT or FLOAT16, and each layer's weights are; all else is FLOAT: state,
// sums, parameters. Gradients come in through the values of any layer; mem is for the backward pass and carries none.
#include "common.hpp"

#include "graph/sparse_network.hpp"

namespace snnipu {
namespace ops {
namespace sparse_network { // named: the IPU model compiles all operators as one file

enum Inputs { Ids, Values, Counts, FirstParameter };
enum Parameters { Weight, Beta, Threshold, Bias, Recurrent };
enum Outputs { OutIds, OutValues, OutCounts, OutDropped, OutMem, OutputsOfLayer };

struct NetworkAttributes {
  popart::Attributes::Ints slots, second, recurrent, plan;
  popart::Attributes::Floats gradThreshold, inputScale;
  Reset reset;
  bool rotate, bias, unitValues, inputGradient;
  SurrogateAttributes surrogate;

  static NetworkAttributes read(const popart::Attributes &attributes) {
    using popart::Attributes;
    NetworkAttributes read{attributes.getAttribute<Attributes::Ints>("slots"),
                           attributes.getAttribute<Attributes::Ints>("has_grad_threshold"),
                           attributes.getAttribute<Attributes::Ints>("recurrent", {}),
                           attributes.getAttribute<Attributes::Ints>("plan", {}),
                           attributes.getAttribute<Attributes::Floats>("grad_threshold"),
                           attributes.getAttribute<Attributes::Floats>("input_scale"),
                           enumeration<Reset>(attributes, "reset", 3),
                           flag(attributes, "rotate"),
                           flag(attributes, "has_bias"),
                           flag(attributes, "unit_values"),
                           flag(attributes, "input_gradient"),
                           SurrogateAttributes::read(attributes)};
    const std::size_t layers = read.slots.size();
    if (read.recurrent.empty())
      read.recurrent.assign(layers, 0);
    if (layers == 0 || read.second.size() != layers || read.gradThreshold.size() != layers ||
        read.inputScale.size() != layers || read.recurrent.size() != layers)
      throw popart::error("SparseNetwork: slots, has_grad_threshold, grad_threshold, input_scale and recurrent have an "
                          "entry for each layer");
    for (std::size_t l = 0; l < layers; ++l)
      if (read.slots[l] < 1 || read.second[l] < 0 || read.second[l] > 1 || read.recurrent[l] < 0 ||
          read.recurrent[l] > 1)
        throw popart::error("SparseNetwork: slots must be 1 or more, has_grad_threshold and recurrent 0 or 1");
    return read;
  }
  void append(popart::OpSerialiserBase &to) const {
    to.appendAttribute("slots", slots);
    to.appendAttribute("has_grad_threshold", second);
    to.appendAttribute("recurrent", recurrent);
    to.appendAttribute("plan", plan);
    to.appendAttribute("grad_threshold", gradThreshold);
    to.appendAttribute("input_scale", inputScale);
    to.appendAttribute("reset", static_cast<int64_t>(reset));
    to.appendAttribute("rotate", static_cast<int64_t>(rotate));
    to.appendAttribute("has_bias", static_cast<int64_t>(bias));
    to.appendAttribute("unit_values", static_cast<int64_t>(unitValues));
    to.appendAttribute("input_gradient", static_cast<int64_t>(inputGradient));
    surrogate.append(to);
  }

  int layers() const { return static_cast<int>(slots.size()); }
  bool has(int layer, Parameters which) const {
    return which == Bias ? bias : which != Recurrent || recurrent[static_cast<std::size_t>(layer)] != 0;
  }
  // The input that holds a parameter the layer has.
  int parameter(int layer, Parameters which) const {
    int place = FirstParameter;
    for (int l = 0; l < layer; ++l)
      place += 3 + has(l, Bias) + has(l, Recurrent);
    return place + (which == Recurrent ? 3 + has(layer, Bias) : which);
  }
  int inputs() const { return parameter(layers(), Weight); }
};

int outputOf(int layer, Outputs which) { return layer * OutputsOfLayer + which; }

// Entries of the plan, one after the other.
class PlanReader {
public:
  static constexpr std::size_t longest = 1 << 20;

  explicit PlanReader(const popart::Attributes::Ints &plan) : plan_(plan) {}

  std::size_t next() {
    if (at_ >= plan_.size() || plan_[at_] < 0)
      throw popart::error("SparseNetwork: attribute plan ends too early, or has a negative entry");
    return static_cast<std::size_t>(plan_[at_++]);
  }
  std::vector<std::size_t> runs() {
    std::vector<std::size_t> all;
    for (std::size_t left = next(); left > 0; --left) {
      const std::size_t value = next(), times = next();
      if (value == 0 || times == 0 || times > longest)
        throw popart::error("SparseNetwork: attribute plan has a run of nothing, or one of more than {}", longest);
      all.insert(all.end(), times, value);
    }
    return all;
  }
  bool atEnd() const { return at_ == plan_.size(); }

private:
  const popart::Attributes::Ints &plan_;
  std::size_t at_ = 0;
};

// weight(layer) is the shape of its weight.
template <typename Weight> graph::SparseNetworkOptions optionsOf(const NetworkAttributes &a, const Weight &weight) {
  graph::SparseNetworkOptions options;
  PlanReader plan(a.plan);
  for (int l = 0; l < a.layers(); ++l) {
    const std::size_t i = static_cast<std::size_t>(l);
    const std::vector<std::size_t> shape = weight(l);
    options.layers.push_back({shape.at(1), shape.at(0), static_cast<std::size_t>(a.slots[i]), a.second[i] != 0,
                              a.gradThreshold[i], a.inputScale[i], a.recurrent[i] != 0});
    if (!a.plan.empty()) {
      graph::LayerPlan layer;
      layer.firstTile = plan.next();
      layer.neurons = plan.runs();
      layer.groups = plan.runs();
      layer.firstSelectionTile = plan.next();
      layer.rows = plan.runs();
      options.plan.push_back(layer);
    }
  }
  if (!plan.atEnd())
    throw popart::error("SparseNetwork: attribute plan has more entries than its layers need");
  options.reset = a.reset;
  options.rotate = a.rotate;
  options.unitInput = a.unitValues;
  options.inputGradient = a.inputGradient;
  options.surrogate = a.surrogate.kind;
  options.surrogateA = a.surrogate.a;
  options.surrogateB = a.surrogate.b;
  return options;
}

popart::OperatorIdentifier networkId() { return identifier("SparseNetwork"); }
popart::OperatorIdentifier gradId() { return identifier("SparseNetworkGrad"); }

class SparseNetworkGradOp : public OpWith<NetworkAttributes> {
public:
  // The operator's own inputs, in their order; then for each layer the gradients of its values and of mem, and what it
  // reads of the outputs.
  enum OfLayer { GradValues, GradMem, OwnIds, OwnCounts, OwnMem, InputsOfLayer };

  SparseNetworkGradOp(const popart::Op &forward, const NetworkAttributes &attributes)
      : OpWith(gradId(), forward.settings, attributes) {
    using popart::GradOpInType;
    for (int i = 0; i < attributes.inputs(); ++i) {
      inputs_.emplace_back(i, i, GradOpInType::In);
      outputs_.emplace(i, i);
    }
    for (int l = 0; l < attributes.layers(); ++l) {
      inputs_.emplace_back(ofLayer(l, GradValues), outputOf(l, OutValues), GradOpInType::GradOut);
      inputs_.emplace_back(ofLayer(l, GradMem), outputOf(l, OutMem), GradOpInType::GradOut);
      inputs_.emplace_back(ofLayer(l, OwnIds), outputOf(l, OutIds), GradOpInType::Out);
      inputs_.emplace_back(ofLayer(l, OwnCounts), outputOf(l, OutCounts), GradOpInType::Out);
      inputs_.emplace_back(ofLayer(l, OwnMem), outputOf(l, OutMem), GradOpInType::Out);
    }
  }

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SparseNetworkGradOp>(*this); }
  void setup() override {
    for (const auto &gradient : outputs_)
      outInfo(gradient.first) = inInfo(gradient.second);
  }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override { return inputs_; }
  const std::map<int, int> &gradOutToNonGradIn() const override { return outputs_; }
  // A loss may depend on the spikes of any of the layers.
  std::set<popart::InIndex> optionalInputs() const override {
    std::set<popart::InIndex> optional;
    for (int l = 0; l < attributes.layers(); ++l) {
      optional.insert(ofLayer(l, GradValues));
      optional.insert(ofLayer(l, GradMem));
    }
    return optional;
  }

  int ofLayer(int layer, OfLayer which) const { return attributes.inputs() + layer * InputsOfLayer + which; }

private:
  std::vector<popart::GradInOutMapper> inputs_;
  std::map<int, int> outputs_;
};

// setInfo(output, info) for all outputs.
template <typename SetInfo>
void outputInfos(const popart::TensorInfo &values, const NetworkAttributes &attributes,
                 const std::vector<int64_t> &neurons, const SetInfo &setInfo) {
  for (int l = 0; l < attributes.layers(); ++l) {
    const std::size_t i = static_cast<std::size_t>(l);
    setInfo(outputOf(l, OutIds), likeRows(values, attributes.slots[i]));
    setInfo(outputOf(l, OutValues), likeRows(values, attributes.slots[i], values.dataType()));
    setInfo(outputOf(l, OutCounts), likeRows(values, 2));
    setInfo(outputOf(l, OutDropped), likeRows(values, 2));
    setInfo(outputOf(l, OutMem), likeRows(values, neurons[i]));
  }
}

class SparseNetworkOp : public OpWith<NetworkAttributes> {
public:
  using OpWith::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SparseNetworkOp>(*this); }
  void setup() override {
    checkFloat(*this, Ids, "ids");
    checkFloatOrHalf(*this, Values, "values");
    checkFloat(*this, Counts, "counts");
    for (int l = 0; l < attributes.layers(); ++l) {
      checkFloatOrHalf(*this, attributes.parameter(l, Weight), "weight");
      checkFloat(*this, attributes.parameter(l, Beta), "beta");
      checkFloat(*this, attributes.parameter(l, Threshold), "threshold");
      if (attributes.bias)
        checkFloat(*this, attributes.parameter(l, Bias), "bias");
      if (attributes.has(l, Recurrent))
        checkFloatOrHalf(*this, attributes.parameter(l, Recurrent), "recurrent_weight");
    }
    if (hasInput(attributes.inputs()))
      throw popart::error("{} has {} inputs: 3 of spikes, and the parameters of {} layers", opid, attributes.inputs(),
                          attributes.layers());
    std::vector<int64_t> neurons;
    for (int l = 0; l < attributes.layers(); ++l)
      neurons.push_back(inInfo(attributes.parameter(l, Weight)).dim(0));
    outputInfos(inInfo(Values), attributes, neurons,
                [this](int index, const popart::TensorInfo &info) { outInfo(index) = info; });
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    return gradOps(std::make_unique<SparseNetworkGradOp>(*this, attributes));
  }
};

// Both Opxs read the operator's inputs at the same places.
template <typename OP> class NetworkOpx : public Opx {
public:
  NetworkOpx(popart::Op *op, popart::popx::Devicex *devicex, const popart::OperatorIdentifier &opid)
      : Opx(op, devicex) {
    verifyOp<OP>(op, opid);
    addCodelets(graph());
  }

  popart::popx::InputCreatorType getInputCreatorType(popart::InIndex index) const override {
    return layerOf(Weight, index) >= 0 || layerOf(Recurrent, index) >= 0 || membranesLayer(index) >= 0
               ? popart::popx::InputCreatorType::CanCreate
               : popart::popx::InputCreatorType::Deadend;
  }
  poplar::Tensor createInputTensor(popart::InIndex index, const poplar::DebugNameAndId &name) const override {
    const popart::TensorInfo &ids = inInfo(Ids);
    const int membranes = membranesLayer(index), recurrent = layerOf(Recurrent, index);
    if (membranes >= 0)
      return graph::createNetworkMembranes(graph(), options(), static_cast<std::size_t>(membranes),
                                           static_cast<std::size_t>(ids.dim(0)), static_cast<std::size_t>(ids.dim(1)),
                                           static_cast<std::size_t>(ids.dim(2)), {name});
    const int layer = recurrent >= 0 ? recurrent : layerOf(Weight, index);
    return graph::createNetworkWeight(graph(), options(), static_cast<std::size_t>(layer), recurrent >= 0,
                                      static_cast<std::size_t>(ids.dim(1)), static_cast<std::size_t>(ids.dim(2)),
                                      poplarType(inInfo(index)), {name});
  }
  std::set<popart::TensorId> mustExistBeforeCreate(int) const override { return {}; }

protected:
  const NetworkAttributes &attributes() const { return getOp<OP>().attributes; }
  graph::SparseNetworkOptions options() const {
    return optionsOf(attributes(),
                     [this](int layer) { return inInfo(attributes().parameter(layer, Weight)).shape_szt(); });
  }
  graph::SlotTensors input() const { return {getInTensor(Ids), getInTensor(Values), getInTensor(Counts), {}}; }
  std::vector<graph::NetworkParameters> parameters() const {
    std::vector<graph::NetworkParameters> all;
    for (int l = 0; l < attributes().layers(); ++l) {
      const auto tensor = [&](Parameters which) {
        return attributes().has(l, which) ? getInTensor(attributes().parameter(l, which)) : poplar::Tensor();
      };
      all.push_back({tensor(Weight), tensor(Beta), tensor(Threshold), tensor(Bias), tensor(Recurrent)});
    }
    return all;
  }

private:
  // Of the layer whose membranes an input of the gradient is; else -1.
  int membranesLayer(popart::InIndex index) const {
    if constexpr (std::is_same_v<OP, SparseNetworkGradOp>)
      for (int l = 0; l < attributes().layers(); ++l)
        if (index == this->template getOp<OP>().ofLayer(l, OP::OwnMem))
          return l;
    return -1;
  }
  // Of the layer whose parameter an input is; else -1.
  int layerOf(Parameters which, popart::InIndex index) const {
    for (int l = 0; l < attributes().layers(); ++l)
      if (attributes().has(l, which) && index == attributes().parameter(l, which))
        return l;
    return -1;
  }
};

class SparseNetworkOpx : public NetworkOpx<SparseNetworkOp> {
public:
  SparseNetworkOpx(popart::Op *op, popart::popx::Devicex *devicex) : NetworkOpx(op, devicex, networkId()) {}

  void grow(poplar::program::Sequence &prog) const override {
    const std::vector<graph::NetworkOutputs> out =
        graph::sparseNetwork(graph(), input(), parameters(), prog, options(), debugContext("sparseNetwork"));
    for (int l = 0; l < attributes().layers(); ++l) {
      const graph::NetworkOutputs &layer = out[static_cast<std::size_t>(l)];
      setOutTensor(outputOf(l, OutIds), layer.spikes.ids);
      setOutTensor(outputOf(l, OutValues), layer.spikes.values);
      setOutTensor(outputOf(l, OutCounts), layer.spikes.counts);
      setOutTensor(outputOf(l, OutDropped), layer.spikes.dropped);
      setOutTensor(outputOf(l, OutMem), layer.mem);
    }
  }
};

class SparseNetworkGradOpx : public NetworkOpx<SparseNetworkGradOp> {
public:
  SparseNetworkGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : NetworkOpx(op, devicex, gradId()) {}

  void grow(poplar::program::Sequence &prog) const override {
    using Grad = SparseNetworkGradOp;
    const Grad &op = getOp<Grad>();
    std::vector<poplar::Tensor> gradValues;
    std::vector<graph::NetworkOutputs> outputs;
    for (int l = 0; l < attributes().layers(); ++l) {
      if (hasInput(op.ofLayer(l, Grad::GradMem)))
        throw popart::error("{}: the membranes of layer {} are on the path to the loss, and carry no gradient: take "
                            "the loss from the values of its spikes",
                            op.opid, l);
      gradValues.push_back(optionalInput(op.ofLayer(l, Grad::GradValues)));
      outputs.push_back(
          {{getInTensor(op.ofLayer(l, Grad::OwnIds)), {}, getInTensor(op.ofLayer(l, Grad::OwnCounts)), {}},
           getInTensor(op.ofLayer(l, Grad::OwnMem))});
    }
    const graph::NetworkGradients out = graph::sparseNetworkGrad(graph(), gradValues, input(), parameters(), outputs,
                                                                 prog, options(), debugContext("sparseNetworkGrad"));
    setOutTensor(Ids, graph::zeros(graph(), outInfo(Ids).shape_szt(), debugContext("gradIds")));
    setOutTensor(Values, out.inputValues);
    setOutTensor(Counts, graph::zeros(graph(), outInfo(Counts).shape_szt(), debugContext("gradCounts")));
    for (int l = 0; l < attributes().layers(); ++l) {
      const graph::NetworkParameters &own = out.parameters[static_cast<std::size_t>(l)];
      setOutTensor(attributes().parameter(l, Weight), own.weight);
      setOutTensor(attributes().parameter(l, Beta), own.beta);
      setOutTensor(attributes().parameter(l, Threshold), own.threshold);
      if (attributes().bias)
        setOutTensor(attributes().parameter(l, Bias), own.bias);
      if (attributes().has(l, Recurrent))
        setOutTensor(attributes().parameter(l, Recurrent), own.recurrentWeight);
    }
  }
};

// Of the first layer; the others' are of the same kind.
const popart::OpDefinition definition(popart::OpDefinition::Inputs({{"ids", floats()},
                                                                    {"values", floatsAndHalves()},
                                                                    {"counts", floats()},
                                                                    {"weight", floatsAndHalves()},
                                                                    {"beta", floats()},
                                                                    {"threshold", floats()},
                                                                    {"bias", floats()},
                                                                    {"recurrent_weight", floatsAndHalves()}}),
                                      popart::OpDefinition::Outputs({{"ids", floats()},
                                                                     {"values", floatsAndHalves()},
                                                                     {"counts", floats()},
                                                                     {"dropped", floats()},
                                                                     {"mem", floats()}}),
                                      attributesNamed({"slots", "has_grad_threshold", "recurrent", "plan",
                                                       "grad_threshold", "input_scale", "reset", "rotate", "has_bias",
                                                       "unit_values", "input_gradient", "surrogate", "surrogate_a",
                                                       "surrogate_b"}));

const popart::OpCreator<SparseNetworkOp> creator =
    creatorOf<SparseNetworkOp, NetworkAttributes>(networkId(), definition);
const popart::popx::OpxCreator<SparseNetworkOpx> opxCreator(networkId());
const popart::popx::OpxCreator<SparseNetworkGradOpx> gradOpxCreator(gradId());
const popart::RegisterShapeInferenceFunction shapes(networkId(), [](popart::ShapeInferenceContext &context) {
  const NetworkAttributes attributes = NetworkAttributes::read(context.getAttributes());
  std::vector<int64_t> neurons;
  for (int l = 0; l < attributes.layers(); ++l)
    neurons.push_back(context.inInfo(attributes.parameter(l, Weight)).dim(0));
  outputInfos(context.inInfo(Values), attributes, neurons,
              [&](int index, const popart::TensorInfo &info) { context.outInfo(index) = info; });
});

} // namespace sparse_network
} // namespace ops
} // namespace snnipu
