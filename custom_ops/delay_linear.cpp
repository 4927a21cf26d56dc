// DelayLinear and its gradient: a linear layer on spike ids whose synapses have a time each.
//   inputs   ids, values [T, B, S], counts [T, B, 2], weight [I, N, taps], lags [I, N], and bias [N] where there is a
//            sixth one
//   outputs  y [T, B, N], of the values' type
// A spike of input i at t arrives at neuron n with weight[i, n, tap] at t + lags[i, n] + tap; behind the last step it
// is lost. Lags are whole numbers, which have no gradient. values and weight are FLOAT or FLOAT16, each for itself; the
// others FLOAT, and so are all sums.
#include "operator.hpp"

#include "graph/sparse_linear.hpp"

namespace snnipu {
namespace ops {

struct DelayLinearAttributes {
  bool unitValues = false;

  template <typename Visitor> void each(Visitor &&visit) { visit("unit_values", unitValues); }
};

struct DelayLinear : Described<DelayLinear, DelayLinearAttributes> {
  enum { Ids, Values, Counts, Weight, Lags, Bias, InputCount };

  static constexpr const char *name = "DelayLinear";
  static Fields inputs() {
    return {{"ids"}, {"values", FloatOrHalf}, {"counts"}, {"weight", FloatOrHalf}, {"lags"}, {"bias", Float, true}};
  }
  static Fields outputs() { return {{"y", FloatOrHalf}}; }

  static void checkInputs(const popart::Op &op, const Attributes &) {
    if (op.inInfo(Weight).rank() != 3)
      throw popart::error("{}: weight must be [inputs, neurons, taps], got {}", op.opid, op.inInfo(Weight));
  }
  static Infos shapes(const Attributes &, const InfoOf &in) {
    return {likeRows(in(Values), in(Weight).dim(1), in(Values).dataType())};
  }
  static Gradient gradient(const Attributes &) {
    Gradient gradient = {{gradientOf(0)}, {}};
    gradient.readEveryInput(InputCount);
    return gradient;
  }

  static graph::SparseLinearInputs tensors(const Lowering<DelayLinear> &at) {
    return {at.slots(), at.in(Weight), at.in(Bias), at.in(Lags)};
  }
  static void grow(const Lowering<DelayLinear> &at, poplar::program::Sequence &prog) {
    at.set(0, graph::sparseLinear(at.graph(), tensors(at), at.attributes().unitValues, prog, at.label()));
  }
  static void growGradient(const Lowering<DelayLinear> &at, poplar::program::Sequence &prog) {
    const graph::SparseLinearGradients out = graph::sparseLinearGrad(at.graph(), at.at(gradientOf(0)), tensors(at),
                                                                     at.attributes().unitValues, prog, at.label());
    at.setZeros(Ids);
    at.set(Values, out.values);
    at.setZeros(Counts);
    at.set(Weight, out.weight);
    at.setZeros(Lags);
    at.set(Bias, out.bias);
  }
};

const Registered<DelayLinear> delayLinear;

} // namespace ops
} // namespace snnipu
