// A neuron over a sequence: loops over time and elements around the generated step and adjoint.
//
// The generated struct (snnipu/_generator/print_cpp.py) has the numbers of states, parameters and variants, and static
// functions that read and write through an accessor: step<Variant>(lane), adjoint<Variant>(lane) and, if a state is the
// output, output<Variant>(lane). A parameter is one value for all elements, or one for each. An element is one neuron
// of one sample; elements are independent of each other.
//
// States and parameters are float (double for double), whatever the storage S is. The spike is decided on the membrane
// after rounding to S, so that the backward pass sees the decisions of the forward pass.
#pragma once

#include "neuron/functions.hpp"
#include "neuron/surrogate.hpp"

#include <cstddef>

namespace snnipu {

constexpr unsigned mostStates = 8;
constexpr unsigned mostParameters = 16;

struct ElementRange {
  std::size_t begin, end;
};

// The values, besides gradients, that an adjoint reads: x, and bit s for state s before or after the step.
struct AdjointReads {
  unsigned before, after;
  bool x;

  constexpr unsigned states() const { return before | after; }
  constexpr AdjointReads operator|(const AdjointReads &other) const {
    return {before | other.before, after | other.after, x || other.x};
  }
};

// Return the values that a variant's adjoint reads if all gradients are requested.
template <typename Neuron> constexpr AdjointReads allReads(unsigned variant) {
  AdjointReads all = Neuron::reads[variant];
  for (unsigned p = 0; p < Neuron::parameters; ++p)
    all = all | Neuron::readsFor[variant][p];
  return all;
}

// Arguments of the forward loop. Rows belong to steps t = 0, 1, ...; element i of row t is at [t * stride + i].
template <typename S> struct ForwardSteps {
  using C = Compute<S>;
  const S *x;
  std::size_t xStride; // 0: the same row at every step
  // Row t is the state before step t, row t + 1 the state after it. A stride of 0 updates the state in place.
  C *state[mostStates];
  std::size_t stateStride[mostStates];
  const C *parameter[mostParameters]; // one value per element if perElement, else a register of equal values
  bool perElement;
  S *spk; // spk and kept (the states after each step) may be null
  std::size_t spkStride;
  S *savedStates[mostStates];
  std::size_t savedStride;
  unsigned steps;
  bool streaming; // write spk and kept past the caches: rows are aligned to registers, and the caller fences
};

template <typename S> struct BackwardSteps {
  using C = Compute<S>;
  const S *gradSpk; // may be null
  std::size_t gradSpkStride;
  // Gradients of the states after each step, as outputs; each may be null. The last step's are in carry already. Row -1
  // is read unless `first` is set.
  const S *seed[mostStates];
  std::size_t seedStride[mostStates];
  const S *x; // if the adjoint reads it
  std::size_t xStride;
  const C *after[mostStates]; // states after each step, if the adjoint reads them; initial: before the first step
  std::size_t afterStride[mostStates];
  const C *initial[mostStates];
  const C *parameter[mostParameters];
  bool perElement;
  S *gradX;
  std::size_t gradXStride;
  C *gradConstant;        // for a constant input: gradient of x summed over time; else null
  C *carry[mostStates];   // gradients of the states: in, after the last step; out, before the first
  C *sum[mostParameters]; // gradients of the parameters, summed over time, one per element; each may be null
  SurrogateKind surrogate;
  C surrogateA, surrogateB;
  unsigned steps;
  bool first; // row 0 is the first step of the sequence
  bool streaming;
};

// Call body(index, V{}) for every register of the range and, with Singles, every element left over. Without Singles the
// range consists of whole registers. The second argument only carries the type.
template <typename C, bool Singles, typename Body> inline void forRegisters(ElementRange range, const Body &body) {
  std::size_t i = range.begin;
  for (; i + registerLanes<C> <= range.end; i += registerLanes<C>)
    body(i, Register<C>{});
  if constexpr (Singles)
    for (; i < range.end; ++i)
      body(i, SingleLane<C>{});
}

// Return true if the state is the output and is computed from the other states after the step. It is then neither
// written nor read between steps, and its rows are null.
template <typename Neuron, unsigned Variant> constexpr bool outputIsRecomputed(unsigned state) {
  return static_cast<int>(state) == Neuron::outputState && Neuron::remakesOutput[Variant];
}

// The parameters of a neuron at element i. Shared: each is one value for all elements, read once before the loop. The
// compiler cannot do so by itself, because a store of the loop might change it.
template <typename C, unsigned Count, bool Shared> class SequenceParameters {
public:
  SequenceParameters(const C *const (&parameter)[mostParameters], bool perElement)
      : indexMask_(perElement ? ~std::size_t{0} : 0) {
    for (unsigned p = 0; p < Count; ++p) {
      parameter_[p] = parameter[p];
      first_[p] = Shared ? parameter[p][0] : C(0);
    }
  }

  template <unsigned P, typename V> V at(std::size_t i) const {
    if constexpr (Shared)
      return splat<V>(first_[P]);
    else
      return load<V>(parameter_[P] + (i & indexMask_));
  }

private:
  const C *parameter_[Count ? Count : 1];
  C first_[Count ? Count : 1];
  std::size_t indexMask_; // all bits set: parameters are one per element
};

template <typename S, unsigned States, typename Parameters> struct ForwardRow {
  using C = Compute<S>;
  const S *x, *xNext;
  const C *before[States];
  C *after[States];
  Parameters parameters;
  S *spk, *savedStates[States];
  bool streaming;
};

template <typename Neuron, unsigned Variant, typename V, typename Row, typename S> struct ForwardLane {
  using Vector = V;
  const Row &row;
  std::size_t i;

  V x() const { return load<V>(row.x + i); }
  template <unsigned K> V before() const {
    if constexpr (outputIsRecomputed<Neuron, Variant>(K))
      if (!row.before[K])
        return Neuron::template output<Variant>(*this);
    return load<V>(row.before[K] + i);
  }
  template <unsigned P> V parameter() const { return row.parameters.template at<P, V>(i); }
  V spike(V u) const { return heaviside(u); }
  V stored(V v) const { return quantise<S>(v); }
  void spk(V v) const {
    if (row.spk)
      put(row.spk + i, v, row.streaming);
  }
  template <unsigned K> void after(V v) const {
    if (!outputIsRecomputed<Neuron, Variant>(K) || row.after[K])
      store(row.after[K] + i, v);
    if (row.savedStates[K])
      put(row.savedStates[K] + i, v, row.streaming);
  }
};

template <typename Neuron, unsigned Variant, typename S, bool Shared = false>
void forwardSteps(const ForwardSteps<S> &a, ElementRange range) {
  using C = Compute<S>;
  using Parameters = SequenceParameters<C, Neuron::parameters, Shared>;
  using Row = ForwardRow<S, Neuron::states, Parameters>;
  Row row{{}, {}, {}, {}, Parameters(a.parameter, a.perElement), {}, {}, a.streaming};
  for (unsigned t = 0; t < a.steps; ++t) {
    row.x = a.x + t * a.xStride;
    // Rows are too short and too far apart for the hardware prefetcher.
    row.xNext = t + 1 < a.steps ? row.x + a.xStride : row.x;
    row.spk = a.spk ? a.spk + t * a.spkStride : nullptr;
    for (unsigned s = 0; s < Neuron::states; ++s) {
      row.before[s] = a.state[s] + t * a.stateStride[s];
      row.after[s] = a.state[s] + (t + 1) * a.stateStride[s];
      if (outputIsRecomputed<Neuron, Variant>(s) && a.stateStride[s] == 0) {
        row.before[s] = t == 0 ? row.before[s] : nullptr;
        row.after[s] = t + 1 == a.steps ? row.after[s] : nullptr;
      }
      row.savedStates[s] = a.savedStates[s] ? a.savedStates[s] + t * a.savedStride : nullptr;
    }
    const Row now = row;
    forRegisters<C, false>(range, [now](std::size_t i, auto lane) {
      prefetch(now.xNext + i);
      Neuron::template step<Variant>(ForwardLane<Neuron, Variant, decltype(lane), Row, S>{now, i});
    });
  }
}

template <typename S, unsigned States, unsigned Count, typename Parameters> struct BackwardRow {
  using C = Compute<S>;
  const S *x, *gradSpk, *gradSpkNext, *seed[States], *seedNext[States];
  const C *after[States], *before[States], *beforeNext[States];
  C *carry[States];
  C *sum[Count ? Count : 1];
  Parameters parameters;
  S *gradX;
  C *gradConstant;
  bool parameterGradients, streaming;
};

template <typename Neuron, unsigned Variant, typename V, typename Row, typename S, typename Surrogate>
struct BackwardLane {
  using Vector = V;
  const Row &row;
  const Surrogate &slope;
  std::size_t i;

