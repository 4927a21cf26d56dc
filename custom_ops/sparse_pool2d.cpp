// SparsePool2d and its gradient: pools of maps, from spike ids to spike ids.
//   inputs   ids, values [T, B, S], counts [T, B, 2] of maps [C, H, W] flattened; values FLOAT or FLOAT16, the others
//            FLOAT
//   outputs  ids, values [T, B, capacity], counts [T, B, 2] of maps [C, H', W'], and source [T, B, capacity]: of a
//            maximum, the slot of the input that attains it; values of the input's type, the others FLOAT
//   attributes  geometry: C, H, W, H', W', and vertical and horizontal size of a window, stride and padding; mode: 0
//            maximum, 1 average, 2 sum; capacity
// ids and counts get a gradient of zeros: without one PopART would drop that of the operator that made them.
#include "common.hpp"

#include "graph/sparse_pool2d.hpp"

namespace snnipu {
namespace ops {
namespace sparse_pool2d { // named: the IPU model compiles all operators as one file

enum Inputs { Ids, Values, Counts };
enum Outputs { OwnIds, OwnValues, OwnCounts, Source };

struct SparsePool2dAttributes {
  popart::Attributes::Ints geometry;
  graph::PoolMode mode;
  int64_t capacity;

  static SparsePool2dAttributes read(const popart::Attributes &attributes) {
    return {wholeNumbers(attributes, "geometry", 11), enumeration<graph::PoolMode>(attributes, "mode", 3),
            wholeNumber(attributes, "capacity", 1)};
  }
  void append(popart::OpSerialiserBase &to) const {
    to.appendAttribute("geometry", geometry);
    to.appendAttribute("mode", static_cast<int64_t>(mode));
    to.appendAttribute("capacity", capacity);
  }

  graph::SparsePool2dOptions options() const {
    const auto at = [&](std::size_t place) { return static_cast<std::size_t>(geometry[place]); };
    return {{at(0), at(1), at(2)},
            {at(0), at(3), at(4)},
            {at(5), at(6), at(7), at(8), at(9), at(10), 1, 1},
            mode,
            static_cast<std::size_t>(capacity)};
  }
};

popart::OperatorIdentifier poolId() { return identifier("SparsePool2d"); }
popart::OperatorIdentifier gradId() { return identifier("SparsePool2dGrad"); }

class SparsePool2dGradOp : public OpWith<SparsePool2dAttributes> {
public:
  enum GradInputs { GradValues, GradIds, GradCounts, GradOwnIds, GradOwnCounts, GradSource };

  SparsePool2dGradOp(const popart::Op &forward, const SparsePool2dAttributes &attributes)
      : OpWith(gradId(), forward.settings, attributes) {}

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SparsePool2dGradOp>(*this); }
  void setup() override {
    outInfo(Ids) = inInfo(GradIds);
    outInfo(Values) = {inInfo(GradValues).dataType(), inShape(GradIds)};
    outInfo(Counts) = inInfo(GradCounts);
  }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override {
    using popart::GradOpInType;
    static const std::vector<popart::GradInOutMapper> inputs = {
        {GradValues, OwnValues, GradOpInType::GradOut}, {GradIds, Ids, GradOpInType::In},
        {GradCounts, Counts, GradOpInType::In},         {GradOwnIds, OwnIds, GradOpInType::Out},
        {GradOwnCounts, OwnCounts, GradOpInType::Out},  {GradSource, Source, GradOpInType::Out}};
    return inputs;
  }
  const std::map<int, int> &gradOutToNonGradIn() const override {
    static const std::map<int, int> outputs = {{Ids, Ids}, {Values, Values}, {Counts, Counts}};
    return outputs;
  }
};

class SparsePool2dOp : public OpWith<SparsePool2dAttributes> {
public:
  using OpWith::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<SparsePool2dOp>(*this); }
  void setup() override {
    checkFloat(*this, Ids, "ids");
    checkFloatOrHalf(*this, Values, "values");
    checkFloat(*this, Counts, "counts");
    outInfo(OwnIds) = outInfo(Source) = likeRows(inInfo(Ids), attributes.capacity);
    outInfo(OwnValues) = likeRows(inInfo(Ids), attributes.capacity, inInfo(Values).dataType());
    outInfo(OwnCounts) = likeRows(inInfo(Ids), 2);
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    return gradOps(std::make_unique<SparsePool2dGradOp>(*this, attributes));
  }
};

class SparsePool2dOpx : public Opx {
public:
  SparsePool2dOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SparsePool2dOp>(op, poolId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    const graph::PooledSlots out =
        graph::sparsePool2d(graph(), {getInTensor(Ids), getInTensor(Values), getInTensor(Counts), {}},
                            getOp<SparsePool2dOp>().attributes.options(), prog, debugContext("sparsePool2d"));
    setOutTensor(OwnIds, out.slots.ids);
    setOutTensor(OwnValues, out.slots.values);
    setOutTensor(OwnCounts, out.slots.counts);
    setOutTensor(Source, out.source);
  }
};

class SparsePool2dGradOpx : public Opx {
public:
  SparsePool2dGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<SparsePool2dGradOp>(op, gradId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    using Grad = SparsePool2dGradOp;
    const graph::PooledSlots made = {
        {getInTensor(Grad::GradOwnIds), getInTensor(Grad::GradValues), getInTensor(Grad::GradOwnCounts), {}},
        getInTensor(Grad::GradSource)};
    setOutTensor(Ids, graph::zeros(graph(), outInfo(Ids).shape_szt(), debugContext("gradIds")));
    setOutTensor(Values,
                 graph::sparsePool2dGrad(graph(), getInTensor(Grad::GradIds), getInTensor(Grad::GradCounts), made,
                                         getOp<Grad>().attributes.options(), prog, debugContext("sparsePool2dGrad")));
    setOutTensor(Counts, graph::zeros(graph(), outInfo(Counts).shape_szt(), debugContext("gradCounts")));
  }
};

const popart::OpDefinition
    definition(popart::OpDefinition::Inputs({{"ids", floats()}, {"values", floatsAndHalves()}, {"counts", floats()}}),
               popart::OpDefinition::Outputs(
                   {{"ids", floats()}, {"values", floatsAndHalves()}, {"counts", floats()}, {"source", floats()}}),
               attributesNamed({"geometry", "mode", "capacity"}));

const popart::OpCreator<SparsePool2dOp> creator =
    creatorOf<SparsePool2dOp, SparsePool2dAttributes>(poolId(), definition);
const popart::popx::OpxCreator<SparsePool2dOpx> opxCreator(poolId());
const popart::popx::OpxCreator<SparsePool2dGradOpx> gradOpxCreator(gradId());
const popart::RegisterShapeInferenceFunction shapes(poolId(), [](popart::ShapeInferenceContext &context) {
  const int64_t capacity = context.getAttribute<popart::Attributes::Int>("capacity");
  context.outInfo(OwnIds) = context.outInfo(Source) = likeRows(context.inInfo(Ids), capacity);
  context.outInfo(OwnValues) = likeRows(context.inInfo(Ids), capacity, context.inInfo(Values).dataType());
  context.outInfo(OwnCounts) = likeRows(context.inInfo(Ids), 2);
});

} // namespace sparse_pool2d
} // namespace ops
} // namespace snnipu
