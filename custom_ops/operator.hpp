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

#include <algorithm>
#include <cctype>
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

// Both kinds of operators. PopART takes operators for one and the same where neither of the two functions that append
// attributes tells them apart.
template <typename D> class OpOf : public popart::Op {
public:
  OpOf(const popart::OperatorIdentifier &opid, const popart::Op::Settings &settings,
       const typename D::Attributes &attributes_)
      : popart::Op(opid, settings), attributes(attributes_) {}

  void appendAttributes(popart::OpSerialiserBase &to) const override {
    popart::Op::appendAttributes(to);
    append(to);
  }
  void appendOutlineAttributes(popart::OpSerialiserBase &to) const override {
    popart::Op::appendOutlineAttributes(to);
    append(to);
  }
  float getSubgraphValue() const override { return getHighSubgraphValue(); }
  bool requiresRandomSeed() const override { return false; }

  virtual bool isGradient() const = 0;
  virtual Source source(popart::InIndex place) const = 0;
  // Where an input is; of the gradient, where an output is, which is that of an input. Or -1.
  virtual int place(const Source &source) const = 0;
  virtual int outputPlace(int index) const = 0;

  const typename D::Attributes attributes;

private:
  void append(popart::OpSerialiserBase &to) const { typename D::Attributes(attributes).each(WriteAttributes(to)); }
};

template <typename D> class GradientOp : public OpOf<D> {
public:
  GradientOp(const popart::Op &forward, const typename D::Attributes &attributes)
      : OpOf<D>(identifierOf<D>(true), forward.settings, attributes) {
    const Gradient gradient = D::gradient(attributes);
    for (const Source &source : gradient.reads) {
      if (source.kind == popart::GradOpInType::In && !forward.hasInput(source.index))
        continue;
      const int place = static_cast<int>(sources_.size());
      inputs_.emplace_back(place, source.index, source.kind);
      sources_.push_back(source);
      if (source.optional)
        optional_.insert(place);
    }
    for (const int index : gradient.of)
      if (forward.hasInput(index)) {
        outputs_.emplace(static_cast<int>(infos_.size()), index);
        infos_.push_back(forward.inInfo(index));
      }
  }

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<GradientOp>(*this); }
  void setup() override {
    for (const auto &gradient : outputs_) {
      const int own = place(input(gradient.second));
      this->outInfo(gradient.first) = own < 0 ? infos_[static_cast<std::size_t>(gradient.first)] : this->inInfo(own);
    }
  }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const override { return inputs_; }
  const std::map<int, int> &gradOutToNonGradIn() const override { return outputs_; }
  std::set<popart::InIndex> optionalInputs() const override { return optional_; }

  bool isGradient() const override { return true; }
  Source source(popart::InIndex place) const override { return sources_.at(static_cast<std::size_t>(place)); }
  int place(const Source &source) const override {
    const auto found = std::find(sources_.begin(), sources_.end(), source);
    return found == sources_.end() ? -1 : static_cast<int>(found - sources_.begin());
  }
  int outputPlace(int index) const override {
    for (const auto &gradient : outputs_)
      if (gradient.second == index)
        return gradient.first;
    return -1;
  }

private:
  std::vector<Source> sources_;
  std::vector<popart::GradInOutMapper> inputs_;
  std::set<popart::InIndex> optional_;
  std::map<int, int> outputs_;
  Infos infos_; // of the inputs that have a gradient, which need not be read
};

template <typename D> class ForwardOp : public OpOf<D> {
public:
  using OpOf<D>::OpOf;

  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<ForwardOp>(*this); }
  void setup() override {
    const Fields fields = fieldsOf();
    for (int i = 0; i <= static_cast<int>(fields.size()); ++i)
      check(fields, i);
    D::checkInputs(*this, this->attributes);
    const Infos infos = D::shapes(this->attributes, [this](int index) { return this->inInfo(index); });
    for (std::size_t o = 0; o < infos.size(); ++o)
      this->outInfo(static_cast<int>(o)) = infos[o];
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    std::vector<std::unique_ptr<popart::Op>> ops;
    ops.push_back(std::make_unique<GradientOp<D>>(*this, this->attributes));
    return ops;
  }
  std::set<popart::InIndex> optionalInputs() const override {
    std::set<popart::InIndex> optional;
    const Fields fields = fieldsOf();
    for (std::size_t i = 0; i < fields.size(); ++i)
      if (fields[i].optional)
        optional.insert(static_cast<int>(i));
    return optional;
  }

  bool isGradient() const override { return false; }
  Source source(popart::InIndex place) const override { return input(place); }
  int place(const Source &source) const override { return source.kind == popart::GradOpInType::In ? source.index : -1; }
  int outputPlace(int index) const override { return index; }

