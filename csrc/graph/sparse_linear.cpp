#include "graph/sparse_linear.hpp"

#include "graph/blocks.hpp"
#include "graph/spread.hpp"
#include "graph/vertex_builder.hpp"
#include "graph/vertex_name.hpp"

#include <algorithm>
#include <stdexcept>

namespace snnipu {
namespace graph {
namespace {

using poplar::Tensor;
using poplar::program::Execute;
using poplar::program::Sequence;

// Every tile gets all spikes, as many rows at a time as fit into this.
constexpr std::size_t bytesAtOnce = 48 * 1024;

struct Layout {
  std::size_t steps, batch, slots, rows, inputs, neurons;
  std::vector<Block> blocks;
  Tensor ids, values, counts; // [rows][...]; ids and counts as integers
  std::size_t chunk;          // rows

  Layout(poplar::Graph &graph, const SparseLinearInputs &in, Sequence &prog, const poplar::DebugInfo &info) {
    checkSlots("sparse_linear", in.spikes);
    const auto refuse = [](const std::string &what) { throw std::invalid_argument("sparse_linear: " + what); };
    if (in.weight.rank() != 2 || in.weight.numElements() == 0 || in.weight.elementType() != poplar::FLOAT)
      refuse("weight must be FLOAT [neurons, inputs], with elements, got " + in.weight.elementType().toString() + " " +
             in.weight.shapeToString());
    steps = in.spikes.ids.dim(0);
    batch = in.spikes.ids.dim(1);
    slots = in.spikes.ids.dim(2);
    rows = steps * batch;
    neurons = in.weight.dim(0);
    inputs = in.weight.dim(1);
    if (in.bias.valid() && (in.bias.elementType() != poplar::FLOAT || in.bias.numElements() != neurons))
      refuse("bias must be FLOAT, of as many elements as weight has rows, " + std::to_string(neurons) + ", got " +
             in.bias.shapeToString());
    blocks = blocksOver(neurons, 0, graph.getTarget().getNumTiles());
    const RowSpread spread(graph, rows);
    ids = idsOfFloats(graph, spread, in.spikes.ids.reshape({rows, slots}), inputs, prog, {info, "ids"});
    counts = idsOfFloats(graph, spread, in.spikes.counts.reshape({rows, 2}), slots + 1, prog, {info, "counts"});
    values = in.spikes.values.reshape({rows, slots});
    chunk = std::max<std::size_t>(1, bytesAtOnce / (8 * slots + 8));
  }

