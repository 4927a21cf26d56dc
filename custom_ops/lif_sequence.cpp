// LifSequence and its gradient: leaky integrate-and-fire over a sequence.
//   inputs   x [T, ...] (FLOAT or FLOAT16), mem0 [...], beta, threshold, graded (FLOAT; one element each, or one for
//            each element of a step modulo their size)
//   outputs  spk, mem [T, ...] of x's type
#include "common.hpp"

#include "graph/lif_sequence.hpp"

namespace snnipu {
namespace ops {
namespace lif_sequence { // named: the IPU model compiles all operators as one file

enum Inputs { X, Mem0, Beta, Threshold, Graded };
enum Outputs { Spk, Mem };

struct LifAttributes {
  Reset reset;
  bool resetDelay;
  SurrogateAttributes surrogate;

  static LifAttributes read(const popart::Attributes &attributes) {
    return {enumeration<Reset>(attributes, "reset", 3), flag(attributes, "reset_delay"),
            SurrogateAttributes::read(attributes)};
  }
  void append(popart::OpSerialiserBase &to) const {
    to.appendAttribute("reset", static_cast<int64_t>(reset));
    to.appendAttribute("reset_delay", static_cast<int64_t>(resetDelay));
    surrogate.append(to);
  }
  graph::LifSequenceOptions options() const { return {reset, resetDelay, surrogate.kind, surrogate.a, surrogate.b}; }
};

popart::OperatorIdentifier lifId() { return identifier("LifSequence"); }
popart::OperatorIdentifier gradId() { return identifier("LifSequenceGrad"); }

class LifSequenceGradOp : public OpWith<LifAttributes> {
public:
  // Inputs of the gradient; the last five are the operator's own, in their order, but for x where it is not needed.
  enum GradInputs { GradSpk, GradMem, Membranes, FirstParameter };

  LifSequenceGradOp(const popart::Op &forward, const LifAttributes &attributes)
      : OpWith(gradId(), forward.settings, attributes) {
    using popart::GradOpInType;
    inputs_ = {{GradSpk, Spk, GradOpInType::GradOut}, {GradMem, Mem, GradOpInType::GradOut}};
    // Without a delayed reset the membranes before it are needed, and are computed anew.
    if (attributes.resetDelay)
      inputs_.emplace_back(Membranes, Mem, GradOpInType::Out);
    else
      inputs_.emplace_back(Membranes, X, GradOpInType::In);
    for (int i = Mem0; i <= Graded; ++i)
      inputs_.emplace_back(FirstParameter + i - Mem0, i, GradOpInType::In);
  }

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<LifSequenceGradOp>(*this); }
  void setup() override {
    outInfo(X) = inInfo(Membranes);
    for (int i = Mem0; i <= Graded; ++i)
      outInfo(i) = inInfo(FirstParameter + i - Mem0);
  }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override { return inputs_; }
  const std::map<int, int> &gradOutToNonGradIn() const override {
    static const std::map<int, int> outputs = {
        {X, X}, {Mem0, Mem0}, {Beta, Beta}, {Threshold, Threshold}, {Graded, Graded}};
    return outputs;
  }
  // A loss may depend on the spikes alone, or on the membranes.
  std::set<popart::InIndex> optionalInputs() const override { return {GradSpk, GradMem}; }

private:
  std::vector<popart::GradInOutMapper> inputs_;
};

class LifSequenceOp : public OpWith<LifAttributes> {
public:
  using OpWith::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<LifSequenceOp>(*this); }
  void setup() override {
    checkFloat(*this, Mem0, "mem0");
    checkFloat(*this, Beta, "beta");
    checkFloat(*this, Threshold, "threshold");
    checkFloat(*this, Graded, "graded");
    outInfo(Spk) = inInfo(X);
    outInfo(Mem) = inInfo(X);
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    return gradOps(std::make_unique<LifSequenceGradOp>(*this, attributes));
  }
};

class LifSequenceOpx : public Opx {
public:
  LifSequenceOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<LifSequenceOp>(op, lifId());
    addCodelets(graph());
  }

  popart::popx::InputCreatorType getInputCreatorType(popart::InIndex index) const override {
    return index == X ? popart::popx::InputCreatorType::CanCreate : popart::popx::InputCreatorType::Deadend;
  }
  poplar::Tensor createInputTensor(popart::InIndex, const poplar::DebugNameAndId &name) const override {
    const poplar::Type type = poplarType(inInfo(X));
    return graph::createLifSequenceInput(graph(), type, inInfo(X).shape_szt(), {name});
  }
  std::set<popart::TensorId> mustExistBeforeCreate(int) const override { return {}; }

  void grow(poplar::program::Sequence &prog) const override {
    const graph::LifSequenceInputs in = {getInTensor(X), getInTensor(Mem0), getInTensor(Beta), getInTensor(Threshold),
                                         getInTensor(Graded)};
    const LifSequenceOp &op = getOp<LifSequenceOp>();
    const graph::LifSequenceOutputs out =
        graph::lifSequence(graph(), in, prog, op.attributes.options(), debugContext("lifSequence"));
    setOutTensor(Spk, out.spk);
    setOutTensor(Mem, out.mem);
  }
};

class LifSequenceGradOpx : public Opx {
public:
  LifSequenceGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<LifSequenceGradOp>(op, gradId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    using Grad = LifSequenceGradOp;
    const LifAttributes &attributes = getOp<Grad>().attributes;
    const auto parameter = [this](int of) { return getInTensor(Grad::FirstParameter + of - Mem0); };
    graph::LifSequenceInputs in = {{}, parameter(Mem0), parameter(Beta), parameter(Threshold), parameter(Graded)};
    poplar::Tensor mem;
    (attributes.resetDelay ? mem : in.x) = getInTensor(Grad::Membranes);
    const graph::LifSequenceInputs out =
        graph::lifSequenceGrad(graph(), optionalInput(Grad::GradSpk), optionalInput(Grad::GradMem), mem, in, prog,
                               attributes.options(), debugContext("lifSequenceGrad"));
    setOutTensor(X, out.x);
    setOutTensor(Mem0, out.mem0.reshape(outInfo(Mem0).shape_szt()));
    setOutTensor(Beta, out.beta);
    setOutTensor(Threshold, out.threshold);
    setOutTensor(Graded, out.graded);
  }
};

const popart::OpDefinition
    definition(popart::OpDefinition::Inputs({{"x", floatsAndHalves()},
                                             {"mem0", floats()},
                                             {"beta", floats()},
                                             {"threshold", floats()},
                                             {"graded", floats()}}),
               popart::OpDefinition::Outputs({{"spk", floatsAndHalves()}, {"mem", floatsAndHalves()}}),
               attributesNamed({"reset", "reset_delay", "surrogate", "surrogate_a", "surrogate_b"}));

const popart::OpCreator<LifSequenceOp> creator = creatorOf<LifSequenceOp, LifAttributes>(lifId(), definition);
const popart::popx::OpxCreator<LifSequenceOpx> opxCreator(lifId());
const popart::popx::OpxCreator<LifSequenceGradOpx> gradOpxCreator(gradId());
const popart::RegisterShapeInferenceFunction shapes(lifId(), [](popart::ShapeInferenceContext &context) {
  context.outInfo(Spk) = context.inInfo(X);
  context.outInfo(Mem) = context.inInfo(X);
});

} // namespace lif_sequence
} // namespace ops
} // namespace snnipu
