#include "graph/vertex_name.hpp"

#include <stdexcept>

namespace snnipu {
namespace graph {

std::string argument(Type type) { return type.toString(); }

std::string argument(Reset reset) {
  switch (reset) {
  case Reset::Subtract:
    return "snnipu::Reset::Subtract";
  case Reset::Zero:
    return "snnipu::Reset::Zero";
  case Reset::None:
    return "snnipu::Reset::None";
  }
  throw std::invalid_argument("unknown reset mechanism");
}

std::string argument(Surrogate surrogate) {
  switch (surrogate) {
#define SNNIPU_CASE(Name)                                                                                              \
  case Surrogate::Name:                                                                                                \
    return "snnipu::SurrogateKind::" #Name;
    SNNIPU_SURROGATES(SNNIPU_CASE)
#undef SNNIPU_CASE
  case Surrogate::Any: // only on the host
    break;
  }
  throw std::invalid_argument("unknown surrogate");
}

} // namespace graph
} // namespace snnipu
