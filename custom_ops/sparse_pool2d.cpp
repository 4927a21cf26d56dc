// SparsePool2d and its gradient: pools of maps, from spike ids to spike ids.
//   inputs   ids, values [T, B, S], counts [T, B, 2] of maps [C, H, W] flattened; values FLOAT or FLOAT16, the others
//            FLOAT
//   outputs  ids, values [T, B, capacity], counts [T, B, 2] of maps [C, H', W'], and source [T, B, capacity]: slot of
//            the input that attains a maximum; values of the input's type, the others FLOAT
//   attributes  geometry: C, H, W, H', W', and vertical and horizontal size of a window, stride and padding; mode: 0
//            maximum, 1 average, 2 sum; capacity
#include "operator.hpp"

#include "graph/sparse_pool2d.hpp"

namespace snnipu {
namespace ops {

struct SparsePool2dAttributes {
  popart::Attributes::Ints geometry;
  graph::PoolMode mode = {};
  int64_t capacity = 1;

  template <typename Visitor> void each(Visitor &&visit) {
    visit("geometry", geometry, std::size_t{11});
    visit("mode", mode, 3);
    visit("capacity", capacity, 1);
  }

  graph::SparsePool2dOptions options() const {
    const auto at = [&](std::size_t place) { return static_cast<std::size_t>(geometry[place]); };
    return {{at(0), at(1), at(2)},
            {at(0), at(3), at(4)},
            {at(5), at(6), at(7), at(8), at(9), at(10), 1, 1},
            mode,
            static_cast<std::size_t>(capacity)};
  }
};

struct SparsePool2d : Described<SparsePool2d, SparsePool2dAttributes> {
  enum { Ids, Values, Counts, Slot }; // Slot: only an output

  static constexpr const char *name = "SparsePool2d";
  static Fields inputs() { return {{"ids"}, {"values", FloatOrHalf}, {"counts"}}; }
  static Fields outputs() { return {{"ids"}, {"values", FloatOrHalf}, {"counts"}, {"source"}}; }

  static Infos shapes(const Attributes &attributes, const InfoOf &in) {
    Infos infos = slotsLike(in(Values), attributes.capacity);
    infos[Slot] = infos[Ids];
    return infos;
  }
  static Gradient gradient(const Attributes &) {
    return {{gradientOf(Values), input(Ids), input(Counts), output(Ids), output(Counts), output(Slot)},
            {Ids, Values, Counts}};
  }

  static void grow(const Lowering<SparsePool2d> &at, poplar::program::Sequence &prog) {
    const graph::PooledSlots out =
        graph::sparsePool2d(at.graph(), at.slots(), at.attributes().options(), prog, at.label());
    at.setSlots(Ids, out.slots);
    at.set(Slot, out.source);
  }
  static void growGradient(const Lowering<SparsePool2d> &at, poplar::program::Sequence &prog) {
    const graph::PooledSlots pooled = {{at.at(output(Ids)), at.at(gradientOf(Values)), at.at(output(Counts)), {}},
                                       at.at(output(Slot))};
    at.setZeros(Ids);
    at.set(Values, graph::sparsePool2dGrad(at.graph(), at.in(Ids), at.in(Counts), pooled, at.attributes().options(),
                                           prog, at.label()));
    at.setZeros(Counts);
  }
};

const Registered<SparsePool2d> sparsePool2d;

} // namespace ops
} // namespace snnipu
