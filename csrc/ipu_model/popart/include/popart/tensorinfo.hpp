// PopART subset: type and shape of a tensor.
#pragma once

#include <popart/datatype.hpp>
#include <popart/error.hpp>
#include <popart/names.hpp>

namespace popart {

class TensorInfo {
public:
  TensorInfo() = default;
  TensorInfo(DataType type, const Shape &shape) : type_(type), shape_(shape) {}

  void set(DataType type, const Shape &shape) { *this = TensorInfo(type, shape); }
  const Shape &shape() const { return shape_; }
  std::vector<std::size_t> shape_szt() const { return {shape_.begin(), shape_.end()}; }
  Rank rank() const { return static_cast<Rank>(shape_.size()); }
  int64_t nelms() const;
  int64_t nbytes() const;
  int64_t dim(int i) const;
  DataType dataType() const { return type_; }
  bool isSet() const { return type_ != DataType::UNDEFINED; }
  bool operator==(const TensorInfo &other) const { return type_ == other.type_ && shape_ == other.shape_; }
  bool operator!=(const TensorInfo &other) const { return !(*this == other); }

private:
  DataType type_ = DataType::UNDEFINED;
  Shape shape_;
};

std::ostream &operator<<(std::ostream &, const TensorInfo &);

} // namespace popart
