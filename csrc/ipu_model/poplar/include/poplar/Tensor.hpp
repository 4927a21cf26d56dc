// poplar::Tensor: a view of elements of variables. Slicing, reshaping and so on move no data.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <poplar/ArrayRef.hpp>
#include <poplar/Interval.hpp>
#include <poplar/Type.hpp>

namespace poplar {

class VariableRef {
public:
  VariableRef() = default;
  explicit VariableRef(unsigned id) : id_(id) {}
  unsigned id() const { return id_; }
  friend bool operator==(VariableRef a, VariableRef b) { return a.id_ == b.id_; }
  friend bool operator<(VariableRef a, VariableRef b) { return a.id_ < b.id_; }

private:
  unsigned id_ = 0;
};

// Consecutive elements of a variable.
struct VariableInterval {
  VariableRef var;
  Interval interval;
};

namespace detail {
struct GraphState;
struct View;
struct TensorAccess;
} // namespace detail

class Tensor {
public:
  Tensor();
  Tensor(const Tensor &);
  Tensor(Tensor &&) noexcept;
  Tensor &operator=(const Tensor &);
  Tensor &operator=(Tensor &&) noexcept;
  ~Tensor();

  // False for a default-constructed tensor, for which all other methods throw.
  bool valid() const { return view_ != nullptr; }
  Type elementType() const;
  std::vector<std::size_t> shape() const;
  std::string shapeToString() const;
  std::size_t rank() const;
  std::size_t dim(unsigned dimension) const;
  std::size_t numElements() const;

  Tensor operator[](std::size_t index) const &;
  Tensor index(ArrayRef<std::size_t> indices) const;
  Tensor slice(std::size_t begin, std::size_t end, unsigned dimension = 0) const;
  Tensor slice(ArrayRef<std::size_t> begin, ArrayRef<std::size_t> end) const;
  Tensor slice(const Interval &region, unsigned dimension = 0) const;
  std::vector<Tensor> slices(ArrayRef<Interval> intervals, unsigned dimension = 0) const;
  Tensor subSample(unsigned stride, unsigned dimension) const;
  Tensor reverse(unsigned dimension) const;

  Tensor flatten() const;
  Tensor flatten(unsigned dimBegin, unsigned dimEnd) const;
  Tensor reshape(ArrayRef<std::size_t> shape) const;
  Tensor reshapePartial(unsigned beginIndex, unsigned endIndex, ArrayRef<std::size_t> newDims) const;
  Tensor dimShuffle(ArrayRef<unsigned> permutation) const;
  Tensor dimRoll(unsigned dimIdx, unsigned newIdx = 0) const;
  Tensor transpose() const; // of rank 2
  // Insert dimensions of size 1 before the given dimensions.
  Tensor expand(ArrayRef<std::size_t> indices) const;
  Tensor squeeze(ArrayRef<std::size_t> indices) const;
  // Repeat the tensor N times along a dimension.
  Tensor broadcast(unsigned N, unsigned dimension) const;
  // Return the same bits as another type of the same size.
  Tensor reinterpret(const Type &type) const;

  // Return true if the elements are consecutive in one variable.
  bool isContiguous() const;
  bool containsAliases() const;
  bool containsConstant() const;
  bool isParallelWriteable() const { return !containsAliases() && !containsConstant(); }
  // Return the intervals of the flattened tensor that are contiguous in one variable.
  std::vector<Interval> getContiguousRegions() const;
  std::vector<VariableInterval> getVarRegions() const;

  // True for the same view of the same elements.
  friend bool operator==(const Tensor &a, const Tensor &b);
  friend bool operator!=(const Tensor &a, const Tensor &b) { return !(a == b); }

private:
  friend struct detail::TensorAccess;
  explicit Tensor(std::shared_ptr<const detail::View> view) : view_(std::move(view)) {}

  std::shared_ptr<const detail::View> view_;
};

bool operator==(const Tensor &a, const Tensor &b);

Tensor concat(ArrayRef<Tensor> tensors, unsigned dimension = 0);
Tensor concat(const Tensor &first, const Tensor &second, unsigned dimension = 0);
// Append second, which has one dimension less, to first.
Tensor append(const Tensor &first, const Tensor &second, unsigned dimension);
inline Tensor append(const Tensor &first, const Tensor &second) { return append(first, second, 0); }

} // namespace poplar
