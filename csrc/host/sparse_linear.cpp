// Host side of sparse_linear: blocks of output neurons, each one call of a vertex for many rows.
#include "host/sparse.hpp"

// The codelet file itself: its templates are instantiated here for the host's types.
#include "vertices/sparse_linear.cpp"

namespace snnipu {

template <typename C> int packWeight(const C *weight, const Blocks &blocks, C *packed, int32_t threads) {
  const size_t inputs = blocks.inputs;
  return parallelTry(blocks.count(), threadsFor(blocks.packedSize(), threads), [&](size_t block) {
    const size_t lanes = blocks.lanes(block), held = blocks.held(block);
    const C *const from = weight + blocks.first(block) * inputs;
    C *const to = packed + blocks.offset(block);
    // 16 inputs at a time: a cache line of each neuron's row.
    for (size_t first = 0; first < inputs; first += 16) {
      const size_t last = std::min(inputs, first + 16);
      for (size_t lane = 0; lane < lanes; ++lane)
        for (size_t input = first; input < last; ++input)
          to[input * lanes + lane] = lane < held ? from[lane * inputs + input] : C(0);
    }
  });
}

// One block's rows of the matrix: scale * packed.
template <typename C> static void unpackBlock(const C *packed, const Blocks &blocks, size_t block, C scale, C *weight) {
  const size_t inputs = blocks.inputs, lanes = blocks.lanes(block), held = blocks.held(block);
  C *const to = weight + blocks.first(block) * inputs;
  for (size_t first = 0; first < inputs; first += 16) {
    const size_t last = std::min(inputs, first + 16);
    for (size_t lane = 0; lane < held; ++lane)
      for (size_t input = first; input < last; ++input)
        to[lane * inputs + input] = scale * packed[input * lanes + lane];
  }
}

template <typename C> int InputGradient<C>::prepare(unsigned threads) {
  if (gradValues_)
    partial_.assign(groups_ * spikes_.rows() * spikes_.slots, C(0));
  if (!gradWeight_)
    return Done;
  byNeuron_.resize(chunks_.size());
  return parallelTry(chunks_.size(), threads, [&](size_t chunk) {
    const Chunk part = arriving(chunk);
    byNeuron_[chunk].build(spikes_, (part.begin - delay_) * spikes_.batch, (part.end - part.begin) * spikes_.batch,
                           (part.begin - chunks_[chunk].begin) * spikes_.batch);
  });
}

template <typename C> void InputGradient<C>::beginBlock(size_t block, C *sums) {
  if (gradWeight_)
    std::fill_n(sums, blocks_.inputs * blocks_.lanes(block), C(0));
}

template <typename C>
void InputGradient<C>::add(size_t group, size_t block, size_t chunk, const C *grad, C *sums) {
  const WorkerOrder order = workerOrder();
  const unsigned lanes = blocks_.lanes(block);
  if (gradWeight_) {
    const SpikesByNeuron<C> &spikes = byNeuron_[chunk];
    SparseLinearWeightGradient<C> vertex;
    vertex.begin.connect(spikes.begin.data());
    vertex.rowOf.connect(spikes.rowOf.data());
    vertex.values.connect(spikes.values.data());
    vertex.grad.connect(grad);
    vertex.gradWeight.connect(sums);
    vertex.inputs = static_cast<unsigned>(blocks_.inputs);
    vertex.lanes = lanes;
    runVertex(vertex, order);
  }
  const Chunk part = arriving(chunk);
  if (gradValues_ && part.begin < part.end) {
    const size_t from = (part.begin - delay_) * spikes_.batch;
    SparseLinearValueGradient<C> vertex;
    vertex.weight.connect(weight_ + blocks_.offset(block));
    vertex.grad.connect(grad + (part.begin - chunks_[chunk].begin) * spikes_.batch * lanes);
    vertex.ids.connect(spikes_.ids + from * spikes_.slots);
    vertex.counts.connect(spikes_.counts + 2 * from);
    vertex.gradValues.connect(partial_.data() + (group * spikes_.rows() + from) * spikes_.slots);
    vertex.rows = static_cast<unsigned>((part.end - part.begin) * spikes_.batch);
    vertex.slots = static_cast<unsigned>(spikes_.slots);
    vertex.lanes = lanes;
    runVertex(vertex, order);
  }
}

template <typename C> void InputGradient<C>::endBlock(size_t block, C *sums) {
  if (gradWeight_)
    unpackBlock(sums, blocks_, block, scale_, gradWeight_);
}

template <typename C> void InputGradient<C>::finish(unsigned threads) {
  if (!gradValues_)
    return;
  const size_t size = spikes_.rows() * spikes_.slots, groups = groups_;
  constexpr size_t piece = 16384;
  parallelFor((size + piece - 1) / piece, threads, [&](size_t part) {
    const size_t begin = part * piece, end = std::min(size, begin + piece);
    for (size_t i = begin; i < end; ++i) {
      C total = partial_[i];
      for (size_t group = 1; group < groups; ++group)
        total += partial_[group * size + i];
      gradValues_[i] = scale_ * total;
    }
  });
}

template int packWeight(const float *, const Blocks &, float *, int32_t);
template int packWeight(const double *, const Blocks &, double *, int32_t);
template class InputGradient<float>;
template class InputGradient<double>;

namespace {

template <typename C>
int linearForward(const Spikes<C> &spikes, const C *packed, const C *bias, const Blocks &blocks, C *out,
                  int32_t offered) {
  if (!spikes.valid())
    return BadSpikes;
  const size_t rows = spikes.rows();
  const unsigned threads = threadsFor((spikes.count(0) + rows) * blocks.neurons, offered);
  const WorkerOrder order = workerOrder();
  // Few blocks: rows are shared out too.
  const size_t parts = blocks.count() >= 2 * threads ? 1 : std::min<size_t>(rows, 2 * threads);
  return parallelTry(blocks.count() * parts, threads, [&](size_t task) {
    const size_t block = task / parts, part = task % parts;
    const size_t begin = part * rows / parts, end = (part + 1) * rows / parts;
    const unsigned lanes = blocks.lanes(block);
    C blockBias[blockLanes] = {};
    if (bias)
      std::copy_n(bias + blocks.first(block), blocks.held(block), blockBias);
    SparseLinearForward<C> vertex;
    vertex.weight.connect(packed + blocks.offset(block));
    vertex.bias.connect(blockBias);
    vertex.ids.connect(spikes.ids + begin * spikes.slots);
    vertex.values.connect(spikes.values + begin * spikes.slots);
    vertex.counts.connect(spikes.counts + 2 * begin);
    vertex.out.connect(out + begin * blocks.neurons + blocks.first(block));
    vertex.rows = static_cast<unsigned>(end - begin);
    vertex.slots = static_cast<unsigned>(spikes.slots);
    vertex.lanes = lanes;
    vertex.neurons = blocks.held(block);
    vertex.outStride = static_cast<unsigned>(blocks.neurons);
    runVertex(vertex, order);
  });
}

template <typename C>
int linearBackward(const C *grad, const Spikes<C> &spikes, const C *packed, const Blocks &blocks, C *gradValues,
                   C *gradWeight, C *gradBias, int32_t offered) {
  if (!spikes.valid())
    return BadSpikes;
  const size_t batch = spikes.batch;
  const unsigned threads = threadsFor((spikes.count(0) + spikes.rows()) * blocks.neurons, offered);
  const std::vector<Chunk> chunks = timeChunks(spikes.steps, batch, blockLanes * sizeof(C));
  InputGradient<C> input(spikes, 0, blocks, packed, C(1), gradWeight, gradValues, chunks);
  int status = input.prepare(threads);
  if (status != Done)
    return status;
  status = parallelTry(input.groups(), threads, [&](size_t group) {
    static thread_local ThreadBuffer<C> chunkBuffer, sumsBuffer;
    C *const sums = sumsBuffer.reserve(input.sumsSize());
    for (size_t block = input.groupBegin(group); block < input.groupBegin(group + 1); ++block) {
      const size_t lanes = blocks.lanes(block), held = blocks.held(block);
      double biasSums[blockLanes] = {};
      input.beginBlock(block, sums);
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

uint64_t mixed(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x9e3779b97f4a7c15u + (hash >> 32); }

} // namespace
} // namespace snnipu

using snnipu::Blocks;
using snnipu::Spikes;

#define SPARSE_LINEAR(SUFFIX, C)                                                                                       \
  SNNIPU_PACK_WEIGHT(snnipu_pack_weight_##SUFFIX, C) {                                                                 \
    return snnipu::packWeight(weight, Blocks{static_cast<std::size_t>(neurons), static_cast<std::size_t>(inputs)},     \
                              packed, threads);                                                                        \
  }                                                                                                                    \
  SNNIPU_SPARSE_LINEAR_FWD(snnipu_sparse_linear_fwd_##SUFFIX, C) {                                                     \
    return snnipu::linearForward(SNNIPU_SPIKES_OF(C), packed, bias,                                                    \
                                 Blocks{static_cast<std::size_t>(neurons), static_cast<std::size_t>(inputs)}, out,     \
                                 threads);                                                                             \
  }                                                                                                                    \
  SNNIPU_SPARSE_LINEAR_BWD(snnipu_sparse_linear_bwd_##SUFFIX, C) {                                                     \
    try {                                                                                                              \
      return snnipu::linearBackward(grad, SNNIPU_SPIKES_OF(C), packed,                                                 \
                                    Blocks{static_cast<std::size_t>(neurons), static_cast<std::size_t>(inputs)},       \
                                    grad_values, grad_weight, grad_bias, threads);                                     \
    } catch (const std::bad_alloc &) {                                                                                 \
      return snnipu::OutOfMemory;                                                                                      \
    }                                                                                                                  \
  }

#define SNNIPU_SPIKES_OF(C)                                                                                            \
  Spikes<C> {                                                                                                          \
    ids, values, counts, static_cast<std::size_t>(steps), static_cast<std::size_t>(batch),                             \
        static_cast<std::size_t>(slots), static_cast<std::size_t>(inputs)                                              \
  }

extern "C" {

SPARSE_LINEAR(f32, float)
SPARSE_LINEAR(f64, double)

int64_t snnipu_packed_size(int64_t neurons, int64_t inputs) {
  return static_cast<int64_t>(
      Blocks{static_cast<std::size_t>(neurons), static_cast<std::size_t>(inputs)}.packedSize());
}

uint64_t snnipu_fingerprint(const void *bytes, int64_t count) {
  const char *const from = static_cast<const char *>(bytes);
  const std::size_t size = static_cast<std::size_t>(count);
  // Several chains, so that multiplications overlap.
  uint64_t hash[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (std::size_t i = 0; i < size; i += sizeof(hash)) {
    uint64_t words[8] = {};
    std::memcpy(words, from + i, std::min(sizeof(words), size - i));
    for (int chain = 0; chain < 8; ++chain)
      hash[chain] = snnipu::mixed(hash[chain], words[chain]);
  }
  uint64_t total = size;
  for (const uint64_t part : hash)
    total = snnipu::mixed(total, part);
  return total;
}
}
