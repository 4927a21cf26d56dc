// Host implementation of sparse_linear: blocks of output neurons, each a call of a vertex for many rows.
#include "host/sparse_linear.hpp"
#include "host/snnipu.h"

namespace snnipu {

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

// Write the matrix [neurons][inputs] as blocks [inputs][lanes], with zeros in the padding.
template <typename C> int packWeight(const Call<C> &a) {
  const Blocks blocks{size(a.c.neurons), size(a.c.inputs)};
  const size_t inputs = blocks.inputs;
  return parallelTry(blocks.count(), threadsFor(blocks.packedSize(), a.threads()), [&](size_t block) {
    const size_t lanes = blocks.lanes(block), held = blocks.held(block);
    C *const to = a.out(a.c.out) + blocks.offset(block);
    transpose(a.in(a.c.weight) + blocks.first(block) * inputs, inputs, held, inputs, to, lanes, C(1));
    for (size_t input = 0; held < lanes && input < inputs; ++input)
      std::fill(to + input * lanes + held, to + (input + 1) * lanes, C(0));
  });
}

} // namespace
} // namespace snnipu

using snnipu::size;

SNNIPU_RUN(pack_weight, packWeight)
SNNIPU_RUN(sparse_linear_fwd, currentsForward<snnipu::FullyConnected>)
SNNIPU_RUN(sparse_linear_bwd, currentsBackward<snnipu::FullyConnected>)

int64_t snnipu_packed_size(int64_t neurons, int64_t inputs) {
  return static_cast<int64_t>(snnipu::Blocks{size(neurons), size(inputs)}.packedSize());
}

int64_t snnipu_sparse_call_size(void) { return sizeof(snnipu_sparse_call); }

uint64_t snnipu_fingerprint(const void *bytes, int64_t count, int32_t threads) {
  return snnipu::fingerprint(static_cast<const char *>(bytes), size(count), threads);
}
