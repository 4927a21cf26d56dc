// A linear layer with a delay for each synapse, on spike ids, for the block of output neurons of one tile.
//
// A block has `lanes` neurons including padding, their weights [inputs][taps][lanes], and lags [inputs][lanes], the
// steps to a synapse's first tap. The currents of all steps, [steps * samples][lanes], are on the tile, so that spikes
// are added at the steps at which they arrive. Spikes that arrive after the last step are dropped. Rows of spikes,
// `samples` for each step, come a few steps at a time. Row r starts at [r * slots] and has counts[2r] spikes, followed
// by slots that only carry gradient, up to counts[2r + 1]. Ids have been checked; lags are between 0 and `steps`.
#include "neuron/sparse.hpp"
#include "vertices/sparse_rows.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// Iterates over the taps of a synapse that arrive before the end. `weight` is that of the first tap, `current` that of
// its neuron at step 0. Consecutive taps are `lanes` weights and `columns` currents apart.
struct Taps {
  unsigned steps, taps, lanes, columns;

  template <typename W, typename Current, typename Body>
  void forEach(unsigned arrives, W *weight, Current *current, const Body &body) const {
    const unsigned left = arrives < steps ? steps - arrives : 0;
    current += static_cast<std::size_t>(arrives) * columns;
    for (unsigned count = taps < left ? taps : left; count > 0; --count) {
      body(*weight, *current);
      weight += lanes;
      current += columns;
    }
  }
  template <typename S, typename C> void add(unsigned arrives, const S *weight, C value, C *current) const {
    forEach(arrives, weight, current, [value](S w, C &sum) { sum += value * static_cast<C>(w); });
  }
  template <typename C> void addBack(unsigned arrives, C *gradWeight, C value, const C *grad) const {
    forEach(arrives, gradWeight, grad, [value](C &sum, C g) { sum += value * g; });
  }
  template <typename S, typename C> void product(unsigned arrives, const S *weight, const C *grad, C &sum) const {
    forEach(arrives, weight, grad, [&sum](S w, C g) { sum += static_cast<C>(w) * g; });
  }
};

// out[t + lag + tap] += value * weight for every spike at t. With `begins`, out is first set to bias.
template <typename S> class DelayLinearForward : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> weight;   // [inputs][taps][lanes]
  In<C> bias;     // [lanes]; read with `begins`
  In<int> lags;   // [inputs][lanes]
  In<int> ids;    // [rows][slots]
  In<C> values;   // [rows][slots]; not read with unitValues: all are 1
  In<int> counts; // [rows][2]
  Through<C> out; // [steps * samples][lanes]
  unsigned first; // step of the first row
  unsigned rows;
  unsigned samples;
  unsigned steps;
  unsigned slots;
  unsigned taps;
  unsigned lanes;
  bool unitValues;
  bool begins;

  void compute(unsigned workerId) {
    // Two spikes of one sample may be added to the same current. A worker therefore has some currents, at all steps.
    const unsigned columns = samples * lanes;
    const WorkerRange range = workerShare(workerId, numWorkers(), columns);
    unsigned sample = 0, lane = range.begin;
    for (; lane >= lanes; lane -= lanes)
      ++sample;
    for (unsigned at = range.begin; at < range.end; ++sample, lane = 0) {
      const unsigned left = range.end - at, end = lanes - lane < left ? lanes : lane + left;
      C *const to = &out[static_cast<std::size_t>(sample) * lanes];
      for (unsigned step = 0; begins && step < steps; ++step)
        for (unsigned column = lane; column < end; ++column)
          to[static_cast<std::size_t>(step) * columns + column] = bias[column];
      unsigned step = first;
      for (unsigned row = sample; row < rows; row += samples, ++step)
        for (unsigned slot = 0; slot < static_cast<unsigned>(counts[2 * row]); ++slot) {
          const std::size_t spike = static_cast<std::size_t>(row) * slots + slot,
                            id = static_cast<unsigned>(ids[spike]);
          addDelayed(&weight[id * taps * lanes], &lags[id * lanes], unitValues ? C(1) : values[spike], to, step, lane,
                     end);
        }
      at += end - lane;
    }
  }

