// Vertices of a network of layers on spike ids, except the forward step (csrc/vertices/sparse_lif.cpp): the backward
// step for the block of neurons of one tile, and the loop over time with its access to sequences.
#include "neuron/leaky.hpp"
#include "neuron/sparse.hpp"
#include "neuron/surrogate.hpp"
#include "vertices/sparse_rows.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// value = (value + by) modulo `modulo`; no modulo if it is 0. Requires by < modulo, because a tile has no integer
// division.
class Advance : public poplar::MultiVertex {
public:
  Through<unsigned> value; // of one element
  unsigned by;
  unsigned modulo;

  void compute(unsigned workerId) {
    if (workerId != 0)
      return;
    value[0] += by;
    if (modulo != 0 && value[0] >= modulo)
      value[0] -= modulo;
  }
};

// to = the sequence at step - back; 0 before its start.
template <typename T> class LoadStep : public poplar::MultiVertex {
public:
  In<T> from; // [steps][size]
  In<unsigned> step;
  Out<T> to;
  unsigned back;
  unsigned size;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, 2);
    const bool before = step[0] < back;
    const T *const source = before ? nullptr : &from[static_cast<std::size_t>(step[0] - back) * size];
    T *const target = &to[0];
    for (unsigned i = range.begin; i < range.end; ++i)
      target[i] = before ? T(0) : source[i];
  }
};

// Write `from` to the sequence at step - back, because the step may have been advanced already; ~0u is one step
// forward.
template <typename T> class StoreStep : public poplar::MultiVertex {
public:
  In<T> from;
  In<unsigned> step;
  Through<T> to; // [steps][size]
  unsigned back;
  unsigned size;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, 2);
    const T *const source = &from[0];
    T *const current = &to[static_cast<std::size_t>(step[0] - back) * size];
    for (unsigned i = range.begin; i < range.end; ++i)
      current[i] = source[i];
  }
};

// Join the bits of blocks, without gaps, to words of 32 neurons.
class MergeBits : public poplar::MultiVertex {
public:
  In<unsigned> bits;   // [rows][pieces]
  In<unsigned> widths; // [pieces]: neurons of each piece, up to 32
  Out<unsigned> out;   // [rows][words]
  unsigned rows;
  unsigned pieces;
  unsigned words;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    for (unsigned row = range.begin; row < range.end; ++row) {
      const unsigned *const from = &bits[static_cast<std::size_t>(row) * pieces];
      unsigned *const to = &out[static_cast<std::size_t>(row) * words];
      unsigned word = 0, pending = 0, used = 0;
      for (unsigned piece = 0; piece < pieces; ++piece) {
        const unsigned width = widths[piece];
        pending |= from[piece] << used;
        used += width;
        if (used >= 32) {
          to[word++] = pending;
          used -= 32;
          // The bits that did not fit into the word.
          pending = used != 0 ? from[piece] >> (width - used) : 0;
        }
      }
      if (used != 0)
        to[word] = pending;
    }
  }
};

// Clamp beta to [0, 1].
template <typename C> class ClampUnit : public poplar::MultiVertex {
public:
  Through<C> values;
  unsigned size;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, 2);
    for (unsigned i = range.begin; i < range.end; ++i)
      values[i] = clampUnit(SingleLane<C>{values[i]})[0];
  }
};

// out = upstream + scale * the sum over the blocks, at consecutive slots; 0 in padding, which blocks do not write.
template <typename C> class SumSlots : public poplar::MultiVertex {
public:
  In<C> partial;  // [blocks][size]
  In<C> upstream; // [size]; unused without hasUpstream
  In<int> counts; // [rows][2], from the row of the first slot on
  Out<C> out;     // [size]
  C scale;
  unsigned blocks;
  unsigned size;
  unsigned slots;  // of a row
  unsigned offset; // index of the first slot in its row
  bool hasUpstream;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, 2);
    unsigned row = 0, slot = offset + range.begin;
    for (; slot >= slots; slot -= slots)
      ++row;
    const unsigned count = blocks, stride = size;
    for (unsigned i = range.begin; i < range.end; ++i) {
      C total = C(0);
      if (slot < static_cast<unsigned>(counts[2 * row + 1])) {
        const C *from = &partial[i];
        for (unsigned block = 0; block < count; ++block, from += stride)
          total += *from;
        total = hasUpstream ? upstream[i] + scale * total : scale * total;
      }
      out[i] = total;
      if (++slot == slots) {
        slot = 0;
        ++row;
      }
    }
  }
};

