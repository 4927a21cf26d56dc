// Names of the vertices of csrc/vertices, as popc writes them: template arguments in full, without blanks.
#pragma once

#include "neuron/lif.hpp"

#include <poplar/Type.hpp>

#include <string>

namespace snnipu {
namespace graph {

// In the order of enum snnipu_surrogate (csrc/host/snnipu.h).
enum class Surrogate : unsigned { LeakyStep = 0, Triangular, FastSigmoid, ATan, Sigmoid, SpikeRateEscape };

std::string argument(poplar::Type type);
std::string argument(Reset reset);
std::string argument(Surrogate surrogate);
inline std::string argument(bool value) { return value ? "true" : "false"; }
inline std::string argument(const char *name) { return name; }

template <typename... Arguments> std::string vertexName(const char *name, const Arguments &...arguments) {
  std::string list;
  ((list += (list.empty() ? "" : ",") + argument(arguments)), ...);
  return "snnipu::" + std::string(name) + "<" + list + ">";
}

} // namespace graph
} // namespace snnipu
