// PopART subset: the part of a tensor that an operator writes, or that its output shares.
#pragma once

#include <popart/names.hpp>

namespace popart {
namespace view {

class Region {
public:
  Region(const std::vector<int64_t> &lower, const std::vector<int64_t> &upper) : lower_(lower), upper_(upper) {}

  static Region getEmpty(int64_t rank);
  static Region getFull(const Shape &shape);
  int64_t rank() const { return static_cast<int64_t>(lower_.size()); }
  int64_t nelms() const;
  bool isEmpty() const { return empty_ || nelms() == 0; }
  const std::vector<int64_t> &getLower() const { return lower_; }
  const std::vector<int64_t> &getUpper() const { return upper_; }

private:
  std::vector<int64_t> lower_, upper_;
  bool empty_ = false; // needed for rank 0, which has no bounds
};

} // namespace view
} // namespace popart
