// Graphs of operators with autodiff. This is an interface of the model, with PopART's name for graphs.
//
// Where PopART silently drops a gradient and the device would train without it, growGradients() throws instead. The
// message names the operator that loses the gradient, and the reason.
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
  // Create the operator, connect it ("" for a missing optional input) and set it up. Return its outputs. Throw if a
  // differentiable operator has an integer output, or if an attribute does not change the result of appendAttributes()
  // or appendOutlineAttributes(), of the operator or of its gradient.
  std::vector<TensorId> addOp(const OperatorIdentifier &opid, const Attributes &attributes,
                              const std::vector<TensorId> &inputs, int outputs, const std::string &name = "");

  // Add the gradient operators, and sums for tensors that several operators read. outputGradients: for each tensor in
  // the loss, its gradient. Return the gradients of all graph inputs that have one.
  std::map<TensorId, TensorId> growGradients(const std::map<TensorId, TensorId> &outputGradients);

  TensorInfo &info(const TensorId &id);
  const TensorInfo &info(const TensorId &id) const { return const_cast<Graph *>(this)->info(id); }
  // In the order in which they were added, which is a valid order of execution.
  const std::vector<std::unique_ptr<Op>> &ops() const { return ops_; }
  const std::vector<TensorId> &inputs() const { return inputs_; }

  // Add a gradient operator, with the inputs that its gradInputInfo() lists.
  Op &addGradOp(const Op &op, std::unique_ptr<Op> gradOp, const std::map<TensorId, TensorId> &gradients);
  // Return the operator that computes a tensor, or null for an input.
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

// Return true if tensors of the type can have a gradient.
bool isFloating(DataType type);

} // namespace popart
