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

#define SNNIPU_SURROGATE_SPIKE_BACKWARD(Name)                                                                          \
  template class SurrogateSpikeBackward<float, SurrogateKind::Name>;                                                   \
  template class SurrogateSpikeBackward<half, SurrogateKind::Name>;

#if defined(__POPC__)
template class SurrogateSpike<float>;
template class SurrogateSpike<half>;
SNNIPU_SURROGATES(SNNIPU_SURROGATE_SPIKE_BACKWARD)
#endif

} // namespace snnipu
