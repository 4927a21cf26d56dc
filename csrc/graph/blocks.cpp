#include "graph/blocks.hpp"

#include "graph/tile_mapping.hpp"
#include "graph/vertex_builder.hpp"
#include "graph/vertex_name.hpp"

#include "neuron/sparse.hpp"

#include <algorithm>

namespace snnipu {
namespace graph {

std::vector<Block> blocksOf(const std::vector<size_t> &neurons, size_t firstTile) {
  std::vector<Block> blocks;
  size_t first = 0;
  for (size_t i = 0; i < neurons.size(); ++i)
    for (size_t remaining = neurons[i]; remaining > 0;) {
      const size_t count = std::min<size_t>(remaining, blockLanes);
      blocks.push_back({firstTile + i, first, count, (count + 1) / 2 * 2});
      first += count;
      remaining -= count;
    }
  return blocks;
}

void Copies::add(const Tensor &from, const Tensor &to) {
  Pairs &pairs = types_[to.elementType().toString()];
  pairs.from.push_back(from.flatten());
  pairs.to.push_back(to.flatten());
}

void Copies::fill(Graph &graph, float value, const Tensor &to) {
  Tensor &constant = types_[to.elementType().toString()].constants[value];
  if (!constant.valid()) {
    constant = graph.addConstant(to.elementType(), {1}, value);
    graph.setTileMapping(constant, 0);
  }
  add(constant.broadcast(static_cast<unsigned>(to.numElements()), 0), to);
}

void Copies::run(Sequence &prog, const DebugContext &debug) {
  for (const auto &type : types_)
    if (!type.second.from.empty())
      prog.add(Copy(concat(type.second.from), concat(type.second.to), false, debug));
  types_.clear();
}

BlockArray::BlockArray(Graph &graph, const std::vector<Block> &blocks, const Type &type, size_t rows,
                       const DebugContext &debug)
    : blocks_(blocks) {
  size_t elements = 0;
  for (const Block &block : blocks)
    elements += rows * block.lanes;
  const Tensor all = graph.addVariable(type, {elements}, debug);
  size_t begin = 0;
  for (const Block &block : blocks) {
    const Tensor part = all.slice(begin, begin + rows * block.lanes).reshape({rows, block.lanes});
    graph.setTileMapping(part, static_cast<unsigned>(block.tile));
    parts_.push_back(part);
    begin += rows * block.lanes;
  }
}

Tensor BlockArray::whole() const {
  std::vector<Tensor> parts;
  for (size_t i = 0; i < parts_.size(); ++i)
    parts.push_back(parts_[i].slice(0, blocks_[i].neurons, 1));
  return parts.size() == 1 ? parts[0] : concat(parts, 1);
}

std::vector<Tensor> distribute(Graph &graph, const std::vector<Block> &blocks, const Tensor &array, float padding,
                               Copies &copies, const DebugContext &debug) {
  std::vector<Tensor> parts;
  for (const Block &block : blocks) {
    const Tensor part = array.slice(block.first, block.first + block.neurons, 1);
    if (block.lanes == block.neurons && part.isContiguous()) {
      const auto mapping = graph.getTileMapping(part);
      size_t onTile = 0;
      for (const Interval &interval : mapping[block.tile])
        onTile += interval.size();
      if (onTile == part.numElements()) {
        parts.push_back(part);
        continue;
      }
    }
    const Tensor copy = variableOn(graph, block.tile, array.elementType(), {array.dim(0), block.lanes}, debug);
    copies.add(part, copy.slice(0, block.neurons, 1));
    if (block.lanes != block.neurons)
      copies.fill(graph, padding, copy.slice(block.neurons, block.lanes, 1));
    parts.push_back(copy);
  }
  return parts;
}

std::vector<Tensor> distributeParameter(Graph &graph, const std::vector<Block> &blocks, const Tensor &parameter,
                                        float padding, Copies &copies, const DebugContext &debug) {
  std::vector<Tensor> parts;
  const Tensor flat = parameter.flatten();
  for (const Block &block : blocks) {
    const Tensor copy = variableOn(graph, block.tile, parameter.elementType(), {block.lanes}, debug);
    copies.add(flat.numElements() == 1 ? flat.broadcast(static_cast<unsigned>(block.neurons), 0)
                                       : flat.slice(block.first, block.first + block.neurons),
               copy.slice(0, block.neurons));
    if (block.lanes != block.neurons)
      copies.fill(graph, padding, copy.slice(block.neurons, block.lanes));
    parts.push_back(copy);
  }
  return parts;
}

void zeroBlocks(Graph &graph, const std::vector<Block> &blocks, const std::vector<Tensor> &parts, ComputeSet cs) {
  for (size_t i = 0; i < blocks.size(); ++i)
    VertexBuilder(graph, cs, vertexName("Zero", parts[i].elementType()), blocks[i].tile)
        .connect("out", parts[i].flatten())
        .count("size", parts[i].numElements());
}

} // namespace graph
} // namespace snnipu
