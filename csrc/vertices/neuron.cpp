// NeuronForward and NeuronBackward: a neuron of snnipu/equations.py over a whole sequence, for the elements of one
// tile. The step and its adjoint are generated (snnipu/_generator/print_cpp.py); this file has the loops around them.
//
// An element is one neuron of one sample. Elements are independent, so a tile's workers share them and never wait for
// each other. Arrays over time are [steps][size]; states are [states][size]; parameters are [parameters][size], or
// [parameters] if all elements have the same. States and parameters are float whatever the storage S is. The spike is
// decided on the membrane after rounding to S.
#include "generated_neurons.hpp"

#include "neuron/surrogate.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// Return the worker's share of `size` elements, in whole registers.
template <typename C> inline WorkerRange workerRange(unsigned worker, unsigned workers, unsigned size) {
  return workerShare(worker, workers, size, registerLanes<C>);
}

// Call body(index, V{}) for every register of [begin, end), then for every element left over. The second argument only
// carries the type.
template <typename C, typename Body> inline void forLanes(WorkerRange range, const Body &body) {
  unsigned i = range.begin;
  for (; i + registerLanes<C> <= range.end; i += registerLanes<C>)
    body(i, Register<C>{});
  for (; i < range.end; ++i)
    body(i, SingleLane<C>{});
}

// Parameters are one value for all elements, or one each. `Asked` checks this for every register instead of once a
// call, with half the code.
enum class PerElement { No, Yes, Asked };

// Parameters that are one value for all elements are read once, before the loop. The compiler cannot do so by itself,
// because a store of the loop might change them.
template <typename N, PerElement P, typename C> struct ParametersOf {
  const C *values;
  unsigned size;
  bool perElement;
  C first[N::parameters];

  ParametersOf(const C *from, unsigned elements, bool each) : values(from), size(elements), perElement(each) {
    for (unsigned p = 0; p < N::parameters; ++p)
      first[p] = from[each ? p * elements : p];
  }

  template <unsigned K, typename V> V at(unsigned i) const {
    if (P == PerElement::Yes || (P == PerElement::Asked && perElement))
      return load<V>(values + K * size + i);
    return splat<V>(first[K]);
  }
};

// Rows of a step, from element 0. K: type of the saved states.
template <typename N, typename S, typename K> struct StepRow {
  const S *x;
  Compute<S> *state;
  S *spk;
  K *kept[N::states];
  unsigned size;
  // Flags for the arrays to store. Null pointers would be checked again for every register.
  bool withSpk;
  unsigned withStates;
};

template <typename V, typename Row, typename Parameters, typename S> struct StepLane {
  using Vector = V;
  const Row &row;
  const Parameters &parameters;
  unsigned i;

  V x() const { return load<V>(row.x + i); }
  template <unsigned K> V before() const { return load<V>(row.state + K * row.size + i); }
  template <unsigned K> V parameter() const { return parameters.template at<K, V>(i); }
  V spike(V u) const { return heaviside(u); }
  V stored(V v) const { return quantise<S>(v); }
  void spk(V v) const {
    if (row.withSpk)
      store(row.spk + i, v);
  }
  template <unsigned K> void after(V v) const {
    store(row.state + K * row.size + i, v);
    if (row.withStates >> K & 1)
      store(row.kept[K] + i, v);
  }
};

// Run `steps` steps; the pointers of `row` are those of the first.
template <typename N, Variant W, typename S, typename K, typename Parameters>
inline void stepRows(StepRow<N, S, K> row, const Parameters &parameters, unsigned steps, WorkerRange range) {
  using C = Compute<S>;
  for (unsigned t = 0; t < steps; ++t) {
    forLanes<C>(range, [=](unsigned i, auto lane) {
      using Lane = StepLane<decltype(lane), StepRow<N, S, K>, Parameters, S>;
      N::template step<static_cast<unsigned>(W)>(Lane{row, parameters, i});
    });
    row.x += row.size;
    row.spk += row.withSpk ? row.size : 0;
    for (unsigned s = 0; s < N::states; ++s)
      row.kept[s] += row.withStates >> s & 1 ? row.size : 0;
  }
}

