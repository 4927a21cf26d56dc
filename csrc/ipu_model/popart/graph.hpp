// Graphs of operators, with autodiff: this model's own interface, under the name PopART has for graphs.
//
// The rules that PopART follows without a word are errors here: where the device would train with a gradient missing,
// growGradients() throws and says which operator loses it and why.
#pragma once

#include <popart/attributes.hpp>
#include <popart/op.hpp>

#include <map>
#include <memory>
#include <set>
#include <vector>

namespace popart {

class Graph {
public:
  Graph() = default;
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;

  TensorId addInput(const TensorId &id, const TensorInfo &info);
  // Creates the operator, connects it ("" stands for an optional input that is absent) and sets it up. Returns its
  // outputs. Throws where a differentiable operator has an integer output, and where an attribute does not change what
  // appendAttributes() or appendOutlineAttributes() append, of the operator or of its gradient.
  std::vector<TensorId> addOp(const OperatorIdentifier &opid, const Attributes &attributes,
                              const std::vector<TensorId> &inputs, int outputs, const std::string &name = "");

  // Adds the gradient operators, and sums where several operators read a tensor. outputGradients: tensor -> its
  // gradient, of the tensors that the loss is made of. Returns tensor -> gradient for all graph inputs that have one.
  std::map<TensorId, TensorId> growGradients(const std::map<TensorId, TensorId> &outputGradients);

  TensorInfo &info(const TensorId &id);
  const TensorInfo &info(const TensorId &id) const { return const_cast<Graph *>(this)->info(id); }
  // In the order they were added, which is one they can run in.
  const std::vector<std::unique_ptr<Op>> &ops() const { return ops_; }
  const std::vector<TensorId> &inputs() const { return inputs_; }

  // A gradient operator that is not part of a graph yet gets the inputs that gradInputInfo() names.
  Op &addGradOp(const Op &op, std::unique_ptr<Op> gradOp, const std::map<TensorId, TensorId> &gradients);
  // The operator that makes a tensor; null for an input.
  Op *producer(const TensorId &id) const;

private:
  void connect(Op &op, const std::vector<TensorId> &inputs, int outputs);
  void checkOutlineAttributes(const Op &op, const Attributes &attributes, const std::vector<TensorId> &inputs,
                              int outputs) const;

  std::map<TensorId, TensorInfo> infos_;
  std::vector<TensorId> inputs_;
  std::vector<std::unique_ptr<Op>> ops_;
  std::map<TensorId, Op *> producers_;
  int names_ = 0;
};

// Whether the type carries gradient.
bool isFloating(DataType type);

} // namespace popart
