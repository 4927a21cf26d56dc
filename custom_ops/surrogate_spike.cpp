// SurrogateSpike and its gradient: spk = H(u), with a surrogate gradient.
//   inputs   u (FLOAT or FLOAT16, any shape)
//   outputs  spk of u's shape and type
#include "operator.hpp"

#include "graph/surrogate_spike.hpp"

namespace snnipu {
namespace ops {

struct SurrogateSpike : Described<SurrogateSpike, SurrogateAttributes> {
  static constexpr const char *name = "SurrogateSpike";
  static Fields inputs() { return {{"u", FloatOrHalf}}; }
  static Fields outputs() { return {{"spk", FloatOrHalf}}; }

  static Infos shapes(const Attributes &, const InfoOf &in) { return {in(0)}; }
  static Gradient gradient(const Attributes &) { return {{gradientOf(0), input(0)}, {0}}; }

  static void grow(const Lowering<SurrogateSpike> &at, poplar::program::Sequence &prog) {
    at.set(0, graph::surrogateSpike(at.graph(), at.in(0), prog, at.label()));
  }
  static void growGradient(const Lowering<SurrogateSpike> &at, poplar::program::Sequence &prog) {
    const Attributes &surrogate = at.attributes();
    at.set(0, graph::surrogateSpikeGrad(at.graph(), at.at(gradientOf(0)), at.in(0), prog, surrogate.kind, surrogate.a,
                                        surrogate.b, at.label()));
  }
};

const Registered<SurrogateSpike> surrogateSpike;

} // namespace ops
} // namespace snnipu