// Return the part of state s in an array that has the states of a mask, each [steps][size]. Not to be read if the mask
// lacks s.
template <typename S> inline S *stateRows(S *array, unsigned mask, unsigned s, unsigned steps, unsigned size) {
  unsigned place = 0;
  for (unsigned other = 0; other < s; ++other)
    place += mask >> other & 1;
  return array + static_cast<std::size_t>(mask >> s & 1 ? place : 0) * steps * size;
}

template <typename S, typename N, Variant W> class NeuronForward : public poplar::MultiVertex {
public:
  using C = Compute<S>;
  using Neuron = N;

  In<S> x;
  In<C> parameters;
  Through<C> state; // before the first step -> after the last
  Out<S> spk;       // unused without storeSpk
  Out<S> kept;      // after each step, the states of keptStates
  unsigned steps;
  unsigned size;
  unsigned keptStates;
  bool perElement;
  bool storeSpk;

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
    const ParametersOf<N, P, C> parameterValues(&parameters[0], size, perElement);
    StepRow<N, S, S> row{&x[0], &state[0], &spk[0], {}, size, storeSpk, keptStates};
    for (unsigned s = 0; s < N::states; ++s)
      row.kept[s] = stateRows(&kept[0], keptStates, s, steps, size);
    stepRows<N, W>(row, parameterValues, steps, range);
  }
};

// K: type of the states after each step.
template <typename N, typename S, typename K> struct AdjointRow {
  using C = Compute<S>;
  static constexpr bool joined = std::is_same_v<K, C>; // initial has type K, too, and is one of the rows
  const S *x, *gradSpk, *seed[N::states];
  // States after and before the step. The state before a segment's first step is in `initial`.
  const K *after[N::states], *before[N::states];
  const C *initial;
  C *carry, *sums;
  S *gradX;
  unsigned size;
  bool withSpk, first;
  unsigned withSeeds;
};

template <typename V, typename Row, typename Parameters, typename S, typename Surrogate> struct AdjointLane {
  using Vector = V;
  const Row &row;
  const Parameters &parameters;
  const Surrogate &slope;
  unsigned i;

  V x() const { return load<V>(row.x + i); }
  template <unsigned K> V before() const {
    if constexpr (Row::joined)
      return load<V>(row.before[K] + i);
    else
      return row.first ? load<V>(row.initial + K * row.size + i) : load<V>(row.before[K] + i);
  }
  template <unsigned K> V after() const { return load<V>(row.after[K] + i); }
  template <unsigned K> V parameter() const { return parameters.template at<K, V>(i); }
  V gradSpk() const { return row.withSpk ? load<V>(row.gradSpk + i) : splat<V>(0); }
  template <unsigned K> V gradAfter() const { return load<V>(row.carry + K * row.size + i); }
  template <unsigned K> V seed() const { return row.withSeeds >> K & 1 ? load<V>(row.seed[K] + i) : splat<V>(0); }
  V spike(V u) const { return heaviside(u); }
  V stored(V v) const { return quantise<S>(v); }
  V surrogate(V u, V g) const { return slope.gradient(u, g); }
  bool parameterGradients() const { return true; }
  template <unsigned> bool wants() const { return true; }
  void gradX(V v) const { store(row.gradX + i, v); }
  template <unsigned K> void gradBefore(V v) const { store(row.carry + K * row.size + i, v); }
  template <unsigned K> void gradParameter(V v) const {
    typename Row::C *const sum = row.sums + K * row.size + i;
    store(sum, load<V>(sum) + v);
  }
};

