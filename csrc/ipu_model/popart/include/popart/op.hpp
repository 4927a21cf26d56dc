// PopART subset: an operator of the graph, with the description of its gradient.
#pragma once

#include <popart/error.hpp>
#include <popart/names.hpp>
#include <popart/operatoridentifier.hpp>
#include <popart/region.hpp>
#include <popart/tensorinfo.hpp>

#include <map>
#include <memory>
#include <vector>

namespace popart {

class OpSerialiserBase;

// The source of a gradient operator's input: an input, an output or the gradient of an output of the forward operator.
enum class GradOpInType { In = 0, Out, GradOut };

class GradInOutMapper {
public:
  GradInOutMapper(InIndex grad, int nonGrad, GradOpInType kind) : iGrad(grad), iNonGrad(nonGrad), type(kind) {}

  InIndex iGrad;
  int iNonGrad;
  GradOpInType type;
};

class Op {
public:
  struct Settings {
    Settings(Graph &graph_, const std::string &name_) : graph(&graph_), name(name_) {}

    Graph *graph;
    std::string name;
  };

  Op(const OperatorIdentifier &opid, const Settings &settings);
  // Copies the operator without its connections.
  Op(const Op &);
  Op &operator=(const Op &) = delete;
  virtual ~Op();

  virtual std::unique_ptr<Op> clone() const = 0;
  // Set the infos of the outputs from those of the inputs.
  virtual void setup();

  // Empty: not differentiable.
  virtual std::vector<std::unique_ptr<Op>> getGradOps();
  virtual const std::vector<GradInOutMapper> &gradInputInfo() const;
  virtual const std::map<int, int> &gradOutToNonGradIn() const;
  virtual std::set<InIndex> optionalInputs() const { return {}; }

  virtual void appendAttributes(OpSerialiserBase &) const;
  virtual void appendOutlineAttributes(OpSerialiserBase &) const;
  virtual float getSubgraphValue() const = 0;
  float getHighSubgraphValue() const { return 1000.0f; }
  float getLowSubgraphValue() const { return 0.1f; }

  virtual bool requiresRandomSeed() const { return false; }
  virtual view::Regions modifies(InIndex) const;
  virtual view::Regions aliases(InIndex, OutIndex) const;

  bool hasInput(InIndex index) const;
  bool hasOutput(OutIndex index) const;
  TensorId inId(InIndex index) const;
  TensorId outId(OutIndex index) const;
  // Throw if nothing is connected.
  TensorInfo &inInfo(InIndex index);
  const TensorInfo &inInfo(InIndex index) const;
  TensorInfo &outInfo(OutIndex index);
  const TensorInfo &outInfo(OutIndex index) const;
  const Shape &inShape(InIndex index) const { return inInfo(index).shape(); }
  const Shape &outShape(OutIndex index) const { return outInfo(index).shape(); }
  Rank inRank(InIndex index) const { return inInfo(index).rank(); }
  Rank outRank(OutIndex index) const { return outInfo(index).rank(); }
  std::size_t inTensorCount() const { return inputs_.size(); }
  std::size_t outTensorCount() const { return outputs_.size(); }

  const Settings &getSettings() const { return settings; }
  const std::string &name() const { return settings.name; }
  std::string str() const;
  std::string debugName() const;
  template <typename T> bool isConvertibleTo() const { return dynamic_cast<const T *>(this) != nullptr; }

  OperatorIdentifier opid;
  Settings settings;

private:
  friend class Graph;
  std::map<InIndex, TensorId> inputs_;
  std::map<OutIndex, TensorId> outputs_;
};

} // namespace popart
