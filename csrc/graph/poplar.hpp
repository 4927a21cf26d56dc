// Poplar's names in the graph builders.
#pragma once

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace snnipu {
namespace graph {

using poplar::ArrayRef;
using poplar::ComputeSet;
using poplar::DebugContext;
using poplar::DebugInfo;
using poplar::FLOAT;
using poplar::Graph;
using poplar::HALF;
using poplar::INT;
using poplar::Interval;
using poplar::Target;
using poplar::Tensor;
using poplar::Type;
using poplar::UNSIGNED_INT;
using poplar::VertexRef;
using poplar::program::Copy;
using poplar::program::Execute;
using poplar::program::Repeat;
using poplar::program::Sequence;
using std::size_t;

// Throw std::invalid_argument, whose message names the operator. PopART's operators have checked types.
[[noreturn]] inline void refuse(const std::string &op, const std::string &reason) {
  throw std::invalid_argument(op + ": " + reason);
}

} // namespace graph
} // namespace snnipu
