// A linear layer on spike ids, for the block of output neurons that one tile holds.
//
// A block has up to 64 neurons, `lanes` of them with padding, and their weights [inputs][lanes]; rows of (time, sample)
// stream past it. Row r has its spikes at [r * slots]: counts[2r] spikes, then up to counts[2r + 1] slots that only
// carry gradient. Ids have been checked.
#include "neuron/sparse.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// out[row] = sum over the spikes of value * weight[id], + bias.
template <typename S, typename Id> class SparseLinearForward : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> weight;   // [inputs][lanes]
  In<C> bias;     // [lanes]
  In<Id> ids;     // [rows][slots]
  In<C> values;   // [rows][valueSlots]; not read with unitValues: all are 1
  In<int> counts; // [rows][2]
  Out<C> out;     // [rows], each outStride apart: the first `neurons` lanes
  unsigned rows;
  unsigned slots;
  unsigned valueSlots;
  unsigned lanes;
  unsigned neurons;
  unsigned outStride;
  bool unitValues;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    if (unitValues)
      run<true>(range);
    else
      run<false>(range);
  }

private:
  template <bool Unit> void run(WorkerRange range) {
    forLaneGroups<C>(lanes, [&](unsigned lane, auto group) {
      using Group = decltype(group);
      Group start;
      start.loadFrom(&bias[lane]);
      for (unsigned row = range.begin; row < range.end; ++row) {
        Group sum = start;
        gather<Unit>(sum, &weight[lane], lanes, &ids[static_cast<std::size_t>(row) * slots],
                     &values[static_cast<std::size_t>(row) * valueSlots], static_cast<unsigned>(counts[2 * row]));
        C *const to = &out[static_cast<std::size_t>(row) * outStride];
        sum.forEach([&](unsigned offset, auto v) { storeFirst(to + lane + offset, v, neurons, lane + offset); });
      }
    });
  }
};

// gradWeight[id] = (accumulate: itself, else 0) + sum over the rows where id spiked of value * grad[row].
// The host's alone: a tile has SparseLinearWeightUpdate.
template <typename S> class SparseLinearWeightGradient : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<unsigned> begin;    // [inputs + 1]: where an input neuron's spikes stand in rowOf and values
  In<unsigned> rowOf;    // row of each spike
  In<C> values;          // of each spike; not read with unitValues
  In<C> grad;            // [rows][lanes]
  Through<C> gradWeight; // [inputs][lanes]
  unsigned inputs;
  unsigned lanes;
  bool unitValues;
  bool accumulate;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), inputs);
    if (unitValues)
      run<true>(range);
    else
      run<false>(range);
  }

private:
  template <bool Unit> void run(WorkerRange range) {
    forLaneGroups<C>(lanes, [&](unsigned lane, auto group) {
      using Group = decltype(group);
      using V [[maybe_unused]] = decltype(group.first);
      for (unsigned id = range.begin; id < range.end; ++id) {
        if (accumulate && begin[id] == begin[id + 1])
          continue;
        C *const to = &gradWeight[static_cast<std::size_t>(id) * lanes + lane];
        Group sum;
        if (accumulate)
          sum.loadFrom(to);
        else
          sum.clear();
        for (unsigned i = begin[id]; i < begin[id + 1]; ++i) {
          const C *const from = &grad[static_cast<std::size_t>(rowOf[i]) * lanes + lane];
          if constexpr (Unit)
            sum.add(from);
          else
            sum.addScaled(splat<V>(values[i]), from);
        }
        sum.storeTo(to);
      }
    });
  }
};

// gradValues[row][slot] = (accumulate: itself, else 0) + weight[id] . grad[row], at every carried slot.
template <typename S, typename Id> class SparseLinearValueGradient : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> weight;          // [inputs][lanes]
  In<C> grad;            // [rows][lanes]
  In<Id> ids;            // [rows][slots]
  In<int> counts;        // [rows][2]
  Through<C> gradValues; // [rows][slots]
  unsigned rows;
  unsigned slots;
  unsigned lanes;
  bool accumulate;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    forLaneGroups<C>(lanes, [&](unsigned lane, auto group) {
      using Group = decltype(group);
      for (unsigned row = range.begin; row < range.end; ++row) {
        const std::size_t first = static_cast<std::size_t>(row) * slots;
        const Id *const id = &ids[first];
        C *const to = &gradValues[first];
        const unsigned carried = static_cast<unsigned>(counts[2 * row + 1]);
        const auto of = [&](unsigned slot) { return &weight[static_cast<std::size_t>(id[slot]) * lanes + lane]; };
        for (unsigned slot = 0; !accumulate && lane == 0 && slot < carried; ++slot)
          to[slot] = C(0);
        Group g;
        g.loadFrom(&grad[static_cast<std::size_t>(row) * lanes + lane]);
        unsigned slot = 0;
        for (; slot + 4 <= carried; slot += 4)
          addFourSums(to + slot, g.products(of(slot)), g.products(of(slot + 1)), g.products(of(slot + 2)),
                      g.products(of(slot + 3)));
        if (slot < carried) {
          // The last ones, one of them several times.
          const auto last = [&](unsigned ahead) {
            return g.products(of(slot + ahead < carried ? slot + ahead : slot));
          };
          C sums[4] = {};
          addFourSums(sums, g.products(of(slot)), last(1), last(2), last(3));
          for (unsigned i = 0; slot < carried; ++i, ++slot)
            to[slot] += sums[i];
        }
      }
    });
  }
};

#if defined(__POPC__)
template class SparseLinearForward<float, unsigned>;
template class SparseLinearForward<half, unsigned>;
template class SparseLinearValueGradient<float, unsigned>;
template class SparseLinearValueGradient<half, unsigned>;
#endif

} // namespace snnipu
