// SelectSpikes and its gradient: spikes of a dense membrane, by two thresholds.
//   inputs   mem [T, B, N] (FLOAT or FLOAT16), threshold (FLOAT; one element, or one for each neuron)
//   outputs  ids, values [T, B, capacity], counts, dropped [T, B, 2]; values of mem's type, the others FLOAT: ids are
//            exact up to 2^24, and an integer output would stop the gradient of the values
#include "operator.hpp"

#include "graph/select_spikes.hpp"

namespace snnipu {
namespace ops {

struct SelectAttributes {
  int64_t capacity = 1;
  bool rotate = false, second = false;
  float gradThreshold = 0.0f;
  SurrogateAttributes surrogate;

  template <typename Visitor> void each(Visitor &&visit) {
    visit("capacity", capacity, 1);
    visit("rotate", rotate);
    visit("has_grad_threshold", second);
    visit("grad_threshold", gradThreshold);
    surrogate.each(visit);
  }
  graph::SelectSpikesOptions options() const {
    return {
        static_cast<std::size_t>(capacity), rotate, second, gradThreshold, surrogate.kind, surrogate.a, surrogate.b};
  }
};

struct SelectSpikes : Described<SelectSpikes, SelectAttributes> {
  enum { Mem, Threshold };
  enum { Ids, Values, Counts, Dropped };

  static constexpr const char *name = "SelectSpikes";
  static Fields inputs() { return {{"mem", FloatOrHalf}, {"threshold"}}; }
  static Fields outputs() { return {{"ids"}, {"values", FloatOrHalf}, {"counts"}, {"dropped"}}; }

  static Infos shapes(const Attributes &attributes, const InfoOf &in) {
    return slotsLike(in(Mem), attributes.capacity);
  }
  static Gradient gradient(const Attributes &) {
    return {{gradientOf(Values), input(Mem), input(Threshold), output(Ids), output(Counts)}, {Mem, Threshold}};
  }

  static void grow(const Lowering<SelectSpikes> &at, poplar::program::Sequence &prog) {
    const graph::SlotTensors out =
        graph::selectSpikes(at.graph(), at.in(Mem), at.in(Threshold), prog, at.attributes().options(), at.label());
    at.setSlots(Ids, out);
    at.set(Dropped, out.dropped);
  }
  static void growGradient(const Lowering<SelectSpikes> &at, poplar::program::Sequence &prog) {
    const graph::SelectSpikesGradients out =
        graph::selectSpikesGrad(at.graph(), at.at(gradientOf(Values)), at.in(Mem), at.in(Threshold), at.at(output(Ids)),
                                at.at(output(Counts)), prog, at.attributes().options(), at.label());
    at.set(Mem, out.mem);
    at.set(Threshold, out.threshold);
  }
};

const Registered<SelectSpikes> selectSpikes;

} // namespace ops
} // namespace snnipu
