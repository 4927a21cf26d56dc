// The spike of a membrane, spk = H(u), and its surrogate gradient, element by element.
#include "neuron/functions.hpp"
#include "neuron/surrogate.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

template <typename S> class SurrogateSpike : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> u;
  Out<S> spk;
  unsigned size;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, registerLanes<C>);
    const S *const from = &u[0];
    S *const to = &spk[0];
    unsigned i = range.begin;
    for (; i + registerLanes<C> <= range.end; i += registerLanes<C>)
      store(to + i, heaviside(load<Register<C>>(from + i)));
    for (; i < range.end; ++i)
      store(to + i, heaviside(load<SingleLane<C>>(from + i)));
  }
};

template <typename S, SurrogateKind K> class SurrogateSpikeBackward : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> u;
  In<S> gradSpk;
  Out<S> gradU;
  C surrogateA;
  C surrogateB;
  unsigned size;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, registerLanes<C>);
    const SurrogateOf<K, C> surrogate{surrogateA, surrogateB};
    const S *const membrane = &u[0], *const grad = &gradSpk[0];
    S *const to = &gradU[0];
    unsigned i = range.begin;
    for (; i + registerLanes<C> <= range.end; i += registerLanes<C>)
      store(to + i, surrogate.gradient(load<Register<C>>(membrane + i), load<Register<C>>(grad + i)));
    for (; i < range.end; ++i)
      store(to + i, surrogate.gradient(load<SingleLane<C>>(membrane + i), load<SingleLane<C>>(grad + i)));
  }
};

#define SNNIPU_SURROGATE_SPIKE(S)                                                                                      \
  template class SurrogateSpike<S>;                                                                                    \
  template class SurrogateSpikeBackward<S, SurrogateKind::LeakyStep>;                                                  \
  template class SurrogateSpikeBackward<S, SurrogateKind::Triangular>;                                                 \
  template class SurrogateSpikeBackward<S, SurrogateKind::FastSigmoid>;                                                \
  template class SurrogateSpikeBackward<S, SurrogateKind::ATan>;                                                       \
  template class SurrogateSpikeBackward<S, SurrogateKind::Sigmoid>;                                                    \
  template class SurrogateSpikeBackward<S, SurrogateKind::SpikeRateEscape>;

#if defined(__POPC__)
SNNIPU_SURROGATE_SPIKE(float)
SNNIPU_SURROGATE_SPIKE(half)
#endif

} // namespace snnipu
