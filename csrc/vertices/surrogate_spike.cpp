// The spike of a membrane, spk = H(u), and its surrogate gradient, element by element.
#include "neuron/lif.hpp"
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
    unsigned i = range.begin;
    for (; i + registerLanes<C> <= range.end; i += registerLanes<C>)
      store(&spk[i], heaviside(load<Register<C>>(&u[i])));
    for (; i < range.end; ++i)
      store(&spk[i], heaviside(load<SingleLane<C>>(&u[i])));
  }
};

template <typename S, template <typename> class Surrogate> class SurrogateSpikeBackward : public poplar::MultiVertex {
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
    unsigned i = range.begin;
    for (; i + registerLanes<C> <= range.end; i += registerLanes<C>)
      run<Register<C>>(i);
    for (; i < range.end; ++i)
      run<SingleLane<C>>(i);
  }

private:
  template <typename V> void run(unsigned i) {
    const Surrogate<C> surrogate{surrogateA, surrogateB};
    store(&gradU[i], surrogate.gradient(load<V>(&u[i]), load<V>(&gradSpk[i])));
  }
};

#define SNNIPU_SURROGATE_SPIKE(S)                                                                                      \
  template class SurrogateSpike<S>;                                                                                    \
  template class SurrogateSpikeBackward<S, LeakyStep>;                                                                 \
  template class SurrogateSpikeBackward<S, Triangular>;                                                                \
  template class SurrogateSpikeBackward<S, FastSigmoid>;                                                               \
  template class SurrogateSpikeBackward<S, ATan>;                                                                      \
  template class SurrogateSpikeBackward<S, Sigmoid>;                                                                   \
  template class SurrogateSpikeBackward<S, SpikeRateEscape>;

#if defined(__POPC__)
SNNIPU_SURROGATE_SPIKE(float)
SNNIPU_SURROGATE_SPIKE(half)
#endif

} // namespace snnipu
