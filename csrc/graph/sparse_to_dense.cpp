#include "graph/sparse_to_dense.hpp"

namespace snnipu {
namespace graph {

Tensor sparseToDense(Graph &graph, const SlotTensors &spikes, size_t neurons, Sequence &prog,
                     const DebugContext &debug) {
  checkSlots("sparse_to_dense", spikes);
  const DebugInfo info(debug, "snnipu");
  const size_t steps = spikes.ids.dim(0), batch = spikes.ids.dim(1);
  const RowMapping mapping(graph, steps * batch);
  const SlotTensors at = rowsOfSlots(graph, mapping, spikes, neurons, prog, info);
  return scatterSlots(graph, mapping, at.values, at.ids, at.counts, neurons, spikes.values.elementType(), prog,
                      {info, "dense"})
      .reshape({steps, batch, neurons});
}

Tensor sparseToDenseGrad(Graph &graph, const Tensor &dense, const Tensor &ids, const Tensor &counts, Sequence &prog,
                         const DebugContext &debug) {
  checkSlots("sparse_to_dense", {ids, ids, counts, {}});
  const DebugInfo info(debug, "snnipu");
  const size_t rows = ids.dim(0) * ids.dim(1), neurons = dense.dim(2);
  const Type type = dense.elementType();
  if (dense.numElements() != rows * neurons)
    refuse("sparse_to_dense", "the dense tensor must be [steps, batch, neurons], got " + dense.shapeToString());
  const RowMapping mapping(graph, rows);
  const SlotTensors at = rowsOfSlots(graph, mapping, {ids, {}, counts, {}}, neurons, prog, info);
  const Tensor values =
      gatherSlots(graph, mapping, dense.reshape({rows, neurons}), at.ids, at.counts, prog, {info, "values"});
  return castRows(graph, mapping, values, type, prog, {info, "valuesOfType"}).reshape(ids.shape());
}

} // namespace graph
} // namespace snnipu
