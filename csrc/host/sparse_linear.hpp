// The fully connected connection: blocks of neurons, each with its weights in the cache while it goes through all rows.
#pragma once

#include "host/sparse_layer.hpp"
#include "host/transpose.hpp"

// The codelet file itself: its templates are instantiated here for the host's types.
#include "vertices/sparse_linear.cpp"

namespace snnipu {

// Gradients of a layer's weight and of its input's values, from the gradient of its membranes. It is given one chunk of
// one block at a time; a thread handles the chunks of a block in a fixed order.
template <typename C> class InputGradient {
public:
  // weight: packed, or null if gradValues is null. gradWeight and gradValues may be null. delay: of the spikes, in
  // steps. checked: all carried slots of `spikes`.
  InputGradient(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, size_t delay, const Blocks &blocks,
                const C *weight, C scale, C *gradWeight, C *gradValues, const std::vector<Chunk> &chunks)
      : spikes_(spikes), checked_(checked), delay_(delay), blocks_(blocks), weight_(weight), scale_(scale),
        gradWeight_(gradWeight), gradValues_(gradValues), chunks_(chunks), groups_(blocks.count()) {
    if (gradValues) {
      const size_t fit = partialBytes / (sizeof(C) * std::max<size_t>(1, spikes.rows() * checked.fullestRow()));
      groups_ = std::min(groups_, std::min(mostGroups, std::max(fewestGroups, fit)));
    }
  }

  // Groups of blocks, which are distributed over threads: [groupBegin(g), groupBegin(g + 1)).
  size_t groups() const { return groups_; }
  size_t groupBegin(size_t group) const { return group * blocks_.count() / groups_; }

  // Call once, before the blocks.
  int prepare(unsigned threads) {
    if (!gradWeight_ && !gradValues_)
      return Done;
    if (gradValues_)
      place_ = Uninitialised<uint32_t>(spikes_.rows() * spikes_.slots);
    byNeuron_.resize(chunks_.size());
    const int status = parallelTry(chunks_.size(), threads, [&](size_t chunk) {
      const Chunk part = arriving(chunk);
      const size_t row = (part.begin - delay_) * spikes_.batch;
      byNeuron_[chunk].build(spikes_, row, (part.end - part.begin) * spikes_.batch,
                             (part.begin - chunks_[chunk].begin) * spikes_.batch, checked_.unitValues(),
                             gradValues_ ? place_.data() + row * spikes_.slots : nullptr);
    });
    first_.assign(1, 0);
    for (const SlotsByNeuron<C> &slots : byNeuron_)
      first_.push_back(first_.back() + slots.rowOf.size());
    if (gradValues_)
      partial_ = Uninitialised<C>(groups_ * first_.back());
    return status;
  }
  // Call from the thread that has the group: for each of its blocks, chunks from the last to the first. grad: [rows of
  // the chunk][lanes of the block].
  void add(size_t group, size_t block, size_t chunk, const C *grad, C *sums) {
    if (!gradWeight_ && !gradValues_)
      return;
    const SlotsByNeuron<C> &slots = byNeuron_[chunk];
    C *const partial = gradValues_ ? partial_.data() + group * first_.back() + first_[chunk] : nullptr;
    SparseLinearGradients<C> vertex;
    vertex.begin.connect(slots.begin.data());
    vertex.rowOf.connect(slots.rowOf.data());
    vertex.values.connect(slots.values.data());
    vertex.grad.connect(grad);
    vertex.weight.connect(gradValues_ ? weight_ + blocks_.offset(block) : nullptr);
    vertex.gradWeight.connect(sums);
    vertex.gradValues.connect(partial);
    vertex.unitValues = checked_.unitValues();
    vertex.ofWeight = gradWeight_ != nullptr;
    vertex.ofValues = gradValues_ != nullptr;
    vertex.addToWeight = chunk + 1 < chunks_.size(); // the last chunk is added first
    vertex.addToValues = block > groupBegin(group);
    vertex.inputs = static_cast<unsigned>(blocks_.inputs);
    vertex.lanes = blocks_.lanes(block);
    runVertex(vertex, workerOrder());
  }
  void endBlock(size_t block, C *sums) {
    if (gradWeight_)
      transpose(sums, blocks_.lanes(block), blocks_.inputs, blocks_.held(block),
                gradWeight_ + blocks_.first(block) * blocks_.inputs, blocks_.inputs, scale_);
  }
  // Call once, after all blocks.
  void finish(unsigned threads) {
    if (!gradValues_)
      return;
    const size_t size = first_.back();
    parallelPieces(size, 4096, threads, [&](size_t begin, size_t end) {
      C *const to = partial_.data();
      for (size_t group = 1; group < groups_; ++group)
        for (size_t at = begin; at < end; ++at)
          to[at] += to[group * size + at];
      for (size_t at = begin; at < end; ++at)
        to[at] *= scale_;
    });
    parallelFor(spikes_.steps, threads, [&](size_t step) {
      // Spikes of the last steps arrive after the sequence's end.
      const bool arrives = step + delay_ < spikes_.steps;
      // All chunks but the last are as long as the first.
      const size_t chunk = arrives ? (step + delay_) / chunks_.front().end : 0;
      const C *const from = partial_.data() + first_[chunk];
      for (size_t row = step * spikes_.batch; row < (step + 1) * spikes_.batch; ++row) {
        C *const to = gradValues_ + row * spikes_.slots;
        const uint32_t *const place = place_.data() + row * spikes_.slots;
        const size_t carried = arrives ? static_cast<size_t>(spikes_.counts[2 * row + 1]) : 0;
        for (size_t slot = 0; slot < carried; ++slot)
          to[slot] = from[place[slot]];
        std::fill(to + carried, to + spikes_.slots, C(0));
      }
    });
  }

  size_t sumsSize() const { return gradWeight_ ? blocks_.inputs * blockLanes : 0; }

private:
  // The steps of a chunk in which input spikes arrive.
  Chunk arriving(size_t chunk) const {
    return {std::max(chunks_[chunk].begin, delay_), std::max(chunks_[chunk].end, delay_)};
  }

  Spikes<C> spikes_;
  const CheckedSpikes<C> &checked_;
  size_t delay_;
  Blocks blocks_;
  const C *weight_;
  C scale_;
  C *gradWeight_, *gradValues_;
  const std::vector<Chunk> &chunks_;
  size_t groups_;
  std::vector<SlotsByNeuron<C>> byNeuron_;
  std::vector<size_t> first_;     // [chunks + 1]: index of a chunk's first slot among those of all chunks
  Uninitialised<uint32_t> place_; // [rows][slots] of the spikes: index in byNeuron_ of their chunk
  Uninitialised<C> partial_;      // [groups][slots of all chunks, by neuron]
};

template <typename C> struct FullyConnected {
  static constexpr bool idsByRow = false;
  Blocks blocks;
  const C *packed, *recurrent;

  explicit FullyConnected(const Call<C> &a)
      : blocks{size(a.c.neurons), size(a.c.inputs)}, packed(a.in(a.c.weight)), recurrent(a.in(a.c.recurrent_weight)) {}

  size_t inputs() const { return blocks.inputs; }
  size_t neurons() const { return blocks.neurons; }
  size_t units() const { return blocks.neurons; }
  size_t additions(size_t spikes, size_t rows) const { return (spikes + 4 * rows) * blocks.neurons; }

  int currents(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, const C *bias, C *out,
               int32_t maxThreads) const;
  int gradients(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, const C *grad, C *gradValues, C *gradWeight,
                C *gradBias, int32_t maxThreads) const;
};

} // namespace snnipu
