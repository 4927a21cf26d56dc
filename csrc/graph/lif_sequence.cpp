#include "graph/lif_sequence.hpp"

#include "graph/spread.hpp"
#include "graph/vertex_builder.hpp"

#include <stdexcept>

namespace snnipu {
namespace graph {
namespace {

using poplar::Tensor;

constexpr const char *hardSpike = "snnipu::HardSpike";

std::vector<std::size_t> stepShape(const Tensor &x) {
  const std::vector<std::size_t> shape = x.shape();
  return {shape.begin() + 1, shape.end()};
}

// Sizes, and where elements lie.
struct Layout {
  std::size_t steps, elements;
  bool perElement;
  poplar::Type type;
  Spread spread;

  Layout(const poplar::Graph &graph, const Tensor &x, const LifSequenceInputs &in)
      : steps(x.rank() ? x.dim(0) : 0), elements(steps ? x.numElements() / steps : 0),
        perElement(in.beta.numElements() > 1 || in.threshold.numElements() > 1 || in.graded.numElements() > 1),
        type(x.elementType()), spread(graph, elements, x.elementType()) {
    if (elements == 0)
      throw std::invalid_argument("lif_sequence: x must have shape [steps, ...] with at least one element, got " +
                                  x.shapeToString());
    if (type != poplar::FLOAT && type != poplar::HALF)
      throw std::invalid_argument("lif_sequence: x must be FLOAT or HALF, got " + type.toString());
    check("mem0", in.mem0, in.mem0.numElements() == elements);
    check("beta", in.beta, divides(in.beta));
    check("threshold", in.threshold, divides(in.threshold));
    check("graded", in.graded, divides(in.graded));
  }

