// PopART subset: infos of outputs before the operator exists, for the builder that PopTorch uses.
#pragma once

#include <popart/attributes.hpp>
#include <popart/operatoridentifier.hpp>
#include <popart/tensorinfo.hpp>

#include <functional>
#include <map>

namespace popart {

class ShapeInferenceContext {
public:
  ShapeInferenceContext(const std::map<int, TensorInfo> &inputs, const Attributes &attributes, int outputs)
      : inputs_(inputs), attributes_(attributes), numOutputs_(outputs) {}

  const TensorInfo &inInfo(int index) const { return inputs_.at(index); }
  const Shape &inShape(int index) const { return inInfo(index).shape(); }
  DataType inType(int index) const { return inInfo(index).dataType(); }
  TensorInfo &outInfo(int index) { return outputs_[index]; }
  const std::map<int, TensorInfo> &getOutputInfos() { return outputs_; }
  const Attributes &getAttributes() const { return attributes_; }
  int getNumInputs() const { return static_cast<int>(inputs_.size()); }
  int getNumOutputs() const { return numOutputs_; }
  bool hasAttribute(const std::string &key) const { return attributes_.hasAttribute(key); }
  template <typename T> T getAttribute(const std::string &key) { return attributes_.getAttribute<T>(key); }
  template <typename T> T getAttribute(const std::string &key, const T &otherwise) {
    return attributes_.getAttribute<T>(key, otherwise);
  }

private:
  std::map<int, TensorInfo> inputs_, outputs_;
  Attributes attributes_;
  int numOutputs_;
};

using ShapeInferenceFunction = std::function<void(ShapeInferenceContext &)>;

class ShapeInferenceFunctions {
public:
  static void registerFunction(const OperatorIdentifier &, ShapeInferenceFunction);
  static bool hasFunction(const OperatorIdentifier &);
  static ShapeInferenceFunction getFunction(const OperatorIdentifier &);
};

class RegisterShapeInferenceFunction {
public:
  RegisterShapeInferenceFunction(const OperatorIdentifier &, ShapeInferenceFunction);
};

} // namespace popart
