// SparseNetwork and its gradient: fully connected spiking layers that exchange spike ids and compute each step at the
// same time.
//   inputs   ids, values [T, B, S], counts [T, B, 2] of the input; then for each layer weight [N, I], beta, threshold
//            (one element, or one for each neuron), with has_bias bias [N], and of a recurrent layer its recurrent
//            weight [N, N]
//   outputs  for each layer ids, values [T, B, slots], counts, dropped [T, B, 2], mem [T, B, N]
//   attributes with one entry for each layer: slots, has_grad_threshold, grad_threshold, input_scale, and optionally
//            recurrent (1 if the layer reads its own spikes of the step before); common ones: reset, rotate, has_bias,
//            unit_values, input_gradient, surrogate, surrogate_a, surrogate_b, plan
//   plan     for each layer its first tile; n, then n pairs (neurons of a tile, number of consecutive such tiles); g,
//            then g pairs (samples of a group of tiles, number of consecutive such groups); its first selection tile;
//            m, then m pairs (samples of a tile, number of such tiles)
// Values of the input and of all layers are FLOAT or FLOAT16, and so are each layer's weights; states, sums and other
// parameters are FLOAT. Gradients enter through the values of any layer. mem is for the backward pass and has no
// gradient.
#include "operator.hpp"

#include "graph/sparse_network.hpp"

namespace snnipu {
namespace ops {

struct NetworkAttributes {
  enum Parameters { Weight, Beta, Threshold, Bias, Recurrent };
  static constexpr int firstParameter = 3;

  popart::Attributes::Ints slots, second, recurrent, plan;
  popart::Attributes::Floats gradThreshold, inputScale;
  Reset reset = Reset::Subtract;
  bool rotate = false, bias = false, unitValues = false, inputGradient = true;
  SurrogateAttributes surrogate;

  template <typename Visitor> void each(Visitor &&visit) {
    visit("slots", slots);
    visit("has_grad_threshold", second);
    visit("recurrent", recurrent, ReadAttributes::Optional());
    visit("plan", plan);
    visit("grad_threshold", gradThreshold);
    visit("input_scale", inputScale);
    visit("reset", reset, 3);
    visit("rotate", rotate);
    visit("has_bias", bias);
    visit("unit_values", unitValues);
    visit("input_gradient", inputGradient);
    surrogate.each(visit);
  }

