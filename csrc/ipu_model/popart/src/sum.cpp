// A sum of gradients, for tensors that several operators read: the subset of PopART's ai.onnx.Sum that autodiff needs.
#include <popart/opmanager.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <poplar/VariableMappingMethod.hpp>
#include <poplar/VertexIntrospector.hpp>

namespace popart {
namespace {

OperatorIdentifier sumId() { return {"ai.onnx", "Sum", 8}; }

class SumOp : public Op {
public:
  using Op::Op;

  std::unique_ptr<Op> clone() const override { return std::make_unique<SumOp>(*this); }
  void setup() override {
    for (InIndex i = 1; hasInput(i); ++i)
      if (inInfo(i) != inInfo(0))
        throw error("{} adds {} to {}", debugName(), inInfo(i), inInfo(0));
    outInfo(0) = inInfo(0);
  }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
};

// PopLibs' estimate of an addition: 3 instructions for two floats, or for four halves.
poplar::VertexPerfEstimate estimate(const poplar::VertexIntrospector &vertex, const poplar::Target &target) {
  const auto size = vertex.getFieldInfo("size").getInitialValue<std::uint64_t>(target);
  const std::uint64_t workers = target.getNumWorkerContexts(), share = (size + workers - 1) / workers;
  const std::uint64_t vector = vertex.getVertexName().find("half") == std::string::npos ? 2 : 4;
  return {workers * (29 + 3 * ((share + vector - 1) / vector)) + 11, size};
}

class SumOpx : public popx::Opx {
public:
  SumOpx(Op *op, popx::Devicex *devicex) : popx::Opx(op, devicex) {
    verifyOp<SumOp>(op, sumId());
    graph().addCodelets("sum_codelets.gp");
    for (const char *type : {"float", "half"})
      graph().registerPerfEstimator("popart::AddInto<" + std::string(type) + ">", estimate);
  }

  void grow(poplar::program::Sequence &prog) const override {
    const poplar::Tensor first = getInTensor(0);
    const poplar::Tensor sum = graph().addVariable(first.elementType(), first.shape(),
                                                   poplar::VariableMappingMethod::LINEAR, debugContext("sum"));
    prog.add(poplar::program::Copy(first, sum, false, debugContext("first")));
    const poplar::Tensor to = sum.flatten();
    const auto tiles = graph().getTileMapping(to);
    for (InIndex i = 1; hasInput(i); ++i) {
      const poplar::Tensor from = getInTensor(i).flatten();
      const poplar::ComputeSet cs = graph().addComputeSet(debugContext("add"));
      for (unsigned tile = 0; tile < tiles.size(); ++tile)
        for (const poplar::Interval &interval : tiles[tile]) {
          const poplar::VertexRef vertex =
              graph().addVertex(cs, "popart::AddInto<" + first.elementType().toString() + ">");
          graph().setTileMapping(vertex, tile);
          graph().connect(vertex["from"], from.slice(interval));
          graph().connect(vertex["to"], to.slice(interval));
          graph().setInitialValue(vertex["size"], static_cast<unsigned>(interval.size()));
        }
      prog.add(poplar::program::Execute(cs));
    }
    setOutTensor(0, sum);
  }
};

const OpCreator<SumOp> creator(OpDefinitions({{sumId(), OpDefinition()}}), false);
const popx::OpxCreator<SumOpx> opxCreator(sumId());

} // namespace
} // namespace popart