private:
  void addDelayed(const S *weights, const int *lag, C value, C *to, unsigned step, unsigned lane, unsigned end) const {
    const Taps synapse{steps, taps, lanes, samples * lanes};
    for (; lane < end; ++lane)
      synapse.add(step + static_cast<unsigned>(lag[lane]), weights + lane, value, to + lane);
  }
};

// gradWeight += value * grad[t + lag + tap] for every spike at t.
template <typename C> class DelayLinearWeightUpdate : public poplar::MultiVertex {
public:
  In<int> lags;          // [inputs][lanes]
  In<int> ids;           // [rows][slots]
  In<C> values;          // [rows][slots]; not read with unitValues
  In<int> counts;        // [rows][2]
  In<int> order;         // [rows]: 1 if the row's ids ascend, as Ascending computes it
  In<C> grad;            // [steps * samples][lanes]
  Through<C> gradWeight; // [inputs][taps][lanes]
  unsigned first;        // step of the first row
  unsigned rows;
  unsigned samples;
  unsigned steps;
  unsigned slots;
  unsigned inputs;
  unsigned taps;
  unsigned lanes;
  bool unitValues;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), inputs);
    unsigned step = first, sample = 0;
    for (unsigned row = 0; row < rows; ++row) {
      const std::size_t from = static_cast<std::size_t>(row) * slots;
      forOwnSpikes(&ids[from], static_cast<unsigned>(counts[2 * row]), order[row] != 0, range,
                   [&](unsigned slot, unsigned id) {
                     addGradient(&lags[static_cast<std::size_t>(id) * lanes], unitValues ? C(1) : values[from + slot],
                                 &grad[static_cast<std::size_t>(sample) * lanes], step,
                                 &gradWeight[static_cast<std::size_t>(id) * taps * lanes]);
                   });
      if (++sample == samples) {
        sample = 0;
        ++step;
      }
    }
  }

private:
  void addGradient(const int *lag, C value, const C *from, unsigned step, C *to) const {
    const Taps synapse{steps, taps, lanes, samples * lanes};
    for (unsigned lane = 0; lane < synapse.lanes; ++lane)
      synapse.addBack(step + static_cast<unsigned>(lag[lane]), to + lane, value, from + lane);
  }
};

// gradValues[row][slot] = sum over lanes and taps of weight * grad[t + lag + tap], at every carried slot.
template <typename S> class DelayLinearValueGradient : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> weight;      // [inputs][taps][lanes]
  In<int> lags;      // [inputs][lanes]
  In<int> ids;       // [rows][slots]
  In<int> counts;    // [rows][2]
  In<C> grad;        // [steps * samples][lanes]
  Out<C> gradValues; // [rows][slots]; padding is not written
  unsigned first;    // step of the first row
  unsigned rows;
  unsigned samples;
  unsigned steps;
  unsigned slots;
  unsigned taps;
  unsigned lanes;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    unsigned step = first, sample = range.begin;
    for (; sample >= samples; sample -= samples)
      ++step;
    for (unsigned row = range.begin; row < range.end; ++row) {
      for (unsigned slot = 0; slot < static_cast<unsigned>(counts[2 * row + 1]); ++slot) {
        const std::size_t at = static_cast<std::size_t>(row) * slots + slot, id = static_cast<unsigned>(ids[at]);
        gradValues[at] =
            sumOf(&weight[id * taps * lanes], &lags[id * lanes], &grad[static_cast<std::size_t>(sample) * lanes], step);
      }
      if (++sample == samples) {
        sample = 0;
        ++step;
      }
    }
  }

private:
  C sumOf(const S *weights, const int *lag, const C *from, unsigned step) const {
    const Taps synapse{steps, taps, lanes, samples * lanes};
    C sum = C(0);
    for (unsigned lane = 0; lane < synapse.lanes; ++lane)
      synapse.product(step + static_cast<unsigned>(lag[lane]), weights + lane, from + lane, sum);
    return sum;
  }
};

#if defined(__POPC__)
template class DelayLinearForward<float>;
template class DelayLinearForward<half>;
template class DelayLinearWeightUpdate<float>;
template class DelayLinearValueGradient<float>;
template class DelayLinearValueGradient<half>;
#endif

} // namespace snnipu
