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

inline void checkFloat(const popart::Op &op, popart::InIndex index, const char *name) {
  if (op.inInfo(index).dataType() != popart::DataType::FLOAT)
    throw popart::error("{}: {} must be FLOAT", op.opid, name);
}

} // namespace ops
} // namespace snnipu
