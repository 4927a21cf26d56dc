// SparseConv2d and its gradient: a convolution of spike ids.
//   inputs   ids, values [T, B, S], counts [T, B, 2] of maps [C, H, W] flattened, weight [out, C / groups, h, w], and
//            optionally bias [out]
//   outputs  y [T, B, out * H' * W'], of the values' type
//   attributes  geometry: C, H, W, out, H', W', h, w, and vertical and horizontal stride, padding and dilation, groups;
//            plan: output channels of a tile, lines of their maps, rows (time, sample) of a share; input_gradient: 0
//            if the gradient of the values is not requested and may be zeros
// values and weight are FLOAT or FLOAT16, independently; ids, counts, bias and sums are FLOAT.
#include "operator.hpp"

#include "graph/sparse_conv2d.hpp"

namespace snnipu {
namespace ops {

struct SparseConv2dAttributes {
  popart::Attributes::Ints geometry, plan;
  bool inputGradient = true;

  template <typename Visitor> void each(Visitor &&visit) {
    visit("geometry", geometry, std::size_t{15});
    visit("plan", plan, std::size_t{3});
    visit("input_gradient", inputGradient);
  }

  graph::SparseConv2dSizes sizes() const {
    const auto at = [&](std::size_t place) { return static_cast<std::size_t>(geometry[place]); };
    return {{at(0), at(1), at(2)},
            {at(3), at(4), at(5)},
            {at(6), at(7), at(8), at(9), at(10), at(11), at(12), at(13)},
            at(14)};
  }
  graph::SparseConv2dPlan planned() const {
    return {static_cast<std::size_t>(plan[0]), static_cast<std::size_t>(plan[1]), static_cast<std::size_t>(plan[2])};
  }
};

struct SparseConv2d : Described<SparseConv2d, SparseConv2dAttributes> {
  enum { Ids, Values, Counts, Weight, Bias, InputCount };

  static constexpr const char *name = "SparseConv2d";
  static Fields inputs() {
    return {{"ids"}, {"values", FloatOrHalf}, {"counts"}, {"weight", FloatOrHalf}, {"bias", Float, true}};
  }
  static Fields outputs() { return {{"y", FloatOrHalf}}; }

  static void checkInputs(const popart::Op &op, const Attributes &attributes) {
    const auto &sizes = attributes.geometry;
    const popart::Shape weight = {sizes[3], sizes[14] == 0 ? 0 : sizes[0] / sizes[14], sizes[6], sizes[7]};
    if (op.inInfo(Weight).shape() != weight)
      throw popart::error("{}: weight must be [out, in / groups, height, width] with the sizes of geometry, got {}",
                          op.opid, op.inInfo(Weight));
  }
  static Infos shapes(const Attributes &attributes, const InfoOf &in) {
    const int64_t neurons = static_cast<int64_t>(attributes.sizes().out.neurons());
    return {likeRows(in(Values), neurons, in(Values).dataType())};
  }
  static Gradient gradient(const Attributes &) {
    Gradient gradient = {{gradientOf(0)}, {}};
    gradient.readEveryInput(InputCount);
    return gradient;
  }

  static bool createsInput(const Attributes &, const Source &source, bool) { return source == input(Weight); }
  static poplar::Tensor createInput(const Lowering<SparseConv2d> &at, const Source &weight,
                                    const poplar::DebugContext &name) {
    const std::vector<std::size_t> spikes = at.info(input(Ids)).shape_szt();
    return graph::createSparseConv2dWeight(at.graph(), at.attributes().sizes(), at.attributes().planned(),
                                           spikes.at(0) * spikes.at(1), poplarType(at.info(weight)), name);
  }

  static graph::SparseConv2dInputs tensors(const Lowering<SparseConv2d> &at) {
    return {at.slots(), at.in(Weight), at.in(Bias)};
  }
  static void grow(const Lowering<SparseConv2d> &at, poplar::program::Sequence &prog) {
    const Attributes &attributes = at.attributes();
    at.set(0, graph::sparseConv2d(at.graph(), tensors(at), attributes.sizes(), attributes.planned(), prog, at.label()));
  }
  static void growGradient(const Lowering<SparseConv2d> &at, poplar::program::Sequence &prog) {
    const Attributes &attributes = at.attributes();
    const graph::SparseConv2dGradients out =
        graph::sparseConv2dGrad(at.graph(), at.at(gradientOf(0)), tensors(at), attributes.sizes(), attributes.planned(),
                                attributes.inputGradient, prog, at.label());
    at.setZeros(Ids);
    if (out.values.valid())
      at.set(Values, out.values);
    else
      at.setZeros(Values);
    at.setZeros(Counts);
    at.set(Weight, out.weight);
    at.set(Bias, out.bias);
  }
};

const Registered<SparseConv2d> sparseConv2d;

} // namespace ops
} // namespace snnipu