private:
  Fields fieldsOf() const { return D::inputsOf(this->attributes); }
  void check(const Fields &fields, int index) const {
    const bool known = index < static_cast<int>(fields.size()), there = this->hasInput(index);
    if (there != known && !(known && fields[static_cast<std::size_t>(index)].optional)) {
      std::string names;
      for (const Field &field : fields)
        names += (names.empty() ? "" : ", ") + std::string(field.name);
      throw popart::error("{} takes {}: input {} is {}", this->opid, names, index, known ? "missing" : "too many");
    }
    if (!there)
      return;
    const Field &field = fields[static_cast<std::size_t>(index)];
    const popart::DataType type = this->inInfo(index).dataType();
    if (type != popart::DataType::FLOAT && (field.types == Float || type != popart::DataType::FLOAT16))
      throw popart::error("{}: {} must be FLOAT{}", this->opid, field.name, field.types == Float ? "" : " or FLOAT16");
  }
};

inline poplar::Type poplarType(const popart::TensorInfo &info) {
  return info.dataType() == popart::DataType::FLOAT16 ? poplar::HALF : poplar::FLOAT;
}

// What a description's programs are made with, of the operator or of its gradient.
template <typename D> class Lowering : public popart::popx::Opx {
public:
  Lowering(popart::Op *op, popart::popx::Devicex *devicex) : popart::popx::Opx(op, devicex) {
    verifyOp<OpOf<D>>(op, std::vector<popart::OperatorIdentifier>{identifierOf<D>(), identifierOf<D>(true)});
    addCodelets(graph());
  }

  void grow(poplar::program::Sequence &prog) const override {
    op().isGradient() ? D::growGradient(*this, prog) : D::grow(*this, prog);
  }
  popart::popx::InputCreatorType getInputCreatorType(popart::InIndex index) const override {
    return D::laysOut(attributes(), op().source(index), op().isGradient()) ? popart::popx::InputCreatorType::CanCreate
                                                                           : popart::popx::InputCreatorType::Deadend;
  }
  poplar::Tensor createInputTensor(popart::InIndex index, const poplar::DebugNameAndId &name) const override {
    return D::layOut(*this, op().source(index), {name});
  }
  std::set<popart::TensorId> mustExistBeforeCreate(int) const override { return {}; }

  using popart::popx::Opx::graph;
  const typename D::Attributes &attributes() const { return op().attributes; }
  poplar::DebugContext label() const {
    std::string name = op().opid.type;
    name[0] = static_cast<char>(std::tolower(name[0]));
    return debugContext(name);
  }

  const popart::TensorInfo &info(const Source &source) const { return inInfo(op().place(source)); }
  const popart::TensorInfo &outputInfo(int index) const { return outInfo(op().outputPlace(index)); }
  bool has(const Source &source) const { return op().place(source) >= 0 && hasInput(op().place(source)); }
  // Invalid where there is none.
  poplar::Tensor at(const Source &source) const {
    return has(source) ? getInTensor(op().place(source)) : poplar::Tensor();
  }
  poplar::Tensor in(int index) const { return at(input(index)); }
  // Three inputs are spikes in slots.
  graph::SlotTensors slots(int first = 0) const { return {in(first), in(first + 1), in(first + 2), {}}; }

  // An output; in the gradient the gradient of an input, where it has one.
  void set(int index, const poplar::Tensor &tensor) const {
    if (op().outputPlace(index) >= 0)
      setOutTensor(op().outputPlace(index), tensor);
  }
  void setSlots(int first, const graph::SlotTensors &slots) const {
    set(first, slots.ids);
    set(first + 1, slots.values);
    set(first + 2, slots.counts);
  }
  // Zeros are an input's gradient: without one PopART would drop that of the operator that made the input.
  void setZeros(int index) const {
    const popart::TensorInfo &info = outputInfo(index);
    std::string name = D::inputsOf(attributes())[static_cast<std::size_t>(index)].name;
    name[0] = static_cast<char>(std::toupper(name[0]));
    set(index, graph::zeros(graph(), info.shape_szt(), debugContext("grad" + name), poplarType(info)));
  }

private:
  const OpOf<D> &op() const { return this->template getOp<OpOf<D>>(); }
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
              return std::make_unique<ForwardOp<D>>(info.opid, info.settings, attributesFrom<D>(info.attributes));
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
