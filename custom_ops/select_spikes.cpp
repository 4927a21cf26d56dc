// SelectSpikes and its gradient: spikes of a dense membrane, by two thresholds.
//   inputs   mem [T, B, N] (FLOAT or FLOAT16), threshold (FLOAT; one element, or one for each neuron)
//   outputs  ids, values [T, B, capacity], counts, dropped [T, B, 2]; values of mem's type, the others FLOAT: ids are
//   exact up to 2^24, and an integer output would stop the gradient of the values.
#include "common.hpp"

#include "graph/select_spikes.hpp"

namespace snnipu {
namespace ops {
namespace select_spikes { // named: the IPU model compiles all operators as one file

enum Inputs { Mem, Threshold };
enum Outputs { Ids, Values, Counts, Dropped };

struct SelectAttributes {
  int64_t capacity;
  bool rotate, second;
  float gradThreshold;
  SurrogateAttributes surrogate;

  static SelectAttributes read(const popart::Attributes &attributes) {
    return {wholeNumber(attributes, "capacity", 1), flag(attributes, "rotate"), flag(attributes, "has_grad_threshold"),
            attributes.getAttribute<popart::Attributes::Float>("grad_threshold"),
            SurrogateAttributes::read(attributes)};
  }
  void append(popart::OpSerialiserBase &to) const {
    to.appendAttribute("capacity", capacity);
    to.appendAttribute("rotate", static_cast<int64_t>(rotate));
    to.appendAttribute("has_grad_threshold", static_cast<int64_t>(second));
    to.appendAttribute("grad_threshold", gradThreshold);
    surrogate.append(to);
  }
  graph::SelectSpikesOptions options() const {
    return {
        static_cast<std::size_t>(capacity), rotate, second, gradThreshold, surrogate.kind, surrogate.a, surrogate.b};
  }
};

popart::OperatorIdentifier selectId() { return identifier("SelectSpikes"); }
popart::OperatorIdentifier gradId() { return identifier("SelectSpikesGrad"); }

class SelectSpikesGradOp : public OpWith<SelectAttributes> {
public:
  enum GradInputs { GradValues, GradMem, GradThreshold, GradIds, GradCounts };

  SelectSpikesGradOp(const popart::Op &forward, const SelectAttributes &attributes)
      : OpWith(gradId(), forward.settings, attributes) {}

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SelectSpikesGradOp>(*this); }
  void setup() override {
    outInfo(Mem) = inInfo(GradMem);
    outInfo(Threshold) = inInfo(GradThreshold);
  }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override {
    using popart::GradOpInType;
    static const std::vector<popart::GradInOutMapper> inputs = {{GradValues, Values, GradOpInType::GradOut},
                                                                {GradMem, Mem, GradOpInType::In},
                                                                {GradThreshold, Threshold, GradOpInType::In},
                                                                {GradIds, Ids, GradOpInType::Out},
                                                                {GradCounts, Counts, GradOpInType::Out}};
    return inputs;
  }
  const std::map<int, int> &gradOutToNonGradIn() const override {
    static const std::map<int, int> outputs = {{Mem, Mem}, {Threshold, Threshold}};
    return outputs;
  }
};

class SelectSpikesOp : public OpWith<SelectAttributes> {
public:
  using OpWith::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SelectSpikesOp>(*this); }
  void setup() override {
    checkFloatOrHalf(*this, Mem, "mem");
    checkFloat(*this, Threshold, "threshold");
    outInfo(Ids) = likeRows(inInfo(Mem), attributes.capacity);
    outInfo(Values) = likeRows(inInfo(Mem), attributes.capacity, inInfo(Mem).dataType());
    outInfo(Counts) = outInfo(Dropped) = likeRows(inInfo(Mem), 2);
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    return gradOps(std::make_unique<SelectSpikesGradOp>(*this, attributes));
  }
};

class SelectSpikesOpx : public Opx {
public:
  SelectSpikesOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SelectSpikesOp>(op, selectId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    const graph::SlotTensors out =
        graph::selectSpikes(graph(), getInTensor(Mem), getInTensor(Threshold), prog,
                            getOp<SelectSpikesOp>().attributes.options(), debugContext("selectSpikes"));
    setOutTensor(Ids, out.ids);
    setOutTensor(Values, out.values);
    setOutTensor(Counts, out.counts);
    setOutTensor(Dropped, out.dropped);
  }
};

class SelectSpikesGradOpx : public Opx {
public:
  SelectSpikesGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SelectSpikesGradOp>(op, gradId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    using Grad = SelectSpikesGradOp;
    const graph::SelectSpikesGradients out = graph::selectSpikesGrad(
        graph(), getInTensor(Grad::GradValues), getInTensor(Grad::GradMem), getInTensor(Grad::GradThreshold),
        getInTensor(Grad::GradIds), getInTensor(Grad::GradCounts), prog, getOp<Grad>().attributes.options(),
        debugContext("selectSpikesGrad"));
    setOutTensor(Mem, out.mem);
    setOutTensor(Threshold, out.threshold);
  }
};

const popart::OpDefinition
    definition(popart::OpDefinition::Inputs({{"mem", floatsAndHalves()}, {"threshold", floats()}}),
               popart::OpDefinition::Outputs(
                   {{"ids", floats()}, {"values", floatsAndHalves()}, {"counts", floats()}, {"dropped", floats()}}),
               attributesNamed({"capacity", "rotate", "has_grad_threshold", "grad_threshold", "surrogate",
                                "surrogate_a", "surrogate_b"}));

const popart::OpCreator<SelectSpikesOp> creator = creatorOf<SelectSpikesOp, SelectAttributes>(selectId(), definition);
const popart::popx::OpxCreator<SelectSpikesOpx> opxCreator(selectId());
const popart::popx::OpxCreator<SelectSpikesGradOpx> gradOpxCreator(gradId());
const popart::RegisterShapeInferenceFunction shapes(selectId(), [](popart::ShapeInferenceContext &context) {
  const int64_t capacity = context.getAttribute<popart::Attributes::Int>("capacity");
  context.outInfo(Ids) = likeRows(context.inInfo(Mem), capacity);
  context.outInfo(Values) = likeRows(context.inInfo(Mem), capacity, context.inInfo(Mem).dataType());
  context.outInfo(Counts) = context.outInfo(Dropped) = likeRows(context.inInfo(Mem), 2);
});

} // namespace select_spikes
} // namespace ops
} // namespace snnipu
