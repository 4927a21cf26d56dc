// SparseConv2d and its gradient: a convolution of spike ids.
//   inputs   ids, values [T, B, S], counts [T, B, 2] of maps [C, H, W] flattened, weight [out, C / groups, h, w], and
//            bias [out] where there is a fifth one
//   outputs  y [T, B, out * H' * W'], of the values' type
//   attributes  geometry: C, H, W, out, H', W', h, w, and vertical and horizontal stride, padding and dilation, groups;
//            plan: output channels of a tile, lines of their maps, rows (time, sample) of a share; input_gradient: 0
//            where nobody asks for the gradient of the values: it is zeros then
// values and weight are FLOAT or FLOAT16, each for itself; ids, counts and bias FLOAT, and so are all sums. ids and
// counts get a gradient of zeros: without one PopART would drop that of the operator that made them.
#include "common.hpp"

#include "graph/sparse_conv2d.hpp"

namespace snnipu {
namespace ops {
namespace sparse_conv2d { // named: the IPU model compiles all operators as one file

enum Inputs { Ids, Values, Counts, Weight, Bias };

struct SparseConv2dAttributes {
  popart::Attributes::Ints geometry, plan;
  bool inputGradient;

  static SparseConv2dAttributes read(const popart::Attributes &attributes) {
    return {wholeNumbers(attributes, "geometry", 15), wholeNumbers(attributes, "plan", 3),
            flag(attributes, "input_gradient")};
  }
  void append(popart::OpSerialiserBase &to) const {
    to.appendAttribute("geometry", geometry);
    to.appendAttribute("plan", plan);
    to.appendAttribute("input_gradient", static_cast<int64_t>(inputGradient));
  }

  graph::SparseConv2dSizes sizes() const {
    const auto at = [&](std::size_t place) { return static_cast<std::size_t>(geometry[place]); };
    return {{at(0), at(1), at(2)},
            {at(3), at(4), at(5)},
            {at(6), at(7), at(8), at(9), at(10), at(11), at(12), at(13)},
            at(14)};
  }
  graph::SparseConv2dPlan planned() const {
    return {static_cast<std::size_t>(plan[0]), static_cast<std::size_t>(plan[1]), static_cast<std::size_t>(plan[2])};
  }
};

popart::OperatorIdentifier convId() { return identifier("SparseConv2d"); }
popart::OperatorIdentifier gradId() { return identifier("SparseConv2dGrad"); }

class SparseConv2dGradOp : public OpWith<SparseConv2dAttributes> {
public:
  // Behind the gradient: the operator's own inputs, in their order.
  static constexpr int grad = 0, own = 1;

  SparseConv2dGradOp(const popart::Op &forward, const SparseConv2dAttributes &attributes)
      : OpWith(gradId(), forward.settings, attributes) {
    inputs_.emplace_back(grad, 0, popart::GradOpInType::GradOut);
    const int last = forward.hasInput(Bias) ? Bias : Weight;
    for (int i = Ids; i <= last; ++i) {
      inputs_.emplace_back(own + i, i, popart::GradOpInType::In);
      outputs_.emplace(i, i);
    }
  }

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SparseConv2dGradOp>(*this); }
  void setup() override {
    for (const auto &output : outputs_)
      outInfo(output.first) = inInfo(own + output.first);
  }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override { return inputs_; }
  const std::map<int, int> &gradOutToNonGradIn() const override { return outputs_; }

private:
  std::vector<popart::GradInOutMapper> inputs_;
  std::map<int, int> outputs_;
};

popart::TensorInfo outputInfo(const popart::TensorInfo &values, const graph::SparseConv2dSizes &sizes) {
  return likeRows(values, static_cast<int64_t>(sizes.out.neurons()), values.dataType());
}

poplar::Tensor createWeight(poplar::Graph &graph, const SparseConv2dAttributes &attributes,
                            const popart::TensorInfo &ids, const popart::TensorInfo &weight,
                            const poplar::DebugNameAndId &name) {
  const std::vector<std::size_t> spikes = ids.shape_szt();
  return graph::createSparseConv2dWeight(graph, attributes.sizes(), attributes.planned(), spikes.at(0) * spikes.at(1),
                                         poplarType(weight), {name});
}

class SparseConv2dOp : public OpWith<SparseConv2dAttributes> {
public:
  using OpWith::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SparseConv2dOp>(*this); }
  void setup() override {
    checkFloat(*this, Ids, "ids");
    checkFloatOrHalf(*this, Values, "values");
    checkFloat(*this, Counts, "counts");
    checkFloatOrHalf(*this, Weight, "weight");
    if (hasInput(Bias))
      checkFloat(*this, Bias, "bias");
    const auto &sizes = attributes.geometry;
    const popart::Shape weight = {sizes[3], sizes[14] == 0 ? 0 : sizes[0] / sizes[14], sizes[6], sizes[7]};
    if (inInfo(Weight).shape() != weight)
      throw popart::error("{}: weight must be [out, in / groups, height, width], as the geometry says, got {}", opid,
                          inInfo(Weight));
    outInfo(0) = outputInfo(inInfo(Values), attributes.sizes());
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    return gradOps(std::make_unique<SparseConv2dGradOp>(*this, attributes));
  }
  std::set<popart::InIndex> optionalInputs() const override { return {Bias}; }
};

class SparseConv2dOpx : public Opx {
public:
  SparseConv2dOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SparseConv2dOp>(op, convId());
    addCodelets(graph());
  }

