#include "graph/select_spikes.hpp"

#include "graph/tile_mapping.hpp"
#include "graph/vertex_builder.hpp"

namespace snnipu {
namespace graph {
namespace {

void check(const Tensor &mem, const Tensor &threshold) {
  const char *const op = "select_spikes";
  if (mem.rank() != 3 || mem.numElements() == 0)
    refuse(op, "mem must have shape [steps, batch, neurons], with elements, got " + mem.shapeToString());
  if (threshold.numElements() != 1 && threshold.numElements() != mem.dim(2))
    refuse(op, "threshold must have one element, or one for each neuron, got " + threshold.shapeToString());
}

} // namespace

Bits bitsAbove(Graph &graph, const RowMapping &mapping, const Tensor &x, const Tensor &threshold, bool second,
               float gradThreshold, Sequence &prog, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const size_t neurons = x.dim(1), words = (neurons + 31) / 32;
  const Bits bits = {mapping.variable(graph, UNSIGNED_INT, words, {info, "fired"}),
                     mapping.variable(graph, UNSIGNED_INT, words, {info, "carried"})};
  const Tensor limit = threshold.valid() ? threshold.flatten() : emptyVariable(graph, FLOAT);
  runOnRows(graph, mapping, vertexName("Above", x.elementType()), prog, {info, "above"}, [&](RowVertex &vertex) {
    vertex.rows("x", x)
        .rows("fired", bits.fired)
        .rows("carried", bits.carried)
        .connect("threshold", limit)
        .set("gradThreshold", gradThreshold)
        .count("rows", vertex.held)
        .count("neurons", neurons)
        .set("perNeuron", limit.numElements() > 1)
        .set("second", second)
        .set("nonzero", !threshold.valid());
  });
  return bits;
}

SlotTensors selectSpikes(Graph &graph, const Tensor &mem, const Tensor &threshold, Sequence &prog,
                         const SelectSpikesOptions &options, const DebugContext &debug) {
  check(mem, threshold);
  const DebugInfo info(debug, "snnipu");
  const size_t steps = mem.dim(0), batch = mem.dim(1), neurons = mem.dim(2);
  const RowMapping mapping(graph, steps * batch);
  const Bits bits = bitsAbove(graph, mapping, mem.reshape({steps * batch, neurons}), threshold, options.second,
                              options.gradThreshold, prog, {info, "bits"});
  const SlotTensors slots = slotsOfBits(graph, mapping, bits.fired, bits.carried, batch, neurons, options.capacity,
                                        options.rotate, prog, {info, "slots"});
  return slotsOfRows(graph, mapping, slots, batch, mem.elementType(), prog, info);
}

SelectSpikesGradients selectSpikesGrad(Graph &graph, const Tensor &gradValues, const Tensor &mem,
                                       const Tensor &threshold, const Tensor &ids, const Tensor &counts, Sequence &prog,
                                       const SelectSpikesOptions &options, const DebugContext &debug) {
  check(mem, threshold);
  checkSlots("select_spikes", {ids, gradValues, counts, {}});
  const DebugInfo info(debug, "snnipu");
  const size_t rows = mem.dim(0) * mem.dim(1), neurons = mem.dim(2), slots = ids.dim(2);
  const RowMapping mapping(graph, rows);
  const SlotTensors at = rowsOfSlots(graph, mapping, {ids, gradValues, counts, {}}, neurons, prog, info);
  const Tensor slotMem =
      gatherSlots(graph, mapping, mem.reshape({rows, neurons}), at.ids, at.counts, prog, {info, "slotMem"});
  const Tensor through = mapping.variable(graph, FLOAT, slots, {info, "through"});
  const bool perNeuron = threshold.numElements() > 1;
  runOnRows(graph, mapping, vertexName("SelectSpikesBackward", FLOAT, options.surrogate), prog, {info, "backward"},
            [&](RowVertex &vertex) {
              vertex.rows("grad", at.values)
                  .rows("mem", slotMem)
                  .rows("ids", at.ids)
                  .rows("counts", at.counts)
                  .rows("through", through)
                  .connect("threshold", threshold.flatten())
                  .set("surrogateA", options.surrogateA)
                  .set("surrogateB", options.surrogateB)
                  .count("rows", vertex.held)
                  .count("slots", slots)
                  .set("perNeuron", perNeuron);
            });
  // Gradients of a threshold per neuron are summed in float.
  const Tensor dense = scatterSlots(graph, mapping, through, at.ids, at.counts, neurons,
                                    perNeuron ? FLOAT : mem.elementType(), prog, {info, "gradMem"});
  SelectSpikesGradients out;
  out.mem = castRows(graph, mapping, dense, mem.elementType(), prog, {info, "gradMemOfType"}).reshape(mem.shape());
  if (perNeuron) {
    out.threshold = sumModulo(graph, ElementMapping(graph, rows * neurons, FLOAT), dense.reshape({1, rows * neurons}),
                              threshold, -1.0f, prog, {info, "gradThreshold"});
  } else {
    std::vector<Tensor> parts;
    for (size_t tile = 0; tile < mapping.tiles(); ++tile)
      parts.push_back(mapping.part(through, tile));
    out.threshold = sumOfTiles(graph, parts, -1.0f, prog, {info, "gradThreshold"}).reshape(threshold.shape());
  }
  return out;
}

} // namespace graph
} // namespace snnipu
