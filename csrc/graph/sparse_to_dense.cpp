#include "graph/sparse_to_dense.hpp"

#include <stdexcept>

namespace snnipu {
namespace graph {

using poplar::Tensor;

Tensor sparseToDense(poplar::Graph &graph, const SlotTensors &spikes, std::size_t neurons,
                     poplar::program::Sequence &prog, const poplar::DebugContext &debug) {
  checkSlots("sparse_to_dense", spikes);
  const poplar::DebugInfo info(debug, "snnipu");
  const std::size_t steps = spikes.ids.dim(0), batch = spikes.ids.dim(1);
  const RowMapping mapping(graph, steps * batch);
  const SlotTensors at = rowsOfSlots(graph, mapping, spikes, neurons, prog, info);
  return scatterSlots(graph, mapping, at.values, at.ids, at.counts, neurons, spikes.values.elementType(), prog,
                      {info, "dense"})
      .reshape({steps, batch, neurons});
}

Tensor sparseToDenseGrad(poplar::Graph &graph, const Tensor &dense, const Tensor &ids, const Tensor &counts,
                         poplar::program::Sequence &prog, const poplar::DebugContext &debug) {
  checkSlots("sparse_to_dense", {ids, ids, counts, {}});
  const poplar::DebugInfo info(debug, "snnipu");
  const std::size_t rows = ids.dim(0) * ids.dim(1), neurons = dense.dim(2);
  const poplar::Type type = dense.elementType();
  if ((type != poplar::FLOAT && type != poplar::HALF) || dense.numElements() != rows * neurons)
    throw std::invalid_argument(
        "sparse_to_dense: the dense tensor must be FLOAT or HALF [steps, batch, neurons], got " +
        dense.elementType().toString() + " " + dense.shapeToString());
  const RowMapping mapping(graph, rows);
  const SlotTensors at = rowsOfSlots(graph, mapping, {ids, {}, counts, {}}, neurons, prog, info);
  const Tensor values =
      gatherSlots(graph, mapping, dense.reshape({rows, neurons}), at.ids, at.counts, prog, {info, "values"});
  return castRows(graph, mapping, values, type, prog, {info, "valuesOfType"}).reshape(ids.shape());
}

} // namespace graph
} // namespace snnipu
