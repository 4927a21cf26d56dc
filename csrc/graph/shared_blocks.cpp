#include "graph/shared_blocks.hpp"

#include "graph/tile_mapping.hpp"

namespace snnipu {
namespace graph {

using poplar::Tensor;
using poplar::program::Execute;

Tensor SharedBlocks::variable(poplar::Graph &graph, const poplar::Type &type, std::size_t block, std::size_t inputs,
                              std::size_t lanes, const poplar::DebugContext &debug) const {
  const Tensor all = graph.addVariable(type, {inputs, lanes}, debug);
  forShares(block, inputs, [&](std::size_t tile, std::size_t begin, std::size_t end) {
    graph.setTileMapping(all.slice(begin, end, 0), static_cast<unsigned>(tile));
  });
  return all;
}

Tensor SharedBlocks::matrix(poplar::Graph &graph, const poplar::Type &type, std::size_t inputs,
                            const poplar::DebugContext &debug) const {
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < groups_[0].size(); ++i)
    parts.push_back(variable(graph, type, i, inputs, groups_[0][i].neurons, debug));
  return concat(parts, 1).transpose();
}

Tensor SharedBlocks::sumOfGroups(poplar::Graph &graph, const std::vector<std::vector<Tensor>> &arrays,
                                 const poplar::Type &type, poplar::ComputeSet sum, poplar::ComputeSet cast,
                                 const poplar::DebugContext &debug) const {
  const std::size_t inputs = arrays[0][0].dim(0);
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < groups_[0].size(); ++i) {
    const Block &block = groups_[0][i];
    Tensor total = arrays[0][i];
    if (size() > 1) {
      total = variable(graph, poplar::FLOAT, i, inputs, block.lanes, debug);
      forShares(i, inputs, [&](std::size_t tile, std::size_t begin, std::size_t end) {
        std::vector<Tensor> addends;
        for (const std::vector<Tensor> &array : arrays)
          addends.push_back(array[i].slice(begin, end, 0).flatten());
        addSumRows(graph, sum, concat(addends), addends.size(), total.slice(begin, end, 0).flatten(), 1.0f, tile);
      });
    }
    if (type != poplar::FLOAT) {
      const Tensor converted = variable(graph, type, i, inputs, block.lanes, debug);
      forShares(i, inputs, [&](std::size_t tile, std::size_t begin, std::size_t end) {
        addCast(graph, cast, total.slice(begin, end, 0), converted.slice(begin, end, 0), tile);
      });
      total = converted;
    }
    parts.push_back(total.slice(0, block.neurons, 1));
  }
  return concat(parts, 1).transpose();
}

Tensor SharedBlocks::sumOfRows(poplar::Graph &graph, const std::vector<std::vector<Tensor>> &arrays, const Tensor &like,
                               poplar::program::Sequence &prog, const poplar::DebugContext &debug) const {
  const poplar::DebugInfo info(debug, "snnipu");
  const poplar::ComputeSet cs = graph.addComputeSet({info, "rows"});
  std::vector<BlockArray> sums;
  for (std::size_t group = 0; group < size(); ++group) {
    const std::vector<Block> &blocks = groups_[group];
    sums.emplace_back(graph, blocks, poplar::FLOAT, 1, poplar::DebugContext{info, "sums"});
    for (std::size_t i = 0; i < blocks.size(); ++i)
      addSumRows(graph, cs, arrays[group][i].flatten(), arrays[group][i].dim(0), sums[group][i].flatten(), 1.0f,
                 blocks[i].tile);
  }
  prog.add(Execute(cs));
  Tensor all = sums[0].whole();
  if (size() > 1) {
    const std::vector<Block> &blocks = groups_[0];
    const BlockArray totals(graph, blocks, poplar::FLOAT, 1, {info, "totals"});
    const poplar::ComputeSet last = graph.addComputeSet({info, "groups"});
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::vector<Tensor> addends;
      for (const BlockArray &array : sums)
        addends.push_back(array[i].flatten());
      addSumRows(graph, last, concat(addends), addends.size(), totals[i].flatten(), 1.0f, blocks[i].tile);
    }
    prog.add(Execute(last));
    all = totals.whole();
  }
  if (like.numElements() == all.numElements())
    return all.reshape(like.shape());
  return sumOfAll(graph, all, 1.0f, prog, {info, "neurons"}).reshape(like.shape());
}

} // namespace graph
} // namespace snnipu
