// A linear layer on spike ids, for the block of output neurons of one tile.
//
// A block has up to 64 neurons, `lanes` including padding, and their weights [inputs][lanes], which all rows of (time,
// sample) use. Row r starts at [r * slots] and has counts[2r] spikes, followed by slots that only carry gradient, up to
// counts[2r + 1]. Ids have been checked.
#include "neuron/sparse.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// out[row] = bias + the sum over the spikes of value * weight[id].
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

// Both gradients, from slots sorted by input neuron: its spikes from begin[2 * id] on, its slots that only carry
// gradient from begin[2 * id + 1] on. A row of grad is read once for both.
//   gradWeight[id] = (addToWeight: itself, else 0) + sum over its spikes of value * grad[row]
//   gradValues[slot] = (addToValues: itself, else 0) + weight[id] . grad[row]
// Used on the host only; a tile has SparseLinearWeightUpdate and SparseLinearValueGradient.
template <typename S> class SparseLinearGradients : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<unsigned> begin;    // [2 * inputs + 1]
  In<unsigned> rowOf;    // row of each slot
  In<C> values;          // of each slot; not read with unitValues
  In<C> grad;            // [rows][lanes]
  In<S> weight;          // [inputs][lanes]; not read without ofValues
  Through<C> gradWeight; // [inputs][lanes]; not written without ofWeight
  Through<C> gradValues; // of each slot; not written without ofValues
  unsigned inputs;
  unsigned lanes;
  bool unitValues;
  bool ofWeight;
  bool ofValues;
  bool addToWeight;
  bool addToValues;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), inputs);
    if (!ofWeight)
      run<true, false, true>(range);
    else if (unitValues)
      ofValues ? run<true, true, true>(range) : run<true, true, false>(range);
    else
      ofValues ? run<false, true, true>(range) : run<false, true, false>(range);
  }

private:
  template <bool Unit, bool OfWeight, bool OfValues> void run(WorkerRange range) {
    forLaneGroups<C, OfValues>(lanes, [&](unsigned lane, auto group) {
      using Group = decltype(group);
      using V = decltype(group.first);
      const bool sets = !addToValues && lane == 0;
      for (unsigned id = range.begin; id < range.end; ++id) {
        const unsigned first = begin[2 * id], others = begin[2 * id + 1], end = begin[2 * id + 2];
        const bool changes = OfWeight && (!addToWeight || first < others);
        if (!changes && (!OfValues || first == end))
          continue;
        Group sum, weights;
        sum.clear();
        if constexpr (OfWeight)
          if (addToWeight)
            sum.loadFrom(&gradWeight[static_cast<std::size_t>(id) * lanes + lane]);
        if constexpr (OfValues)
          weights.loadFrom(&weight[static_cast<std::size_t>(id) * lanes + lane]);
        const auto gradOf = [&](unsigned slot) { return &grad[static_cast<std::size_t>(rowOf[slot]) * lanes + lane]; };
        const auto addGradient = [&](unsigned slot, const C *from) {
          if constexpr (Unit)
            sum.add(from);
          else
            sum.addScaled(splat<V>(values[slot]), from);
        };
        // Call body(slot, its row of grad) for the slots, and set their gradValues.
        const auto forSlots = [&](unsigned slot, unsigned until, const auto &body) {
          for (; slot < until; ++slot) {
            const C *const from = gradOf(slot);
            body(slot, from);
            if constexpr (OfValues)
              gradValues[slot] = (sets ? C(0) : gradValues[slot]) + sumLanes(weights.products(from));
          }
        };
        if constexpr (OfWeight)
          forSlots(first, others, addGradient);
        if constexpr (OfValues)
          forSlots(OfWeight ? others : first, end, [](unsigned, const C *) {});
        if constexpr (OfWeight)
          sum.storeTo(&gradWeight[static_cast<std::size_t>(id) * lanes + lane]);
      }
    });
  }
};

// gradValues[row][slot] = weight[id] . grad[row], at every carried slot.
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

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    forLaneGroups<C>(lanes, [&](unsigned lane, auto group) {
      using Group = decltype(group);
      for (unsigned row = range.begin; row < range.end; ++row) {
        const std::size_t first = static_cast<std::size_t>(row) * slots;
        const Id *const id = &ids[first];
        C *const to = &gradValues[first];
        const unsigned carried = static_cast<unsigned>(counts[2 * row + 1]);
        const auto weightsOf = [&](unsigned slot) {
          return &weight[static_cast<std::size_t>(id[slot]) * lanes + lane];
        };
        for (unsigned slot = 0; lane == 0 && slot < carried; ++slot)
          to[slot] = C(0);
        Group g;
        g.loadFrom(&grad[static_cast<std::size_t>(row) * lanes + lane]);
        unsigned slot = 0;
        for (; slot + 4 <= carried; slot += 4)
          addFourSums(to + slot, g.products(weightsOf(slot)), g.products(weightsOf(slot + 1)),
                      g.products(weightsOf(slot + 2)), g.products(weightsOf(slot + 3)));
        if (slot < carried) {
          // The last one to three slots: the first of them fills the missing ones.
          const auto last = [&](unsigned ahead) {
            return g.products(weightsOf(slot + ahead < carried ? slot + ahead : slot));
          };
          C sums[4] = {};
          addFourSums(sums, g.products(weightsOf(slot)), last(1), last(2), last(3));
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