  // body(begin, end) for rows.
  template <typename Body> void forChunks(const Body &body) const {
    for (std::size_t begin = 0; begin < rows; begin += chunk)
      body(begin, std::min(rows, begin + chunk));
  }
};

Tensor rowsOf(const Tensor &of, std::size_t begin, std::size_t end) { return of.slice(begin, end, 0).flatten(); }

} // namespace

Tensor createSparseLinearWeight(poplar::Graph &graph, std::size_t neurons, std::size_t inputs,
                                const poplar::DebugContext &debug) {
  return createWeight(graph, blocksOver(neurons, 0, graph.getTarget().getNumTiles()), inputs, debug);
}

Tensor sparseLinear(poplar::Graph &graph, const SparseLinearInputs &in, bool unitValues, Sequence &prog,
                    const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const Layout layout(graph, in, prog, info);
  Copies copies;
  const std::vector<Tensor> weights =
      blocksIn(graph, layout.blocks, in.weight.transpose(), 0.0f, copies, {info, "weight"});
  const Tensor noBias = zeros(graph, {1}, {info, "noBias"});
  const std::vector<Tensor> biases =
      parameterIn(graph, layout.blocks, in.bias.valid() ? in.bias : noBias, 0.0f, copies, {info, "bias"});
  copies.run(prog, {info, "load"});
  std::vector<Block> held = layout.blocks;
  for (Block &block : held)
    block.lanes = block.neurons;
  const BlockArray out(graph, held, poplar::FLOAT, layout.rows, {info, "out"});
  const Tensor unread = nothing(graph, poplar::FLOAT);
  const std::string name = vertexName("SparseLinearForward", poplar::FLOAT, poplar::UNSIGNED_INT);
  layout.forChunks([&](std::size_t begin, std::size_t end) {
    const poplar::ComputeSet cs = graph.addComputeSet({info, "forward"});
    const Tensor ids = rowsOf(layout.ids, begin, end).reinterpret(poplar::UNSIGNED_INT);
    const Tensor values = unitValues ? unread : rowsOf(layout.values, begin, end);
    const Tensor counts = rowsOf(layout.counts, begin, end);
    for (std::size_t i = 0; i < layout.blocks.size(); ++i) {
      const Block &block = layout.blocks[i];
      VertexBuilder(graph, cs, name, block.tile)
          .connect("weight", weights[i].flatten())
          .connect("bias", biases[i])
          .connect("ids", ids)
          .connect("values", values)
          .connect("counts", counts)
          .connect("out", rowsOf(out[i], begin, end))
          .count("rows", end - begin)
          .count("slots", layout.slots)
          .count("valueSlots", layout.slots)
          .count("lanes", block.lanes)
          .count("neurons", block.neurons)
          .count("outStride", block.neurons)
          .set("unitValues", unitValues);
    }
    prog.add(Execute(cs));
  });
  return out.whole().reshape({layout.steps, layout.batch, layout.neurons});
}

SparseLinearGradients sparseLinearGrad(poplar::Graph &graph, const Tensor &grad, const SparseLinearInputs &in,
                                       bool unitValues, Sequence &prog, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const Layout layout(graph, in, prog, info);
  if (grad.elementType() != poplar::FLOAT || grad.numElements() != layout.rows * layout.neurons)
    throw std::invalid_argument("sparse_linear: the gradient must be FLOAT [steps, batch, neurons], got " +
                                grad.shapeToString());
  Copies copies;
  const std::vector<Tensor> weights =
      blocksIn(graph, layout.blocks, in.weight.transpose(), 0.0f, copies, {info, "weight"});
  const std::vector<Tensor> grads =
      blocksIn(graph, layout.blocks, grad.reshape({layout.rows, layout.neurons}), 0.0f, copies, {info, "grad"});
  copies.run(prog, {info, "load"});
  const BlockArray gradWeight(graph, layout.blocks, poplar::FLOAT, layout.inputs, {info, "gradWeight"});
  const poplar::ComputeSet clear = graph.addComputeSet({info, "zero"});
  zeroBlocks(graph, layout.blocks, gradWeight.parts(), clear);
  prog.add(Execute(clear));
  const Tensor gradValues = graph.addVariable(poplar::FLOAT, {layout.rows, layout.slots}, {info, "gradValues"});
  const Tensor unread = nothing(graph, poplar::FLOAT);
  // What the blocks find for the values of a chunk, one after the other in the same memory.
  const std::size_t most = std::min(layout.chunk, layout.rows) * layout.slots;
  const Tensor partial = graph.addVariable(poplar::FLOAT, {layout.blocks.size(), most}, {info, "partial"});
  for (std::size_t i = 0; i < layout.blocks.size(); ++i)
    graph.setTileMapping(partial[i], static_cast<unsigned>(layout.blocks[i].tile));
  layout.forChunks([&](std::size_t begin, std::size_t end) {
    const poplar::ComputeSet cs = graph.addComputeSet({info, "backward"}), sum = graph.addComputeSet({info, "sum"});
    const Tensor ids = rowsOf(layout.ids, begin, end), counts = rowsOf(layout.counts, begin, end);
    const Tensor values = unitValues ? unread : rowsOf(layout.values, begin, end);
    const std::size_t size = (end - begin) * layout.slots;
    for (std::size_t i = 0; i < layout.blocks.size(); ++i) {
      const Block &block = layout.blocks[i];
      VertexBuilder(graph, cs, vertexName("SparseLinearWeightUpdate", poplar::FLOAT), block.tile)
          .connect("ids", ids)
          .connect("values", values)
          .connect("counts", counts)
          .connect("grad", rowsOf(grads[i], begin, end))
          .connect("gradWeight", gradWeight[i].flatten())
          .set("scale", 1.0f)
          .count("rows", end - begin)
          .count("slots", layout.slots)
          .count("inputs", layout.inputs)
          .count("lanes", block.lanes)
          .set("unitValues", unitValues);
      VertexBuilder(graph, cs, vertexName("SparseLinearValueGradient", poplar::FLOAT, poplar::UNSIGNED_INT), block.tile)
          .connect("weight", weights[i].flatten())
          .connect("grad", rowsOf(grads[i], begin, end))
          .connect("ids", ids.reinterpret(poplar::UNSIGNED_INT))
          .connect("counts", counts)
          .connect("gradValues", partial[i].slice(0, size))
          .count("rows", end - begin)
          .count("slots", layout.slots)
          .count("lanes", block.lanes)
          .set("accumulate", false);
    }
    const Spread spread(graph, size, 2);
    const Tensor to = gradValues.slice(begin, end, 0).flatten();
    for (std::size_t tile = 0; tile < spread.tiles(); ++tile) {
      const std::size_t first = spread.begin(tile), last = spread.end(tile);
      const Tensor out = to.slice(first, last);
      graph.setTileMapping(out, static_cast<unsigned>(tile));
      VertexBuilder(graph, sum, vertexName("SumSlots", poplar::FLOAT), tile)
          .connect("partial", partial.slice(first, last, 1).flatten())
          .connect("upstream", unread)
          .connect("counts", rowsOf(layout.counts, begin + first / layout.slots, begin + (last - 1) / layout.slots + 1))
          .connect("out", out)
          .set("scale", 1.0f)
          .count("blocks", layout.blocks.size())
          .count("size", last - first)
          .count("slots", layout.slots)
          .count("offset", first % layout.slots)
          .set("hasUpstream", false);
    }
    prog.add(Execute(cs));
    prog.add(Execute(sum));
  });
  SparseLinearGradients out;
  out.values = gradValues.reshape(in.spikes.ids.shape());
  out.weight = gradWeight.whole().transpose();
  if (in.bias.valid()) {
    const BlockArray gradBias(graph, layout.blocks, poplar::FLOAT, 1, {info, "gradBias"});
    const poplar::ComputeSet cs = graph.addComputeSet({info, "bias"});
    for (std::size_t i = 0; i < layout.blocks.size(); ++i)
      VertexBuilder(graph, cs, vertexName("SumRows", poplar::FLOAT), layout.blocks[i].tile)
          .connect("in", grads[i].flatten())
          .connect("out", gradBias[i].flatten())
          .set("scale", 1.0f)
          .count("rows", layout.rows)
          .count("columns", layout.blocks[i].lanes);
    prog.add(Execute(cs));
    out.bias = gradBias.whole().reshape(in.bias.shape());
  }
  return out;
}

} // namespace graph
} // namespace snnipu
