// Neurons over a sequence on the host: cache-sized blocks of elements, distributed over threads.
//
// Header only. A library of neurons consists of this, a generated header and SNNIPU_NEURONS. Only the two loops of
// neuron/sequence.hpp are compiled for each neuron; the other code is compiled once for each storage type.
#pragma once

#include "host/blocks.hpp"
#include "host/neuron.h"
#include "neuron/sequence.hpp"

#include <array>
#include <utility>

namespace snnipu {

// sharedParameters: also compile the loops for parameters that are one value for all elements, with one adjoint for
// each of the usual surrogates. everySurrogate: compile one adjoint for every surrogate. Both are faster, and much
// larger code.
template <typename Neuron, typename S> constexpr bool sharedParameters = false;
template <typename Neuron, typename S> constexpr bool everySurrogate = false;

namespace {

static_assert(static_cast<unsigned>(SNNIPU_MOST_STATES) == mostStates);
static_assert(static_cast<unsigned>(SNNIPU_MOST_PARAMETERS) == mostParameters);

template <typename S> using ForwardLoop = void (*)(const ForwardSteps<S> &, ElementRange);
template <typename S> using BackwardLoop = void (*)(const BackwardSteps<S> &, ElementRange);

// The loops of one variant of a neuron.
template <typename S> struct NeuronLoops {
  unsigned states, parameters;
  int outputState;
  AdjointReads reads;           // for the gradients of x and the states
  const AdjointReads *readsFor; // for the gradient of each parameter
  bool remakesOutput;
  ForwardLoop<S> forward[2]; // [0]: parameters per element; [1]: one value for all elements
  BackwardLoop<S> backward[2];
};

template <typename Neuron, unsigned Variant, typename S, bool Shared>
BackwardLoop<S> backwardLoop(SurrogateKind surrogate) {
  if constexpr (everySurrogate<Neuron, S>) {
    switch (surrogate) {
#define SNNIPU_CASE(Name)                                                                                              \
  case SurrogateKind::Name:                                                                                            \
    return backwardSteps<Neuron, Variant, S, SurrogateKind::Name, Shared>;
      SNNIPU_SURROGATES(SNNIPU_CASE)
#undef SNNIPU_CASE
    case SurrogateKind::Any:
      break;
    }
    return nullptr;
  } else {
    if constexpr (Shared) {
      if (surrogate == SurrogateKind::Atan)
        return backwardSteps<Neuron, Variant, S, SurrogateKind::Atan, Shared>;
      if (surrogate == SurrogateKind::FastSigmoid)
        return backwardSteps<Neuron, Variant, S, SurrogateKind::FastSigmoid, Shared>;
    }
    return backwardSteps<Neuron, Variant, S, SurrogateKind::Any, Shared>;
  }
}

template <typename Neuron, typename S, unsigned Variant> void setLoops(NeuronLoops<S> &loops, SurrogateKind surrogate) {
  loops.reads = Neuron::reads[Variant];
  loops.readsFor = Neuron::readsFor[Variant];
  loops.remakesOutput = Neuron::remakesOutput[Variant];
  loops.forward[0] = forwardSteps<Neuron, Variant, S>;
  loops.backward[0] = backwardLoop<Neuron, Variant, S, false>(surrogate);
  constexpr bool shared = sharedParameters<Neuron, S>;
  loops.forward[1] = forwardSteps<Neuron, Variant, S, shared>;
  loops.backward[1] = backwardLoop<Neuron, Variant, S, shared>(surrogate);
}

template <typename Neuron, typename S, unsigned... Variant>
NeuronLoops<S> variantLoops(unsigned variant, SurrogateKind surrogate, std::integer_sequence<unsigned, Variant...>) {
  NeuronLoops<S> loops{Neuron::states, Neuron::parameters, Neuron::outputState, {}, nullptr, {}, {}, {}};
  (void)((Variant == variant && (setLoops<Neuron, S, Variant>(loops, surrogate), true)) || ...);
  return loops;
}

// Rows of an array, for the elements of a block.
template <typename T> struct Rows {
  T *at = nullptr;
  size_t stride = 0;
};

// A part of a block. Its elements either fill whole registers, which are used in place, or are the elements left over,
// which are copied to arrays with rows of one register.
class Piece {
public:
  Piece(size_t begin, size_t count, size_t size, size_t elements, Scratch &scratch)
      : size(size), begin_(begin), count_(count), elements_(elements), scratch_(scratch) {}

