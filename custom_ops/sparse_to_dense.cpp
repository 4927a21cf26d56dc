// SparseToDense and its gradient: spikes as a dense tensor.
//   inputs   ids, values [T, B, S], counts [T, B, 2]; values FLOAT or FLOAT16, the others FLOAT
//   outputs  dense [T, B, num_neurons], of the values' type
// ids and counts get a gradient of zeros: without one PopART would drop that of the operator that made them.
#include "common.hpp"

#include "graph/sparse_to_dense.hpp"

namespace snnipu {
namespace ops {
namespace sparse_to_dense { // named: the IPU model compiles all operators as one file

enum Inputs { Ids, Values, Counts };

struct SparseToDenseAttributes {
  int64_t neurons;

  static SparseToDenseAttributes read(const popart::Attributes &attributes) {
    return {wholeNumber(attributes, "num_neurons", 1)};
  }
  void append(popart::OpSerialiserBase &to) const { to.appendAttribute("num_neurons", neurons); }
};

popart::OperatorIdentifier denseId() { return identifier("SparseToDense"); }
popart::OperatorIdentifier gradId() { return identifier("SparseToDenseGrad"); }

class SparseToDenseGradOp : public OpWith<SparseToDenseAttributes> {
public:
  enum GradInputs { GradDense, GradIds, GradCounts };

  SparseToDenseGradOp(const popart::Op &forward, const SparseToDenseAttributes &attributes)
      : OpWith(gradId(), forward.settings, attributes) {}

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SparseToDenseGradOp>(*this); }
  void setup() override {
    outInfo(Ids) = inInfo(GradIds);
    outInfo(Values) = {inInfo(GradDense).dataType(), inShape(GradIds)};
    outInfo(Counts) = inInfo(GradCounts);
  }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override {
    using popart::GradOpInType;
    static const std::vector<popart::GradInOutMapper> inputs = {{GradDense, 0, GradOpInType::GradOut},
                                                                {GradIds, Ids, GradOpInType::In},
                                                                {GradCounts, Counts, GradOpInType::In}};
    return inputs;
  }
  const std::map<int, int> &gradOutToNonGradIn() const override {
    static const std::map<int, int> outputs = {{Ids, Ids}, {Values, Values}, {Counts, Counts}};
    return outputs;
  }
};

class SparseToDenseOp : public OpWith<SparseToDenseAttributes> {
public:
  using OpWith::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SparseToDenseOp>(*this); }
  void setup() override {
    checkFloat(*this, Ids, "ids");
    checkFloatOrHalf(*this, Values, "values");
    checkFloat(*this, Counts, "counts");
    outInfo(0) = likeRows(inInfo(Ids), attributes.neurons, inInfo(Values).dataType());
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    return gradOps(std::make_unique<SparseToDenseGradOp>(*this, attributes));
  }
};

class SparseToDenseOpx : public Opx {
public:
  SparseToDenseOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SparseToDenseOp>(op, denseId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    setOutTensor(0, graph::sparseToDense(graph(), {getInTensor(Ids), getInTensor(Values), getInTensor(Counts), {}},
                                         static_cast<std::size_t>(getOp<SparseToDenseOp>().attributes.neurons), prog,
                                         debugContext("sparseToDense")));
  }
};

class SparseToDenseGradOpx : public Opx {
public:
  SparseToDenseGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SparseToDenseGradOp>(op, gradId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    using Grad = SparseToDenseGradOp;
    setOutTensor(Values,
                 graph::sparseToDenseGrad(graph(), getInTensor(Grad::GradDense), getInTensor(Grad::GradIds),
                                          getInTensor(Grad::GradCounts), prog, debugContext("sparseToDenseGrad")));
    setOutTensor(Ids, graph::zeros(graph(), outInfo(Ids).shape_szt(), debugContext("gradIds")));
    setOutTensor(Counts, graph::zeros(graph(), outInfo(Counts).shape_szt(), debugContext("gradCounts")));
  }
};

const popart::OpDefinition
    definition(popart::OpDefinition::Inputs({{"ids", floats()}, {"values", floatsAndHalves()}, {"counts", floats()}}),
               popart::OpDefinition::Outputs({{"dense", floatsAndHalves()}}), attributesNamed({"num_neurons"}));

const popart::OpCreator<SparseToDenseOp> creator =
    creatorOf<SparseToDenseOp, SparseToDenseAttributes>(denseId(), definition);
const popart::popx::OpxCreator<SparseToDenseOpx> opxCreator(denseId());
const popart::popx::OpxCreator<SparseToDenseGradOpx> gradOpxCreator(gradId());
const popart::RegisterShapeInferenceFunction shapes(denseId(), [](popart::ShapeInferenceContext &context) {
  context.outInfo(0) = likeRows(context.inInfo(Ids), context.getAttribute<popart::Attributes::Int>("num_neurons"),
                                context.inInfo(Values).dataType());
});

} // namespace sparse_to_dense
} // namespace ops
} // namespace snnipu
