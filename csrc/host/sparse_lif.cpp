// Host side of sparse_lif_sequence: blocks of neurons, each with its weights in the cache while all rows stream past.
#include "host/sparse.hpp"

#include <limits>

// The codelet file itself: its templates are instantiated here for the host's types.
#include "vertices/sparse_lif.cpp"

namespace snnipu {
namespace {

inline bool knownReset(int32_t reset) { return reset >= SNNIPU_RESET_SUBTRACT && reset <= SNNIPU_RESET_NONE; }

// body(std::integral_constant of a known reset): around each vertex, not around what leads to it.
template <typename Body> void forReset(int32_t reset, const Body &body) {
  if (reset == SNNIPU_RESET_SUBTRACT)
    body(std::integral_constant<Reset, Reset::Subtract>{});
  else if (reset == SNNIPU_RESET_ZERO)
    body(std::integral_constant<Reset, Reset::Zero>{});
  else
    body(std::integral_constant<Reset, Reset::None>{});
}

// beta, threshold, ...: one value, or one for each neuron.
template <typename C> struct PerNeuron {
  const C *values;
  size_t size;

  // The block's values, `padding` behind them.
  void copyTo(C *to, const Blocks &blocks, size_t block, C padding) const {
    for (size_t lane = 0; lane < blocks.lanes(block); ++lane)
      to[lane] = lane >= blocks.held(block) ? padding : values[size > 1 ? blocks.first(block) + lane : 0];
  }
};

// beta, clamped to [0, 1].
template <typename C> C clamped(C beta) { return clampUnit(SingleLane<C>{beta})[0]; }

// Membranes of the neurons that carry gradient: of each block, row after row, by ascending id.
template <typename C> struct KeptMembranes {
  Blocks blocks;
  size_t rows;
  std::vector<Stream<C>> values; // [block]
  Uninitialised<uint32_t> begin; // [block][row]

  KeptMembranes(const Blocks &b, size_t r) : blocks(b), rows(r), values(b.count()), begin(b.count() * r) {}
};

template <typename C> struct ForwardArguments {
  Spikes<C> spikes;
  Blocks blocks;
  const C *packed, *recurrent, *bias;
  PerNeuron<C> beta, threshold;
  bool second;
  C gradThreshold, inputScale;
  uint32_t *fired, *carried;
  C *mem; // may be null
  size_t ownSlots, delay;
  bool rotate;
  int32_t reset, offered;
};

// What a block needs beside its weights.
template <typename C> struct BlockParameters {
  alignas(64) C bias[blockLanes], beta[blockLanes], threshold[blockLanes], gradThreshold[blockLanes];

  BlockParameters(const ForwardArguments<C> &a, size_t block) {
    // Padding never reaches its threshold.
    constexpr C never = std::numeric_limits<C>::max();
    const PerNeuron<C> one{&a.gradThreshold, 1};
    a.beta.copyTo(beta, a.blocks, block, C(0));
    std::transform(beta, beta + a.blocks.lanes(block), beta, clamped<C>);
    a.threshold.copyTo(threshold, a.blocks, block, never);
    one.copyTo(gradThreshold, a.blocks, block, never);
    std::fill_n(bias, blockLanes, C(0));
    if (a.bias)
      std::copy_n(a.bias + a.blocks.first(block), a.blocks.held(block), bias);
  }
};

// One time step of one block, for the samples [begin, end) of the batch.
template <typename C> class StepForward {
public:
  StepForward(const ForwardArguments<C> &arguments, const CheckedSpikes<C> &checked, KeptMembranes<C> &kept)
      : a_(arguments), checked_(checked), kept_(kept), order_(workerOrder()),
        bits_(2 * arguments.blocks.count() * arguments.spikes.rows() * wordsOfBlock) {}

  // sums: of the weights over the step's spikes, [sample][lane]; null: they are still to be added up.
  void run(const BlockParameters<C> &parameters, size_t block, size_t t, size_t begin, size_t end, const C *sums,
           C *state, const Slots<C> *own) {
    const auto runOn = [&](auto *ids) {
      forReset(a_.reset, [&](auto reset) {
        using Id = std::remove_const_t<std::remove_pointer_t<decltype(ids)>>;
        SparseLifForward<C, Id, decltype(reset)::value> vertex;
        vertex.ids.connect(ids);
        runStep(vertex, parameters, block, t, begin, end, sums, state, own);
      });
    };
    if (sums)
      runOn(static_cast<const Summed *>(nullptr));
    else
      checked_.withIds(t < a_.delay ? 0 : (t - a_.delay) * a_.spikes.batch + begin, runOn);
    const unsigned lanes = a_.blocks.lanes(block);
    for (size_t sample = begin; sample < end; ++sample)
      record(block, t * a_.spikes.batch + sample, state + (sample - begin) * lanes);
  }

  // The bits of all blocks, for the steps [begin, end), as the caller wants them: row by row.
  void writeBits(size_t begin, size_t end, unsigned threads) {
    const size_t words = a_.blocks.words(), batch = a_.spikes.batch;
    parallelFor(end - begin, threads, [&](size_t step) {
      for (size_t row = (begin + step) * batch; row < (begin + step + 1) * batch; ++row)
        for (size_t word = 0; word < words; ++word) {
          const size_t block = word / wordsOfBlock, at = row * wordsOfBlock + word % wordsOfBlock;
          a_.fired[row * words + word] = fired(block)[at];
          a_.carried[row * words + word] = carried(block)[at];
        }
    });
  }

private:
  static constexpr unsigned wordsOfBlock = blockLanes / 32;

  template <typename Vertex>
  void runStep(Vertex &vertex, const BlockParameters<C> &parameters, size_t block, size_t t, size_t begin, size_t end,
               const C *sums, C *state, const Slots<C> *own) {
    const unsigned lanes = a_.blocks.lanes(block);
    const size_t row = t * a_.spikes.batch + begin;
    vertex.input = t >= a_.delay;
    if (vertex.input) {
      const size_t from = (t - a_.delay) * a_.spikes.batch + begin;
      vertex.values.connect(sums ? sums : a_.spikes.values + from * a_.spikes.slots);
      vertex.counts.connect(a_.spikes.counts + 2 * from);
    }
    vertex.weight.connect(a_.packed + a_.blocks.offset(block));
    vertex.bias.connect(parameters.bias);
    vertex.beta.connect(parameters.beta);
    vertex.threshold.connect(parameters.threshold);
    vertex.gradThreshold.connect(parameters.gradThreshold);
    vertex.recurrent = own != nullptr;
    if (own) {
      vertex.recurrentWeight.connect(a_.recurrent + block * blockLanes * a_.blocks.neurons);
      vertex.ownIds.connect(own->ids + begin * own->slots);
      vertex.ownCounts.connect(own->counts + 2 * begin);
    }
    vertex.ownSlots = own ? static_cast<unsigned>(own->slots) : 0;
    vertex.state.connect(state);
    vertex.fired.connect(fired(block) + row * wordsOfBlock);
    vertex.carried.connect(carried(block) + row * wordsOfBlock);
    vertex.inputScale = a_.inputScale;
    vertex.rows = static_cast<unsigned>(end - begin);
    vertex.slots = static_cast<unsigned>(checked_.slots());
    vertex.valueSlots = sums ? lanes : static_cast<unsigned>(a_.spikes.slots);
    vertex.lanes = lanes;
    vertex.neurons = a_.blocks.held(block);
    vertex.wordStride = wordsOfBlock;
    vertex.unitValues = checked_.unitValues();
    runVertex(vertex, order_);
  }

  // While blocks work, each has its bits to itself: neighbours in a row would share cache lines.
  uint32_t *fired(size_t block) { return bits_.data() + 2 * block * a_.spikes.rows() * wordsOfBlock; }
  uint32_t *carried(size_t block) { return bits_.data() + (2 * block + 1) * a_.spikes.rows() * wordsOfBlock; }

  void record(size_t block, size_t row, const C *state) {
    const size_t held = a_.blocks.held(block);
    if (a_.mem)
      std::copy_n(state, held, a_.mem + row * a_.blocks.neurons + a_.blocks.first(block));
    uint32_t *const words = carried(block) + row * wordsOfBlock;
    Stream<C> &values = kept_.values[block];
    kept_.begin[block * kept_.rows + row] = static_cast<uint32_t>(values.size());
    C *const from = values.room(held), *to = from;
    if (a_.second) {
      for (uint64_t bits = readWords(words, static_cast<unsigned>(held)); bits != 0; bits &= bits - 1)
        *to++ = state[__builtin_ctzll(bits)];
    } else {
      const uint64_t everyone = held == 64 ? ~uint64_t{0} : (uint64_t{1} << held) - 1;
      writeWords(words, static_cast<unsigned>(held), everyone);
      to = std::copy_n(state, held, to);
    }
    values.advance(static_cast<size_t>(to - from));
  }

  const ForwardArguments<C> &a_;
  const CheckedSpikes<C> &checked_;
  KeptMembranes<C> &kept_;
  WorkerOrder order_;
  Uninitialised<uint32_t> bits_; // [block][fired, carried][row][word]
};

// membranes: of the neurons that are carried, whose bits are made, too.
template <typename C> int integrate(const ForwardArguments<C> &a, KeptMembranes<C> &membranes) {
  if (!knownReset(a.reset))
    return Unknown;
  CheckedSpikes<C> checked(a.spikes, 0);
  if (!checked.fill(a.offered))
    return BadSpikes;
  const size_t steps = a.spikes.steps, batch = a.spikes.batch, rows = a.spikes.rows();
  const unsigned threads = threadsFor((checked.total(0) + 4 * rows) * a.blocks.neurons, a.offered);
  StepForward<C> step(a, checked, membranes);
  int status = Done;
  if (!a.recurrent) {
    Fullest fullest;
    const InputTiles<C> tiles(checked, a.spikes, a.offered);
    const size_t delay = std::min(a.delay, steps);
    const std::vector<Chunk> chunks = timeChunks(steps - delay, batch, blockLanes * sizeof(C));
    status = parallelTry(a.blocks.count(), threads, [&](size_t block) {
      static thread_local ThreadBuffer<C> buffer, sumsBuffer;
      const BlockParameters<C> parameters(a, block);
      const unsigned lanes = a.blocks.lanes(block);
      C *const state = buffer.zeros(batch * lanes);
      Stream<C> &values = membranes.values[block];
      values.room(a.second ? fullest.expected() + blockLanes : rows * a.blocks.held(block));
      for (size_t t = 0; t < (tiles.pay() ? delay : steps); ++t)
        step.run(parameters, block, t, 0, batch, nullptr, state, nullptr);
      for (size_t chunk = 0; tiles.pay() && chunk < chunks.size(); ++chunk) {
        const size_t first = chunks[chunk].begin, end = chunks[chunk].end;
        C *const sums = sumsBuffer.reserve((end - first) * batch * lanes);
        tiles.sum(a.packed + a.blocks.offset(block), lanes, first * batch, (end - first) * batch, sums);
        for (size_t t = first; t < end; ++t)
          step.run(parameters, block, delay + t, 0, batch, sums + (t - first) * batch * lanes, state, nullptr);
      }
      fullest.had(values.size());
    });
    if (status == Done)
      step.writeBits(0, steps, threads);
  } else {
    // The spikes of all blocks are needed before any block goes on.
    std::vector<BlockParameters<C>> parameters;
    std::vector<std::vector<C>> states;
    for (size_t block = 0; block < a.blocks.count(); ++block) {
      parameters.emplace_back(a, block);
      states.emplace_back(batch * a.blocks.lanes(block), C(0));
    }
    std::vector<int32_t> ids(batch * a.ownSlots), counts(2 * batch), dropped(2 * batch);
    std::vector<C> values(batch * a.ownSlots);
    Slots<C> own{ids.data(), values.data(), counts.data(),    dropped.data(),
                 batch,      a.ownSlots,    a.blocks.neurons, a.rotate};
    for (size_t t = 0; t < steps; ++t) {
      status = parallelTry(a.blocks.count(), threads, [&](size_t block) {
        step.run(parameters[block], block, t, 0, batch, nullptr, states[block].data(), &own);
      });
      if (status != Done)
        break;
      step.writeBits(t, t + 1, 1);
      const size_t word = t * batch * a.blocks.words();
      selectSteps(a.fired + word, a.carried + word, own, t, 1, 1);
    }
  }
  return status;
}

template <typename C>
void slotMembranes(const KeptMembranes<C> &kept, const int32_t *ids, const int32_t *counts, const uint32_t *carried,
                   C *slotMem, size_t slots, int32_t offered) {
  const size_t words = kept.blocks.words(), rows = kept.rows;
  const uint32_t *const begin = kept.begin.data();
  std::vector<const C *> values;
  for (const Stream<C> &block : kept.values)
    values.push_back(&block[0]);
  constexpr size_t rowsAtOnce = 64;
  const auto run = [=, values = values.data()](size_t piece) {
    for (size_t row = piece * rowsAtOnce; row < std::min(rows, (piece + 1) * rowsAtOnce); ++row) {
      const size_t used = static_cast<size_t>(counts[2 * row + 1]);
      const int32_t *const id = ids + row * slots;
      C *const to = slotMem + row * slots;
      for (size_t slot = 0; slot < used; ++slot) {
        const size_t block = static_cast<uint32_t>(id[slot]) / blockLanes;
        const uint64_t bit = uint64_t{1} << static_cast<uint32_t>(id[slot]) % blockLanes;
        const uint32_t *const word = carried + row * words + block * (blockLanes / 32);
        // A neuron of the low word has none before it in the high one.
        uint64_t bits = word[0];
        if (bit >> 32)
          bits |= static_cast<uint64_t>(word[1]) << 32;
        to[slot] =
            values[block][begin[block * rows + row] + static_cast<size_t>(__builtin_popcountll(bits & (bit - 1)))];
      }
      std::fill(to + used, to + slots, C(0));
    }
  };
  parallelFor((rows + rowsAtOnce - 1) / rowsAtOnce, threadsFor(4 * rows * slots, offered), run);
}

template <typename C> int forward(const Call<C> &a) {
  const Blocks blocks{size(a.c.neurons), size(a.c.inputs)};
  Uninitialised<uint32_t> carried(a.rows() * blocks.words());
  const ForwardArguments<C> arguments{a.spikes(blocks.inputs),
                                      blocks,
                                      a.in(a.c.weight),
                                      a.in(a.c.recurrent_weight),
                                      a.in(a.c.bias),
                                      {a.in(a.c.beta), size(a.c.beta_size)},
                                      {a.in(a.c.threshold), size(a.c.threshold_size)},
                                      a.c.has_second_threshold != 0,
                                      a.number(a.c.second_threshold),
                                      a.number(a.c.input_scale),
                                      a.c.fired,
                                      carried.data(),
                                      a.out(a.c.mem),
                                      a.c.own_slots < 0 ? blocks.neurons : size(a.c.own_slots),
                                      size(a.c.delay),
                                      a.c.rotate != 0,
                                      a.reset(),
                                      a.threads()};
  KeptMembranes<C> kept(blocks, a.rows());
  const int status = integrate(arguments, kept);
  if (status != Done)
    return status;
  if (a.c.own_slots < 0)
    a.c.own_slots = static_cast<int64_t>(mostBits(carried.data(), a.rows(), blocks.words()));
  if (a.c.room(&a.c) != 0)
    return NoRoom;
  selectAll(a, carried.data());
  slotMembranes(kept, a.c.ids_out, a.c.counts_out, carried.data(), a.out(a.c.slot_mem), size(a.c.own_slots),
                a.threads());
  return Done;
}

template <typename C> struct BackwardArguments {
  const C *grad;
  Spikes<C> spikes;
  Blocks blocks;
  const C *packed, *recurrent;
  PerNeuron<C> beta, threshold;
  Spikes<C> own; // values are 1
  const C *slotMem;
  const uint32_t *fired;
  const C *mem;
  C *gradValues, *gradWeight, *gradBias, *gradRecurrent, *gradBeta, *gradThreshold, *gradCurrent;
  C inputScale;
  size_t delay;
  int32_t reset, surrogate;
  C surrogateA, surrogateB;
  int32_t offered;
};

// The layer's slots by block: of each step, those of the first block, then of the next one; and the bits of the neurons
// that fired, block after block.
template <typename C> struct SlotsByBlock {
  Uninitialised<uint32_t> begin;  // [steps][blocks + 1]: first slot of a block
  Uninitialised<uint32_t> at;     // sample * lanes + lane of its neuron
  Uninitialised<uint32_t> source; // where it stands in the step
  Uninitialised<C> through;
  Uninitialised<uint64_t> fired; // [blocks][rows]

  void build(const Spikes<C> &own, const uint32_t *firedWords, const Blocks &blocks, unsigned threads) {
    const size_t rows = own.rows(), words = blocks.words(), ends = blocks.count() + 1;
    begin = Uninitialised<uint32_t>(own.steps * ends);
    uint32_t total = 0;
    for (size_t t = 0; t < own.steps; ++t) {
      begin[t * ends] = total;
      for (size_t sample = 0; sample < own.batch; ++sample)
        total += static_cast<uint32_t>(own.counts[2 * (t * own.batch + sample) + 1]);
    }
    at = Uninitialised<uint32_t>(total);
    source = Uninitialised<uint32_t>(total);
    through = Uninitialised<C>(total);
    fired = Uninitialised<uint64_t>(rows * blocks.count());
    parallelFor(own.steps, threads, [&](size_t t) {
      sort(own, blocks, t, &begin[t * ends]);
      const size_t first = t * own.batch;
      for (size_t block = 0; block < blocks.count(); ++block)
        for (size_t row = first; row < first + own.batch; ++row)
          fired[block * rows + row] =
              readWords(firedWords + row * words + block * (blockLanes / 32), blocks.held(block));
    });
  }

  // Slots of one step by block: where each block begins is counted, and moves on to its end while it is filled.
  void sort(const Spikes<C> &own, const Blocks &blocks, size_t t, uint32_t *next) {
    const size_t count = blocks.count(), slots = own.slots, batch = own.batch;
    const int32_t *const ids = own.ids + t * batch * slots, *const counts = own.counts + 2 * t * batch;
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

  // Takes over what stands behind the spikes of one step.
  void take(size_t t, const C *step, size_t blocks) {
    for (uint32_t slot = begin[t * (blocks + 1)]; slot < begin[t * (blocks + 1) + blocks]; ++slot)
      through[slot] = step[source[slot]];
  }
};

// Sums over time and samples of one block: in the compute type within a step, in double over the steps.
template <typename C> struct ParameterSums {
  alignas(64) C step[3][blockLanes] = {}; // bias, beta, threshold
  double total[3][blockLanes] = {};

  void endStep() {
    for (int i = 0; i < 3; ++i)
      for (size_t lane = 0; lane < blockLanes; ++lane) {
        total[i][lane] += static_cast<double>(step[i][lane]);
        step[i][lane] = C(0);
      }
  }
};

template <typename C> class Backward {
public:
  explicit Backward(const BackwardArguments<C> &arguments)
      : a_(arguments), batch_(a_.spikes.batch), order_(workerOrder()),
        chunks_(timeChunks(a_.spikes.steps, batch_, blockLanes * sizeof(C))), checked_(a_.spikes, 1, false),
        threads_(threadsFor((checked_.total(0) + 4 * a_.spikes.rows()) * a_.blocks.neurons, a_.offered)),
        through_(a_.own.rows() * a_.own.slots), sums_(a_.blocks.count()),
        toInput_(a_.spikes, checked_, a_.delay, a_.blocks, a_.packed, a_.inputScale, a_.gradWeight, a_.gradValues,
                 chunks_) {}

  int run() {
    if (!checked_.fill(a_.offered) || !CheckedSpikes<C>(a_.own, 1, false).fill(a_.offered))
      return BadSpikes;
    if (!knownSurrogate(a_.surrogate) || !knownReset(a_.reset))
      return Unknown;
    slots_.build(a_.own, a_.fired, a_.blocks, threads_);
    int status = toInput_.prepare(threads_);
    if (status == Done)
      status = a_.recurrent ? recurrent() : feedForward();
    if (status == Done)
      toInput_.finish(threads_);
    finishParameters();
    return status;
  }

private:
  int feedForward() {
    behindSpikes(a_.grad, 0, a_.spikes.steps);
    return parallelTry(toInput_.groups(), threads_, [&](size_t group) {
      static thread_local ThreadBuffer<C> carryBuffer, gradBuffer, sumsBuffer;
      C *const sums = sumsBuffer.reserve(toInput_.sumsSize());
      for (size_t block = toInput_.groupBegin(group); block < toInput_.groupBegin(group + 1); ++block) {
        const size_t lanes = a_.blocks.lanes(block);
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

  // The gradient of a step's spikes comes from all neurons in the step after: blocks go through time together.
  int recurrent() {
    const size_t steps = a_.spikes.steps, blocks = a_.blocks.count();
    std::vector<std::vector<C>> grads(blocks), carries(blocks);
    for (size_t block = 0; block < blocks; ++block) {
      grads[block].resize(a_.spikes.rows() * a_.blocks.lanes(block));
      carries[block].assign(batch_ * a_.blocks.lanes(block), C(0));
    }
    std::vector<C> upstream(batch_ * a_.own.slots);
    for (size_t t = steps; t-- > 0;) {
      const size_t slot = t * batch_ * a_.own.slots;
      std::copy_n(a_.grad + slot, upstream.size(), upstream.data());
      if (t + 1 < steps)
        addRecurrent(t, grads, upstream.data());
      behindSpikes(upstream.data() - slot, t, t + 1);
      parallelFor(blocks, threads_, [&](size_t block) {
        step(block, t, carries[block].data(), grads[block].data() + t * batch_ * a_.blocks.lanes(block));
      });
    }
    const CheckedSpikes<C> own(a_.own, 0, false);
    InputGradient<C> toOwn(a_.own, own, 1, {a_.blocks.neurons, a_.blocks.neurons}, nullptr, a_.inputScale,
                           a_.gradRecurrent, nullptr, chunks_);
    int status = toOwn.prepare(threads_);
    for (InputGradient<C> *to : {&toInput_, &toOwn})
      if (status == Done)
        status = parallelTry(to->groups(), threads_, [&](size_t group) {
          static thread_local ThreadBuffer<C> sumsBuffer;
          C *const sums = sumsBuffer.reserve(to->sumsSize());
          for (size_t block = to->groupBegin(group); block < to->groupBegin(group + 1); ++block) {
            for (size_t chunk = chunks_.size(); chunk-- > 0;)
              to->add(group, block, chunk, grads[block].data() + chunks_[chunk].begin * batch_ * a_.blocks.lanes(block),
                      sums);
            to->endBlock(block, sums);
          }
        });
    return status;
  }

  // upstream += inputScale * recurrent weights . gradient of step t + 1, at the slots of step t.
  void addRecurrent(size_t t, const std::vector<std::vector<C>> &grads, C *upstream) const {
    const size_t first = t * batch_, next = (t + 1) * batch_, slots = a_.own.slots;
    parallelFor(batch_, threads_, [&](size_t sample) {
      for (size_t slot = 0; slot < static_cast<size_t>(a_.own.counts[2 * (first + sample) + 1]); ++slot) {
        const size_t id = static_cast<size_t>(a_.own.ids[(first + sample) * slots + slot]);
        C total = 0;
        for (size_t block = 0; block < a_.blocks.count(); ++block) {
          const unsigned lanes = a_.blocks.lanes(block);
          const C *const weight = a_.recurrent + block * blockLanes * a_.blocks.neurons + id * lanes;
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

  // through of the steps [begin, end); grad points at step 0's slots.
  void behindSpikes(const C *grad, size_t begin, size_t end) {
    const size_t row = begin * batch_, slot = row * a_.own.slots;
    const SpikeGradient<C> arguments{grad + slot,
                                     a_.slotMem + slot,
                                     a_.threshold.values,
                                     a_.own.ids + slot,
                                     a_.own.counts + 2 * row,
                                     through_.data() + slot,
                                     a_.own.slots,
                                     a_.threshold.size > 1,
                                     a_.surrogate,
                                     a_.surrogateA,
                                     a_.surrogateB};
    spikeGradient(arguments, (end - begin) * batch_, threads_);
    parallelFor(end - begin, threads_, [&](size_t step) {
      slots_.take(begin + step, through_.data() + (begin + step) * batch_ * a_.own.slots, a_.blocks.count());
    });
  }

  void step(size_t block, size_t t, C *carry, C *grad) {
    forReset(a_.reset, [&](auto reset) {
      SparseLifBackward<C, decltype(reset)::value> vertex;
      runStep(vertex, block, t, carry, grad);
    });
    const size_t row = t * batch_, lanes = a_.blocks.lanes(block);
    if (a_.gradBias || a_.gradBeta || a_.gradThreshold)
      sums_[block].endStep();
    if (a_.gradCurrent)
      for (size_t sample = 0; sample < batch_; ++sample)
        std::copy_n(grad + sample * lanes, a_.blocks.held(block),
                    a_.gradCurrent + (row + sample) * a_.blocks.neurons + a_.blocks.first(block));
  }

  template <typename Vertex> void runStep(Vertex &vertex, size_t block, size_t t, C *carry, C *grad) {
    const size_t row = t * batch_;
    alignas(64) C beta[blockLanes], threshold[blockLanes];
    a_.beta.copyTo(beta, a_.blocks, block, C(0));
    std::transform(beta, beta + a_.blocks.lanes(block), beta, clamped<C>);
    a_.threshold.copyTo(threshold, a_.blocks, block, C(0));
    ParameterSums<C> &sums = sums_[block];
    vertex.beta.connect(beta);
    vertex.threshold.connect(threshold);
    const uint32_t *const begin = &slots_.begin[t * (a_.blocks.count() + 1) + block];
    vertex.at.connect(slots_.at.data() + begin[0]);
    vertex.through.connect(slots_.through.data() + begin[0]);
    vertex.slots = begin[1] - begin[0];
    vertex.firstStep = t == 0;
    vertex.betaGradient = a_.gradBeta != nullptr;
    vertex.thresholdGradient = a_.gradThreshold != nullptr;
    if (t > 0) {
      vertex.fired.connect(&slots_.fired[block * a_.spikes.rows() + row - batch_]);
      vertex.memBefore.connect(a_.mem ? a_.mem + (row - batch_) * a_.blocks.neurons + a_.blocks.first(block) : nullptr);
    }
    vertex.carry.connect(carry);
    vertex.grad.connect(grad);
    vertex.gradBias.connect(sums.step[0]);
    vertex.gradBeta.connect(sums.step[1]);
    vertex.gradThreshold.connect(sums.step[2]);
    vertex.rows = static_cast<unsigned>(batch_);
    vertex.lanes = a_.blocks.lanes(block);
    vertex.neurons = a_.blocks.held(block);
    vertex.memStride = static_cast<unsigned>(a_.blocks.neurons);
    runVertex(vertex, order_);
  }

  void finishParameters() const {
    const auto finish = [&](int which, C *result, size_t size) {
      if (!result)
        return;
      double everyone = 0;
      for (size_t block = 0; block < a_.blocks.count(); ++block)
        for (size_t lane = 0; lane < a_.blocks.held(block); ++lane) {
          const double total = sums_[block].total[which][lane];
          everyone += total;
          if (size > 1)
            result[a_.blocks.first(block) + lane] = static_cast<C>(total);
        }
      if (size == 1)
        result[0] = static_cast<C>(everyone);
    };
    finish(0, a_.gradBias, a_.blocks.neurons);
    finish(1, a_.gradBeta, a_.beta.size);
    // Outside [0, 1] beta makes no difference.
    for (size_t i = 0; a_.gradBeta && i < a_.beta.size; ++i)
      if (clamped(a_.beta.values[i]) != a_.beta.values[i])
        a_.gradBeta[i] = C(0);
    finish(2, a_.gradThreshold, a_.threshold.size);
  }

  const BackwardArguments<C> &a_;
  size_t batch_;
  WorkerOrder order_;
  std::vector<Chunk> chunks_;
  CheckedSpikes<C> checked_;
  unsigned threads_;
  Uninitialised<C> through_; // [rows][slots of the layer]
  SlotsByBlock<C> slots_;
  std::vector<ParameterSums<C>> sums_;
  InputGradient<C> toInput_;
};

template <typename C> int backward(const Call<C> &a) {
  const Blocks blocks{size(a.c.neurons), size(a.c.inputs)};
  const BackwardArguments<C> arguments{a.in(a.c.grad),
                                       a.spikes(blocks.inputs),
                                       blocks,
                                       a.in(a.c.weight),
                                       a.in(a.c.recurrent_weight),
                                       {a.in(a.c.beta), size(a.c.beta_size)},
                                       {a.in(a.c.threshold), size(a.c.threshold_size)},
                                       a.own(blocks.neurons),
                                       a.in(a.c.slot_mem),
                                       a.c.fired,
                                       a.in(a.c.mem),
                                       a.out(a.c.grad_values),
                                       a.out(a.c.grad_weight),
                                       a.out(a.c.grad_bias),
                                       a.out(a.c.grad_recurrent),
                                       a.out(a.c.grad_beta),
                                       a.out(a.c.grad_threshold),
                                       a.out(a.c.grad_current),
                                       a.number(a.c.input_scale),
                                       size(a.c.delay),
                                       a.reset(),
                                       static_cast<int32_t>(a.c.surrogate),
                                       a.number(a.c.surrogate_a),
                                       a.number(a.c.surrogate_b),
                                       a.threads()};
  return Backward<C>(arguments).run();
}

} // namespace
} // namespace snnipu

extern "C" {

int snnipu_sparse_lif_sequence_fwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) { return snnipu::forward(a); });
}

int snnipu_sparse_lif_sequence_bwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) { return snnipu::backward(a); });
}
}