  popart::popx::InputCreatorType getInputCreatorType(popart::InIndex index) const override {
    return index == Weight ? popart::popx::InputCreatorType::CanCreate : popart::popx::InputCreatorType::Deadend;
  }
  poplar::Tensor createInputTensor(popart::InIndex, const poplar::DebugNameAndId &name) const override {
    return createWeight(graph(), getOp<SparseConv2dOp>().attributes, inInfo(Ids), inInfo(Weight), name);
  }
  std::set<popart::TensorId> mustExistBeforeCreate(int) const override { return {}; }

  void grow(poplar::program::Sequence &prog) const override {
    const SparseConv2dAttributes &attributes = getOp<SparseConv2dOp>().attributes;
    const graph::SparseConv2dInputs in = {
        {getInTensor(Ids), getInTensor(Values), getInTensor(Counts), {}}, getInTensor(Weight), optionalInput(Bias)};
    setOutTensor(0, graph::sparseConv2d(graph(), in, attributes.sizes(), attributes.planned(), prog,
                                        debugContext("sparseConv2d")));
  }
};

class SparseConv2dGradOpx : public Opx {
public:
  SparseConv2dGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SparseConv2dGradOp>(op, gradId());
    addCodelets(graph());
  }

  popart::popx::InputCreatorType getInputCreatorType(popart::InIndex index) const override {
    return index == SparseConv2dGradOp::own + Weight ? popart::popx::InputCreatorType::CanCreate
                                                     : popart::popx::InputCreatorType::Deadend;
  }
  poplar::Tensor createInputTensor(popart::InIndex index, const poplar::DebugNameAndId &name) const override {
    return createWeight(graph(), getOp<SparseConv2dGradOp>().attributes, inInfo(SparseConv2dGradOp::own + Ids),
                        inInfo(index), name);
  }
  std::set<popart::TensorId> mustExistBeforeCreate(int) const override { return {}; }

  void grow(poplar::program::Sequence &prog) const override {
    constexpr int own = SparseConv2dGradOp::own;
    const SparseConv2dAttributes &attributes = getOp<SparseConv2dGradOp>().attributes;
    const graph::SparseConv2dInputs in = {
        {getInTensor(own + Ids), getInTensor(own + Values), getInTensor(own + Counts), {}},
        getInTensor(own + Weight),
        optionalInput(own + Bias)};
    const graph::SparseConv2dGradients out =
        graph::sparseConv2dGrad(graph(), getInTensor(SparseConv2dGradOp::grad), in, attributes.sizes(),
                                attributes.planned(), attributes.inputGradient, prog, debugContext("sparseConv2dGrad"));
    setOutTensor(Ids, graph::zeros(graph(), outInfo(Ids).shape_szt(), debugContext("gradIds")));
    setOutTensor(Values, out.values.valid() ? out.values
                                            : graph::zeros(graph(), outInfo(Values).shape_szt(),
                                                           debugContext("gradValues"), poplarType(outInfo(Values))));
    setOutTensor(Counts, graph::zeros(graph(), outInfo(Counts).shape_szt(), debugContext("gradCounts")));
    setOutTensor(Weight, out.weight);
    if (hasInput(own + Bias))
      setOutTensor(Bias, out.bias);
  }
};

const popart::OpDefinition definition(popart::OpDefinition::Inputs({{"ids", floats()},
                                                                    {"values", floatsAndHalves()},
                                                                    {"counts", floats()},
                                                                    {"weight", floatsAndHalves()},
                                                                    {"bias", floats()}}),
                                      popart::OpDefinition::Outputs({{"y", floatsAndHalves()}}),
                                      attributesNamed({"geometry", "plan", "input_gradient"}));

const popart::OpCreator<SparseConv2dOp> creator =
    creatorOf<SparseConv2dOp, SparseConv2dAttributes>(convId(), definition);
const popart::popx::OpxCreator<SparseConv2dOpx> opxCreator(convId());
const popart::popx::OpxCreator<SparseConv2dGradOpx> gradOpxCreator(gradId());
const popart::RegisterShapeInferenceFunction shapes(convId(), [](popart::ShapeInferenceContext &context) {
  context.outInfo(0) =
      outputInfo(context.inInfo(Values), SparseConv2dAttributes::read(context.getAttributes()).sizes());
});

} // namespace sparse_conv2d
} // namespace ops
} // namespace snnipu