  const size_t size; // of its rows: count, or a register

  template <typename T> Rows<const T> in(const T *array, size_t steps, bool constant) {
    if (!array)
      return {};
    const size_t stride = constant ? 0 : elements_;
    if (size == count_)
      return {array + begin_, stride};
    const size_t rows = constant ? 1 : steps;
    T *const copy = scratch_.take<T>(rows * size);
    for (size_t t = 0; t < rows; ++t)
      for (size_t i = 0; i < size; ++i)
        copy[t * size + i] = i < count_ ? array[t * stride + begin_ + i] : T{};
    return {copy, constant ? 0 : size};
  }

  template <typename T> Rows<T> out(T *array, size_t steps) {
    if (!array)
      return {};
    if (size == count_)
      return {array + begin_, elements_};
    T *const rows = scratch_.take<T>(steps * size);
    copies_[copied_++] = {rows, array + begin_, steps, sizeof(T)};
    return {rows, size};
  }

  template <typename T> T *scratch(size_t rows = 1) { return scratch_.take<T>(rows * size); }

  template <typename T> T *zeros() {
    T *const array = scratch<T>();
    std::fill_n(array, size, T(0));
    return array;
  }

  // Write a state before the first step to an array that may be overwritten.
  template <typename C> void initial(C *to, const C *from) const {
    std::fill_n(to, size, C(0));
    if (from)
      std::copy_n(from + begin_, count_, to);
  }

  template <typename C> const C *parameter(const C *values, size_t count, bool perElement) {
    if (!perElement) {
      C *const equal = scratch_.take<C>(registerLanes<C>);
      std::fill_n(equal, registerLanes<C>, values[0]);
      return equal;
    }
    if (count == elements_ && size == count_)
      return values + begin_;
    C *const each = zeros<C>();
    Parameter<C>{values, count}.expand(each, begin_, count_);
    return each;
  }

