// DenseToSparse and its gradient: the nonzero elements of a dense tensor as spikes.
//   inputs   x [T, B, N] (FLOAT or FLOAT16)
//   outputs  ids, values [T, B, capacity], counts, dropped [T, B, 2]; values of x's type, the others FLOAT
#include "common.hpp"

#include "graph/dense_to_sparse.hpp"
#include "graph/sparse_to_dense.hpp"

namespace snnipu {
namespace ops {
namespace dense_to_sparse { // named: the IPU model compiles all operators as one file

enum Outputs { Ids, Values, Counts, Dropped };

struct DenseToSparseAttributes {
  int64_t capacity;
  bool rotate;

  static DenseToSparseAttributes read(const popart::Attributes &attributes) {
    return {wholeNumber(attributes, "capacity", 1), flag(attributes, "rotate")};
  }
  void append(popart::OpSerialiserBase &to) const {
    to.appendAttribute("capacity", capacity);
    to.appendAttribute("rotate", static_cast<int64_t>(rotate));
  }
};

popart::OperatorIdentifier sparseId() { return identifier("DenseToSparse"); }
popart::OperatorIdentifier gradId() { return identifier("DenseToSparseGrad"); }

class DenseToSparseGradOp : public OpWith<DenseToSparseAttributes> {
public:
  enum GradInputs { GradValues, GradIds, GradCounts };

  DenseToSparseGradOp(const popart::Op &forward, const DenseToSparseAttributes &attributes)
      : OpWith(gradId(), forward.settings, attributes), x_(forward.inInfo(0)) {}

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<DenseToSparseGradOp>(*this); }
  void setup() override { outInfo(0) = x_; }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override {
    using popart::GradOpInType;
    static const std::vector<popart::GradInOutMapper> inputs = {{GradValues, Values, GradOpInType::GradOut},
                                                                {GradIds, Ids, GradOpInType::Out},
                                                                {GradCounts, Counts, GradOpInType::Out}};
    return inputs;
  }
  const std::map<int, int> &gradOutToNonGradIn() const override {
    static const std::map<int, int> outputs = {{0, 0}};
    return outputs;
  }

private:
  popart::TensorInfo x_;
};

class DenseToSparseOp : public OpWith<DenseToSparseAttributes> {
public:
  using OpWith::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<DenseToSparseOp>(*this); }
  void setup() override {
    checkFloatOrHalf(*this, 0, "x");
    outInfo(Ids) = likeRows(inInfo(0), attributes.capacity);
    outInfo(Values) = likeRows(inInfo(0), attributes.capacity, inInfo(0).dataType());
    outInfo(Counts) = outInfo(Dropped) = likeRows(inInfo(0), 2);
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    return gradOps(std::make_unique<DenseToSparseGradOp>(*this, attributes));
  }
};

class DenseToSparseOpx : public Opx {
public:
  DenseToSparseOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<DenseToSparseOp>(op, sparseId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    const DenseToSparseAttributes &attributes = getOp<DenseToSparseOp>().attributes;
    const graph::SlotTensors out =
        graph::denseToSparse(graph(), getInTensor(0), static_cast<std::size_t>(attributes.capacity), attributes.rotate,
                             prog, debugContext("denseToSparse"));
    setOutTensor(Ids, out.ids);
    setOutTensor(Values, out.values);
    setOutTensor(Counts, out.counts);
    setOutTensor(Dropped, out.dropped);
  }
};

class DenseToSparseGradOpx : public Opx {
public:
  DenseToSparseGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : Opx(op, devicex) {
    verifyOp<DenseToSparseGradOp>(op, gradId());
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    using Grad = DenseToSparseGradOp;
    const graph::SlotTensors gradients = {
        getInTensor(Grad::GradIds), getInTensor(Grad::GradValues), getInTensor(Grad::GradCounts), {}};
    setOutTensor(0, graph::sparseToDense(graph(), gradients, static_cast<std::size_t>(outInfo(0).dim(2)), prog,
                                         debugContext("denseToSparseGrad")));
  }
};

const popart::OpDefinition definition(popart::OpDefinition::Inputs({{"x", floatsAndHalves()}}),
                                      popart::OpDefinition::Outputs({{"ids", floats()},
                                                                     {"values", floatsAndHalves()},
                                                                     {"counts", floats()},
                                                                     {"dropped", floats()}}),
                                      attributesNamed({"capacity", "rotate"}));

const popart::OpCreator<DenseToSparseOp> creator =
    creatorOf<DenseToSparseOp, DenseToSparseAttributes>(sparseId(), definition);
const popart::popx::OpxCreator<DenseToSparseOpx> opxCreator(sparseId());
const popart::popx::OpxCreator<DenseToSparseGradOpx> gradOpxCreator(gradId());
const popart::RegisterShapeInferenceFunction shapes(sparseId(), [](popart::ShapeInferenceContext &context) {
  const int64_t capacity = context.getAttribute<popart::Attributes::Int>("capacity");
  context.outInfo(Ids) = likeRows(context.inInfo(0), capacity);
  context.outInfo(Values) = likeRows(context.inInfo(0), capacity, context.inInfo(0).dataType());
  context.outInfo(Counts) = context.outInfo(Dropped) = likeRows(context.inInfo(0), 2);
});

} // namespace dense_to_sparse
} // namespace ops
} // namespace snnipu
