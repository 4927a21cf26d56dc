#include "graph/sparse_pool2d.hpp"

#include "graph/tile_mapping.hpp"
#include "graph/vertex_name.hpp"

#include <algorithm>

namespace snnipu {
namespace graph {
namespace {

void check(const SparsePool2dOptions &options) {
  checkMaps("sparse_pool2d", options.in, options.out, options.kernel);
  if (options.in.channels != options.out.channels)
    refuse("sparse_pool2d", "input and output must have the same channels");
}

void setMaps(VertexBuilder &vertex, const MapSizes &maps) {
  vertex.count("channels", maps.channels).count("height", maps.height).count("width", maps.width);
}

float divisorOf(const SparsePool2dOptions &options) {
  return options.mode == PoolMode::Average ? static_cast<float>(options.kernel.taps()) : 1.0f;
}

} // namespace

PooledSlots sparsePool2d(Graph &graph, const SlotTensors &spikes, const SparsePool2dOptions &options, Sequence &prog,
                         const DebugContext &debug) {
  checkSlots("sparse_pool2d", spikes);
  check(options);
  const DebugInfo info(debug, "snnipu");
  const size_t steps = spikes.ids.dim(0), batch = spikes.ids.dim(1), slots = spikes.ids.dim(2);
  const size_t rows = steps * batch, neurons = options.out.neurons(), words = (neurons + 31) / 32;
  const RowMapping mapping(graph, rows);
  const Type type = spikes.values.elementType();
  const bool max = options.mode == PoolMode::Max;
  const Tensor places = placesOfFloats(graph, mapping, spikes.ids.reshape({rows, slots}), options.in, prog,
                                       {info, "spikes of all steps"});
  const Tensor counts =
      idsOfFloats(graph, mapping, spikes.counts.reshape({rows, 2}), slots + 1, prog, {info, "counts"});
  const Tensor values =
      castRows(graph, mapping, spikes.values.reshape({rows, slots}), FLOAT, prog, {info, "values of all steps"});
  const Tensor value = mapping.variable(graph, FLOAT, neurons, {info, "windows of all steps"});
  const Tensor reached = mapping.variable(graph, INT, neurons, {info, "reached of all steps"});
  const Tensor source = max ? mapping.variable(graph, FLOAT, neurons, {info, "source"}) : Tensor();
  const Tensor unused = emptyVariable(graph, FLOAT);
  const Tensor fired = mapping.variable(graph, UNSIGNED_INT, words, {info, "fired"});
  const Tensor carried = mapping.variable(graph, UNSIGNED_INT, words, {info, "carried"});
  const size_t workers = graph.getTarget().getNumWorkerContexts();
  runOnRows(graph, mapping, vertexName("SparsePoolWindows", FLOAT), prog, {info, "windows"}, [&](RowVertex &vertex) {
    setMaps(vertex, options.out);
    setKernel(vertex, options.kernel, options.in);
    vertex.rows("places", places)
        .rows("values", values)
        .rows("counts", counts)
        .rows("value", value)
        .rows("reached", reached)
        .connect("source", max ? vertex.part(source) : unused)
        .count("rows", vertex.held)
        .count("slots", slots)
        .count("shares", std::min(options.out.channels, (workers + vertex.held - 1) / vertex.held))
        .set("max", max);
  });
  runOnRows(graph, mapping, vertexName("SparsePoolBits", FLOAT), prog, {info, "bits"}, [&](RowVertex &vertex) {
    setMaps(vertex, options.out);
    setKernel(vertex, options.kernel, options.in);
    vertex.rows("value", value)
        .rows("reached", reached)
        .rows("fired", fired)
        .rows("carried", carried)
        .set("divisor", divisorOf(options))
        .count("rows", vertex.held)
        .set("max", max);
  });
  const SlotTensors selected =
      slotsOfBits(graph, mapping, fired, carried, batch, neurons, options.capacity, false, prog, {info, "slots"});
  const std::vector<size_t> shape = {steps, batch, options.capacity};
  const Tensor pooled = gatherSlots(graph, mapping, value, selected.ids, selected.counts, prog, {info, "values"});
  PooledSlots out;
  out.slots = slotsOfRows(graph, mapping, {selected.ids, pooled, selected.counts, {}}, batch, type, prog, info);
  out.source =
      max ? gatherSlots(graph, mapping, source, selected.ids, selected.counts, prog, {info, "source"}).reshape(shape)
          : zeros(graph, shape, {info, "noSource"});
  return out;
}

Tensor sparsePool2dGrad(Graph &graph, const Tensor &ids, const Tensor &counts, const PooledSlots &pooled,
                        const SparsePool2dOptions &options, Sequence &prog, const DebugContext &debug) {
  checkSlots("sparse_pool2d", {ids, ids, counts, {}});
  checkSlots("sparse_pool2d", pooled.slots);
  check(options);
  const DebugInfo info(debug, "snnipu");
  const size_t slots = ids.dim(2), rows = ids.dim(0) * ids.dim(1), outputSlots = options.capacity;
  const RowMapping mapping(graph, rows);
  const Type type = pooled.slots.values.elementType();
  const Tensor grad =
      castRows(graph, mapping, pooled.slots.values.reshape({rows, outputSlots}), FLOAT, prog, {info, "gradInFloat"});
  const Tensor outputCounts =
      idsOfFloats(graph, mapping, pooled.slots.counts.reshape({rows, 2}), outputSlots + 1, prog, {info, "ownCounts"});
  if (options.mode == PoolMode::Max) {
    const Tensor source =
        idsOfFloats(graph, mapping, pooled.source.reshape({rows, outputSlots}), slots, prog, {info, "source"});
    return scatterSlots(graph, mapping, grad, source, outputCounts, slots, type, prog, {info, "gradValues"})
        .reshape(ids.shape());
  }
  const Tensor outputIds = idsOfFloats(graph, mapping, pooled.slots.ids.reshape({rows, outputSlots}),
                                       options.out.neurons(), prog, {info, "ownIds"});
  const Tensor dense = scatterSlots(graph, mapping, grad, outputIds, outputCounts, options.out.neurons(), FLOAT, prog,
                                    {info, "gradients of all steps"});
  const Tensor places =
      placesOfFloats(graph, mapping, ids.reshape({rows, slots}), options.in, prog, {info, "spikes of all steps"});
  const Tensor count = idsOfFloats(graph, mapping, counts.reshape({rows, 2}), slots + 1, prog, {info, "counts"});
  const Tensor gradValues = mapping.variable(graph, FLOAT, slots, {info, "gradValues"});
  runOnRows(graph, mapping, vertexName("SparsePoolGradient", FLOAT), prog, {info, "backward"}, [&](RowVertex &vertex) {
    setMaps(vertex, options.out);
    setKernel(vertex, options.kernel, options.in);
    vertex.rows("places", places)
        .rows("counts", count)
        .rows("dense", dense)
        .rows("gradValues", gradValues)
        .set("divisor", divisorOf(options))
        .count("rows", vertex.held)
        .count("slots", slots);
  });
  return castRows(graph, mapping, gradValues, type, prog, {info, "gradValuesOfType"}).reshape(ids.shape());
}

} // namespace graph
} // namespace snnipu
