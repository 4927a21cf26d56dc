#include "graph/select_spikes.hpp"

#include "graph/spread.hpp"
#include "graph/vertex_builder.hpp"

#include <stdexcept>

namespace snnipu {
namespace graph {
namespace {

using poplar::Tensor;
using poplar::program::Execute;
using poplar::program::Sequence;

void check(const Tensor &mem, const Tensor &threshold, const SelectSpikesOptions &options) {
  if ((mem.elementType() != poplar::FLOAT && mem.elementType() != poplar::HALF) ||
      threshold.elementType() != poplar::FLOAT)
    throw std::invalid_argument("select_spikes: mem must be FLOAT or HALF, and threshold FLOAT");
  if (mem.rank() != 3 || mem.numElements() == 0)
    throw std::invalid_argument("select_spikes: mem must have shape [steps, batch, neurons], with elements, got " +
                                mem.shapeToString());
  if (threshold.numElements() != 1 && threshold.numElements() != mem.dim(2))
    throw std::invalid_argument("select_spikes: threshold must have one element, or one for each neuron, got " +
                                threshold.shapeToString());
  if (options.capacity == 0)
    throw std::invalid_argument("select_spikes: capacity must be 1 or more");
}

} // namespace

Bits bitsAbove(poplar::Graph &graph, const RowSpread &spread, const Tensor &x, const Tensor &threshold, bool second,
               float gradThreshold, Sequence &prog, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const std::size_t neurons = x.dim(1), words = (neurons + 31) / 32;
  const Bits bits = {spread.variable(graph, poplar::UNSIGNED_INT, words, {info, "fired"}),
                     spread.variable(graph, poplar::UNSIGNED_INT, words, {info, "carried"})};
  const Tensor limit = threshold.valid() ? threshold.flatten() : nothing(graph, poplar::FLOAT);
  const poplar::ComputeSet cs = graph.addComputeSet({info, "above"});
  for (std::size_t tile = 0; tile < spread.tiles(); ++tile)
    VertexBuilder(graph, cs, vertexName("Above", x.elementType()), tile)
        .connect("x", spread.part(x, tile))
        .connect("threshold", limit)
        .connect("fired", spread.part(bits.fired, tile))
        .connect("carried", spread.part(bits.carried, tile))
        .set("gradThreshold", gradThreshold)
        .count("rows", spread.count(tile))
        .count("neurons", neurons)
        .set("perNeuron", limit.numElements() > 1)
        .set("second", second)
        .set("nonzero", !threshold.valid());
  prog.add(Execute(cs));
  return bits;
}

SlotTensors selectSpikes(poplar::Graph &graph, const Tensor &mem, const Tensor &threshold, Sequence &prog,
                         const SelectSpikesOptions &options, const poplar::DebugContext &debug) {
  check(mem, threshold, options);
  const poplar::DebugInfo info(debug, "snnipu");
  const std::size_t steps = mem.dim(0), batch = mem.dim(1), neurons = mem.dim(2);
  const RowSpread spread(graph, steps * batch);
  const Bits bits = bitsAbove(graph, spread, mem.reshape({steps * batch, neurons}), threshold, options.second,
                              options.gradThreshold, prog, {info, "bits"});
  const SlotTensors slots = slotsOfBits(graph, spread, bits.fired, bits.carried, batch, neurons, options.capacity,
                                        options.rotate, prog, {info, "slots"});
  return {floatsOfIds(graph, spread, slots.ids, prog, {info, "ids"}).reshape({steps, batch, options.capacity}),
          inType(graph, spread, slots.values, mem.elementType(), prog, {info, "valuesOfType"})
              .reshape({steps, batch, options.capacity}),
          floatsOfIds(graph, spread, slots.counts, prog, {info, "counts"}).reshape({steps, batch, 2}),
          floatsOfIds(graph, spread, slots.dropped, prog, {info, "dropped"}).reshape({steps, batch, 2})};
}

SelectSpikesGradients selectSpikesGrad(poplar::Graph &graph, const Tensor &gradValues, const Tensor &mem,
                                       const Tensor &threshold, const Tensor &ids, const Tensor &counts, Sequence &prog,
                                       const SelectSpikesOptions &options, const poplar::DebugContext &debug) {
  check(mem, threshold, options);
  checkSlots("select_spikes", {ids, gradValues, counts, {}});
  const poplar::DebugInfo info(debug, "snnipu");
  const std::size_t rows = mem.dim(0) * mem.dim(1), neurons = mem.dim(2), slots = ids.dim(2);
  const RowSpread spread(graph, rows);
  const Tensor id = idsOfFloats(graph, spread, ids.reshape({rows, slots}), neurons, prog, {info, "ids"});
  const Tensor count = idsOfFloats(graph, spread, counts.reshape({rows, 2}), slots + 1, prog, {info, "counts"});
  const Tensor slotMem = gatherSlots(graph, spread, mem.reshape({rows, neurons}), id, count, prog, {info, "slotMem"});
  const Tensor through = spread.variable(graph, poplar::FLOAT, slots, {info, "through"});
  const Tensor grad =
      inType(graph, spread, gradValues.reshape({rows, slots}), poplar::FLOAT, prog, {info, "gradInFloat"});
  const poplar::ComputeSet cs = graph.addComputeSet({info, "backward"});
  for (std::size_t tile = 0; tile < spread.tiles(); ++tile)
    VertexBuilder(graph, cs, vertexName("SelectSpikesBackward", poplar::FLOAT, options.surrogate), tile)
        .connect("grad", spread.part(grad, tile))
        .connect("mem", spread.part(slotMem, tile))
        .connect("threshold", threshold.flatten())
        .connect("ids", spread.part(id, tile))
        .connect("counts", spread.part(count, tile))
        .connect("through", spread.part(through, tile))
        .set("surrogateA", options.surrogateA)
        .set("surrogateB", options.surrogateB)
        .count("rows", spread.count(tile))
        .count("slots", slots)
        .set("perNeuron", threshold.numElements() > 1);
  prog.add(Execute(cs));
  const bool perNeuron = threshold.numElements() > 1;
  // Gradients of a neuron's threshold are summed in float.
  const Tensor dense = scatterSlots(graph, spread, through, id, count, neurons,
                                    perNeuron ? poplar::FLOAT : mem.elementType(), prog, {info, "gradMem"});
  SelectSpikesGradients out;
  out.mem = inType(graph, spread, dense, mem.elementType(), prog, {info, "gradMemOfType"}).reshape(mem.shape());
  if (perNeuron) {
    out.threshold = sumModulo(graph, Spread(graph, rows * neurons, poplar::FLOAT), dense.reshape({1, rows * neurons}),
                              threshold, -1.0f, prog, {info, "gradThreshold"});
  } else {
    std::vector<Tensor> parts;
    for (std::size_t tile = 0; tile < spread.tiles(); ++tile)
      parts.push_back(spread.part(through, tile));
    out.threshold = sumOfTiles(graph, parts, -1.0f, prog, {info, "gradThreshold"}).reshape(threshold.shape());
  }
  return out;
}

} // namespace graph
} // namespace snnipu
