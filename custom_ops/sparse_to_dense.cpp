// SparseToDense and its gradient: spikes as a dense tensor.
//   inputs   ids, values [T, B, S], counts [T, B, 2]; values FLOAT or FLOAT16, the others FLOAT
//   outputs  dense [T, B, num_neurons], of the values' type
#include "operator.hpp"

#include "graph/sparse_to_dense.hpp"

namespace snnipu {
namespace ops {

struct SparseToDenseAttributes {
  int64_t neurons = 1;

  template <typename Visitor> void each(Visitor &&visit) { visit("num_neurons", neurons, 1); }
};

struct SparseToDense : Described<SparseToDense, SparseToDenseAttributes> {
  enum { Ids, Values, Counts };

  static constexpr const char *name = "SparseToDense";
  static Fields inputs() { return {{"ids"}, {"values", FloatOrHalf}, {"counts"}}; }
  static Fields outputs() { return {{"dense", FloatOrHalf}}; }

  static Infos shapes(const Attributes &attributes, const InfoOf &in) {
    return {likeRows(in(Ids), attributes.neurons, in(Values).dataType())};
  }
  static Gradient gradient(const Attributes &) {
    return {{gradientOf(0), input(Ids), input(Counts)}, {Ids, Values, Counts}};
  }

  static void grow(const Lowering<SparseToDense> &at, poplar::program::Sequence &prog) {
    at.set(0, graph::sparseToDense(at.graph(), at.slots(), static_cast<std::size_t>(at.attributes().neurons), prog,
                                   at.label()));
  }
  static void growGradient(const Lowering<SparseToDense> &at, poplar::program::Sequence &prog) {
    at.set(Values,
           graph::sparseToDenseGrad(at.graph(), at.at(gradientOf(0)), at.in(Ids), at.in(Counts), prog, at.label()));
    at.setZeros(Ids);
    at.setZeros(Counts);
  }
};

const Registered<SparseToDense> sparseToDense;

} // namespace ops
} // namespace snnipu
