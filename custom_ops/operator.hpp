// A PopART operator from its description: the operator, its gradient, their lowering to Poplar programs, and their
// registration. A description is a class D that derives from Described<D, Attributes> and has
//   name                   name of the operator in domain ai.snnipu; the gradient's is name + Grad
//   inputs(), outputs()    names and types
//   shapes(attributes, in) infos of the outputs; in(i) is the info of an input
//   gradient(attributes)   the tensors that the gradient reads, and the inputs that have one
//   grow(at, prog), growGradient(at, prog)   the programs; `at` has the tensors, the attributes and the graph
// It may override the defaults of Described.
#pragma once

#include "attributes.hpp"

#include <popart/op.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popart/shapeinference.hpp>

#include "graph/slots.hpp"

#include <functional>
#include <memory>
#include <set>

namespace snnipu {
namespace ops {

// Add the vertices to the graph: of the file in SNNIPU_CODELETS, or else of snnipu.gp beside this library.
void addCodelets(poplar::Graph &graph);

enum FieldTypes { Float, FloatOrHalf };
struct Field {
  const char *name;
  FieldTypes types = Float;
  bool optional = false;
};
using Fields = std::vector<Field>;

// A tensor that an operator reads: an input; in the gradient also an output, or the gradient of an output. An optional
// gradient is missing if the loss does not depend on the output.
struct Source {
  popart::GradOpInType kind;
  int index;
  bool optional;

  bool operator==(const Source &other) const { return kind == other.kind && index == other.index; }
};
inline Source input(int index) { return {popart::GradOpInType::In, index, false}; }
inline Source output(int index) { return {popart::GradOpInType::Out, index, false}; }
inline Source gradientOf(int index, bool optional = false) { return {popart::GradOpInType::GradOut, index, optional}; }

struct Gradient {
  std::vector<Source> reads; // the gradient's inputs, in order
  std::vector<int> of;       // the inputs that have a gradient, in the order of the outputs

  void readEveryInput(int count) {
    for (int i = 0; i < count; ++i) {
      reads.push_back(input(i));
      of.push_back(i);
    }
  }
};

using InfoOf = std::function<popart::TensorInfo(int)>;
using Infos = std::vector<popart::TensorInfo>;
template <typename D> class Lowering;

template <typename D, typename A> struct Described {
  using Attributes = A;

  // Throw popart::error if attributes contradict each other.
  static void check(const Attributes &) {}
  // Return the operator's inputs, if inputs() only lists their kinds.
  static Fields inputsOf(const Attributes &) { return D::inputs(); }
  // Throw popart::error if inputs contradict the attributes. Their number and types have been checked.
  static void checkInputs(const popart::Op &, const Attributes &) {}
  // Return true if the operator creates the tensor in its own layout, by createInput().
  static bool createsInput(const Attributes &, const Source &, bool /*gradient*/) { return false; }
  static poplar::Tensor createInput(const Lowering<D> &, const Source &, const poplar::DebugContext &) { return {}; }
};

template <typename D> popart::OperatorIdentifier identifierOf(bool gradient = false) {
  return {"ai.snnipu", D::name + std::string(gradient ? "Grad" : ""), 1};
}

template <typename D> typename D::Attributes attributesFrom(const popart::Attributes &from) {
  typename D::Attributes attributes;
  attributes.each(ReadAttributes(from));
  D::check(attributes);
  return attributes;
}

// Common part of operators and gradients of all descriptions. PopART merges operators whose appended attributes are
// equal, so both functions append all of them.
class DescribedOp : public popart::Op {
public:
  using popart::Op::Op;

  void appendAttributes(popart::OpSerialiserBase &to) const override;
  void appendOutlineAttributes(popart::OpSerialiserBase &to) const override;
  float getSubgraphValue() const override { return getHighSubgraphValue(); }
  bool requiresRandomSeed() const override { return false; }

  virtual bool isGradient() const = 0;
  virtual Source source(popart::InIndex inputIndex) const = 0;
  // Return the index of an input, or -1. outputIndex() does so for an output, in a gradient for the gradient of an
  // input.
  virtual int inputIndex(const Source &source) const = 0;
  virtual int outputIndex(int index) const = 0;

protected:
  virtual void append(popart::OpSerialiserBase &to) const = 0;
};

class DescribedForward : public DescribedOp {
public:
  using DescribedOp::DescribedOp;

