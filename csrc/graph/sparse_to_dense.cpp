#include "graph/sparse_to_dense.hpp"

#include <stdexcept>

namespace snnipu {
namespace graph {

using poplar::Tensor;

Tensor sparseToDense(poplar::Graph &graph, const SlotTensors &spikes, std::size_t neurons,
                     poplar::program::Sequence &prog, const poplar::DebugContext &debug) {
  checkSlots("sparse_to_dense", spikes);
  const poplar::DebugInfo info(debug, "snnipu");
  const std::size_t steps = spikes.ids.dim(0), batch = spikes.ids.dim(1), slots = spikes.ids.dim(2);
  const RowSpread spread(graph, steps * batch);
  const Tensor ids =
      idsOfFloats(graph, spread, spikes.ids.reshape({steps * batch, slots}), neurons, prog, {info, "ids"});
  const Tensor counts =
      idsOfFloats(graph, spread, spikes.counts.reshape({steps * batch, 2}), slots + 1, prog, {info, "counts"});
  const Tensor values = inType(graph, spread, spikes.values.reshape({steps * batch, slots}), poplar::FLOAT, prog,
                               {info, "valuesInFloat"});
  return scatterSlots(graph, spread, values, ids, counts, neurons, spikes.values.elementType(), prog, {info, "dense"})
      .reshape({steps, batch, neurons});
}

Tensor sparseToDenseGrad(poplar::Graph &graph, const Tensor &dense, const Tensor &ids, const Tensor &counts,
                         poplar::program::Sequence &prog, const poplar::DebugContext &debug) {
  checkSlots("sparse_to_dense", {ids, ids, counts, {}});
  const poplar::DebugInfo info(debug, "snnipu");
  const std::size_t rows = ids.dim(0) * ids.dim(1), slots = ids.dim(2), neurons = dense.dim(2);
  const poplar::Type type = dense.elementType();
  if ((type != poplar::FLOAT && type != poplar::HALF) || dense.numElements() != rows * neurons)
    throw std::invalid_argument(
        "sparse_to_dense: the dense tensor must be FLOAT or HALF [steps, batch, neurons], got " +
        dense.elementType().toString() + " " + dense.shapeToString());
  const RowSpread spread(graph, rows);
  const Tensor id = idsOfFloats(graph, spread, ids.reshape({rows, slots}), neurons, prog, {info, "ids"});
  const Tensor count = idsOfFloats(graph, spread, counts.reshape({rows, 2}), slots + 1, prog, {info, "counts"});
  const Tensor values = gatherSlots(graph, spread, dense.reshape({rows, neurons}), id, count, prog, {info, "values"});
  return inType(graph, spread, values, type, prog, {info, "valuesOfType"}).reshape(ids.shape());
}

} // namespace graph
} // namespace snnipu
