// SurrogateSpike and its gradient: spk = H(u), with a surrogate in the place of its derivative.
//   inputs   u (FLOAT or FLOAT16, any shape)
//   outputs  spk of u's shape and type
#include "common.hpp"

#include "graph/surrogate_spike.hpp"

namespace snnipu {
namespace ops {
namespace surrogate_spike { // named: the IPU model compiles all operators as one file

popart::OperatorIdentifier spikeId() { return identifier("SurrogateSpike"); }
popart::OperatorIdentifier gradId() { return identifier("SurrogateSpikeGrad"); }

class SurrogateSpikeGradOp : public OpWith<SurrogateAttributes> {
public:
  enum GradInputs { GradSpk, U };

  SurrogateSpikeGradOp(const popart::Op &forward, const SurrogateAttributes &attributes)
      : OpWith(gradId(), forward.settings, attributes) {}

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SurrogateSpikeGradOp>(*this); }
  void setup() override { outInfo(0) = inInfo(U); }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override {
    static const std::vector<popart::GradInOutMapper> inputs = {{GradSpk, 0, popart::GradOpInType::GradOut},
                                                                {U, 0, popart::GradOpInType::In}};
    return inputs;
  }
  const std::map<int, int> &gradOutToNonGradIn() const override {
    static const std::map<int, int> outputs = {{0, 0}};
    return outputs;
  }
};

class SurrogateSpikeOp : public OpWith<SurrogateAttributes> {
public:
  using OpWith::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SurrogateSpikeOp>(*this); }
  void setup() override { outInfo(0) = inInfo(0); }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    return gradOps(std::make_unique<SurrogateSpikeGradOp>(*this, attributes));
  }
};

class SurrogateSpikeOpx : public Opx {
public:
  SurrogateSpikeOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SurrogateSpikeOp>(op, spikeId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    setOutTensor(0, graph::surrogateSpike(graph(), getInTensor(0), prog, debugContext("surrogateSpike")));
  }
};

class SurrogateSpikeGradOpx : public Opx {
public:
  SurrogateSpikeGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SurrogateSpikeGradOp>(op, gradId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    using Grad = SurrogateSpikeGradOp;
    const SurrogateAttributes &surrogate = getOp<Grad>().attributes;
    setOutTensor(0, graph::surrogateSpikeGrad(graph(), getInTensor(Grad::GradSpk), getInTensor(Grad::U), prog,
                                              surrogate.kind, surrogate.a, surrogate.b,
                                              debugContext("surrogateSpikeGrad")));
  }
};

const popart::OpDefinition definition(popart::OpDefinition::Inputs({{"u", floatsAndHalves()}}),
                                      popart::OpDefinition::Outputs({{"spk", floatsAndHalves()}}),
                                      attributesNamed({"surrogate", "surrogate_a", "surrogate_b"}));

const popart::OpCreator<SurrogateSpikeOp> creator =
    creatorOf<SurrogateSpikeOp, SurrogateAttributes>(spikeId(), definition);
const popart::popx::OpxCreator<SurrogateSpikeOpx> opxCreator(spikeId());
const popart::popx::OpxCreator<SurrogateSpikeGradOpx> gradOpxCreator(gradId());
const popart::RegisterShapeInferenceFunction shapes(spikeId(), [](popart::ShapeInferenceContext &context) {
  context.outInfo(0) = context.inInfo(0);
});

} // namespace surrogate_spike
} // namespace ops
} // namespace snnipu
