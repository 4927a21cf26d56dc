#include "graph/dense_to_sparse.hpp"

#include "graph/select_spikes.hpp"

#include <stdexcept>

namespace snnipu {
namespace graph {

using poplar::Tensor;

SlotTensors denseToSparse(poplar::Graph &graph, const Tensor &x, std::size_t capacity, bool rotate,
                          poplar::program::Sequence &prog, const poplar::DebugContext &debug) {
  const poplar::Type type = x.elementType();
  if ((type != poplar::FLOAT && type != poplar::HALF) || x.rank() != 3 || x.numElements() == 0)
    throw std::invalid_argument(
        "dense_to_sparse: x must be FLOAT or HALF [steps, batch, neurons], with elements, got " +
        x.elementType().toString() + " " + x.shapeToString());
  if (capacity == 0)
    throw std::invalid_argument("dense_to_sparse: capacity must be 1 or more");
  const poplar::DebugInfo info(debug, "snnipu");
  const std::size_t steps = x.dim(0), batch = x.dim(1), neurons = x.dim(2), rows = steps * batch;
  const RowMapping mapping(graph, rows);
  const Tensor dense = x.reshape({rows, neurons});
  const Bits bits = bitsAbove(graph, mapping, dense, {}, false, 0.0f, prog, {info, "bits"});
  SlotTensors slots =
      slotsOfBits(graph, mapping, bits.fired, bits.carried, batch, neurons, capacity, rotate, prog, {info, "slots"});
  slots.values = gatherSlots(graph, mapping, dense, slots.ids, slots.counts, prog, {info, "values"});
  return slotsOfRows(graph, mapping, slots, batch, type, prog, info);
}

} // namespace graph
} // namespace snnipu
