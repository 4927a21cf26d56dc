// What an estimator of cycles is told of a vertex: its fields, their sizes, and their initial values.
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
  // Value of a plain member.
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
  // Throws unknown_field.
  FieldData getFieldInfo(const std::string &name) const;
  // Not in Poplar: the share of the slots for spikes that is taken, by the engine's option "occupancy".
  double occupancy() const { return occupancy_; }

private:
  const detail::VertexState &vertex_;
  double occupancy_;
};

// Of one run of a vertex: cycles of the tile, if it had nothing else to do.
struct VertexPerfEstimate {
  VertexPerfEstimate() = default;
  VertexPerfEstimate(std::uint64_t cycles, std::uint64_t flops = 0) : cycles(cycles), flops(flops) {}

  std::uint64_t cycles = 0;
  std::uint64_t flops = 0;
};

using PerfEstimateFunc = std::function<VertexPerfEstimate(const VertexIntrospector &vertex, const Target &target)>;

} // namespace poplar