  int layers() const { return static_cast<int>(slots.size()); }
  bool isRecurrent(std::size_t layer) const { return !recurrent.empty() && recurrent[layer] != 0; }
  bool has(int layer, Parameters which) const {
    return which == Bias ? bias : which != Recurrent || isRecurrent(static_cast<std::size_t>(layer));
  }
  // Return the index of the input that holds a parameter, if the layer has it.
  int parameter(int layer, Parameters which) const {
    int place = firstParameter;
    for (int l = 0; l < layer; ++l)
      place += 3 + has(l, Bias) + has(l, Recurrent);
    return place + (which == Recurrent ? 3 + has(layer, Bias) : which);
  }
};

// Reads the entries of the plan one after another.
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

// weight(layer) returns the shape of the layer's weight.
template <typename Shape> graph::SparseNetworkOptions optionsOf(const NetworkAttributes &a, const Shape &weight) {
  graph::SparseNetworkOptions options;
  PlanReader plan(a.plan);
  for (int l = 0; l < a.layers(); ++l) {
    const std::size_t i = static_cast<std::size_t>(l);
    const std::vector<std::size_t> shape = weight(l);
    options.layers.push_back({shape.at(1), shape.at(0), static_cast<std::size_t>(a.slots[i]), a.second[i] != 0,
                              a.gradThreshold[i], a.inputScale[i], a.isRecurrent(i)});
    graph::LayerPlan layer;
    layer.firstTile = plan.next();
    layer.neurons = plan.runs();
    layer.groups = plan.runs();
    layer.firstSelectionTile = plan.next();
    layer.rows = plan.runs();
    options.plan.push_back(layer);
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

struct SparseNetwork : Described<SparseNetwork, NetworkAttributes> {
  enum { Ids, Values, Counts };
  enum Outputs { OutIds, OutValues, OutCounts, OutDropped, OutMem, OutputsOfLayer };

  static constexpr const char *name = "SparseNetwork";
  static Fields spikes() { return {{"ids"}, {"values", FloatOrHalf}, {"counts"}}; }
  // Indexed by NetworkAttributes::Parameters.
  static Fields parameters() {
    return {{"weight", FloatOrHalf}, {"beta"}, {"threshold"}, {"bias"}, {"recurrent_weight", FloatOrHalf}};
  }
  // The inputs of the first layer; other layers have the same kinds.
  static Fields inputs() {
    Fields fields = spikes();
    for (const Field &parameter : parameters())
      fields.push_back(parameter);
    return fields;
  }
  static Fields outputs() { return {{"ids"}, {"values", FloatOrHalf}, {"counts"}, {"dropped"}, {"mem"}}; }
  static Fields inputsOf(const Attributes &attributes) {
    Fields fields = spikes();
    eachParameter(attributes, [&](int, Attributes::Parameters which, int) {
      fields.push_back(parameters()[static_cast<std::size_t>(which)]);
    });
    return fields;
  }
  static int outputOf(int layer, Outputs which) { return layer * OutputsOfLayer + which; }

  static void check(const Attributes &read) {
    const std::size_t layers = read.slots.size();
    if (layers == 0 || read.second.size() != layers || read.gradThreshold.size() != layers ||
        read.inputScale.size() != layers || (!read.recurrent.empty() && read.recurrent.size() != layers))
      throw popart::error("SparseNetwork: slots, has_grad_threshold, grad_threshold, input_scale and recurrent have an "
                          "entry for each layer");
    for (std::size_t l = 0; l < layers; ++l)
      if (read.slots[l] < 1 || read.second[l] < 0 || read.second[l] > 1 ||
          (!read.recurrent.empty() && (read.recurrent[l] < 0 || read.recurrent[l] > 1)))
        throw popart::error("SparseNetwork: slots must be 1 or more, has_grad_threshold and recurrent 0 or 1");
  }
  static Infos shapes(const Attributes &attributes, const InfoOf &in) {
    Infos infos;
    for (int l = 0; l < attributes.layers(); ++l) {
      for (const popart::TensorInfo &info : slotsLike(in(Values), attributes.slots[static_cast<std::size_t>(l)]))
        infos.push_back(info);
      infos.push_back(likeRows(in(Values), in(attributes.parameter(l, Attributes::Weight)).dim(0)));
    }
    return infos;
  }
  // The loss may depend on the spikes of any layer. mem has a gradient input so that a loss on it can be refused.
  static Gradient gradient(const Attributes &attributes) {
    Gradient gradient;
    gradient.readEveryInput(static_cast<int>(inputsOf(attributes).size()));
    for (int l = 0; l < attributes.layers(); ++l)
      for (const Source &source :
           {gradientOf(outputOf(l, OutValues), true), gradientOf(outputOf(l, OutMem), true),
            output(outputOf(l, OutIds)), output(outputOf(l, OutCounts)), output(outputOf(l, OutMem))})
        gradient.reads.push_back(source);
    return gradient;
  }

  static bool createsInput(const Attributes &attributes, const Source &source, bool) {
    if (source.kind != popart::GradOpInType::In)
      return source.kind == popart::GradOpInType::Out && source.index % OutputsOfLayer == OutMem;
    bool weight = false;
    eachParameter(attributes, [&](int, Attributes::Parameters which, int place) {
      weight |= place == source.index && (which == Attributes::Weight || which == Attributes::Recurrent);
    });
    return weight;
  }
  static poplar::Tensor createInput(const Lowering<SparseNetwork> &at, const Source &source,
                                    const poplar::DebugContext &name) {
    const std::vector<std::size_t> ids = at.info(input(Ids)).shape_szt();
    if (source.kind != popart::GradOpInType::In)
      return graph::createNetworkMembranes(
          at.graph(), options(at), static_cast<std::size_t>(source.index / OutputsOfLayer), ids.at(0), ids.at(1), name);
    poplar::Tensor weight;
    eachParameter(at.attributes(), [&](int layer, Attributes::Parameters which, int place) {
      if (place == source.index)
        weight =
            graph::createNetworkWeight(at.graph(), options(at), static_cast<std::size_t>(layer),
                                       which == Attributes::Recurrent, ids.at(1), poplarType(at.info(source)), name);
    });
    return weight;
  }

  static void grow(const Lowering<SparseNetwork> &at, poplar::program::Sequence &prog) {
    const std::vector<graph::NetworkOutputs> out =
        graph::sparseNetwork(at.graph(), at.slots(), tensors(at), prog, options(at), at.label());
    for (int l = 0; l < at.attributes().layers(); ++l) {
      const graph::NetworkOutputs &layer = out[static_cast<std::size_t>(l)];
      at.setSlots(outputOf(l, OutIds), layer.spikes);
      at.set(outputOf(l, OutDropped), layer.spikes.dropped);
      at.set(outputOf(l, OutMem), layer.mem);
    }
  }
  static void growGradient(const Lowering<SparseNetwork> &at, poplar::program::Sequence &prog) {
    std::vector<poplar::Tensor> gradValues;
    std::vector<graph::NetworkOutputs> outputs;
    for (int l = 0; l < at.attributes().layers(); ++l) {
      if (at.has(gradientOf(outputOf(l, OutMem))))
        throw popart::error("{}: the membranes of layer {} are on the path to the loss, and carry no gradient: take "
                            "the loss from the values of its spikes",
                            identifierOf<SparseNetwork>(true), l);
      gradValues.push_back(at.at(gradientOf(outputOf(l, OutValues))));
      outputs.push_back({{at.at(output(outputOf(l, OutIds))), {}, at.at(output(outputOf(l, OutCounts))), {}},
                         at.at(output(outputOf(l, OutMem)))});
    }
    const graph::NetworkGradients out = graph::sparseNetworkGrad(at.graph(), gradValues, at.slots(), tensors(at),
                                                                 outputs, prog, options(at), at.label());
    at.setZeros(Ids);
    at.set(Values, out.inputValues);
    at.setZeros(Counts);
    eachParameter(at.attributes(), [&](int layer, Attributes::Parameters which, int place) {
      graph::NetworkParameters gradients = out.parameters[static_cast<std::size_t>(layer)];
      at.set(place, parameterOf(gradients, which));
    });
  }

private:
  // Call visit(layer, which, index) for each existing parameter, in the order of the inputs.
  template <typename Visit> static void eachParameter(const Attributes &attributes, const Visit &visit) {
    for (int l = 0; l < attributes.layers(); ++l)
      for (const auto which :
           {Attributes::Weight, Attributes::Beta, Attributes::Threshold, Attributes::Bias, Attributes::Recurrent})
        if (attributes.has(l, which))
          visit(l, which, attributes.parameter(l, which));
  }
  static poplar::Tensor &parameterOf(graph::NetworkParameters &of, Attributes::Parameters which) {
    poplar::Tensor *const all[] = {&of.weight, &of.beta, &of.threshold, &of.bias, &of.recurrentWeight};
    return *all[which];
  }
  static std::vector<graph::NetworkParameters> tensors(const Lowering<SparseNetwork> &at) {
    std::vector<graph::NetworkParameters> all(static_cast<std::size_t>(at.attributes().layers()));
    eachParameter(at.attributes(), [&](int layer, Attributes::Parameters which, int place) {
      parameterOf(all[static_cast<std::size_t>(layer)], which) = at.in(place);
    });
    return all;
  }
  static graph::SparseNetworkOptions options(const Lowering<SparseNetwork> &at) {
    return optionsOf(at.attributes(), [&at](int layer) {
      return at.info(input(at.attributes().parameter(layer, Attributes::Weight))).shape_szt();
    });
  }
};

const Registered<SparseNetwork> sparseNetwork;

} // namespace ops
} // namespace snnipu