  // Copy results from scratch memory to their arrays.
  void finish() const {
    for (unsigned n = 0; n < copied_; ++n) {
      const Copy &copy = copies_[n];
      for (size_t t = 0; t < copy.steps; ++t)
        std::memcpy(static_cast<char *>(copy.to) + t * elements_ * copy.bytes,
                    static_cast<const char *>(copy.from) + t * size * copy.bytes, count_ * copy.bytes);
    }
  }

private:
  struct Copy {
    const void *from;
    void *to;
    size_t steps, bytes;
  };
  size_t begin_, count_, elements_;
  Scratch &scratch_;
  Copy copies_[2 * mostStates + 2];
  unsigned copied_ = 0;
};

// Call body(Piece, offset in the block) for the whole registers of a block and for the elements left over.
template <typename C, typename Body>
void forPieces(size_t begin, size_t count, size_t elements, Scratch &scratch, const Body &body) {
  const size_t tail = count % registerLanes<C>, whole = count - tail;
  if (whole) {
    Piece piece(begin, whole, whole, elements, scratch);
    body(piece, size_t{0});
    piece.finish();
  }
  if (tail) {
    Piece piece(begin + whole, tail, registerLanes<C>, elements, scratch);
    body(piece, whole);
    piece.finish();
  }
}

// The arguments of a call with their types.
template <typename S> struct NeuronCall {
  using C = Compute<S>;
  const snnipu_neuron_call &call;
  const NeuronLoops<S> &loops;
  size_t steps = static_cast<size_t>(call.steps), elements = static_cast<size_t>(call.elements);
  bool constantInput = call.constant_input != 0 && call.steps > 1;
  unsigned threads = usefulThreads(steps, elements, call.threads);
  bool perElement = anyPerElement();

  bool anyPerElement() const {
    for (unsigned p = 0; p < loops.parameters; ++p)
      if (call.parameter_sizes[p] > 1)
        return true;
    return false;
  }
  size_t parameterBytes() const { return perElement ? loops.parameters * sizeof(C) : 0; }
  size_t rowBytes() const { return elements * sizeof(S); }
  const S *x() const { return static_cast<const S *>(call.x); }

  void connect(const C *(&parameters)[mostParameters], Piece &piece) const {
    for (unsigned p = 0; p < loops.parameters; ++p)
      parameters[p] = piece.parameter(static_cast<const C *>(call.parameters[p]),
                                      static_cast<size_t>(call.parameter_sizes[p]), perElement);
  }
};

// Bytes of a block that every step reads and writes. Measured: the backward pass needs the cache for other rows, too.
constexpr size_t forwardBytes = 512 * 1024;
constexpr size_t backwardBytes = 128 * 1024;

inline size_t elementsOf(size_t blockBytes, size_t bytesPerElement) {
  return std::min(blockElements, std::max(2 * sumElements, blockBytes / bytesPerElement));
}

template <typename S> int neuronForward(const NeuronCall<S> &a) {
  using C = Compute<S>;
  const NeuronLoops<S> &loops = a.loops;
  const auto forward = loops.forward[!a.perElement];
  size_t sequences = 1 + !a.constantInput;
  bool aligned = rowsAligned(a.call.spk, a.rowBytes());
  for (unsigned s = 0; s < loops.states; ++s)
    if (a.call.states[s]) {
      ++sequences;
      aligned = aligned && rowsAligned(a.call.states[s], a.rowBytes());
    }
  const bool streaming = aligned && sequences * a.steps * a.rowBytes() > cachedBytes;
  const size_t bytes = loops.states * sizeof(C) + a.parameterBytes();
  const size_t tailBytes = sequences * a.steps * sizeof(S) * registerLanes<C> + 64 * SNNIPU_LANE_BYTES;
  const auto block = [&](size_t begin, size_t count, Scratch &scratch) {
    forPieces<C>(begin, count, a.elements, scratch, [&](Piece &piece, size_t) {
      ForwardSteps<S> f{};
      const auto x = piece.in(a.x(), a.steps, a.constantInput);
      f.x = x.at;
      f.xStride = x.stride;
      for (unsigned s = 0; s < loops.states; ++s) {
        f.state[s] = a.call.final[s] ? piece.out(static_cast<C *>(a.call.final[s]), 1).at : piece.template scratch<C>();
        piece.initial(f.state[s], static_cast<const C *>(a.call.initial[s]));
        const auto savedStates = piece.out(static_cast<S *>(a.call.states[s]), a.steps);
        f.savedStates[s] = savedStates.at;
        f.savedStride = savedStates.at ? savedStates.stride : f.savedStride;
      }
      a.connect(f.parameter, piece);
      f.perElement = a.perElement;
      const auto spk = piece.out(static_cast<S *>(a.call.spk), a.steps);
      f.spk = spk.at;
      f.spkStride = spk.stride;
      f.steps = static_cast<unsigned>(a.steps);
      f.streaming = streaming;
      forward(f, {0, piece.size});
    });
    if (streaming)
      streamFence();
  };
  return forBlocks(a.elements, a.threads, elementsOf(forwardBytes, bytes), bytes, block, tailBytes);
}

// to += from, for a row of a gradient.
template <typename S, typename C> void addRow(C *to, const S *from, size_t size) {
  for (size_t i = 0; i < size; ++i)
    to[i] += load<SingleLane<C>>(from + i)[0];
}

template <typename S, typename C> void convertRow(C *to, const S *from, size_t size) {
  for (size_t i = 0; i < size; i += registerLanes<C>)
    store(to + i, load<Register<C>>(from + i));
}

// The fewest elements of a row if states are recomputed. Shorter rows would be in pages too far apart, so a segment has
// fewer steps instead.
constexpr size_t shortestRow = 2048;

template <typename S> int neuronBackward(const NeuronCall<S> &a) {
  using C = Compute<S>;
  constexpr bool sameType = std::is_same_v<S, C>;
  const NeuronLoops<S> &loops = a.loops;
  const auto forward = loops.forward[!a.perElement];
  const auto backward = loops.backward[!a.perElement];
  const snnipu_neuron_call &call = a.call;
  std::vector<ParameterSum<C>> sums;
  bool parameterGradients = false;
  AdjointReads reads = loops.reads;
  for (unsigned p = 0; p < loops.parameters; ++p) {
    sums.emplace_back(static_cast<C *>(call.grad_parameters[p]), static_cast<size_t>(call.parameter_sizes[p]),
                      a.elements);
    if (call.grad_parameters[p]) {
      parameterGradients = true;
      reads = reads | loops.readsFor[p];
    }
  }
  // The output before a step is computed from the other states, except before the first step.
  const bool recomputeOutput =
      loops.remakesOutput && (reads.before & ~reads.after) >> static_cast<unsigned>(loops.outputState) & 1;
  if (recomputeOutput)
    reads.before &= ~(1u << loops.outputState);
  // The adjoint reads states after each step. The caller stored them, or they are recomputed in segments of steps.
  size_t readStates = 0;
  bool recompute = false;
  for (unsigned s = 0; s < loops.states; ++s)
    if (reads.states() >> s & 1) {
      ++readStates;
      recompute = recompute || !call.states[s];
    }
  if ((recompute || reads.x) && !call.x)
    return 1;
  const bool outputIsState = loops.outputState >= 0;
  const auto outputGradientOf = [&](unsigned s, bool &constant) {
    const bool output = loops.outputState == static_cast<int>(s);
    constant = call.grad_constant >> (output ? 0 : 1 + s) & 1;
    return static_cast<const S *>(output ? call.grad_spk : call.grad_states[s]);
  };
  const size_t workBytes =
      sizeof(C) * (2 * loops.states + recomputeOutput + (parameterGradients ? loops.parameters : 0) + a.constantInput) +
      a.parameterBytes();
  const size_t stepBytes = recompute || !sameType ? readStates * sizeof(C) : 0;
  size_t maxElements = elementsOf(backwardBytes, workBytes), segment = a.steps;
  if (stepBytes) {
    maxElements = std::min(maxElements, std::max(shortestRow, recomputedBytes / (stepBytes * a.steps)));
    segment = std::min(a.steps, std::max<size_t>(8, recomputedBytes / (stepBytes * maxElements)));
  }
  const size_t segments = (a.steps + segment - 1) / segment;
  const bool checkpointed = recompute && segments > 1;
  const size_t checkpointBytes = checkpointed ? (segments - 1) * loops.states * sizeof(C) : 0;
  const size_t bytes = workBytes + stepBytes * (segment + 1) + checkpointBytes;
  size_t sequences = 1 + !a.constantInput;
  for (unsigned s = 0; s < loops.states; ++s)
    sequences += (call.grad_states[s] != nullptr) + (call.states[s] != nullptr);
  const bool streaming = !a.constantInput && (sequences + 1) * a.steps * a.rowBytes() > cachedBytes &&
                         rowsAligned(call.grad_x, a.rowBytes());
  const size_t tailBytes =
      (sequences + 2) * a.steps * sizeof(S) * registerLanes<C> + bytes * registerLanes<C> + 64 * SNNIPU_LANE_BYTES;
  const auto block = [&](size_t begin, size_t count, Scratch &scratch) {
    C *blockSums[mostParameters] = {};
    if (parameterGradients)
      for (unsigned p = 0; p < loops.parameters; ++p)
        if (call.grad_parameters[p])
          blockSums[p] = scratch.take<C>(count + registerLanes<C>);
    forPieces<C>(begin, count, a.elements, scratch, [&](Piece &piece, size_t offset) {
      const auto x = piece.in(a.x(), a.steps, a.constantInput);
      const ElementRange range{0, piece.size};
      ForwardSteps<S> f{};
      BackwardSteps<S> b{};
      a.connect(b.parameter, piece);
      std::copy_n(b.parameter, loops.parameters, f.parameter);
      b.perElement = f.perElement = a.perElement;
      f.xStride = b.xStride = x.stride;
      const auto gradSpk = piece.in(static_cast<const S *>(call.grad_spk), a.steps, call.grad_constant & 1);
      b.gradSpkStride = gradSpk.stride;
      Rows<const S> outputGradients[mostStates], storedStates[mostStates];
      C *initial[mostStates]; // states before the first step
      for (unsigned s = 0; s < loops.states; ++s) {
        bool constant;
        const S *const gradient = outputGradientOf(s, constant);
        outputGradients[s] = gradient == call.grad_spk && gradient ? gradSpk : piece.in(gradient, a.steps, constant);
        b.seedStride[s] = outputGradients[s].stride;
        b.carry[s] = call.grad_initial[s] ? piece.out(static_cast<C *>(call.grad_initial[s]), 1).at
                                          : piece.template scratch<C>();
        piece.initial(b.carry[s], static_cast<const C *>(call.grad_final[s]));
        if (outputGradients[s].at)
          addRow(b.carry[s], outputGradients[s].at + (a.steps - 1) * outputGradients[s].stride, piece.size);
        initial[s] = piece.template scratch<C>();
        piece.initial(initial[s], static_cast<const C *>(call.initial[s]));
        if (!recompute && (reads.states() >> s & 1))
          storedStates[s] = piece.in(static_cast<const S *>(call.states[s]), a.steps, false);
      }
      const auto gradX = a.constantInput ? Rows<S>{} : piece.out(static_cast<S *>(call.grad_x), a.steps);
      b.gradXStride = gradX.stride;
      b.gradConstant = a.constantInput ? piece.template zeros<C>() : nullptr;
      b.surrogate = static_cast<SurrogateKind>(call.surrogate);
      b.surrogateA = static_cast<C>(call.surrogate_a);
      b.surrogateB = static_cast<C>(call.surrogate_b);
      b.streaming = streaming;
      for (unsigned p = 0; p < loops.parameters; ++p)
        if (blockSums[p]) {
          b.sum[p] = blockSums[p] + offset;
          std::fill_n(b.sum[p], piece.size, C(0));
        }
      // The recomputed rows of a segment. Row 0 is the state before the segment.
      C *recomputed[mostStates] = {};
      if (recompute || !sameType)
        for (unsigned s = 0; s < loops.states; ++s)
          if (reads.states() >> s & 1)
            recomputed[s] = piece.template scratch<C>(segment + 1);
      C *const output = recomputeOutput ? piece.template scratch<C>() : nullptr;
      C *const checkpoints = checkpointed ? piece.template scratch<C>((segments - 1) * loops.states) : nullptr;
      const auto checkpoint = [&](size_t number, unsigned s) {
        return checkpoints + ((number - 1) * loops.states + s) * piece.size;
      };
      if (checkpointed) {
        for (size_t number = 1; number < segments; ++number) {
          for (unsigned s = 0; s < loops.states; ++s) {
            f.state[s] = checkpoint(number, s);
            std::copy_n(number > 1 ? checkpoint(number - 1, s) : initial[s], piece.size, f.state[s]);
          }
          f.x = x.at + (number - 1) * segment * x.stride;
          f.steps = static_cast<unsigned>(segment);
          forward(f, range);
        }
      }
      for (size_t number = segments; number-- > 0;) {
        const size_t start = number * segment, steps = std::min(segment, a.steps - start);
        for (unsigned s = 0; s < loops.states; ++s) {
          C *const first = number > 0 && checkpointed ? checkpoint(number, s) : initial[s];
          b.initial[s] = first;
          f.state[s] = first; // overwritten if the adjoint does not read it
          if (recomputeOutput && static_cast<int>(s) == loops.outputState)
            f.state[s] = std::copy_n(first, piece.size, output) - piece.size;
          f.stateStride[s] = 0;
          if (recomputed[s]) {
            std::copy_n(first, piece.size, recomputed[s]);
            b.afterStride[s] = piece.size;
            if constexpr (sameType) {
              // The state is updated in place, and its copies are stored: reading one row and writing the next is
              // slower.
              f.savedStates[s] = recomputed[s] + piece.size;
              f.savedStride = piece.size;
            } else {
              f.state[s] = recomputed[s];
              f.stateStride[s] = piece.size;
            }
            b.initial[s] = recomputed[s];
            b.after[s] = recomputed[s] + piece.size;
            if (!recompute)
              for (size_t row = start == 0; row <= steps; ++row)
                convertRow(recomputed[s] + row * piece.size,
                           storedStates[s].at + (start + row - 1) * storedStates[s].stride, piece.size);
          } else if constexpr (sameType) {
            b.after[s] = storedStates[s].at;
            b.afterStride[s] = storedStates[s].stride;
          }
        }
        if (recompute) {
          f.x = x.at + start * x.stride;
          f.steps = static_cast<unsigned>(steps);
          forward(f, range);
        }
        b.x = reads.x ? x.at + start * x.stride : nullptr;
        b.gradSpk = gradSpk.at && !outputIsState ? gradSpk.at + start * gradSpk.stride : nullptr;
        for (unsigned s = 0; s < loops.states; ++s)
          b.seed[s] = outputGradients[s].at ? outputGradients[s].at + start * outputGradients[s].stride : nullptr;
        b.gradX = gradX.at ? gradX.at + start * gradX.stride : nullptr;
        b.steps = static_cast<unsigned>(steps);
        b.first = start == 0;
        backward(b, range);
      }
      if (a.constantInput) {
        const auto total = piece.out(static_cast<S *>(call.grad_x), 1);
        for (size_t i = 0; i < piece.size; ++i)
          store(total.at + i, SingleLane<C>{b.gradConstant[i]});
      }
    });
    if (streaming)
      streamFence();
    for (unsigned p = 0; p < loops.parameters; ++p)
      if (blockSums[p])
        sums[p].addBlock(blockSums[p], begin, count);
  };
  const int status = forBlocks(a.elements, a.threads, maxElements, bytes, block, tailBytes);
  for (auto &sum : sums)
    sum.finish();
  return status;
}

// SNNIPU_STORAGE: compile one storage type only, as a library of a user-defined neuron does.
#if defined(SNNIPU_STORAGE)
template <typename S> constexpr bool hasStorage = std::is_same_v<S, SNNIPU_STORAGE>;
#else
template <typename S> constexpr bool hasStorage = true;
#endif

template <typename S, typename... Neuron> int runNeuron(const snnipu_neuron_call &call, bool backward) {
  if constexpr (hasStorage<S>) {
    NeuronLoops<S> loops{};
    const auto surrogate = static_cast<SurrogateKind>(call.surrogate);
    int number = 0;
    if (call.variant >= 0 && (!backward || isSurrogate(call.surrogate)))
      (void)((call.neuron == number++ &&
              (loops = variantLoops<Neuron, S>(static_cast<unsigned>(call.variant), surrogate,
                                               std::make_integer_sequence<unsigned, Neuron::variants>()),
               true)) ||
             ...);
    if (loops.forward[0]) {
      const NeuronCall<S> arguments{call, loops};
      return backward ? neuronBackward(arguments) : neuronForward(arguments);
    }
  }
  return 1;
}

template <typename... Neuron> int runNeurons(const snnipu_neuron_call &call, bool backward) {
  if (call.steps < 1 || call.elements < 1)
    return 1;
  try {
    switch (call.dtype) {
    case SNNIPU_F32:
      return runNeuron<float, Neuron...>(call, backward);
    case SNNIPU_F64:
      return runNeuron<double, Neuron...>(call, backward);
    case SNNIPU_F16:
      return runNeuron<Float16, Neuron...>(call, backward);
    case SNNIPU_BF16:
      return runNeuron<BFloat16, Neuron...>(call, backward);
    default:
      return 1;
    }
  } catch (const std::bad_alloc &) {
    return 2;
  }
}

} // namespace
} // namespace snnipu

// Define the C functions of a library of these neurons, which are numbered from 0.
#define SNNIPU_NEURONS(...)                                                                                            \
  extern "C" {                                                                                                         \
  int snnipu_neuron_forward(const snnipu_neuron_call *call) { return snnipu::runNeurons<__VA_ARGS__>(*call, false); }  \
  int snnipu_neuron_backward(const snnipu_neuron_call *call) { return snnipu::runNeurons<__VA_ARGS__>(*call, true); }  \
  int64_t snnipu_neuron_call_size(void) { return sizeof(snnipu_neuron_call); }                                         \
  }
