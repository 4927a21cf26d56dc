// SparseLinear and its gradient: a linear layer on spike ids.
//   inputs   ids, values [T, B, S], counts [T, B, 2], weight [N, I], and bias [N] where there is a fifth one
//   outputs  y [T, B, N], of the values' type
// values and weight are FLOAT or FLOAT16, each for itself; ids, counts and bias FLOAT, and so are all sums.
#include "operator.hpp"

#include "graph/sparse_linear.hpp"

namespace snnipu {
namespace ops {

struct SparseLinearAttributes {
  bool unitValues = false;

  template <typename Visitor> void each(Visitor &&visit) { visit("unit_values", unitValues); }
};

struct SparseLinear : Described<SparseLinear, SparseLinearAttributes> {
  enum { Ids, Values, Counts, Weight, Bias, InputCount };

  static constexpr const char *name = "SparseLinear";
  static Fields inputs() {
    return {{"ids"}, {"values", FloatOrHalf}, {"counts"}, {"weight", FloatOrHalf}, {"bias", Float, true}};
  }
  static Fields outputs() { return {{"y", FloatOrHalf}}; }

  static Infos shapes(const Attributes &, const InfoOf &in) {
    return {likeRows(in(Values), in(Weight).dim(0), in(Values).dataType())};
  }
  static Gradient gradient(const Attributes &) {
    Gradient gradient = {{gradientOf(0)}, {}};
    gradient.readEveryInput(InputCount);
    return gradient;
  }

  static bool laysOut(const Attributes &, const Source &source, bool) { return source == input(Weight); }
  static poplar::Tensor layOut(const Lowering<SparseLinear> &at, const Source &weight,
                               const poplar::DebugContext &name) {
    const std::vector<std::size_t> shape = at.info(weight).shape_szt(), spikes = at.info(input(Ids)).shape_szt();
    return graph::createSparseLinearWeight(at.graph(), shape.at(0), shape.at(1), spikes.at(0) * spikes.at(1),
                                           spikes.at(2), poplarType(at.info(weight)), name);
  }

  static graph::SparseLinearInputs tensors(const Lowering<SparseLinear> &at) {
    return {at.slots(), at.in(Weight), at.in(Bias), {}};
  }
  static void grow(const Lowering<SparseLinear> &at, poplar::program::Sequence &prog) {
    at.set(0, graph::sparseLinear(at.graph(), tensors(at), at.attributes().unitValues, prog, at.label()));
  }
  static void growGradient(const Lowering<SparseLinear> &at, poplar::program::Sequence &prog) {
    const graph::SparseLinearGradients out = graph::sparseLinearGrad(at.graph(), at.at(gradientOf(0)), tensors(at),
                                                                     at.attributes().unitValues, prog, at.label());
    at.setZeros(Ids);
    at.set(Values, out.values);
    at.setZeros(Counts);
    at.set(Weight, out.weight);
    at.set(Bias, out.bias);
  }
};

const Registered<SparseLinear> sparseLinear;

} // namespace ops
} // namespace snnipu
