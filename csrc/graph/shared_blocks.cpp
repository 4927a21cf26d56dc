#include "graph/shared_blocks.hpp"

#include "graph/tile_mapping.hpp"

namespace snnipu {
namespace graph {

Tensor SharedBlocks::variable(Graph &graph, const Type &type, size_t block, size_t inputs, size_t lanes,
                              const DebugContext &debug) const {
  const Tensor all = graph.addVariable(type, {inputs, lanes}, debug);
  forShares(block, inputs, [&](size_t tile, size_t begin, size_t end) {
    graph.setTileMapping(all.slice(begin, end, 0), static_cast<unsigned>(tile));
  });
  return all;
}

Tensor SharedBlocks::matrix(Graph &graph, const Type &type, size_t inputs, const DebugContext &debug) const {
  std::vector<Tensor> parts;
  for (size_t i = 0; i < groups_[0].size(); ++i)
    parts.push_back(variable(graph, type, i, inputs, groups_[0][i].neurons, debug));
  return concat(parts, 1).transpose();
}

Tensor SharedBlocks::sumOfGroups(Graph &graph, const std::vector<std::vector<Tensor>> &arrays, const Type &type,
                                 ComputeSet sum, ComputeSet cast, const DebugContext &debug) const {
  const size_t inputs = arrays[0][0].dim(0);
  std::vector<Tensor> parts;
  for (size_t i = 0; i < groups_[0].size(); ++i) {
    const Block &block = groups_[0][i];
    Tensor total = arrays[0][i];
    if (size() > 1) {
      total = variable(graph, FLOAT, i, inputs, block.lanes, debug);
      forShares(i, inputs, [&](size_t tile, size_t begin, size_t end) {
        std::vector<Tensor> addends;
        for (const std::vector<Tensor> &array : arrays)
          addends.push_back(array[i].slice(begin, end, 0).flatten());
        addSumRows(graph, sum, concat(addends), addends.size(), total.slice(begin, end, 0).flatten(), 1.0f, tile);
      });
    }
    if (type != FLOAT) {
      const Tensor converted = variable(graph, type, i, inputs, block.lanes, debug);
      forShares(i, inputs, [&](size_t tile, size_t begin, size_t end) {
        addCast(graph, cast, total.slice(begin, end, 0), converted.slice(begin, end, 0), tile);
      });
      total = converted;
    }
    parts.push_back(total.slice(0, block.neurons, 1));
  }
  return concat(parts, 1).transpose();
}

Tensor SharedBlocks::sumOfRows(Graph &graph, const std::vector<std::vector<Tensor>> &arrays, const Tensor &like,
                               Sequence &prog, const DebugContext &debug) const {
  const DebugInfo info(debug, "snnipu");
  const ComputeSet cs = graph.addComputeSet({info, "rows"});
  std::vector<BlockArray> sums;
  for (size_t group = 0; group < size(); ++group) {
    const std::vector<Block> &blocks = groups_[group];
    sums.emplace_back(graph, blocks, FLOAT, 1, DebugContext{info, "sums"});
    for (size_t i = 0; i < blocks.size(); ++i)
      addSumRows(graph, cs, arrays[group][i].flatten(), arrays[group][i].dim(0), sums[group][i].flatten(), 1.0f,
                 blocks[i].tile);
  }
  prog.add(Execute(cs));
  Tensor all = sums[0].whole();
  if (size() > 1) {
    const std::vector<Block> &blocks = groups_[0];
    const BlockArray totals(graph, blocks, FLOAT, 1, {info, "totals"});
    const ComputeSet last = graph.addComputeSet({info, "groups"});
    for (size_t i = 0; i < blocks.size(); ++i) {
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
