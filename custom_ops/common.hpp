// What all operators share: their domain, the way attributes are read, and where the codelets are.
#pragma once

#include <popart/error.hpp>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popart/shapeinference.hpp>

#include "graph/vertex_name.hpp"

#include <memory>
#include <string>

namespace snnipu {
namespace ops {

inline popart::OperatorIdentifier identifier(const char *name) { return {"ai.snnipu", name, 1}; }

// Makes the vertices known: of snnipu.gp beside this library, or of the file that SNNIPU_CODELETS names.
void addCodelets(poplar::Graph &graph);

// An Opx that has the vertices.
class Opx : public popart::popx::Opx {
public:
  Opx(popart::Op *op, popart::popx::Devicex *devicex) : popart::popx::Opx(op, devicex) {}

protected:
  // The tensor of an input, or an invalid one where it is absent.
  poplar::Tensor optionalInput(popart::InIndex index) const {
    return hasInput(index) ? getInTensor(index) : poplar::Tensor();
  }
};

// A number of an attribute that is one of 0, ..., count - 1.
template <typename Enum> Enum enumeration(const popart::Attributes &attributes, const std::string &key, int64_t count) {
  const int64_t value = attributes.getAttribute<popart::Attributes::Int>(key);
  if (value < 0 || value >= count)
    throw popart::error("Attribute {} must be from 0 to {}, got {}", key, count - 1, value);
  return static_cast<Enum>(value);
}

inline bool flag(const popart::Attributes &attributes, const std::string &key) {
  return enumeration<int>(attributes, key, 2) != 0;
}

// Attributes of a surrogate gradient.
struct SurrogateAttributes {
  graph::Surrogate kind;
  float a, b;

  static SurrogateAttributes read(const popart::Attributes &attributes) {
    return {enumeration<graph::Surrogate>(attributes, "surrogate", 6),
            attributes.getAttribute<popart::Attributes::Float>("surrogate_a"),
            attributes.getAttribute<popart::Attributes::Float>("surrogate_b")};
  }
  void append(popart::OpSerialiserBase &to) const {
    to.appendAttribute("surrogate", static_cast<int64_t>(kind));
    to.appendAttribute("surrogate_a", a);
    to.appendAttribute("surrogate_b", b);
  }
};

// An operator that is told apart by its attributes alone: A has append(OpSerialiserBase &). PopART takes operators for
// one and the same where neither of the two functions tells them apart.
template <typename A> class OpWith : public popart::Op {
public:
  OpWith(const popart::OperatorIdentifier &opid, const popart::Op::Settings &settings, const A &attributes_)
      : popart::Op(opid, settings), attributes(attributes_) {}

  void appendAttributes(popart::OpSerialiserBase &to) const override {
    popart::Op::appendAttributes(to);
    attributes.append(to);
  }
  void appendOutlineAttributes(popart::OpSerialiserBase &to) const override {
    popart::Op::appendOutlineAttributes(to);
    attributes.append(to);
  }
  float getSubgraphValue() const override { return getHighSubgraphValue(); }
  bool requiresRandomSeed() const override { return false; }

  const A attributes;
};

template <typename OP> std::vector<std::unique_ptr<popart::Op>> gradOps(std::unique_ptr<OP> op) {
  std::vector<std::unique_ptr<popart::Op>> ops;
  ops.push_back(std::move(op));
  return ops;
}

// The creator of an operator whose constructor takes its identifier, settings and attributes.
template <typename OP, typename A>
popart::OpCreator<OP> creatorOf(const popart::OperatorIdentifier &opid, const popart::OpDefinition &definition) {
  return popart::OpCreator<OP>(
      popart::OpDefinitions({{opid, definition}}),
      [](const popart::OpCreatorInfo &info) -> std::unique_ptr<popart::Op> {
        return std::make_unique<OP>(info.opid, info.settings, A::read(info.attributes));
      },
      true);
}

inline const popart::OpDefinition::DataTypes &floats() {
  static const popart::OpDefinition::DataTypes types = {popart::DataType::FLOAT};
  return types;
}
inline const popart::OpDefinition::DataTypes &floatsAndHalves() {
  static const popart::OpDefinition::DataTypes types = {popart::DataType::FLOAT, popart::DataType::FLOAT16};
  return types;
}
inline popart::OpDefinition::Attributes attributesNamed(const std::vector<std::string> &names) {
  popart::OpDefinition::Attributes attributes;
  for (const std::string &name : names)
    attributes.emplace(name, popart::OpDefinition::Attribute("*"));
  return attributes;
}

// A whole number of at least `least`.
inline int64_t wholeNumber(const popart::Attributes &attributes, const std::string &key, int64_t least) {
  const int64_t value = attributes.getAttribute<popart::Attributes::Int>(key);
  if (value < least)
    throw popart::error("Attribute {} must be {} or more, got {}", key, least, value);
  return value;
}

// A list of `count` whole numbers, none of them negative.
inline popart::Attributes::Ints wholeNumbers(const popart::Attributes &attributes, const std::string &key,
                                             std::size_t count) {
  const popart::Attributes::Ints values = attributes.getAttribute<popart::Attributes::Ints>(key);
  if (values.size() != count)
    throw popart::error("Attribute {} must have {} entries, got {}", key, count, values.size());
  for (const int64_t value : values)
    if (value < 0)
      throw popart::error("Attribute {} must have no negative entry, got {}", key, value);
  return values;
}

// [steps, batch, last] of a tensor [steps, batch, anything].
inline popart::TensorInfo likeRows(const popart::TensorInfo &info, int64_t last,
                                   popart::DataType type = popart::DataType::FLOAT) {
  if (info.rank() != 3)
    throw popart::error("A tensor [steps, batch, ...] has three dimensions, got {}", info);
  return {type, {info.dim(0), info.dim(1), last}};
}

inline void checkFloat(const popart::Op &op, popart::InIndex index, const char *name) {
  if (op.inInfo(index).dataType() != popart::DataType::FLOAT)
    throw popart::error("{}: {} must be FLOAT", op.opid, name);
}
inline void checkFloatOrHalf(const popart::Op &op, popart::InIndex index, const char *name) {
  const popart::DataType type = op.inInfo(index).dataType();
  if (type != popart::DataType::FLOAT && type != popart::DataType::FLOAT16)
    throw popart::error("{}: {} must be FLOAT or FLOAT16", op.opid, name);
}

inline poplar::Type poplarType(const popart::TensorInfo &info) {
  return info.dataType() == popart::DataType::FLOAT16 ? poplar::HALF : poplar::FLOAT;
}

} // namespace ops
} // namespace snnipu
