// Host implementation of sparse_linear: blocks of output neurons, each a call of a vertex for many rows.
#include "host/sparse_linear.hpp"
#include "host/snnipu.h"
#include "host/transpose.hpp"

// The codelet file itself: its templates are instantiated here for the host's types.
#include "vertices/sparse_linear.cpp"

namespace snnipu {

template <typename C> int packWeight(const C *weight, const Blocks &blocks, C *packed, int32_t threads) {
  const size_t inputs = blocks.inputs;
  return parallelTry(blocks.count(), threadsFor(blocks.packedSize(), threads), [&](size_t block) {
    const size_t lanes = blocks.lanes(block), held = blocks.held(block);
    C *const to = packed + blocks.offset(block);
    transpose(weight + blocks.first(block) * inputs, inputs, held, inputs, to, lanes, C(1));
    for (size_t input = 0; held < lanes && input < inputs; ++input)
      std::fill(to + input * lanes + held, to + (input + 1) * lanes, C(0));
  });
}

// Write scale * packed to one block's rows of the matrix.
template <typename C> static void unpackBlock(const C *packed, const Blocks &blocks, size_t block, C scale, C *weight) {
  transpose(packed, blocks.lanes(block), blocks.inputs, blocks.held(block),
            weight + blocks.first(block) * blocks.inputs, blocks.inputs, scale);
}

template <typename C> int InputGradient<C>::prepare(unsigned threads) {
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

template <typename C> void InputGradient<C>::add(size_t group, size_t block, size_t chunk, const C *grad, C *sums) {
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

template <typename C> void InputGradient<C>::endBlock(size_t block, C *sums) {
  if (gradWeight_)
    unpackBlock(sums, blocks_, block, scale_, gradWeight_);
}

template <typename C> void InputGradient<C>::finish(unsigned threads) {
  if (!gradValues_)
    return;
  const size_t size = first_.back();
  constexpr size_t piece = 4096;
  parallelFor((size + piece - 1) / piece, threads, [&](size_t part) {
    const size_t begin = part * piece, end = std::min(size, begin + piece);
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

template int packWeight(const float *, const Blocks &, float *, int32_t);
template int packWeight(const double *, const Blocks &, double *, int32_t);
template class InputGradient<float>;
template class InputGradient<double>;

template <typename C>
int FullyConnected<C>::currents(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, const C *bias, C *out,
                                int32_t maxThreads) const {
  const size_t rows = spikes.rows();
  const unsigned threads = threadsFor((checked.total(0) + rows) * blocks.neurons, maxThreads);
  const WorkerOrder order = workerOrder();
  // If there are few blocks, rows are distributed, too.
  const size_t parts = blocks.count() >= 2 * threads ? 1 : std::min<size_t>(rows, 2 * threads);
  return parallelTry(blocks.count() * parts, threads, [&](size_t task) {
    const size_t block = task / parts, part = task % parts;
    const size_t begin = part * rows / parts, end = (part + 1) * rows / parts;
    const unsigned lanes = blocks.lanes(block);
    C blockBias[blockLanes] = {};
    if (bias)
      std::copy_n(bias + blocks.first(block), blocks.held(block), blockBias);
    checked.withIds(begin, [&](auto *ids) {
      SparseLinearForward<C, std::remove_const_t<std::remove_pointer_t<decltype(ids)>>> vertex;
      vertex.weight.connect(packed + blocks.offset(block));
      vertex.bias.connect(blockBias);
      vertex.ids.connect(ids);
      vertex.values.connect(spikes.values + begin * spikes.slots);
      vertex.counts.connect(spikes.counts + 2 * begin);
      vertex.out.connect(out + begin * blocks.neurons + blocks.first(block));
      vertex.rows = static_cast<unsigned>(end - begin);
      vertex.slots = static_cast<unsigned>(checked.slots());
      vertex.valueSlots = static_cast<unsigned>(spikes.slots);
      vertex.lanes = lanes;
      vertex.neurons = blocks.held(block);
      vertex.outStride = static_cast<unsigned>(blocks.neurons);
      vertex.unitValues = checked.unitValues();
      runVertex(vertex, order);
    });
  });
}

template <typename C>
int FullyConnected<C>::gradients(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, const C *grad, C *gradValues,
                                 C *gradWeight, C *gradBias, int32_t maxThreads) const {
  const size_t batch = spikes.batch;
  const unsigned threads = threadsFor((checked.total(0) + spikes.rows()) * blocks.neurons, maxThreads);
  const std::vector<Chunk> chunks = timeChunks(spikes.steps, batch, blockLanes * sizeof(C));
  InputGradient<C> input(spikes, checked, 0, blocks, packed, C(1), gradWeight, gradValues, chunks);
  int status = input.prepare(threads);
  if (status != Done)
    return status;
  status = parallelTry(input.groups(), threads, [&](size_t group) {
    static thread_local ThreadBuffer<C> chunkBuffer, sumsBuffer;
    C *const sums = sumsBuffer.reserve(input.sumsSize());
    for (size_t block = input.groupBegin(group); block < input.groupBegin(group + 1); ++block) {
      const size_t lanes = blocks.lanes(block), held = blocks.held(block);
      double biasSums[blockLanes] = {};
      for (size_t chunk = chunks.size(); chunk-- > 0;) {
        const size_t first = chunks[chunk].begin * batch, rows = (chunks[chunk].end - chunks[chunk].begin) * batch;
        C *const g = chunkBuffer.reserve(rows * lanes);
        for (size_t row = 0; row < rows; ++row) {
          const C *const from = grad + (first + row) * blocks.neurons + blocks.first(block);
          for (size_t lane = 0; lane < lanes; ++lane)
            g[row * lanes + lane] = lane < held ? from[lane] : C(0);
        }
        if (gradBias)
          for (size_t row = 0; row < rows; ++row)
            for (size_t lane = 0; lane < held; ++lane)
              biasSums[lane] += static_cast<double>(g[row * lanes + lane]);
        input.add(group, block, chunk, g, sums);
      }
      input.endBlock(block, sums);
      if (gradBias)
        for (size_t lane = 0; lane < held; ++lane)
          gradBias[blocks.first(block) + lane] = static_cast<C>(biasSums[lane]);
    }
  });
  if (status == Done)
    input.finish(threads);
  return status;
}

namespace {

// A 64-bit hash. Every step is invertible, so a change of one word always changes the result.
uint64_t fingerprint(const char *bytes, size_t size, int32_t maxThreads) {
  typedef VectorN<uint32_t, 16> Words;
  constexpr size_t chains = 4, step = chains * sizeof(Words), piece = 4096 * step;
  constexpr uint32_t factor = 0x9e3779b1u;
  const size_t pieces = (size + piece - 1) / piece;
  std::vector<uint32_t> results(pieces);
  parallelFor(pieces, threadsFor(size / 8, maxThreads), [&](size_t which) {
    Words hash[chains] = {};
    const size_t end = std::min(size, (which + 1) * piece);
    for (size_t at = which * piece; at < end; at += step) {
      Words words[chains] = {};
      if (at + step <= end)
        std::memcpy(words, bytes + at, step);
      else
        std::memcpy(words, bytes + at, end - at);
      for (size_t chain = 0; chain < chains; ++chain) {
        hash[chain] = (hash[chain] ^ words[chain]) * factor;
        // A product does not spread the highest bit: two changed signs would cancel.
        hash[chain] ^= hash[chain] >> 15;
      }
    }
    for (const Words &chain : hash)
      for (unsigned i = 0; i < 16; ++i) {
        results[which] = (results[which] ^ chain[i]) * factor;
        results[which] ^= results[which] >> 15;
      }
  });
  uint64_t total = size;
  for (const uint32_t result : results) {
    total = (total ^ result) * 0x9e3779b97f4a7c15u;
    total ^= total >> 32;
  }
  return total;
}

} // namespace
} // namespace snnipu

using snnipu::Blocks;
using snnipu::run;
using snnipu::size;

extern "C" {

int snnipu_pack_weight(snnipu_sparse_call *call) {
  return run(call, [](auto a) {
    const Blocks blocks{size(a.c.neurons), size(a.c.inputs)};
    return snnipu::packWeight(a.in(a.c.weight), blocks, a.out(a.c.out), a.threads());
  });
}

int snnipu_sparse_linear_fwd(snnipu_sparse_call *call) {
  return run(call, [](auto a) { return snnipu::currentsForward<snnipu::FullyConnected>(a); });
}

int snnipu_sparse_linear_bwd(snnipu_sparse_call *call) {
  return run(call, [](auto a) { return snnipu::currentsBackward<snnipu::FullyConnected>(a); });
}

int64_t snnipu_packed_size(int64_t neurons, int64_t inputs) {
  return static_cast<int64_t>(Blocks{size(neurons), size(inputs)}.packedSize());
}

int64_t snnipu_sparse_call_size(void) { return sizeof(snnipu_sparse_call); }

uint64_t snnipu_fingerprint(const void *bytes, int64_t count, int32_t threads) {
  return snnipu::fingerprint(static_cast<const char *>(bytes), size(count), threads);
}
}
