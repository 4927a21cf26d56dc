#include "graph/dense_to_sparse.hpp"

#include "graph/select_spikes.hpp"

namespace snnipu {
namespace graph {

SlotTensors denseToSparse(Graph &graph, const Tensor &x, size_t capacity, bool rotate, Sequence &prog,
                          const DebugContext &debug) {
  const Type type = x.elementType();
  if (x.rank() != 3 || x.numElements() == 0)
    refuse("dense_to_sparse", "x must be [steps, batch, neurons], with elements, got " + x.shapeToString());
  const DebugInfo info(debug, "snnipu");
  const size_t steps = x.dim(0), batch = x.dim(1), neurons = x.dim(2), rows = steps * batch;
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