  void setup() override;
  std::set<popart::InIndex> optionalInputs() const override;

  bool isGradient() const override { return false; }
  Source source(popart::InIndex inputIndex) const override {
    return ops::input(inputIndex);
  } // popart::Op has another input()
  int inputIndex(const Source &source) const override {
    return source.kind == popart::GradOpInType::In ? source.index : -1;
  }
  int outputIndex(int index) const override { return index; }

protected:
  virtual Fields fields() const = 0;
  virtual void checkInputs() const = 0;
  virtual Infos infos() const = 0;

private:
  void check(const Fields &fields, int index) const;
};

class DescribedGradient : public DescribedOp {
public:
  DescribedGradient(const popart::OperatorIdentifier &opid, const popart::Op &forward, const Gradient &gradient);

  void setup() override;
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override { return inputs_; }
  const std::map<int, int> &gradOutToNonGradIn() const override { return outputs_; }
  std::set<popart::InIndex> optionalInputs() const override { return optional_; }

  bool isGradient() const override { return true; }
  Source source(popart::InIndex inputIndex) const override { return sources_.at(static_cast<std::size_t>(inputIndex)); }
  int inputIndex(const Source &source) const override;
  int outputIndex(int index) const override;

private:
  std::vector<Source> sources_;
  std::vector<popart::GradInOutMapper> inputs_;
  std::set<popart::InIndex> optional_;
  std::map<int, int> outputs_;
  Infos infos_; // of the inputs that have a gradient, whether it reads them or not
};

// An operator or gradient with the attributes of a description.
template <typename D, typename Kind> class OpWith : public Kind {
public:
  template <typename... More>
  OpWith(const typename D::Attributes &attributes_, const popart::OperatorIdentifier &opid, const More &...more)
      : Kind(opid, more...), attributes(attributes_) {}

  const typename D::Attributes attributes;

protected:
  void append(popart::OpSerialiserBase &to) const override {
    typename D::Attributes(attributes).each(WriteAttributes(to));
  }
};

template <typename D> class GradientOp : public OpWith<D, DescribedGradient> {
public:
  GradientOp(const popart::Op &forward, const typename D::Attributes &attributes)
      : OpWith<D, DescribedGradient>(attributes, identifierOf<D>(true), forward, D::gradient(attributes)) {}

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<GradientOp>(*this); }
};

template <typename D> class ForwardOp : public OpWith<D, DescribedForward> {
public:
  using OpWith<D, DescribedForward>::OpWith;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<ForwardOp>(*this); }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    std::vector<std::unique_ptr<popart::Op>> ops;
    ops.push_back(std::make_unique<GradientOp<D>>(*this, this->attributes));
    return ops;
  }

protected:
  Fields fields() const override { return D::inputsOf(this->attributes); }
  void checkInputs() const override { D::checkInputs(*this, this->attributes); }
  Infos infos() const override {
    return D::shapes(this->attributes, [this](int index) { return this->inInfo(index); });
  }
};

inline poplar::Type poplarType(const popart::TensorInfo &info) {
  return info.dataType() == popart::DataType::FLOAT16 ? poplar::HALF : poplar::FLOAT;
}

// The interface for the programs of a description, for the operator and its gradient.
class DescribedLowering : public popart::popx::Opx {
public:
  DescribedLowering(popart::Op *op, popart::popx::Devicex *devicex);

  std::set<popart::TensorId> mustExistBeforeCreate(int) const override { return {}; }

  using popart::popx::Opx::graph;
  poplar::DebugContext label() const;

  const popart::TensorInfo &info(const Source &source) const { return inInfo(op_.inputIndex(source)); }
  const popart::TensorInfo &outputInfo(int index) const { return outInfo(op_.outputIndex(index)); }
  bool has(const Source &source) const { return op_.inputIndex(source) >= 0 && hasInput(op_.inputIndex(source)); }
  // Return an invalid tensor if there is none.
  poplar::Tensor at(const Source &source) const {
    return has(source) ? getInTensor(op_.inputIndex(source)) : poplar::Tensor();
  }
  poplar::Tensor in(int index) const { return at(input(index)); }
  // Return three inputs as spikes in slots.
  graph::SlotTensors slots(int first = 0) const { return {in(first), in(first + 1), in(first + 2), {}}; }

