// PopART subset: the lowering of an operator to a Poplar program.
#pragma once

#include <popart/op.hpp>
#include <popart/popx/inputcreatortype.hpp>

#include <poplar/DebugContext.hpp>
#include <poplar/Program.hpp>
#include <poplar/Tensor.hpp>
#include <poplar/Type.hpp>

namespace poplar {
class Graph;
}

namespace popart {
namespace popx {

class Devicex;

class Opx {
public:
  Opx(Op *op, Devicex *devicex) : op_p(op), dv_p(devicex) {}
  virtual ~Opx();

  virtual void grow(poplar::program::Sequence &) const;

  // CanCreate for inputs that grow() prefers in the layout of createInputTensor().
  virtual InputCreatorType getInputCreatorType(InIndex) const { return InputCreatorType::Deadend; }
  virtual poplar::Tensor createInputTensor(InIndex, const poplar::DebugNameAndId &) const;
  virtual std::set<TensorId> mustExistBeforeCreate(int) const { return {}; }

  poplar::Graph &graph() const;
  const poplar::Tensor &getInTensor(InIndex index) const;
  const poplar::Tensor &getOutTensor(OutIndex index) const;
  void setOutTensor(OutIndex index, const poplar::Tensor &tensor) const;
  // id: of an output, as outId() returns it.
  void insert(const TensorId &id, const poplar::Tensor &tensor) const;
  bool hasInput(InIndex index) const { return op_p->hasInput(index); }
  bool hasOutput(OutIndex index) const { return op_p->hasOutput(index); }
  const TensorInfo &inInfo(InIndex index) const { return op_p->inInfo(index); }
  const TensorInfo &outInfo(OutIndex index) const { return op_p->outInfo(index); }
  const Shape &inShape(InIndex index) const { return op_p->inShape(index); }
  const Shape &outShape(OutIndex index) const { return op_p->outShape(index); }
  TensorId inId(InIndex index) const { return op_p->inId(index); }
  TensorId outId(OutIndex index) const { return op_p->outId(index); }
  poplar::DebugContext debugContext(const std::string &name = "") const;

  template <class OP> OP &getOp() const {
    if (OP *const op = dynamic_cast<OP *>(op_p))
      return *op;
    throw error("{} is not of the type that its Opx asks for", op_p->debugName());
  }
  template <class OP> void verifyOp(Op *op, const OperatorIdentifier &opid) {
    if (op->opid.domain != opid.domain || op->opid.type != opid.type)
      throw error("Cannot create the Opx of {} for {}", opid, op->opid);
  }
  template <class OP> void verifyOp(Op *op, std::vector<OperatorIdentifier> opids) {
    for (const OperatorIdentifier &opid : opids)
      if (op->opid == opid)
        return;
    throw error("Cannot create the Opx of {} for {}", opids.empty() ? "nothing" : opids[0].type, op->opid);
  }

  Op *op_p;

protected:
  Devicex *dv_p;
};

} // namespace popx
} // namespace popart
