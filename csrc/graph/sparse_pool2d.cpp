#include "graph/sparse_pool2d.hpp"

#include "graph/spread.hpp"
#include "graph/vertex_name.hpp"

#include <algorithm>
#include <stdexcept>

namespace snnipu {
namespace graph {
namespace {

using poplar::Tensor;
using poplar::program::Sequence;

void check(const SparsePool2dOptions &options) {
  checkMaps("sparse_pool2d", options.in, options.out, options.kernel);
  if (options.in.channels != options.out.channels)
    throw std::invalid_argument("sparse_pool2d: input and output must have the same channels");
  if (options.capacity == 0)
    throw std::invalid_argument("sparse_pool2d: capacity must be 1 or more");
}

void setMaps(VertexBuilder &vertex, const MapSizes &maps) {
  vertex.count("channels", maps.channels).count("height", maps.height).count("width", maps.width);
}

float divisorOf(const SparsePool2dOptions &options) {
  return options.mode == PoolMode::Average ? static_cast<float>(options.kernel.taps()) : 1.0f;
}

} // namespace

PooledSlots sparsePool2d(poplar::Graph &graph, const SlotTensors &spikes, const SparsePool2dOptions &options,
                         Sequence &prog, const poplar::DebugContext &debug) {
  checkSlots("sparse_pool2d", spikes);
  check(options);
  const poplar::DebugInfo info(debug, "snnipu");
  const std::size_t steps = spikes.ids.dim(0), batch = spikes.ids.dim(1), slots = spikes.ids.dim(2);
  const std::size_t rows = steps * batch, neurons = options.out.neurons(), words = (neurons + 31) / 32;
  const RowSpread spread(graph, rows);
  const poplar::Type type = spikes.values.elementType();
  const bool max = options.mode == PoolMode::Max;
  const Tensor places =
      placesOfFloats(graph, spread, spikes.ids.reshape({rows, slots}), options.in, prog, {info, "spikes of all steps"});
  const Tensor counts = idsOfFloats(graph, spread, spikes.counts.reshape({rows, 2}), slots + 1, prog, {info, "counts"});
  const Tensor values =
      inType(graph, spread, spikes.values.reshape({rows, slots}), poplar::FLOAT, prog, {info, "values of all steps"});
  const Tensor value = spread.variable(graph, poplar::FLOAT, neurons, {info, "windows of all steps"});
  const Tensor reached = spread.variable(graph, poplar::INT, neurons, {info, "reached of all steps"});
  const Tensor source = max ? spread.variable(graph, poplar::FLOAT, neurons, {info, "source"}) : Tensor();
  const Tensor unread = nothing(graph, poplar::FLOAT);
  const Tensor fired = spread.variable(graph, poplar::UNSIGNED_INT, words, {info, "fired"});
  const Tensor carried = spread.variable(graph, poplar::UNSIGNED_INT, words, {info, "carried"});
  const std::size_t workers = graph.getTarget().getNumWorkerContexts();
  runOnRows(graph, spread, vertexName("SparsePoolWindows", poplar::FLOAT), prog, {info, "windows"},
            [&](RowVertex &vertex) {
              setMaps(vertex, options.out);
              setKernel(vertex, options.kernel, options.in);
              vertex.rows("places", places)
                  .rows("values", values)
                  .rows("counts", counts)
                  .rows("value", value)
                  .rows("reached", reached)
                  .connect("source", max ? vertex.part(source) : unread)
                  .count("rows", vertex.held)
                  .count("slots", slots)
                  .count("shares", std::min(options.out.channels, (workers + vertex.held - 1) / vertex.held))
                  .set("max", max);
            });
  runOnRows(graph, spread, vertexName("SparsePoolBits", poplar::FLOAT), prog, {info, "bits"}, [&](RowVertex &vertex) {
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
  const SlotTensors found =
      slotsOfBits(graph, spread, fired, carried, batch, neurons, options.capacity, false, prog, {info, "slots"});
  const std::vector<std::size_t> shape = {steps, batch, options.capacity};
  const Tensor pooled = gatherSlots(graph, spread, value, found.ids, found.counts, prog, {info, "values"});
  PooledSlots out;
  out.slots = slotsOfRows(graph, spread, {found.ids, pooled, found.counts, {}}, batch, type, prog, info);
  out.source = max ? gatherSlots(graph, spread, source, found.ids, found.counts, prog, {info, "source"}).reshape(shape)
                   : zeros(graph, shape, {info, "noSource"});
  return out;
}

Tensor sparsePool2dGrad(poplar::Graph &graph, const Tensor &ids, const Tensor &counts, const PooledSlots &made,
                        const SparsePool2dOptions &options, Sequence &prog, const poplar::DebugContext &debug) {
  checkSlots("sparse_pool2d", {ids, ids, counts, {}});
  checkSlots("sparse_pool2d", made.slots);
  check(options);
  const poplar::DebugInfo info(debug, "snnipu");
  const std::size_t slots = ids.dim(2), rows = ids.dim(0) * ids.dim(1), own = options.capacity;
  const RowSpread spread(graph, rows);
  const poplar::Type type = made.slots.values.elementType();
  const Tensor grad =
      inType(graph, spread, made.slots.values.reshape({rows, own}), poplar::FLOAT, prog, {info, "gradInFloat"});
  const Tensor ownCounts =
      idsOfFloats(graph, spread, made.slots.counts.reshape({rows, 2}), own + 1, prog, {info, "ownCounts"});
  if (options.mode == PoolMode::Max) {
    const Tensor source = idsOfFloats(graph, spread, made.source.reshape({rows, own}), slots, prog, {info, "source"});
    return scatterSlots(graph, spread, grad, source, ownCounts, slots, type, prog, {info, "gradValues"})
        .reshape(ids.shape());
  }
  const Tensor ownIds =
      idsOfFloats(graph, spread, made.slots.ids.reshape({rows, own}), options.out.neurons(), prog, {info, "ownIds"});
  const Tensor dense = scatterSlots(graph, spread, grad, ownIds, ownCounts, options.out.neurons(), poplar::FLOAT, prog,
                                    {info, "gradients of all steps"});
  const Tensor places =
      placesOfFloats(graph, spread, ids.reshape({rows, slots}), options.in, prog, {info, "spikes of all steps"});
  const Tensor count = idsOfFloats(graph, spread, counts.reshape({rows, 2}), slots + 1, prog, {info, "counts"});
  const Tensor gradValues = spread.variable(graph, poplar::FLOAT, slots, {info, "gradValues"});
  runOnRows(graph, spread, vertexName("SparsePoolGradient", poplar::FLOAT), prog, {info, "backward"},
            [&](RowVertex &vertex) {
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
  return inType(graph, spread, gradValues, type, prog, {info, "gradValuesOfType"}).reshape(ids.shape());
}

} // namespace graph
} // namespace snnipu
