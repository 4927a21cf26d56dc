// A PopART operator from its description: the operator and its gradient, how both become Poplar programs, and their
// registration. A description is a class D that derives from Described<D, Attributes> and has
//   name                   the operator's, in domain ai.snnipu; that of its gradient ends in Grad
//   inputs(), outputs()    what they are called, and their types
//   shapes(attributes, in) the outputs' infos, where in(i) is that of an input
//   gradient(attributes)   what the gradient reads, and which inputs have one
//   grow(at, prog), growGradient(at, prog)   the programs: `at` has the tensors, attributes and the graph
// and, where Described's do not fit, what it has.
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

// Makes the vertices known: of snnipu.gp beside this library, or of the file that SNNIPU_CODELETS names.
void addCodelets(poplar::Graph &graph);

enum FieldTypes { Float, FloatOrHalf };
struct Field {
  const char *name;
  FieldTypes types = Float;
  bool optional = false;
};
using Fields = std::vector<Field>;

// Something that an operator reads: one of its own inputs or, in its gradient, that input, an output, or the gradient
// of an output; the last may be absent where it is optional, as it is where the loss does not depend on the output.
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
  std::vector<Source> reads; // at the places of the gradient's inputs
  std::vector<int> of;       // the inputs that its outputs are gradients of

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

  // Throws where attributes do not fit one another.
  static void check(const Attributes &) {}
  // The inputs there are, where inputs() tells of kinds of inputs only.
  static Fields inputsOf(const Attributes &) { return D::inputs(); }
  // Throws where an operator's inputs do not fit its attributes; their number and types do.
  static void checkInputs(const popart::Op &, const Attributes &) {}
  // Which tensors the builder would lay out, and how.
  static bool laysOut(const Attributes &, const Source &, bool /*gradient*/) { return false; }
  static poplar::Tensor layOut(const Lowering<D> &, const Source &, const poplar::DebugContext &) { return {}; }
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

// Both kinds of operators, whatever their description. PopART takes operators for one and the same where neither of the
// two functions that append attributes tells them apart.
class DescribedOp : public popart::Op {
public:
  using popart::Op::Op;

  void appendAttributes(popart::OpSerialiserBase &to) const override;
  void appendOutlineAttributes(popart::OpSerialiserBase &to) const override;
  float getSubgraphValue() const override { return getHighSubgraphValue(); }
  bool requiresRandomSeed() const override { return false; }

  virtual bool isGradient() const = 0;
  virtual Source source(popart::InIndex place) const = 0;
  // Where an input is; of the gradient, where an output is, which is that of an input. Or -1.
  virtual int place(const Source &source) const = 0;
  virtual int outputPlace(int index) const = 0;

protected:
  virtual void append(popart::OpSerialiserBase &to) const = 0;
};

class DescribedForward : public DescribedOp {
public:
  using DescribedOp::DescribedOp;

  void setup() override;
  std::set<popart::InIndex> optionalInputs() const override;

  bool isGradient() const override { return false; }
  Source source(popart::InIndex place) const override { return ops::input(place); } // Op has an input of its own
  int place(const Source &source) const override { return source.kind == popart::GradOpInType::In ? source.index : -1; }
  int outputPlace(int index) const override { return index; }

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
  Source source(popart::InIndex place) const override { return sources_.at(static_cast<std::size_t>(place)); }
  int place(const Source &source) const override;
  int outputPlace(int index) const override;

private:
  std::vector<Source> sources_;
  std::vector<popart::GradInOutMapper> inputs_;
  std::set<popart::InIndex> optional_;
  std::map<int, int> outputs_;
  Infos infos_; // of the inputs that have a gradient, which need not be read
};

// The attributes of a description, in an operator of either kind.
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

// What a description's programs are made with, of the operator or of its gradient.
class DescribedLowering : public popart::popx::Opx {
public:
  DescribedLowering(popart::Op *op, popart::popx::Devicex *devicex);

  std::set<popart::TensorId> mustExistBeforeCreate(int) const override { return {}; }

  using popart::popx::Opx::graph;
  poplar::DebugContext label() const;

  const popart::TensorInfo &info(const Source &source) const { return inInfo(op_.place(source)); }
  const popart::TensorInfo &outputInfo(int index) const { return outInfo(op_.outputPlace(index)); }
  bool has(const Source &source) const { return op_.place(source) >= 0 && hasInput(op_.place(source)); }
  // Invalid where there is none.
  poplar::Tensor at(const Source &source) const {
    return has(source) ? getInTensor(op_.place(source)) : poplar::Tensor();
  }
  poplar::Tensor in(int index) const { return at(input(index)); }
  // Three inputs are spikes in slots.
  graph::SlotTensors slots(int first = 0) const { return {in(first), in(first + 1), in(first + 2), {}}; }

  // An output; in the gradient the gradient of an input, where it has one.
  void set(int index, const poplar::Tensor &tensor) const;
  void setSlots(int first, const graph::SlotTensors &slots) const;
  // Zeros are an input's gradient: without one PopART would drop that of the operator that made the input.
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
    return D::laysOut(attributes(), op_.source(index), op_.isGradient()) ? popart::popx::InputCreatorType::CanCreate
                                                                         : popart::popx::InputCreatorType::Deadend;
  }
  poplar::Tensor createInputTensor(popart::InIndex index, const poplar::DebugNameAndId &name) const override {
    return D::layOut(*this, op_.source(index), {name});
  }

  const typename D::Attributes &attributes() const {
    return op_.isGradient() ? getOp<GradientOp<D>>().attributes : getOp<ForwardOp<D>>().attributes;
  }

protected:
  Fields fields() const override { return D::inputsOf(attributes()); }
};

// [steps, batch, last] of a tensor [steps, batch, anything].
inline popart::TensorInfo likeRows(const popart::TensorInfo &info, int64_t last,
                                   popart::DataType type = popart::DataType::FLOAT) {
  if (info.rank() != 3)
    throw popart::error("A tensor [steps, batch, ...] has three dimensions, got {}", info);
  return {type, {info.dim(0), info.dim(1), last}};
}
// ids, values, of the type of `info`, counts and dropped.
inline Infos slotsLike(const popart::TensorInfo &info, int64_t capacity) {
  return {likeRows(info, capacity), likeRows(info, capacity, info.dataType()), likeRows(info, 2), likeRows(info, 2)};
}

// Makes PopART know an operator: an object for each description.
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
