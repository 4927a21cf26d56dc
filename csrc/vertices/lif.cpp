// LifForward and LifBackward: a leaky integrate-and-fire layer over a whole sequence, for the elements of a block. The
// host's alone: on a tile, the vertices of neuron.cpp.
//
// An element is one neuron of one sample. Time step t of element i lies at [t * stride + i], each array with a stride
// of its own (0: the same at every step); elements are independent, so the workers of a tile share them out and no
// worker waits for another. Parameters are either one value for all elements or one each (perElement). State and
// parameters are in float (double for double) whatever the storage is. Spikes are decided on the membrane as stored, so
// that spk == (mem > threshold) holds exactly on the outputs and the backward pass sees the forward pass's decisions.
#include "neuron/lif.hpp"
#include "neuron/surrogate.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// Worker's share of size elements, in whole registers.
template <typename C> inline WorkerRange workerRange(unsigned worker, unsigned workers, unsigned size) {
  return workerShare(worker, workers, size, registerLanes<C>);
}

// body(index, V{}) for every register of [begin, end), then for every element left over. The second argument only
// carries the type.
template <typename C, typename Body> inline void forLanes(WorkerRange range, const Body &body) {
  unsigned i = range.begin;
  for (; i + registerLanes<C> <= range.end; i += registerLanes<C>)
    body(i, Register<C>{});
  for (; i < range.end; ++i)
    body(i, SingleLane<C>{});
}

// One value for all elements, or one each: chosen once a call, or (Asked) for every register, in half the code.
enum class PerElement { No, Yes, Asked };

template <PerElement P, typename V, typename C> inline V parameter(const C *values, unsigned i, bool perElement) {
  return P == PerElement::Yes || (P == PerElement::Asked && perElement) ? load<V>(values + i) : splat<V>(values[0]);
}

// The parameters of a vertex. What is one value for all is read once: what a loop writes might be a parameter for all
// that the compiler knows, and would have it read them anew for every register.
template <PerElement P, typename C> struct ParametersOf {
  const C *beta, *threshold, *graded;
  bool perElement;
  LifParameters<C> first;

  ParametersOf(const C *b, const C *thr, const C *g, bool each)
      : beta(b), threshold(thr), graded(g), perElement(each), first{clampUnit(SingleLane<C>{b[0]})[0], thr[0], g[0]} {}

  template <typename V> LifParameters<V> at(unsigned i) const {
    if (P == PerElement::Yes || (P == PerElement::Asked && perElement))
      return {clampUnit(load<V>(beta + i)), load<V>(threshold + i), load<V>(graded + i)};
    return {splat<V>(first.beta), splat<V>(first.threshold), splat<V>(first.graded)};
  }
};

template <typename S, Reset R, bool ResetDelay, typename Spike = HardSpike>
class LifForward : public poplar::MultiVertex {
public:
  using C = Compute<S>;
  static constexpr bool delaysReset = ResetDelay;

  In<S> x;
  In<C> beta;
  In<C> threshold;
  In<C> graded;
  Through<C> state; // membrane: before the first step -> after the last
  Out<S> spk;       // unused without storeSpk
  Out<S> mem;       // unused without storeMem
  Out<S> preReset;  // membrane before an immediate reset; unused without storePreReset
  unsigned steps;
  unsigned size;
  unsigned xStride;
  unsigned spkStride;
  unsigned memStride; // of preReset too
  bool perElement;
  bool storeSpk;
  bool storeMem;
  bool storePreReset;
  bool streaming; // spk and mem go past the caches: rows are aligned to registers, the caller fences

  void compute(unsigned workerId) {
    const WorkerRange range = workerRange<C>(workerId, numWorkers(), size);
    if constexpr (compactCode<S>)
      run<PerElement::Asked>(range);
    else if (perElement)
      run<PerElement::Yes>(range);
    else
      run<PerElement::No>(range);
  }

private:
  template <PerElement P> void run(WorkerRange range) {
    const bool withSpk = storeSpk, withMem = storeMem, withPreReset = storePreReset, past = streaming;
    const ParametersOf<P, C> parameters(&beta[0], &threshold[0], &graded[0], perElement);
    for (unsigned t = 0; t < steps; ++t) {
      const std::size_t memRowStart = static_cast<std::size_t>(t) * memStride;
      const S *const xRow = &x[static_cast<std::size_t>(t) * xStride];
      // Rows are too short and too far apart for the processor to see the next one coming.
      const S *const xNext = t + 1 < steps ? xRow + xStride : xRow;
      S *const spkRow = withSpk ? &spk[static_cast<std::size_t>(t) * spkStride] : nullptr;
      S *const memRow = withMem ? &mem[memRowStart] : nullptr;
      S *const preRow = withPreReset ? &preReset[memRowStart] : nullptr;
      C *const stateRow = &state[0];
      forLanes<C>(range, [=](unsigned i, auto lane) {
        using V = decltype(lane);
        prefetch(xNext + i);
        const auto p = parameters.template at<V>(i);
        const V before = load<V>(stateRow + i);
        const V reset = heaviside(quantise<S>(before) - p.threshold);
        const V u = lifIntegrate<R>(p, load<V>(xRow + i), before, reset);
        const V spike = Spike::value(quantise<S>(u) - p.threshold);
        if (withPreReset)
          store(preRow + i, u);
        V after = u;
        if constexpr (!ResetDelay)
          after = lifResetNow<R>(p, u, spike, reset);
        if (withSpk)
          put(spkRow + i, spike * p.graded, past);
        if (withMem)
          put(memRow + i, after, past);
        store(stateRow + i, after);
      });
    }
  }
};

