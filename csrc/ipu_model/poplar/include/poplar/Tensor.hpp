// poplar::Tensor: a view of the elements of variables. Slicing, reshaping and so on move no data.
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

  // False for a tensor that was made by the default constructor; everything else throws for it.
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
  // Dimensions of size 1 in front of the dimensions named.
  Tensor expand(ArrayRef<std::size_t> indices) const;
  Tensor squeeze(ArrayRef<std::size_t> indices) const;
  // N times itself along a dimension.
  Tensor broadcast(unsigned N, unsigned dimension) const;
  // The same bits as another type of the same size.
  Tensor reinterpret(const Type &type) const;

  // Whether its elements follow each other in one variable.
  bool isContiguous() const;
  bool containsAliases() const;
  bool containsConstant() const;
  bool isParallelWriteable() const { return !containsAliases() && !containsConstant(); }
  // Intervals of the flattened tensor that follow each other in one variable.
  std::vector<Interval> getContiguousRegions() const;
  std::vector<VariableInterval> getVarRegions() const;

  // The same view of the same elements.
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
// second with one dimension less, at the end of first.
Tensor append(const Tensor &first, const Tensor &second, unsigned dimension);
inline Tensor append(const Tensor &first, const Tensor &second) { return append(first, second, 0); }

} // namespace poplar