  // Set an output, or in a gradient the gradient of an input, if it exists.
  void set(int index, const poplar::Tensor &tensor) const;
  void setSlots(int first, const graph::SlotTensors &slots) const;
  // Set the gradient of an input to zeros. Without one, PopART would drop the gradient of the operator that computes
  // the input.
  void setZeros(int index) const;

protected:
  virtual Fields fields() const = 0;

  const DescribedOp &op_;
};

template <typename D> class Lowering : public DescribedLowering {
public:
  Lowering(popart::Op *op, popart::popx::Devicex *devicex) : DescribedLowering(op, devicex) {
    verifyOp<DescribedOp>(op, std::vector<popart::OperatorIdentifier>{identifierOf<D>(), identifierOf<D>(true)});
  }

  void grow(poplar::program::Sequence &prog) const override {
    op_.isGradient() ? D::growGradient(*this, prog) : D::grow(*this, prog);
  }
  popart::popx::InputCreatorType getInputCreatorType(popart::InIndex index) const override {
    return D::createsInput(attributes(), op_.source(index), op_.isGradient())
               ? popart::popx::InputCreatorType::CanCreate
               : popart::popx::InputCreatorType::Deadend;
  }
  poplar::Tensor createInputTensor(popart::InIndex index, const poplar::DebugNameAndId &name) const override {
    return D::createInput(*this, op_.source(index), {name});
  }

  const typename D::Attributes &attributes() const {
    return op_.isGradient() ? getOp<GradientOp<D>>().attributes : getOp<ForwardOp<D>>().attributes;
  }

protected:
  Fields fields() const override { return D::inputsOf(attributes()); }
};

// Return the info of a tensor [steps, batch, last], from that of a tensor [steps, batch, n].
inline popart::TensorInfo likeRows(const popart::TensorInfo &info, int64_t last,
                                   popart::DataType type = popart::DataType::FLOAT) {
  if (info.rank() != 3)
    throw popart::error("A tensor [steps, batch, ...] has three dimensions, got {}", info);
  return {type, {info.dim(0), info.dim(1), last}};
}
// Return the infos of ids, values (of the type of `info`), counts and dropped.
inline Infos slotsLike(const popart::TensorInfo &info, int64_t capacity) {
  return {likeRows(info, capacity), likeRows(info, capacity, info.dataType()), likeRows(info, 2), likeRows(info, 2)};
}

// Registers an operator with PopART. Each description has one object of it.
template <typename D> class Registered {
public:
  Registered()
      : op_(
            popart::OpDefinitions({{identifierOf<D>(), definition()}}),
            [](const popart::OpCreatorInfo &info) -> std::unique_ptr<popart::Op> {
              return std::make_unique<ForwardOp<D>>(attributesFrom<D>(info.attributes), info.opid, info.settings);
            },
            true),
        lowering_({identifierOf<D>(), identifierOf<D>(true)}),
        shapes_(identifierOf<D>(), [](popart::ShapeInferenceContext &context) {
          const Infos infos = D::shapes(attributesFrom<D>(context.getAttributes()),
                                        [&context](int index) { return context.inInfo(index); });
          for (std::size_t o = 0; o < infos.size(); ++o)
            context.outInfo(static_cast<int>(o)) = infos[o];
        }) {}

private:
  static popart::OpDefinition definition() {
    const auto types = [](const Field &field) {
      popart::OpDefinition::DataTypes all = {popart::DataType::FLOAT};
      if (field.types == FloatOrHalf)
        all.push_back(popart::DataType::FLOAT16);
      return all;
    };
    popart::OpDefinition::Inputs inputs;
    for (const Field &field : D::inputs())
      inputs.emplace_back(field.name, types(field));
    popart::OpDefinition::Outputs outputs;
    for (const Field &field : D::outputs())
      outputs.emplace_back(field.name, types(field));
    NameAttributes names;
    typename D::Attributes().each(names);
    return {inputs, outputs, names.named};
  }

  popart::OpCreator<ForwardOp<D>> op_;
  popart::popx::OpxCreator<Lowering<D>> lowering_;
  popart::RegisterShapeInferenceFunction shapes_;
};

} // namespace ops
} // namespace snnipu