// The adjoint of a step for a block's neurons: the gradient of the spikes' values through the surrogate, the gradient
// of the next step through the membrane, and the parameters' gradients, summed for each row.
template <typename C, Reset R, SurrogateKind K> class SparseLifStepBackward : public poplar::MultiVertex {
public:
  In<C> beta; // [lanes]; clamped here, with gradient 0 outside [0, 1]
  In<C> threshold;
  In<int> ids;       // [rows][slots]: the layer's output, ordered by SelectSpikes
  In<int> counts;    // [rows][2]
  In<C> gradValues;  // [rows][slots]
  In<C> mem;         // [steps][rows][lanes]
  In<unsigned> step; // of one element
  Through<C> carry;  // [rows][lanes]: gradient of the membrane
  Out<C> grad;       // [rows][lanes]: copy of carry for the step's input
  Through<C> gradBeta;
  Through<C> gradThreshold;
  Through<C> gradBias;
  C surrogateA;
  C surrogateB;
  unsigned rows;
  unsigned slots;
  unsigned lanes;
  unsigned firstId;
  unsigned neurons;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    const SurrogateOf<K, C> surrogate{surrogateA, surrogateB};
    for (unsigned row = range.begin; row < range.end; ++row) {
      const std::size_t first = static_cast<std::size_t>(row) * lanes;
      const C *const current = &mem[(static_cast<std::size_t>(step[0]) * rows) * lanes + first];
      const C *const before = step[0] > 0 ? current - static_cast<std::size_t>(rows) * lanes : nullptr;
      // Neurons that fired, then neurons that only carry gradient.
      const unsigned ends[2] = {static_cast<unsigned>(counts[2 * row]), static_cast<unsigned>(counts[2 * row + 1])};
      const std::size_t firstSlot = static_cast<std::size_t>(row) * slots;
      for (unsigned part = 0; part < 2; ++part)
        for (unsigned slot = firstFrom(&ids[firstSlot], part == 0 ? 0 : ends[0], ends[part], firstId);
             slot < ends[part]; ++slot) {
          const unsigned lane = static_cast<unsigned>(ids[firstSlot + slot]) - firstId;
          if (lane >= neurons)
            break;
          typedef SingleLane<C> V;
          const V through =
              surrogate.gradient(load<V>(&current[lane]) - load<V>(&threshold[lane]), V{gradValues[firstSlot + slot]});
          carry[first + lane] += through[0];
          gradThreshold[first + lane] -= through[0];
        }
      for (unsigned lane = 0; lane < lanes; lane += registerLanes<C>)
        stepBack(first + lane, lane, before);
    }
  }

private:
  void stepBack(std::size_t at, unsigned lane, const C *before) {
    using V = Register<C>;
    const V raw = load<V>(&beta[lane]), zero = splat<V>(0);
    const LeakyParameters<V> p{clampUnit(raw), load<V>(&threshold[lane])};
    const V memBefore = before ? load<V>(before + lane) : zero;
    const V g = load<V>(&carry[at]);
    const LeakyGradients<V> out = leakyCarry<R>(p, g, memBefore, heaviside(memBefore - p.threshold));
    store(&grad[at], g);
    store(&carry[at], out.gradMem);
    store(&gradBias[at], load<V>(&gradBias[at]) + g);
    store(&gradBeta[at], load<V>(&gradBeta[at]) + (raw == p.decay ? out.gradDecay : zero));
    if constexpr (R == Reset::Subtract)
      store(&gradThreshold[at], load<V>(&gradThreshold[at]) + out.gradThreshold);
  }
};

// gradWeight[id] += scale * value * grad[row] for every spike. A worker has a range of ids. In a row of ascending ids
// it searches for the first of them, otherwise it reads the whole row.
template <typename C> class SparseLinearWeightUpdate : public poplar::MultiVertex {
public:
  In<int> ids;           // [rows][slots]
  In<C> values;          // [rows][slots]; not read with unitValues
  In<int> counts;        // [rows][2]
  In<int> order;         // [rows]: 1 if the row's ids ascend, as Ascending computes it; not read with ascending: all do
  In<C> grad;            // [rows][lanes]
  Through<C> gradWeight; // [inputs][lanes]
  C scale;
  unsigned rows;
  unsigned slots;
  unsigned inputs;
  unsigned lanes;
  bool unitValues;
  bool ascending;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), inputs);
    for (unsigned row = 0; row < rows; ++row) {
      const std::size_t first = static_cast<std::size_t>(row) * slots;
      const C *const from = &grad[static_cast<std::size_t>(row) * lanes];
      forOwnSpikes(&ids[first], static_cast<unsigned>(counts[2 * row]), ascending || order[row] != 0, range,
                   [&](unsigned slot, unsigned id) {
                     using V = Register<C>;
                     const V factor = splat<V>(unitValues ? scale : scale * values[first + slot]);
                     C *const to = &gradWeight[static_cast<std::size_t>(id) * lanes];
                     const unsigned count = lanes;
                     for (unsigned lane = 0; lane < count; lane += registerLanes<C>)
                       store(to + lane, multiplyAdd(factor, load<V>(from + lane), load<V>(to + lane)));
                   });
    }
  }
};

#define SNNIPU_SPARSE_LIF_STEP_BACKWARD(Name)                                                                          \
  template class SparseLifStepBackward<float, Reset::Subtract, SurrogateKind::Name>;                                   \
  template class SparseLifStepBackward<float, Reset::Zero, SurrogateKind::Name>;                                       \
  template class SparseLifStepBackward<float, Reset::None, SurrogateKind::Name>;

#if defined(__POPC__)
template class LoadStep<float>;
template class LoadStep<int>;
template class StoreStep<float>;
template class StoreStep<int>;
template class ClampUnit<float>;
template class SumSlots<float>;
template class SparseLinearWeightUpdate<float>;
SNNIPU_SURROGATES(SNNIPU_SPARSE_LIF_STEP_BACKWARD)
#endif

} // namespace snnipu
