// Names of the vertices of csrc/vertices as popc writes them: full template arguments, without spaces. Arguments are
// types and enumerators, as of PopLibs' vertices. csrc/ipu_model/popc compares the names with Clang's.
#pragma once

#include "graph/poplar.hpp"
#include "neuron/leaky.hpp"
#include "neuron/surrogate.hpp"

#include <string>

namespace snnipu {
namespace graph {

using Surrogate = SurrogateKind;

// Return a template argument as popc writes it.
std::string argument(Type type);
std::string argument(Reset reset);
std::string argument(Surrogate surrogate);
inline std::string argument(bool value) { return value ? "true" : "false"; }
inline std::string argument(const char *name) { return name; }

// Return the name of a vertex with these template arguments. name: without arguments.
template <typename... Arguments> std::string vertexName(const char *name, const Arguments &...arguments) {
  std::string list;
  ((list += (list.empty() ? "" : ",") + argument(arguments)), ...);
  return "snnipu::" + std::string(name) + "<" + list + ">";
}

} // namespace graph
} // namespace snnipu
