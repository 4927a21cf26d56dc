// The view of a vertex that an estimator of cycles has: its fields, their sizes, and their initial values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <poplar/Target.hpp>
#include <poplar/Type.hpp>

namespace poplar {

namespace detail {
struct VertexState;
double numberOf(const std::vector<unsigned char> &bytes, Type type);
} // namespace detail

class FieldData {
public:
  // Elements connected to an edge; 1 for a plain member.
  std::size_t size() const { return size_; }
  Type elementType() const { return type_; }
  // Return the value of a plain member.
  template <typename T> T getInitialValue(const Target &) const {
    return static_cast<T>(detail::numberOf(initialValue_, type_));
  }

private:
  friend class VertexIntrospector;
  std::size_t size_ = 0;
  Type type_;
  std::vector<unsigned char> initialValue_;
};

class VertexIntrospector {
public:
  VertexIntrospector(const detail::VertexState &vertex, double occupancy) : vertex_(vertex), occupancy_(occupancy) {}

  const std::string &getVertexName() const;
  // Throw unknown_field.
  FieldData getFieldInfo(const std::string &name) const;
  // Return the fraction of the slots for spikes that is in use, from the engine's option "occupancy". Poplar does not
  // have this.
  double occupancy() const { return occupancy_; }

private:
  const detail::VertexState &vertex_;
  double occupancy_;
};

// Estimate of one run of a vertex, in cycles of the tile if it runs nothing else.
struct VertexPerfEstimate {
  VertexPerfEstimate() = default;
  VertexPerfEstimate(std::uint64_t cycles, std::uint64_t flops = 0) : cycles(cycles), flops(flops) {}

  std::uint64_t cycles = 0;
  std::uint64_t flops = 0;
};

using PerfEstimateFunc = std::function<VertexPerfEstimate(const VertexIntrospector &vertex, const Target &target)>;

} // namespace poplar
