// LifSequence and its gradient: leaky integrate-and-fire over a sequence.
//   inputs   x [T, ...] (FLOAT or FLOAT16), mem0 [...], beta, threshold, graded (FLOAT; one element each, or one for
//            each element of a step modulo their size)
//   outputs  spk, mem [T, ...] of x's type
#include "operator.hpp"

#include "graph/lif_sequence.hpp"

namespace snnipu {
namespace ops {

struct LifAttributes {
  Reset reset = Reset::Subtract;
  bool resetDelay = true;
  SurrogateAttributes surrogate;

  template <typename Visitor> void each(Visitor &&visit) {
    visit("reset", reset, 3);
    visit("reset_delay", resetDelay);
    surrogate.each(visit);
  }
  graph::LifSequenceOptions options() const { return {reset, resetDelay, surrogate.kind, surrogate.a, surrogate.b}; }
};

struct LifSequence : Described<LifSequence, LifAttributes> {
  enum { X, Mem0, Beta, Threshold, Graded };
  enum { Spk, Mem };

  static constexpr const char *name = "LifSequence";
  static Fields inputs() { return {{"x", FloatOrHalf}, {"mem0"}, {"beta"}, {"threshold"}, {"graded"}}; }
  static Fields outputs() { return {{"spk", FloatOrHalf}, {"mem", FloatOrHalf}}; }

  static Infos shapes(const Attributes &, const InfoOf &in) { return {in(X), in(X)}; }
  // A loss may depend on the spikes alone, or on the membranes. Without a delayed reset the membranes before it are
  // needed, and are computed anew.
  static Gradient gradient(const Attributes &attributes) {
    return {{gradientOf(Spk, true), gradientOf(Mem, true), attributes.resetDelay ? output(Mem) : input(X), input(Mem0),
             input(Beta), input(Threshold), input(Graded)},
            {X, Mem0, Beta, Threshold, Graded}};
  }

  static bool laysOut(const Attributes &, const Source &source, bool gradient) {
    return !gradient && source == input(X);
  }
  static poplar::Tensor layOut(const Lowering<LifSequence> &at, const Source &x, const poplar::DebugContext &name) {
    return graph::createLifSequenceInput(at.graph(), poplarType(at.info(x)), at.info(x).shape_szt(), name);
  }

  static graph::LifSequenceInputs tensors(const Lowering<LifSequence> &at) {
    return {at.in(X), at.in(Mem0), at.in(Beta), at.in(Threshold), at.in(Graded)};
  }
  static void grow(const Lowering<LifSequence> &at, poplar::program::Sequence &prog) {
    const graph::LifSequenceOutputs out =
        graph::lifSequence(at.graph(), tensors(at), prog, at.attributes().options(), at.label());
    at.set(Spk, out.spk);
    at.set(Mem, out.mem);
  }
  static void growGradient(const Lowering<LifSequence> &at, poplar::program::Sequence &prog) {
    const graph::LifSequenceInputs out =
        graph::lifSequenceGrad(at.graph(), at.at(gradientOf(Spk)), at.at(gradientOf(Mem)), at.at(output(Mem)),
                               tensors(at), prog, at.attributes().options(), at.label());
    at.set(X, out.x);
    at.set(Mem0, out.mem0.reshape(at.outputInfo(Mem0).shape_szt()));
    at.set(Beta, out.beta);
    at.set(Threshold, out.threshold);
    at.set(Graded, out.graded);
  }
};

const Registered<LifSequence> lifSequence;

} // namespace ops
} // namespace snnipu