  Tensor sequence(poplar::Graph &graph, const poplar::DebugContext &debug) const {
    return spread.variable(graph, type, steps, debug);
  }
  Tensor state(poplar::Graph &graph, const poplar::DebugContext &debug) const {
    return spread.variable(graph, poplar::FLOAT, 1, debug);
  }
  Tensor flat(const Tensor &sequence) const { return sequence.reshape({steps, elements}); }
  // What a vertex reads of a parameter.
  Tensor parameter(const Tensor &of, std::size_t piece) const {
    return perElement ? cyclic(of, spread.begin(piece), spread.count(piece)) : of.flatten();
  }

private:
  bool divides(const Tensor &parameter) const {
    return parameter.numElements() > 0 && elements % parameter.numElements() == 0;
  }
  void check(const char *name, const Tensor &tensor, bool fits) const {
    if (!fits)
      throw std::invalid_argument("lif_sequence: " + std::string(name) + " must fit one step of x, " +
                                  std::to_string(elements) + " elements, got " + tensor.shapeToString());
    if (tensor.elementType() != poplar::FLOAT)
      throw std::invalid_argument("lif_sequence: " + std::string(name) + " must be FLOAT, got " +
                                  tensor.elementType().toString());
  }
};

void connectParameters(VertexBuilder &vertex, const Layout &layout, const LifSequenceInputs &in, std::size_t piece) {
  vertex.connect("beta", layout.parameter(in.beta, piece));
  vertex.connect("threshold", layout.parameter(in.threshold, piece));
  vertex.connect("graded", layout.parameter(in.graded, piece));
  vertex.set("perElement", layout.perElement);
}

// spk, mem, preReset [steps][elements]: each may be invalid, and is not stored then.
void addForward(poplar::Graph &graph, const Layout &layout, const LifSequenceInputs &in, const Tensor &spk,
                const Tensor &mem, const Tensor &preReset, poplar::program::Sequence &prog,
                const LifSequenceOptions &options, const poplar::DebugInfo &info) {
  const Tensor state = layout.state(graph, {info, "state"}), none = nothing(graph, layout.type);
  const Tensor x = layout.flat(in.x);
  prog.add(poplar::program::Copy(in.mem0.flatten(), state.flatten(), false, {info, "mem0"}));
  const poplar::ComputeSet cs = graph.addComputeSet({info, "forward"});
  const std::string name = vertexName("LifForward", layout.type, options.reset, options.resetDelay, hardSpike);
  for (std::size_t piece = 0; piece < layout.spread.pieces(); ++piece) {
    const unsigned count = static_cast<unsigned>(layout.spread.count(piece));
    VertexBuilder vertex(graph, cs, name, layout.spread.tile(piece));
    const auto optional = [&](const char *field, const char *flag, const Tensor &to) {
      vertex.connect(field, to.valid() ? layout.spread.part(to, piece) : none);
      vertex.set(flag, to.valid());
    };
    vertex.connect("x", layout.spread.part(x, piece));
    vertex.connect("state", layout.spread.part(state, piece));
    optional("spk", "storeSpk", spk);
    optional("mem", "storeMem", mem);
    optional("preReset", "storePreReset", preReset);
    connectParameters(vertex, layout, in, piece);
    vertex.set("steps", static_cast<unsigned>(layout.steps));
    vertex.set("size", count);
    for (const char *stride : {"xStride", "spkStride", "memStride"})
      vertex.set(stride, count);
    vertex.set("streaming", false);
  }
  prog.add(poplar::program::Execute(cs));
}

} // namespace

Tensor createLifSequenceInput(poplar::Graph &graph, const poplar::Type &type, const std::vector<std::size_t> &shape,
                              const poplar::DebugContext &debug) {
  std::size_t elements = 1;
  for (std::size_t i = 1; i < shape.size(); ++i)
    elements *= shape[i];
  if (shape.empty() || shape[0] == 0 || elements == 0)
    throw std::invalid_argument("lif_sequence: x must have shape [steps, ...] with at least one element");
  return Spread(graph, elements, type).variable(graph, type, shape[0], debug).reshape(shape);
}

LifSequenceOutputs lifSequence(poplar::Graph &graph, const LifSequenceInputs &in, poplar::program::Sequence &prog,
                               const LifSequenceOptions &options, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const Layout layout(graph, in.x, in);
  const Tensor spk = layout.sequence(graph, {info, "spk"}), mem = layout.sequence(graph, {info, "mem"});
  addForward(graph, layout, in, spk, mem, {}, prog, options, info);
  return {spk.reshape(in.x.shape()), mem.reshape(in.x.shape())};
}

LifSequenceInputs lifSequenceGrad(poplar::Graph &graph, const Tensor &gradSpk, const Tensor &gradMem, const Tensor &mem,
                                  const LifSequenceInputs &in, poplar::program::Sequence &prog,
                                  const LifSequenceOptions &options, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const Tensor &like = options.resetDelay ? mem : in.x;
  const Layout layout(graph, like, in);
  Tensor membranes, preReset;
  if (options.resetDelay) {
    membranes = layout.flat(mem);
  } else {
    membranes = layout.sequence(graph, {info, "mem"});
    preReset = layout.sequence(graph, {info, "preReset"});
    addForward(graph, layout, in, {}, membranes, preReset, prog, options, info);
  }
  const Tensor none = nothing(graph, layout.type), noSum = nothing(graph, poplar::FLOAT);
  const Tensor gradX = layout.sequence(graph, {info, "gradX"});
  const Tensor gradState = layout.state(graph, {info, "gradState"});
  const Tensor gradBeta = layout.state(graph, {info, "gradBeta"});
  const Tensor gradThreshold = layout.state(graph, {info, "gradThreshold"});
  const Tensor gradGraded = layout.state(graph, {info, "gradGraded"});
  zero(graph, layout.spread, {gradState, gradBeta, gradThreshold, gradGraded}, prog, {info, "zero"});
  const poplar::ComputeSet cs = graph.addComputeSet({info, "backward"});
  const std::string name =
      vertexName("LifBackward", layout.type, options.reset, options.resetDelay, options.surrogate, hardSpike);
  const Tensor mem0 = in.mem0.reshape({1, layout.elements});
  for (std::size_t piece = 0; piece < layout.spread.pieces(); ++piece) {
    const unsigned count = static_cast<unsigned>(layout.spread.count(piece));
    const auto part = [&](const Tensor &of) { return layout.spread.part(of, piece); };
    VertexBuilder vertex(graph, cs, name, layout.spread.tile(piece));
    vertex.connect("gradSpk", gradSpk.valid() ? part(layout.flat(gradSpk)) : none);
    vertex.connect("gradMem", gradMem.valid() ? part(layout.flat(gradMem)) : none);
    vertex.connect("mem", part(membranes));
    vertex.connect("preReset", preReset.valid() ? part(preReset) : none);
    vertex.connect("memInitial", part(mem0));
    connectParameters(vertex, layout, in, piece);
    vertex.connect("gradX", part(gradX));
    vertex.connect("gradConstant", noSum);
    vertex.connect("gradState", part(gradState));
    vertex.connect("gradBeta", part(gradBeta));
    vertex.connect("gradThreshold", part(gradThreshold));
    vertex.connect("gradGraded", part(gradGraded));
    vertex.set("surrogateA", options.surrogateA);
    vertex.set("surrogateB", options.surrogateB);
    vertex.set("steps", static_cast<unsigned>(layout.steps));
    vertex.set("size", count);
    for (const char *stride : {"gradSpkStride", "gradMemStride", "memStride", "gradXStride"})
      vertex.set(stride, count);
    vertex.set("hasGradSpk", gradSpk.valid());
    vertex.set("hasGradMem", gradMem.valid());
    vertex.set("parameterGradients", true);
    vertex.set("constantInput", false);
    vertex.set("streaming", false);
  }
  prog.add(poplar::program::Execute(cs));
  LifSequenceInputs out;
  out.x = gradX.reshape(like.shape());
  out.mem0 = gradState.reshape(stepShape(like));
  out.beta = sumModulo(graph, layout.spread, gradBeta, in.beta, 1.0f, prog, {info, "beta"});
  out.threshold = sumModulo(graph, layout.spread, gradThreshold, in.threshold, 1.0f, prog, {info, "threshold"});
  out.graded = sumModulo(graph, layout.spread, gradGraded, in.graded, 1.0f, prog, {info, "graded"});
  return out;
}

} // namespace graph
} // namespace snnipu
