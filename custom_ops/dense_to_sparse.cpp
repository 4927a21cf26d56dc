// DenseToSparse and its gradient: the nonzero elements of a dense tensor as spikes.
//   inputs   x [T, B, N] (FLOAT or FLOAT16)
//   outputs  ids, values [T, B, capacity], counts, dropped [T, B, 2]; values of x's type, the others FLOAT
#include "operator.hpp"

#include "graph/dense_to_sparse.hpp"
#include "graph/sparse_to_dense.hpp"

namespace snnipu {
namespace ops {

struct DenseToSparseAttributes {
  int64_t capacity = 1;
  bool rotate = false;

  template <typename Visitor> void each(Visitor &&visit) {
    visit("capacity", capacity, 1);
    visit("rotate", rotate);
  }
};

struct DenseToSparse : Described<DenseToSparse, DenseToSparseAttributes> {
  enum { Ids, Values, Counts, Dropped };

  static constexpr const char *name = "DenseToSparse";
  static Fields inputs() { return {{"x", FloatOrHalf}}; }
  static Fields outputs() { return {{"ids"}, {"values", FloatOrHalf}, {"counts"}, {"dropped"}}; }

  static Infos shapes(const Attributes &attributes, const InfoOf &in) { return slotsLike(in(0), attributes.capacity); }
  static Gradient gradient(const Attributes &) { return {{gradientOf(Values), output(Ids), output(Counts)}, {0}}; }

  static void grow(const Lowering<DenseToSparse> &at, poplar::program::Sequence &prog) {
    const Attributes &attributes = at.attributes();
    const graph::SlotTensors out = graph::denseToSparse(
        at.graph(), at.in(0), static_cast<std::size_t>(attributes.capacity), attributes.rotate, prog, at.label());
    at.setSlots(Ids, out);
    at.set(Dropped, out.dropped);
  }
  static void growGradient(const Lowering<DenseToSparse> &at, poplar::program::Sequence &prog) {
    const graph::SlotTensors gradients = {at.at(output(Ids)), at.at(gradientOf(Values)), at.at(output(Counts)), {}};
    at.set(0, graph::sparseToDense(at.graph(), gradients, static_cast<std::size_t>(at.outputInfo(0).dim(2)), prog,
                                   at.label()));
  }
};

const Registered<DenseToSparse> denseToSparse;

} // namespace ops
} // namespace snnipu
