// Host implementation of sparse_lif_sequence: blocks of neurons, each with its weights in the cache while it goes
// through all rows.
#include "host/sparse_linear.hpp"

// The codelet file itself: its templates are instantiated here for the host's types.
#include "vertices/sparse_lif.cpp"

namespace snnipu {
namespace {

// Call body with the reset as a std::integral_constant. Called around each vertex, so that only the vertex is compiled
// for each reset.
template <typename Body> void forReset(int32_t reset, const Body &body) {
  if (reset == SNNIPU_RESET_SUBTRACT)
    body(std::integral_constant<Reset, Reset::Subtract>{});
  else if (reset == SNNIPU_RESET_ZERO)
    body(std::integral_constant<Reset, Reset::Zero>{});
  else
    body(std::integral_constant<Reset, Reset::None>{});
}

// Membranes of the neurons that carry gradient: for each block row after row, in a row by ascending id.
template <typename C> struct CarriedMembranes {
  Blocks blocks;
  size_t rows;
  std::vector<Stream<C>> values; // [block]
  Uninitialised<uint32_t> begin; // [block][row]

  CarriedMembranes(const Blocks &b, size_t r) : blocks(b), rows(r), values(b.count()), begin(b.count() * r) {}
};

// A time step of one block, for the samples [begin, end) of the batch.
template <typename C> class StepForward {
public:
  StepForward(const FullyConnected<C> &connection, const LayerForward<C> &arguments, const CheckedSpikes<C> &checked,
              CarriedMembranes<C> &membranes)
      : connection_(connection), blocks_(connection.blocks), a_(arguments), checked_(checked), membranes_(membranes),
        order_(workerOrder()), bits_(2 * blocks_.count() * arguments.spikes.rows() * wordsOfBlock) {}

  // sums: of the weights over the step's spikes, [sample][lane]. If null, this function adds them up.
  void run(const BlockParameters<C> &parameters, size_t block, size_t t, size_t begin, size_t end, const C *sums,
           C *state, const Slots<C> *previousSpikes) {
    const auto runOn = [&](auto *ids) {
      forReset(a_.reset, [&](auto reset) {
        using Id = std::remove_const_t<std::remove_pointer_t<decltype(ids)>>;
        SparseLifForward<C, Id, decltype(reset)::value> vertex;
        vertex.ids.connect(ids);
        runStep(vertex, parameters, block, t, begin, end, sums, state, previousSpikes);
      });
    };
    if (sums)
      runOn(static_cast<const Summed *>(nullptr));
    else
      checked_.withIds(t < a_.delay ? 0 : (t - a_.delay) * a_.spikes.batch + begin, runOn);
    const unsigned lanes = blocks_.lanes(block);
    for (size_t sample = begin; sample < end; ++sample)
      record(block, t * a_.spikes.batch + sample, state + (sample - begin) * lanes);
  }

  // Write the bits of all blocks, for the steps [begin, end), in the caller's layout: row by row.
  void writeBits(size_t begin, size_t end, uint32_t *toFired, uint32_t *toCarried, unsigned threads) {
    const size_t words = blocks_.words(), batch = a_.spikes.batch;
    parallelFor(end - begin, threads, [&](size_t step) {
      for (size_t row = (begin + step) * batch; row < (begin + step + 1) * batch; ++row)
        for (size_t word = 0; word < words; ++word) {
          const size_t block = word / wordsOfBlock, at = row * wordsOfBlock + word % wordsOfBlock;
          toFired[row * words + word] = fired(block)[at];
          toCarried[row * words + word] = carried(block)[at];
        }
    });
  }

private:
  static constexpr unsigned wordsOfBlock = blockLanes / 32;

  template <typename Vertex>
  void runStep(Vertex &vertex, const BlockParameters<C> &parameters, size_t block, size_t t, size_t begin, size_t end,
               const C *sums, C *state, const Slots<C> *previousSpikes) {
    const unsigned lanes = blocks_.lanes(block);
    const size_t row = t * a_.spikes.batch + begin;
    vertex.input = t >= a_.delay;
    if (vertex.input) {
      const size_t from = (t - a_.delay) * a_.spikes.batch + begin;
      vertex.values.connect(sums ? sums : a_.spikes.values + from * a_.spikes.slots);
      vertex.counts.connect(a_.spikes.counts + 2 * from);
    }
    vertex.weight.connect(connection_.packed + blocks_.offset(block));
    vertex.bias.connect(parameters.bias);
    vertex.beta.connect(parameters.beta);
    vertex.threshold.connect(parameters.threshold);
    vertex.gradThreshold.connect(parameters.gradThreshold);
    vertex.recurrent = previousSpikes != nullptr;
    if (previousSpikes) {
      vertex.recurrentWeight.connect(connection_.recurrent + block * blockLanes * blocks_.neurons);
      vertex.ownIds.connect(previousSpikes->ids + begin * previousSpikes->slots);
      vertex.ownCounts.connect(previousSpikes->counts + 2 * begin);
    }
    vertex.outputSlots = previousSpikes ? static_cast<unsigned>(previousSpikes->slots) : 0;
    vertex.state.connect(state);
    vertex.fired.connect(fired(block) + row * wordsOfBlock);
    vertex.carried.connect(carried(block) + row * wordsOfBlock);
    vertex.inputScale = a_.inputScale;
    vertex.rows = static_cast<unsigned>(end - begin);
    vertex.slots = static_cast<unsigned>(checked_.slots());
    vertex.valueSlots = sums ? lanes : static_cast<unsigned>(a_.spikes.slots);
    vertex.lanes = lanes;
    vertex.neurons = blocks_.held(block);
    vertex.wordStride = wordsOfBlock;
    vertex.unitValues = checked_.unitValues();
    runVertex(vertex, order_);
  }

  // Each block first writes its bits to separate memory: in the caller's rows, neighbouring blocks would share cache
  // lines.
  uint32_t *fired(size_t block) { return bits_.data() + 2 * block * a_.spikes.rows() * wordsOfBlock; }
  uint32_t *carried(size_t block) { return bits_.data() + (2 * block + 1) * a_.spikes.rows() * wordsOfBlock; }

  void record(size_t block, size_t row, const C *state) {
    const size_t held = blocks_.held(block);
    if (a_.mem)
      std::copy_n(state, held, a_.mem + row * blocks_.neurons + blocks_.first(block));
    uint32_t *const words = carried(block) + row * wordsOfBlock;
    Stream<C> &values = membranes_.values[block];
    membranes_.begin[block * membranes_.rows + row] = static_cast<uint32_t>(values.size());
    C *const from = values.room(held), *to = from;
    if (a_.second) {
      for (uint64_t bits = readWords(words, static_cast<unsigned>(held)); bits != 0; bits &= bits - 1)
        *to++ = state[__builtin_ctzll(bits)];
    } else {
      const uint64_t allBits = held == 64 ? ~uint64_t{0} : (uint64_t{1} << held) - 1;
      writeWords(words, static_cast<unsigned>(held), allBits);
      to = std::copy_n(state, held, to);
    }
    values.advance(static_cast<size_t>(to - from));
  }

  const FullyConnected<C> &connection_;
  const Blocks &blocks_;
  const LayerForward<C> &a_;
  const CheckedSpikes<C> &checked_;
  CarriedMembranes<C> &membranes_;
  WorkerOrder order_;
  Uninitialised<uint32_t> bits_; // [block][fired, carried][row][word]
};

// Write the membranes of the carried slots.
template <typename C>
void slotMembranes(const CarriedMembranes<C> &membranes, const uint32_t *carried, const Call<C> &a) {
  const size_t words = membranes.blocks.words(), rows = membranes.rows, slots = size(a.c.output_slots);
  const uint32_t *const begin = membranes.begin.data();
  std::vector<const C *> values;
  for (const Stream<C> &block : membranes.values)
    values.push_back(block.data());
  parallelPieces(rows, rowsAtOnce, threadsFor(4 * rows * slots, a.threads()), [&](size_t first, size_t end) {
    for (size_t row = first; row < end; ++row) {
      const size_t used = static_cast<size_t>(a.c.counts_out[2 * row + 1]);
      const int32_t *const id = a.c.ids_out + row * slots;
      C *const to = a.out(a.c.slot_mem) + row * slots;
      for (size_t slot = 0; slot < used; ++slot) {
        const size_t block = static_cast<uint32_t>(id[slot]) / blockLanes;
        const uint64_t bit = uint64_t{1} << static_cast<uint32_t>(id[slot]) % blockLanes;
        const uint32_t *const word = carried + row * words + block * (blockLanes / 32);
        // For a neuron of the low word, the high word has no predecessors.
        uint64_t bits = word[0];
        if (bit >> 32)
          bits |= static_cast<uint64_t>(word[1]) << 32;
        to[slot] =
            values[block][begin[block * rows + row] + static_cast<size_t>(__builtin_popcountll(bits & (bit - 1)))];
      }
      std::fill(to + used, to + slots, C(0));
    }
  });
}

template <typename C> class BlocksForward {
public:
  using Connection = FullyConnected<C>;

  BlocksForward(const Connection &connection, const LayerForward<C> &arguments, const CheckedSpikes<C> &checked)
      : connection_(connection), blocks_(connection.blocks), a_(arguments), checked_(checked),
        membranes_(blocks_, arguments.spikes.rows()), carried_(membranes_.rows * blocks_.words()),
        fired_(a_.call.c.fired) {}

  int integrate(unsigned threads) {
    StepForward<C> step(connection_, a_, checked_, membranes_);
    return connection_.recurrent ? recurrent(step, threads) : feedForward(step, threads);
  }

  size_t fullestRow() const { return mostBits(carried_.data(), membranes_.rows, blocks_.words()); }

  int select() const {
    selectAll(a_.call, carried_.data());
    slotMembranes(membranes_, carried_.data(), a_.call);
    return Done;
  }

private:
  int feedForward(StepForward<C> &step, unsigned threads) {
    const size_t steps = a_.spikes.steps, batch = a_.spikes.batch, rows = a_.spikes.rows();
    LargestSize fullest;
    const InputTiles<C> tiles(checked_, a_.spikes, a_.maxThreads);
    const size_t delay = std::min(a_.delay, steps);
    const std::vector<Chunk> chunks = timeChunks(steps - delay, batch, blockLanes * sizeof(C));
    const int status = parallelTry(blocks_.count(), threads, [&](size_t block) {
      static thread_local ThreadBuffer<C> buffer, sumsBuffer;
      const BlockParameters<C> parameters(a_, blocks_, block);
      const unsigned lanes = blocks_.lanes(block);
      C *const state = buffer.zeros(batch * lanes);
      Stream<C> &values = membranes_.values[block];
      values.room(a_.second ? fullest.expected() + blockLanes : rows * blocks_.held(block));
      for (size_t t = 0; t < (tiles.worthwhile() ? delay : steps); ++t)
        step.run(parameters, block, t, 0, batch, nullptr, state, nullptr);
      for (size_t chunk = 0; tiles.worthwhile() && chunk < chunks.size(); ++chunk) {
        const size_t first = chunks[chunk].begin, end = chunks[chunk].end;
        C *const sums = sumsBuffer.reserve((end - first) * batch * lanes);
        tiles.sum(connection_.packed + blocks_.offset(block), lanes, first * batch, (end - first) * batch, sums);
        for (size_t t = first; t < end; ++t)
          step.run(parameters, block, delay + t, 0, batch, sums + (t - first) * batch * lanes, state, nullptr);
      }
      fullest.record(values.size());
    });
    if (status == Done)
      step.writeBits(0, steps, fired_, carried_.data(), threads);
    return status;
  }

  // A block needs the spikes of all blocks before its next step.
  int recurrent(StepForward<C> &step, unsigned threads) {
    const size_t batch = a_.spikes.batch;
    std::vector<BlockParameters<C>> parameters;
    std::vector<std::vector<C>> states;
    for (size_t block = 0; block < blocks_.count(); ++block) {
      parameters.emplace_back(a_, blocks_, block);
      states.emplace_back(batch * blocks_.lanes(block), C(0));
    }
    const int64_t capacity = a_.call.c.output_slots;
    const size_t outputSlots = capacity < 0 ? blocks_.neurons : size(capacity);
    std::vector<int32_t> ids(batch * outputSlots), counts(2 * batch), dropped(2 * batch);
    std::vector<C> values(batch * outputSlots);
    Slots<C> previousSpikes{ids.data(), values.data(), counts.data(),   dropped.data(),
                            batch,      outputSlots,   blocks_.neurons, a_.call.c.rotate != 0};
    for (size_t t = 0; t < a_.spikes.steps; ++t) {
      const int status = parallelTry(blocks_.count(), threads, [&](size_t block) {
        step.run(parameters[block], block, t, 0, batch, nullptr, states[block].data(), &previousSpikes);
      });
      if (status != Done)
        return status;
      step.writeBits(t, t + 1, fired_, carried_.data(), 1);
      const size_t word = t * batch * blocks_.words();
      selectSteps(fired_ + word, carried_.data() + word, previousSpikes, t, 1, 1);
    }
    return Done;
  }

  const Connection &connection_;
  const Blocks &blocks_;
  const LayerForward<C> &a_;
  const CheckedSpikes<C> &checked_;
  CarriedMembranes<C> membranes_;
  Uninitialised<uint32_t> carried_;
  uint32_t *fired_;
};

// The layer's slots sorted by block: in each step those of the first block, then those of the next. Also the bits of
// the neurons that fired, block after block.
template <typename C> struct SlotsByBlock {
  Uninitialised<uint32_t> begin;  // [steps][blocks + 1]: first slot of a block
  Uninitialised<uint32_t> at;     // sample * lanes + lane of its neuron
  Uninitialised<uint32_t> source; // index of the slot in its step
  Uninitialised<C> through;
  Uninitialised<uint64_t> fired; // [blocks][rows]

  void build(const Spikes<C> &outputs, const uint32_t *firedWords, const Blocks &blocks, unsigned threads) {
    const size_t rows = outputs.rows(), words = blocks.words(), ends = blocks.count() + 1;
    begin = Uninitialised<uint32_t>(outputs.steps * ends);
    uint32_t total = 0;
    for (size_t t = 0; t < outputs.steps; ++t) {
      begin[t * ends] = total;
      for (size_t sample = 0; sample < outputs.batch; ++sample)
        total += static_cast<uint32_t>(outputs.counts[2 * (t * outputs.batch + sample) + 1]);
    }
    at = Uninitialised<uint32_t>(total);
    source = Uninitialised<uint32_t>(total);
    through = Uninitialised<C>(total);
    fired = Uninitialised<uint64_t>(rows * blocks.count());
    parallelFor(outputs.steps, threads, [&](size_t t) {
      sort(outputs, blocks, t, &begin[t * ends]);
      const size_t first = t * outputs.batch;
      for (size_t block = 0; block < blocks.count(); ++block)
        for (size_t row = first; row < first + outputs.batch; ++row)
          fired[block * rows + row] =
              readWords(firedWords + row * words + block * (blockLanes / 32), blocks.held(block));
    });
  }

  // Sort the slots of one step by block. next[block] is counted, advances to the block's end during sorting, and is
  // reset to its begin.
  void sort(const Spikes<C> &outputs, const Blocks &blocks, size_t t, uint32_t *next) {
    const size_t count = blocks.count(), slots = outputs.slots, batch = outputs.batch;
    const int32_t *const ids = outputs.ids + t * batch * slots, *const counts = outputs.counts + 2 * t * batch;
    uint32_t *const toAt = at.data(), *const toSource = source.data();
    const uint32_t start = next[0], lastLanes = blocks.lanes(count - 1);
    std::fill_n(next, count + 1, 0);
    for (size_t sample = 0; sample < batch; ++sample) {
      const size_t end = sample * slots + static_cast<size_t>(counts[2 * sample + 1]);
      for (size_t slot = sample * slots; slot < end; ++slot)
        ++next[static_cast<uint32_t>(ids[slot]) / blockLanes + 1];
    }
    next[0] = start;
    for (size_t block = 1; block <= count; ++block)
      next[block] += next[block - 1];
    for (size_t sample = 0; sample < batch; ++sample) {
      const size_t end = sample * slots + static_cast<size_t>(counts[2 * sample + 1]);
      for (size_t slot = sample * slots; slot < end; ++slot) {
        const uint32_t id = static_cast<uint32_t>(ids[slot]), block = id / blockLanes;
        const uint32_t to = next[block]++, lanes = block + 1 < count ? blockLanes : lastLanes;
        toAt[to] = static_cast<uint32_t>(sample) * lanes + id % blockLanes;
        toSource[to] = static_cast<uint32_t>(slot);
      }
    }
    for (size_t block = count; block > 0; --block)
      next[block] = next[block - 1];
    next[0] = start;
  }

  // Copy the gradients through the spikes of one step, in sorted order.
  void copyThrough(size_t t, const C *step, size_t blocks) {
    for (uint32_t slot = begin[t * (blocks + 1)]; slot < begin[t * (blocks + 1) + blocks]; ++slot)
      through[slot] = step[source[slot]];
  }
};

template <typename C> class BlocksBackward {
public:
  using Connection = FullyConnected<C>;

  BlocksBackward(const Connection &connection, const LayerBackward<C> &arguments, const CheckedSpikes<C> &checked,
                 unsigned threads)
      : parameterSums(connection.blocks.count()), connection_(connection), blocks_(connection.blocks), a_(arguments),
        batch_(a_.spikes.batch), order_(workerOrder()),
        chunks_(timeChunks(a_.spikes.steps, batch_, blockLanes * sizeof(C))), threads_(threads),
        through_(a_.outputs.rows() * a_.outputs.slots),
        toInput_(a_.spikes, checked, a_.delay, blocks_, connection.packed, a_.inputScale, a_.gradWeight, a_.gradValues,
                 chunks_) {}

  int run() {
    slots_.build(a_.outputs, a_.fired, blocks_, threads_);
    int status = toInput_.prepare(threads_);
    if (status == Done)
      status = connection_.recurrent ? recurrent() : feedForward();
    if (status == Done)
      toInput_.finish(threads_);
    return status;
  }

  std::vector<ParameterSums<C>> parameterSums;

private:
  int feedForward() {
    throughSpikes(a_.grad, 0, a_.spikes.steps);
    return parallelTry(toInput_.groups(), threads_, [&](size_t group) {
      static thread_local ThreadBuffer<C> carryBuffer, gradBuffer, sumsBuffer;
      C *const sums = sumsBuffer.reserve(toInput_.sumsSize());
      for (size_t block = toInput_.groupBegin(group); block < toInput_.groupBegin(group + 1); ++block) {
        const size_t lanes = blocks_.lanes(block);
        C *const carry = carryBuffer.zeros(batch_ * lanes);
        for (size_t chunk = chunks_.size(); chunk-- > 0;) {
          const size_t begin = chunks_[chunk].begin, end = chunks_[chunk].end;
          C *const grad = gradBuffer.reserve((end - begin) * batch_ * lanes);
          for (size_t t = end; t-- > begin;)
            step(block, t, carry, grad + (t - begin) * batch_ * lanes);
          toInput_.add(group, block, chunk, grad, sums);
        }
        toInput_.endBlock(block, sums);
      }
    });
  }

  // The gradient of a step's spikes depends on all neurons of the next step, so all blocks go through time together.
  int recurrent() {
    const size_t steps = a_.spikes.steps, blocks = blocks_.count();
    std::vector<std::vector<C>> grads(blocks), carries(blocks);
    for (size_t block = 0; block < blocks; ++block) {
      grads[block].resize(a_.spikes.rows() * blocks_.lanes(block));
      carries[block].assign(batch_ * blocks_.lanes(block), C(0));
    }
    std::vector<C> upstream(batch_ * a_.outputs.slots);
    for (size_t t = steps; t-- > 0;) {
      const size_t slot = t * batch_ * a_.outputs.slots;
      std::copy_n(a_.grad + slot, upstream.size(), upstream.data());
      if (t + 1 < steps)
        addRecurrent(t, grads, upstream.data());
      throughSpikes(upstream.data() - slot, t, t + 1);
      parallelFor(blocks, threads_, [&](size_t block) {
        step(block, t, carries[block].data(), grads[block].data() + t * batch_ * blocks_.lanes(block));
      });
    }
    const CheckedSpikes<C> outputs(a_.outputs, 0, false);
    InputGradient<C> toRecurrent(a_.outputs, outputs, 1, {blocks_.neurons, blocks_.neurons}, nullptr, a_.inputScale,
                                 a_.gradRecurrent, nullptr, chunks_);
    int status = toRecurrent.prepare(threads_);
    for (InputGradient<C> *to : {&toInput_, &toRecurrent})
      if (status == Done)
        status = parallelTry(to->groups(), threads_, [&](size_t group) {
          static thread_local ThreadBuffer<C> sumsBuffer;
          C *const sums = sumsBuffer.reserve(to->sumsSize());
          for (size_t block = to->groupBegin(group); block < to->groupBegin(group + 1); ++block) {
            for (size_t chunk = chunks_.size(); chunk-- > 0;)
              to->add(group, block, chunk, grads[block].data() + chunks_[chunk].begin * batch_ * blocks_.lanes(block),
                      sums);
            to->endBlock(block, sums);
          }
        });
    return status;
  }

  // upstream += inputScale * recurrent weights . gradient of step t + 1, at the slots of step t.
  void addRecurrent(size_t t, const std::vector<std::vector<C>> &grads, C *upstream) const {
    const size_t first = t * batch_, next = (t + 1) * batch_, slots = a_.outputs.slots;
    parallelFor(batch_, threads_, [&](size_t sample) {
      for (size_t slot = 0; slot < static_cast<size_t>(a_.outputs.counts[2 * (first + sample) + 1]); ++slot) {
        const size_t id = static_cast<size_t>(a_.outputs.ids[(first + sample) * slots + slot]);
        C total = 0;
        for (size_t block = 0; block < blocks_.count(); ++block) {
          const unsigned lanes = blocks_.lanes(block);
          const C *const weight = connection_.recurrent + block * blockLanes * blocks_.neurons + id * lanes;
          const C *const grad = grads[block].data() + (next + sample) * lanes;
          forLaneGroups<C>(lanes, [&](unsigned lane, auto group) {
            group.loadFrom(grad + lane);
            total += sumLanes(group.products(weight + lane));
          });
        }
        upstream[sample * slots + slot] += a_.inputScale * total;
      }
    });
  }

  // Compute `through` for the steps [begin, end). grad points at step 0's slots.
  void throughSpikes(const C *grad, size_t begin, size_t end) {
    const size_t row = begin * batch_, slot = row * a_.outputs.slots;
    a_.throughSpikes(grad + slot, slot, a_.outputs.counts + 2 * row, (end - begin) * batch_, a_.outputs.slots,
                     through_.data() + slot, threads_);
    parallelFor(end - begin, threads_, [&](size_t step) {
      slots_.copyThrough(begin + step, through_.data() + (begin + step) * batch_ * a_.outputs.slots, blocks_.count());
    });
  }

  void step(size_t block, size_t t, C *carry, C *grad) {
    forReset(a_.reset, [&](auto reset) {
      SparseLifBackward<C, decltype(reset)::value> vertex;
      runStep(vertex, block, t, carry, grad);
    });
    const size_t row = t * batch_, lanes = blocks_.lanes(block);
    if (a_.gradBias || a_.gradBeta || a_.gradThreshold)
      parameterSums[block].endStep();
    if (a_.gradCurrent)
      for (size_t sample = 0; sample < batch_; ++sample)
        std::copy_n(grad + sample * lanes, blocks_.held(block),
                    a_.gradCurrent + (row + sample) * blocks_.neurons + blocks_.first(block));
  }

  template <typename Vertex> void runStep(Vertex &vertex, size_t block, size_t t, C *carry, C *grad) {
    const size_t row = t * batch_;
    alignas(64) C beta[blockLanes], threshold[blockLanes];
    copyBeta(a_.beta, beta, blocks_, block, C(0));
    a_.threshold.copyTo(threshold, blocks_, block, C(0));
    C(&step)[3][blockLanes] = parameterSums[block].step;
    vertex.beta.connect(beta);
    vertex.threshold.connect(threshold);
    const uint32_t *const begin = &slots_.begin[t * (blocks_.count() + 1) + block];
    vertex.at.connect(slots_.at.data() + begin[0]);
    vertex.through.connect(slots_.through.data() + begin[0]);
    vertex.slots = begin[1] - begin[0];
    vertex.firstStep = t == 0;
    vertex.betaGradient = a_.gradBeta != nullptr;
    vertex.thresholdGradient = a_.gradThreshold != nullptr;
    if (t > 0) {
      vertex.fired.connect(&slots_.fired[block * a_.spikes.rows() + row - batch_]);
      vertex.memBefore.connect(a_.mem ? a_.mem + (row - batch_) * blocks_.neurons + blocks_.first(block) : nullptr);
    }
    vertex.carry.connect(carry);
    vertex.grad.connect(grad);
    vertex.gradBias.connect(step[ParameterSums<C>::Bias]);
    vertex.gradBeta.connect(step[ParameterSums<C>::Beta]);
    vertex.gradThreshold.connect(step[ParameterSums<C>::Threshold]);
    vertex.rows = static_cast<unsigned>(batch_);
    vertex.lanes = blocks_.lanes(block);
    vertex.neurons = blocks_.held(block);
    vertex.memStride = static_cast<unsigned>(blocks_.neurons);
    runVertex(vertex, order_);
  }

  const Connection &connection_;
  const Blocks &blocks_;
  const LayerBackward<C> &a_;
  size_t batch_;
  WorkerOrder order_;
  std::vector<Chunk> chunks_;
  unsigned threads_;
  Uninitialised<C> through_; // [rows][slots of the layer]
  SlotsByBlock<C> slots_;
  InputGradient<C> toInput_;
};

} // namespace
} // namespace snnipu

SNNIPU_RUN(sparse_lif_sequence_fwd, layerForward<snnipu::BlocksForward>)
SNNIPU_RUN(sparse_lif_sequence_bwd, layerBackward<snnipu::BlocksBackward>)
