#include "graph/surrogate_spike.hpp"

#include "graph/tile_mapping.hpp"
#include "graph/vertex_builder.hpp"

namespace snnipu {
namespace graph {
namespace {

ElementMapping mappingOf(const Graph &graph, const Tensor &u) {
  if (u.numElements() == 0)
    refuse("surrogate_spike", "u must have at least one element, got " + u.shapeToString());
  return ElementMapping(graph, u.numElements(), u.elementType());
}

} // namespace

Tensor surrogateSpike(Graph &graph, const Tensor &u, Sequence &prog, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const ElementMapping mapping = mappingOf(graph, u);
  const Tensor in = u.reshape({1, u.numElements()});
  const Tensor spk = mapping.variable(graph, u.elementType(), 1, {info, "spk"});
  const ComputeSet cs = graph.addComputeSet({info, "spike"});
  for (size_t piece = 0; piece < mapping.pieces(); ++piece)
    VertexBuilder(graph, cs, vertexName("SurrogateSpike", u.elementType()), mapping.tile(piece))
        .connect("u", mapping.part(in, piece))
        .connect("spk", mapping.part(spk, piece))
        .count("size", mapping.count(piece));
  prog.add(Execute(cs));
  return spk.reshape(u.shape());
}

Tensor surrogateSpikeGrad(Graph &graph, const Tensor &gradSpk, const Tensor &u, Sequence &prog, Surrogate surrogate,
                          float a, float b, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const ElementMapping mapping = mappingOf(graph, u);
  if (gradSpk.numElements() != u.numElements() || gradSpk.elementType() != u.elementType())
    refuse("surrogate_spike",
           "the gradient of spk must be as u, " + u.shapeToString() + ", got " + gradSpk.shapeToString());
  const Tensor in = u.reshape({1, u.numElements()}), grad = gradSpk.reshape({1, u.numElements()});
  const Tensor gradU = mapping.variable(graph, u.elementType(), 1, {info, "gradU"});
  const ComputeSet cs = graph.addComputeSet({info, "spikeGrad"});
  for (size_t piece = 0; piece < mapping.pieces(); ++piece)
    VertexBuilder(graph, cs, vertexName("SurrogateSpikeBackward", u.elementType(), surrogate), mapping.tile(piece))
        .connect("u", mapping.part(in, piece))
        .connect("gradSpk", mapping.part(grad, piece))
        .connect("gradU", mapping.part(gradU, piece))
        .set("surrogateA", a)
        .set("surrogateB", b)
        .count("size", mapping.count(piece));
  prog.add(Execute(cs));
  return gradU.reshape(u.shape());
}

} // namespace graph
} // namespace snnipu
