#include "graph/vertex_name.hpp"

#include <stdexcept>

namespace snnipu {
namespace graph {

std::string argument(poplar::Type type) { return type.toString(); }

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
  case Surrogate::LeakyStep:
    return "snnipu::LeakyStep";
  case Surrogate::Triangular:
    return "snnipu::Triangular";
  case Surrogate::FastSigmoid:
    return "snnipu::FastSigmoid";
  case Surrogate::ATan:
    return "snnipu::ATan";
  case Surrogate::Sigmoid:
    return "snnipu::Sigmoid";
  case Surrogate::SpikeRateEscape:
    return "snnipu::SpikeRateEscape";
  }
  throw std::invalid_argument("unknown surrogate");
}

} // namespace graph
} // namespace snnipu