// Gradients come from gradSpk, the states' gradients (seeds), each of which may be missing, and later steps (carry).
template <typename S, typename N, Variant W> class NeuronBackward : public poplar::MultiVertex {
public:
  using C = Compute<S>;
  using Neuron = N;

  In<S> x; // if it is read: by the adjoint, or to recompute the states
  In<S> gradSpk;
  In<S> seeds; // gradients of the states after each step, for the states of seedStates
  In<S> kept;  // states of keptStates after each step, from the forward pass
  In<C> parameters;
  In<C> initial; // states before the first step
  Out<C> work;   // with recompute: states before each segment of steps except the first, and one row of scratch
  Out<C> again;  // with recompute: states after each step of a segment that the adjoint reads
  Out<S> gradX;
  Out<C> carry; // gradients of the states, at the end those before the first step
  Out<C> sums;  // gradients of the parameters summed over time, [parameters][size]
  C surrogateA;
  C surrogateB;
  unsigned surrogate; // SurrogateKind
  unsigned steps;
  unsigned segment; // steps of a segment
  unsigned size;
  unsigned seedStates;
  unsigned keptStates;
  bool perElement;
  bool hasGradSpk;
  bool recompute;

  void compute(unsigned workerId) { computeFor<SurrogateKind::Any>(workerId); }

  // The loop for a surrogate that is known at compile time, so that no register has to choose it.
  template <SurrogateKind K> void computeFor(unsigned workerId) {
    FirstParameter<K, C> first{};
    if constexpr (K == SurrogateKind::Any)
      first = {surrogateA, static_cast<SurrogateKind>(surrogate)};
    else
      first = surrogateA;
    const SurrogateOf<K, C> slope{first, surrogateB};
    const WorkerRange range = workerRange<C>(workerId, numWorkers(), size);
    if constexpr (compactCode<S>)
      run<PerElement::Asked>(slope, range);
    else if (perElement)
      run<PerElement::Yes>(slope, range);
    else
      run<PerElement::No>(slope, range);
  }

private:
  static constexpr AdjointReads reads = allReads<N>(static_cast<unsigned>(W));

  // The fields are copied before anything is written, because the compiler must assume that stores change them.
  struct Call {
    unsigned steps, segment, size, seedStates;
    bool withSpk;
  };

  template <PerElement P, typename Surrogate> void run(const Surrogate &slope, WorkerRange range) {
    const ParametersOf<N, P, C> parameterValues(&parameters[0], size, perElement);
    const Call call{steps, recompute ? segment : steps, size, seedStates, hasGradSpk};
    const unsigned keptMask = keptStates;
    const bool mustRecompute = recompute;
    begin(call, range);
    if (!mustRecompute) {
      adjointRows(parameterValues, slope, call, &kept[0], keptMask, &initial[0], 0, call.steps, range);
      return;
    }
    // Compute the states before each segment. Then, from the last segment to the first, recompute its states and run
    // its adjoint.
    const unsigned row = N::states * call.size, segment = call.segment;
    const unsigned segments = (call.steps + segment - 1) / segment;
    C *const state = &work[static_cast<std::size_t>(segments - 1) * row];
    const auto before = [&](unsigned number) {
      return number == 0 ? &initial[0] : &work[static_cast<std::size_t>(number - 1) * row];
    };
    for (unsigned number = 1; number < segments; ++number) {
      C *const next = &work[static_cast<std::size_t>(number - 1) * row];
      copyStates(call.size, before(number - 1), next, range);
      forward(parameterValues, call, next, nullptr, (number - 1) * segment, segment, range);
    }
    for (unsigned number = segments; number-- > 0;) {
      const unsigned first = number * segment, left = call.steps - first, count = left < segment ? left : segment;
      copyStates(call.size, before(number), state, range);
      forward(parameterValues, call, state, &again[0], first, count, range);
      adjointRows(parameterValues, slope, call, &again[0], reads.states(), before(number), first, count, range);
    }
  }

  // Set the parameters' sums to 0, and the carried gradients to the gradients of the states after the last step, or 0.
  void begin(const Call &call, WorkerRange range) {
    const unsigned n = call.size;
    for (unsigned p = 0; p < N::parameters; ++p) {
      C *const sum = &sums[p * n];
      forLanes<C>(range, [=](unsigned i, auto lane) { store(sum + i, splat<decltype(lane)>(0)); });
    }
    for (unsigned s = 0; s < N::states; ++s) {
      C *const to = &carry[s * n];
      const bool seeded = call.seedStates >> s & 1;
      const S *const from =
          stateRows(&seeds[0], call.seedStates, s, call.steps, n) + static_cast<std::size_t>(call.steps - 1) * n;
      forLanes<C>(range, [=](unsigned i, auto lane) {
        using V = decltype(lane);
        store(to + i, seeded ? load<V>(from + i) : splat<V>(0));
      });
    }
  }

  static void copyStates(unsigned n, const C *from, C *to, WorkerRange range) {
    for (unsigned s = 0; s < N::states; ++s)
      forLanes<C>(range, [=](unsigned i, auto lane) { store(to + s * n + i, load<decltype(lane)>(from + s * n + i)); });
  }

  template <typename Parameters>
  void forward(const Parameters &parameterValues, const Call &call, C *state, C *to, unsigned first, unsigned count,
               WorkerRange range) {
    const S *const from = &x[static_cast<std::size_t>(first) * call.size];
    StepRow<N, S, C> row{from, state, nullptr, {}, call.size, false, to ? reads.states() : 0};
    for (unsigned s = 0; s < N::states; ++s)
      row.kept[s] = to ? stateRows(to, reads.states(), s, call.segment, call.size) : nullptr;
    stepRows<N, W>(row, parameterValues, count, range);
  }

  // The adjoint of the steps [first, first + count), whose states are in `rows`.
  template <typename Parameters, typename Surrogate, typename K>
  void adjointRows(const Parameters &parameterValues, const Surrogate &slope, const Call &call, const K *rows,
                   unsigned mask, const C *start, unsigned first, unsigned count, WorkerRange range) {
    using Row = AdjointRow<N, S, K>;
    const unsigned n = call.size;
    Row row{};
    const S *seed[N::states];
    const K *after[N::states];
    for (unsigned s = 0; s < N::states; ++s) {
      seed[s] = stateRows(&seeds[0], call.seedStates, s, call.steps, n);
      after[s] = stateRows(rows, mask, s, call.segment, n);
    }
    row.initial = start;
    row.carry = &carry[0];
    row.sums = &sums[0];
    row.size = n;
    row.withSpk = call.withSpk;
    const unsigned withSeeds = call.seedStates;
    for (unsigned t = count; t-- > 0;) {
      const std::size_t at = static_cast<std::size_t>(first + t) * n, inRows = static_cast<std::size_t>(t) * n;
      row.x = reads.x ? &x[at] : nullptr;
      row.gradSpk = row.withSpk ? &gradSpk[at] : nullptr;
      row.gradX = &gradX[at];
      row.first = t == 0;
      row.withSeeds = first + t > 0 ? withSeeds : 0;
      for (unsigned s = 0; s < N::states; ++s) {
        row.seed[s] = seed[s] + at - (first + t > 0 ? n : 0);
        row.after[s] = after[s] + inRows;
        row.before[s] = row.after[s] - (t > 0 ? n : 0);
        if constexpr (Row::joined)
          row.before[s] = t > 0 ? row.before[s] : start + s * n;
      }
      forLanes<C>(range, [=](unsigned i, auto lane) {
        using Lane = AdjointLane<decltype(lane), Row, Parameters, S, Surrogate>;
        N::template adjoint<static_cast<unsigned>(W)>(Lane{row, parameterValues, slope, i});
      });
    }
  }
};

// The vertices that popc compiles. The surrogate is chosen at run time, which takes one more branch per register and a
// sixth of the code.
#define SNNIPU_NEURON_VARIANT(N, W)                                                                                    \
  template class NeuronForward<float, N, Variant::W>;                                                                  \
  template class NeuronForward<half, N, Variant::W>;                                                                   \
  template class NeuronBackward<float, N, Variant::W>;                                                                 \
  template class NeuronBackward<half, N, Variant::W>;

#if defined(__POPC__)
SNNIPU_GENERATED_VARIANTS(SNNIPU_NEURON_VARIANT)
#endif

} // namespace snnipu
