// Attributes of operators. A struct of attributes has each(visitor), which calls visitor(key, value, limits...) for
// each of them. The visitors here read them, write them for PopART's comparison of operators, and list their names.
#pragma once

#include <popart/error.hpp>
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>

#include "graph/vertex_name.hpp"

#include <string>
#include <type_traits>

namespace snnipu {
namespace ops {

class ReadAttributes {
public:
  explicit ReadAttributes(const popart::Attributes &from) : attributes_(from) {}

  void operator()(const char *key, float &value) const {
    value = attributes_.getAttribute<popart::Attributes::Float>(key);
  }
  void operator()(const char *key, std::string &value) const {
    value = attributes_.getAttribute<popart::Attributes::String>(key);
  }
  void operator()(const char *key, popart::Attributes::Floats &values) const {
    values = attributes_.getAttribute<popart::Attributes::Floats>(key);
  }
  // 0 or 1.
  void operator()(const char *key, bool &value) const { value = number(key, 2) != 0; }
  // An enumerator: 0, ..., count - 1.
  template <typename Enum, typename = std::enable_if_t<std::is_enum<Enum>::value>>
  void operator()(const char *key, Enum &value, int64_t count) const {
    value = static_cast<Enum>(number(key, count));
  }
  // An integer, `least` or more.
  void operator()(const char *key, int64_t &value, int64_t least) const {
    value = attributes_.getAttribute<popart::Attributes::Int>(key);
    if (value < least)
      throw popart::error("Attribute {} must be {} or more, got {}", key, least, value);
  }
  // A list of integers; with `count`, a list of `count` integers that are not negative.
  void operator()(const char *key, popart::Attributes::Ints &values) const {
    values = attributes_.getAttribute<popart::Attributes::Ints>(key);
  }
  void operator()(const char *key, popart::Attributes::Ints &values, std::size_t count) const {
    (*this)(key, values);
    if (values.size() != count)
      throw popart::error("Attribute {} must have {} entries, got {}", key, count, values.size());
    for (const int64_t value : values)
      if (value < 0)
        throw popart::error("Attribute {} must have no negative entry, got {}", key, value);
  }
  // A list that may be missing, and is then empty.
  struct Optional {};
  void operator()(const char *key, popart::Attributes::Ints &values, Optional) const {
    values = attributes_.getAttribute<popart::Attributes::Ints>(key, {});
  }

private:
  int64_t number(const char *key, int64_t count) const {
    const int64_t value = attributes_.getAttribute<popart::Attributes::Int>(key);
    if (value < 0 || value >= count)
      throw popart::error("Attribute {} must be from 0 to {}, got {}", key, count - 1, value);
    return value;
  }

  const popart::Attributes &attributes_;
};

class WriteAttributes {
public:
  explicit WriteAttributes(popart::OpSerialiserBase &to) : to_(to) {}

  template <typename T, typename... Limits> void operator()(const char *key, const T &value, Limits...) const {
    if constexpr (std::is_enum<T>::value || std::is_same<T, bool>::value)
      to_.appendAttribute(key, static_cast<int64_t>(value));
    else
      to_.appendAttribute(key, value);
  }

private:
  popart::OpSerialiserBase &to_;
};

class NameAttributes {
public:
  template <typename T, typename... Limits> void operator()(const char *key, const T &, Limits...) {
    named.emplace(key, popart::OpDefinition::Attribute("*"));
  }

  popart::OpDefinition::Attributes named;
};

// The attributes of a surrogate gradient.
struct SurrogateAttributes {
  graph::Surrogate kind = graph::Surrogate::Atan;
  float a = 0.0f, b = 0.0f;

  template <typename Visitor> void each(Visitor &&visit) {
    visit("surrogate", kind, static_cast<unsigned>(numSurrogates));
    visit("surrogate_a", a);
    visit("surrogate_b", b);
  }
};

} // namespace ops
} // namespace snnipu
