// SparseLinear, DelayLinear and their gradients: linear layers on spike ids, DelayLinear with a delay for each synapse.
//   inputs   ids, values [T, B, S], counts [T, B, 2], weight [N, I], with delays weight [I, N, taps] and lags [I, N],
//            and optionally bias [N]
//   outputs  y [T, B, N], of the values' type
//   attributes  unit_values: 1 if every value is 1; plan: neurons of a tile, rows (time, sample) of a group of tiles,
//            with delays samples
// A spike of input i at t arrives at neuron n with weight[i, n, tap] at t + lags[i, n] + tap; after the last step it is
// dropped. Lags are integers and have no gradient. values and weight are FLOAT or FLOAT16, independently; the other
// tensors and sums are FLOAT.
#include "operator.hpp"

#include "graph/sparse_linear.hpp"

namespace snnipu {
namespace ops {

struct LinearAttributes {
  bool unitValues = false;
  popart::Attributes::Ints plan;

  template <typename Visitor> void each(Visitor &&visit) {
    visit("unit_values", unitValues);
    visit("plan", plan, std::size_t{2});
  }

  graph::SparseLinearPlan planned() const {
    return {static_cast<std::size_t>(plan[0]), static_cast<std::size_t>(plan[1])};
  }
};

template <typename D, bool Delayed> struct Linear : Described<D, LinearAttributes> {
  using At = Lowering<D>;
  enum { Ids, Values, Counts, Weight, Lags, Bias = Delayed ? 5 : 4, InputCount };

  static Fields inputs() {
    Fields fields = {{"ids"}, {"values", FloatOrHalf}, {"counts"}, {"weight", FloatOrHalf}};
    if (Delayed)
      fields.push_back({"lags"});
    fields.push_back({"bias", Float, true});
    return fields;
  }
  static Fields outputs() { return {{"y", FloatOrHalf}}; }

  static void checkInputs(const popart::Op &op, const LinearAttributes &) {
    if (Delayed && op.inInfo(Weight).rank() != 3)
      throw popart::error("{}: weight must be [inputs, neurons, taps], got {}", op.opid, op.inInfo(Weight));
  }
  static Infos shapes(const LinearAttributes &, const InfoOf &in) {
    return {likeRows(in(Values), in(Weight).dim(Delayed ? 1 : 0), in(Values).dataType())};
  }
  static Gradient gradient(const LinearAttributes &) {
    Gradient gradient = {{gradientOf(0)}, {}};
    gradient.readEveryInput(InputCount);
    return gradient;
  }

  static bool createsInput(const LinearAttributes &, const Source &source, bool) {
    return !Delayed && source == input(Weight);
  }
  static poplar::Tensor createInput(const At &at, const Source &weight, const poplar::DebugContext &name) {
    const std::vector<std::size_t> shape = at.info(weight).shape_szt(), spikes = at.info(input(Ids)).shape_szt();
    return graph::createSparseLinearWeight(at.graph(), shape.at(0), shape.at(1), spikes.at(0) * spikes.at(1),
                                           at.attributes().planned(), poplarType(at.info(weight)), name);
  }

  static graph::SparseLinearInputs tensors(const At &at) {
    return {at.slots(), at.in(Weight), at.in(Bias), Delayed ? at.in(Lags) : poplar::Tensor()};
  }
  static void grow(const At &at, poplar::program::Sequence &prog) {
    const LinearAttributes &attributes = at.attributes();
    at.set(0,
           graph::sparseLinear(at.graph(), tensors(at), attributes.planned(), attributes.unitValues, prog, at.label()));
  }
  static void growGradient(const At &at, poplar::program::Sequence &prog) {
    const LinearAttributes &attributes = at.attributes();
    const graph::SparseLinearGradients out = graph::sparseLinearGrad(
        at.graph(), at.at(gradientOf(0)), tensors(at), attributes.planned(), attributes.unitValues, prog, at.label());
    at.setZeros(Ids);
    at.set(Values, out.values);
    at.setZeros(Counts);
    at.set(Weight, out.weight);
    if (Delayed)
      at.setZeros(Lags);
    at.set(Bias, out.bias);
  }
};

struct SparseLinear : Linear<SparseLinear, false> {
  static constexpr const char *name = "SparseLinear";
};
struct DelayLinear : Linear<DelayLinear, true> {
  static constexpr const char *name = "DelayLinear";
};

const Registered<SparseLinear> sparseLinear;
const Registered<DelayLinear> delayLinear;

} // namespace ops
} // namespace snnipu
