// Handles of a graph's compute sets, vertices and fields.
#pragma once

#include <string>

#include <poplar/StringRef.hpp>

namespace poplar {

class ComputeSet {
public:
  ComputeSet() = default;
  explicit ComputeSet(unsigned id) : id_(id) {}
  unsigned getId() const { return id_; }

private:
  unsigned id_ = ~0u;
};

class FieldRef {
public:
  FieldRef() = default;
  FieldRef(unsigned vertex, StringRef name) : vertex_(vertex), name_(name.cloneAsString()) {}
  unsigned getVertexId() const { return vertex_; }
  const std::string &getName() const { return name_; }

private:
  unsigned vertex_ = ~0u;
  std::string name_;
};

class VertexRef {
public:
  VertexRef() = default;
  explicit VertexRef(unsigned id) : id_(id) {}
  FieldRef operator[](StringRef fieldName) const { return FieldRef(id_, fieldName); }
  unsigned getId() const { return id_; }

private:
  unsigned id_ = ~0u;
};

} // namespace poplar