  V x() const { return load<V>(row.x + i); }
  template <unsigned K> V before() const {
    if constexpr (outputIsRecomputed<Neuron, Variant>(K))
      if (!row.before[K])
        return Neuron::template output<Variant>(*this);
    return load<V>(row.before[K] + i);
  }
  template <unsigned K> V after() const { return load<V>(row.after[K] + i); }
  template <unsigned P> V parameter() const { return row.parameters.template at<P, V>(i); }
  V gradSpk() const { return row.gradSpk ? load<V>(row.gradSpk + i) : splat<V>(0); }
  template <unsigned K> V gradAfter() const { return load<V>(row.carry[K] + i); }
  template <unsigned K> V seed() const { return row.seed[K] ? load<V>(row.seed[K] + i) : splat<V>(0); }
  V spike(V u) const { return heaviside(u); }
  V stored(V v) const { return quantise<S>(v); }
  V surrogate(V u, V g) const { return slope.gradient(u, g); }
  bool parameterGradients() const { return row.parameterGradients; }
  template <unsigned P> bool wants() const { return row.sum[P]; }
  void gradX(V v) const {
    if (row.gradConstant)
      store(row.gradConstant + i, load<V>(row.gradConstant + i) + v);
    else
      put(row.gradX + i, v, row.streaming);
  }
  template <unsigned K> void gradBefore(V v) const { store(row.carry[K] + i, v); }
  template <unsigned P> void gradParameter(V v) const { store(row.sum[P] + i, load<V>(row.sum[P] + i) + v); }
};

template <typename Neuron, unsigned Variant, typename S, SurrogateKind K, bool Shared = false>
void backwardSteps(const BackwardSteps<S> &a, ElementRange range) {
  using C = Compute<S>;
  using Parameters = SequenceParameters<C, Neuron::parameters, Shared>;
  using Row = BackwardRow<S, Neuron::states, Neuron::parameters, Parameters>;
  Row row{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, Parameters(a.parameter, a.perElement), {}, {}, {}, {}};
  for (unsigned p = 0; p < Neuron::parameters; ++p)
    row.parameterGradients |= (row.sum[p] = a.sum[p]) != nullptr;
  for (unsigned s = 0; s < Neuron::states; ++s)
    row.carry[s] = a.carry[s];
  row.gradConstant = a.gradConstant;
  row.streaming = a.streaming;
  FirstParameter<K, C> parameter{};
  if constexpr (std::is_same_v<FirstParameter<K, C>, C>)
    parameter = a.surrogateA;
  else
    parameter = {a.surrogateA, a.surrogate};
  const SurrogateOf<K, C> surrogate{parameter, a.surrogateB};
  for (unsigned t = a.steps; t-- > 0;) {
    row.x = a.x ? a.x + t * a.xStride : nullptr;
    row.gradSpk = a.gradSpk ? a.gradSpk + t * a.gradSpkStride : nullptr;
    row.gradSpkNext = row.gradSpk && t > 0 ? row.gradSpk - a.gradSpkStride : row.gradSpk;
    for (unsigned s = 0; s < Neuron::states; ++s) {
      const std::ptrdiff_t seedStride = static_cast<std::ptrdiff_t>(a.seedStride[s]);
      row.seed[s] =
          a.seed[s] && !(a.first && t == 0) ? a.seed[s] + (static_cast<std::ptrdiff_t>(t) - 1) * seedStride : nullptr;
      row.seedNext[s] = row.seed[s] && t > 1 ? row.seed[s] - seedStride : row.seed[s];
      row.after[s] = a.after[s] ? a.after[s] + t * a.afterStride[s] : nullptr;
      row.before[s] = t == 0 ? a.initial[s] : a.after[s] ? row.after[s] - a.afterStride[s] : nullptr;
      row.beforeNext[s] = t > 1 && a.after[s] ? row.before[s] - a.afterStride[s] : nullptr;
    }
    row.gradX = a.gradX + t * a.gradXStride;
    const Row now = row;
    forRegisters<C, false>(range, [now, surrogate](std::size_t i, auto lane) {
      if (now.gradSpkNext)
        prefetch(now.gradSpkNext + i);
      for (unsigned s = 0; s < Neuron::states; ++s) {
        if (now.seedNext[s])
          prefetch(now.seedNext[s] + i);
        if (now.beforeNext[s])
          prefetch(now.beforeNext[s] + i);
      }
      Neuron::template adjoint<Variant>(
          BackwardLane<Neuron, Variant, decltype(lane), Row, S, SurrogateOf<K, C>>{now, surrogate, i});
    });
  }
}

} // namespace snnipu