// Gradients flow from gradSpk and gradMem (either may be absent) and from the steps after (gradState).
template <typename S, Reset R, bool ResetDelay, SurrogateKind K, typename Spike = HardSpike>
class LifBackward : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> gradSpk;
  In<S> gradMem;
  In<S> mem; // the forward pass's output
  In<S> preReset;
  In<C> memInitial; // membrane before the first step
  In<C> beta;
  In<C> threshold;
  In<C> graded;
  Out<S> gradX;            // unused with a constant input
  Through<C> gradConstant; // of a constant input: the sum over time
  Through<C> gradState;    // gradient of the membrane: after the last step -> before the first
  // One sum over time per element; clamped beta's mask is already applied. Unused without parameterGradients.
  Through<C> gradBeta;
  Through<C> gradThreshold;
  Through<C> gradGraded;
  FirstParameter<K, C> surrogateA;
  C surrogateB;
  unsigned steps;
  unsigned size;
  unsigned gradSpkStride;
  unsigned gradMemStride;
  unsigned memStride; // of preReset too
  unsigned gradXStride;
  bool perElement;
  bool hasGradSpk;
  bool hasGradMem;
  bool parameterGradients;
  bool constantInput;
  bool streaming; // gradX goes past the caches, as in LifForward

  void compute(unsigned workerId) {
    const WorkerRange range = workerRange<C>(workerId, numWorkers(), size);
    if constexpr (compactCode<S>)
      run<PerElement::Asked>(range);
    else if (perElement)
      run<PerElement::Yes>(range);
    else
      run<PerElement::No>(range);
  }

private:
  template <PerElement P> void run(WorkerRange range) {
    const SurrogateOf<K, C> surrogate{surrogateA, surrogateB};
    const bool withSpk = hasGradSpk, withMem = hasGradMem, withParameters = parameterGradients;
    const bool constant = constantInput, past = streaming, each = perElement;
    const C *const b = &beta[0];
    const ParametersOf<P, C> parameters(b, &threshold[0], &graded[0], each);
    for (unsigned t = steps; t-- > 0;) {
      const std::size_t row = static_cast<std::size_t>(t) * memStride;
      const S *const spkRow = withSpk ? &gradSpk[static_cast<std::size_t>(t) * gradSpkStride] : nullptr;
      const S *const gradMemRow = withMem ? &gradMem[static_cast<std::size_t>(t) * gradMemStride] : nullptr;
      const S *const uRow = ResetDelay ? &mem[row] : &preReset[row];
      const S *const previousRow = t > 0 ? &mem[row - memStride] : nullptr;
      const C *const initialRow = &memInitial[0];
      const S *const spkNext = withSpk ? (t > 0 ? spkRow - gradSpkStride : spkRow) : uRow;
      const S *const gradMemNext = withMem ? (t > 0 ? gradMemRow - gradMemStride : gradMemRow) : uRow;
      const S *const previousNext = t > 1 ? previousRow - memStride : uRow;
      S *const gradXRow = constant ? nullptr : &gradX[static_cast<std::size_t>(t) * gradXStride];
      C *const constantSum = constant ? &gradConstant[0] : nullptr;
      C *const stateRow = &gradState[0];
      C *const betaSum = withParameters ? &gradBeta[0] : nullptr;
      C *const thresholdSum = withParameters ? &gradThreshold[0] : nullptr;
      C *const gradedSum = withParameters ? &gradGraded[0] : nullptr;
      forLanes<C>(range, [=](unsigned i, auto lane) {
        using V = decltype(lane);
        const V zero = splat<V>(0);
        prefetch(spkNext + i);
        prefetch(gradMemNext + i);
        prefetch(previousNext + i);
        const auto p = parameters.template at<V>(i);
        const V before = previousRow ? load<V>(previousRow + i) : load<V>(initialRow + i);
        const V reset = heaviside(quantise<S>(before) - p.threshold);
        const V gradSpkNow = withSpk ? load<V>(spkRow + i) : zero;
        V gradMemNow = load<V>(stateRow + i);
        if (withMem)
          gradMemNow = gradMemNow + load<V>(gradMemRow + i);
        const auto adjoint =
            lifAdjoint<R, ResetDelay, Spike>(p, surrogate, load<V>(uRow + i), before, reset, gradSpkNow, gradMemNow);
        if (constant)
          store(constantSum + i, load<V>(constantSum + i) + adjoint.gradX);
        else
          put(gradXRow + i, adjoint.gradX, past);
        store(stateRow + i, adjoint.gradMem);
        if (withParameters) {
          const V raw = parameter<P, V>(b, i, each);
          const V inside = raw == p.beta ? adjoint.gradBeta : zero;
          store(betaSum + i, load<V>(betaSum + i) + inside);
          store(thresholdSum + i, load<V>(thresholdSum + i) + adjoint.gradThreshold);
          store(gradedSum + i, load<V>(gradedSum + i) + adjoint.gradGraded);
        }
      });
    }
  }
};

} // namespace snnipu
