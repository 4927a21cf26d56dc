#include "graph/surrogate_spike.hpp"

#include "graph/tile_mapping.hpp"
#include "graph/vertex_builder.hpp"

#include <stdexcept>

namespace snnipu {
namespace graph {
namespace {

ElementMapping mappingOf(const poplar::Graph &graph, const poplar::Tensor &u) {
  if (u.elementType() != poplar::FLOAT && u.elementType() != poplar::HALF)
    throw std::invalid_argument("surrogate_spike: u must be FLOAT or HALF, got " + u.elementType().toString());
  if (u.numElements() == 0)
    throw std::invalid_argument("surrogate_spike: u must have at least one element, got " + u.shapeToString());
  return ElementMapping(graph, u.numElements(), u.elementType());
}

} // namespace

poplar::Tensor surrogateSpike(poplar::Graph &graph, const poplar::Tensor &u, poplar::program::Sequence &prog,
                              const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const ElementMapping mapping = mappingOf(graph, u);
  const poplar::Tensor in = u.reshape({1, u.numElements()});
  const poplar::Tensor spk = mapping.variable(graph, u.elementType(), 1, {info, "spk"});
  const poplar::ComputeSet cs = graph.addComputeSet({info, "spike"});
  for (std::size_t piece = 0; piece < mapping.pieces(); ++piece)
    VertexBuilder(graph, cs, vertexName("SurrogateSpike", u.elementType()), mapping.tile(piece))
        .connect("u", mapping.part(in, piece))
        .connect("spk", mapping.part(spk, piece))
        .count("size", mapping.count(piece));
  prog.add(poplar::program::Execute(cs));
  return spk.reshape(u.shape());
}

poplar::Tensor surrogateSpikeGrad(poplar::Graph &graph, const poplar::Tensor &gradSpk, const poplar::Tensor &u,
                                  poplar::program::Sequence &prog, Surrogate surrogate, float a, float b,
                                  const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const ElementMapping mapping = mappingOf(graph, u);
  if (gradSpk.numElements() != u.numElements() || gradSpk.elementType() != u.elementType())
    throw std::invalid_argument("surrogate_spike: the gradient of spk must be as u, " + u.shapeToString() + ", got " +
                                gradSpk.shapeToString());
  const poplar::Tensor in = u.reshape({1, u.numElements()}), grad = gradSpk.reshape({1, u.numElements()});
  const poplar::Tensor gradU = mapping.variable(graph, u.elementType(), 1, {info, "gradU"});
  const poplar::ComputeSet cs = graph.addComputeSet({info, "spikeGrad"});
  for (std::size_t piece = 0; piece < mapping.pieces(); ++piece)
    VertexBuilder(graph, cs, vertexName("SurrogateSpikeBackward", u.elementType(), surrogate), mapping.tile(piece))
        .connect("u", mapping.part(in, piece))
        .connect("gradSpk", mapping.part(grad, piece))
        .connect("gradU", mapping.part(gradU, piece))
        .set("surrogateA", a)
        .set("surrogateB", b)
        .count("size", mapping.count(piece));
  prog.add(poplar::program::Execute(cs));
  return gradU.reshape(u.shape());
}

} // namespace graph
} // namespace snnipu
