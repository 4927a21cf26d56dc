// SparseLinear and its gradient: a linear layer on spike ids.
//   inputs   ids, values [T, B, S], counts [T, B, 2], weight [N, I], and bias [N] where there is a fifth one
//   outputs  y [T, B, N], of the values' type
// values and weight are FLOAT or FLOAT16, each for itself; ids, counts and bias FLOAT, and so are all sums. ids and
// counts get a gradient of zeros: without one PopART would drop that of the operator that made them.
#include "common.hpp"

#include "graph/sparse_linear.hpp"

namespace snnipu {
namespace ops {
namespace sparse_linear { // named: the IPU model compiles all operators as one file

enum Inputs { Ids, Values, Counts, Weight, Bias };

struct SparseLinearAttributes {
  bool unitValues;

  static SparseLinearAttributes read(const popart::Attributes &attributes) { return {flag(attributes, "unit_values")}; }
  void append(popart::OpSerialiserBase &to) const {
    to.appendAttribute("unit_values", static_cast<int64_t>(unitValues));
  }
};

popart::OperatorIdentifier linearId() { return identifier("SparseLinear"); }
popart::OperatorIdentifier gradId() { return identifier("SparseLinearGrad"); }

class SparseLinearGradOp : public OpWith<SparseLinearAttributes> {
public:
  // Behind the gradient: the operator's own inputs, in their order.
  static constexpr int grad = 0, own = 1;

  SparseLinearGradOp(const popart::Op &forward, const SparseLinearAttributes &attributes)
      : OpWith(gradId(), forward.settings, attributes) {
    inputs_.emplace_back(grad, 0, popart::GradOpInType::GradOut);
    const int last = forward.hasInput(Bias) ? Bias : Weight;
    for (int i = Ids; i <= last; ++i) {
      inputs_.emplace_back(own + i, i, popart::GradOpInType::In);
      outputs_.emplace(i, i);
    }
  }

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SparseLinearGradOp>(*this); }
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

popart::TensorInfo outputInfo(const popart::TensorInfo &values, const popart::TensorInfo &weight) {
  return likeRows(values, weight.dim(0), values.dataType());
}

poplar::Tensor createWeight(poplar::Graph &graph, const popart::TensorInfo &ids, const popart::TensorInfo &weight,
                            const poplar::DebugNameAndId &name) {
  const std::vector<std::size_t> shape = weight.shape_szt(), spikes = ids.shape_szt();
  return graph::createSparseLinearWeight(graph, shape.at(0), shape.at(1), spikes.at(0) * spikes.at(1), spikes.at(2),
                                         poplarType(weight), {name});
}

class SparseLinearOp : public OpWith<SparseLinearAttributes> {
public:
  using OpWith::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SparseLinearOp>(*this); }
  void setup() override {
    checkFloat(*this, Ids, "ids");
    checkFloatOrHalf(*this, Values, "values");
    checkFloat(*this, Counts, "counts");
    checkFloatOrHalf(*this, Weight, "weight");
    if (hasInput(Bias))
      checkFloat(*this, Bias, "bias");
    outInfo(0) = outputInfo(inInfo(Values), inInfo(Weight));
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    return gradOps(std::make_unique<SparseLinearGradOp>(*this, attributes));
  }
  std::set<popart::InIndex> optionalInputs() const override { return {Bias}; }
};

class SparseLinearOpx : public Opx {
public:
  SparseLinearOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SparseLinearOp>(op, linearId());
    addCodelets(graph());
  }

  popart::popx::InputCreatorType getInputCreatorType(popart::InIndex index) const override {
    return index == Weight ? popart::popx::InputCreatorType::CanCreate : popart::popx::InputCreatorType::Deadend;
  }
  poplar::Tensor createInputTensor(popart::InIndex, const poplar::DebugNameAndId &name) const override {
    return createWeight(graph(), inInfo(Ids), inInfo(Weight), name);
  }
  std::set<popart::TensorId> mustExistBeforeCreate(int) const override { return {}; }

  void grow(poplar::program::Sequence &prog) const override {
    const graph::SparseLinearInputs in = {
        {getInTensor(Ids), getInTensor(Values), getInTensor(Counts), {}}, getInTensor(Weight), optionalInput(Bias)};
    setOutTensor(0, graph::sparseLinear(graph(), in, getOp<SparseLinearOp>().attributes.unitValues, prog,
                                        debugContext("sparseLinear")));
  }
};

class SparseLinearGradOpx : public Opx {
public:
  SparseLinearGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SparseLinearGradOp>(op, gradId());
    addCodelets(graph());
  }

  popart::popx::InputCreatorType getInputCreatorType(popart::InIndex index) const override {
    return index == SparseLinearGradOp::own + Weight ? popart::popx::InputCreatorType::CanCreate
                                                     : popart::popx::InputCreatorType::Deadend;
  }
  poplar::Tensor createInputTensor(popart::InIndex index, const poplar::DebugNameAndId &name) const override {
    return createWeight(graph(), inInfo(SparseLinearGradOp::own + Ids), inInfo(index), name);
  }
  std::set<popart::TensorId> mustExistBeforeCreate(int) const override { return {}; }

  void grow(poplar::program::Sequence &prog) const override {
    constexpr int own = SparseLinearGradOp::own;
    const graph::SparseLinearInputs in = {
        {getInTensor(own + Ids), getInTensor(own + Values), getInTensor(own + Counts), {}},
        getInTensor(own + Weight),
        optionalInput(own + Bias)};
    const graph::SparseLinearGradients out = graph::sparseLinearGrad(graph(), getInTensor(SparseLinearGradOp::grad), in,
                                                                     getOp<SparseLinearGradOp>().attributes.unitValues,
                                                                     prog, debugContext("sparseLinearGrad"));
    setOutTensor(Ids, graph::zeros(graph(), outInfo(Ids).shape_szt(), debugContext("gradIds")));
    setOutTensor(Values, out.values);
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
                                      attributesNamed({"unit_values"}));

const popart::OpCreator<SparseLinearOp> creator =
    creatorOf<SparseLinearOp, SparseLinearAttributes>(linearId(), definition);
const popart::popx::OpxCreator<SparseLinearOpx> opxCreator(linearId());
const popart::popx::OpxCreator<SparseLinearGradOpx> gradOpxCreator(gradId());
const popart::RegisterShapeInferenceFunction shapes(linearId(), [](popart::ShapeInferenceContext &context) {
  context.outInfo(0) = outputInfo(context.inInfo(Values), context.inInfo(Weight));
});

} // namespace sparse_linear
} // namespace ops
} // namespace snnipu
