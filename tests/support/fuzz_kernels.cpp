// Calls of the C interface with arguments drawn by libFuzzer: `make fuzz`. Every array has exactly the size that
// csrc/host/neuron.h and csrc/host/sparse.h name, so that the address sanitizer reports an access beyond it. Its values
// are NaN, infinities, denormal and ordinary numbers. Sizes, options and ids pass Python's checks
// (snnipu/backends/host_sparse.py, neurons.py). Exceptions are the errors that the functions report: an unknown neuron,
// dtype or surrogate (1), an allocation that fails (2), a count or id out of range (3), a caller without room (4).
//
// SNNIPU_FUZZ_FAMILY names the family of calls, by default all; `names` prints the families. SNNIPU_FUZZ_ALONE makes a
// program for any compiler without libFuzzer: it runs a number of cases of each family from a seed.
#include "host/recurrent.h"
#include "host/snnipu.h"
#include "host/sparse.h"
#include "host/spiking_lstm.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

// Number of the allocation that fails, over all threads; 0: none fails.
std::atomic<int64_t> allowed{0};

void *allocated(size_t bytes, size_t alignment = alignof(std::max_align_t)) {
  if (allowed > 0 && --allowed == 0)
    return nullptr;
  return alignment > alignof(std::max_align_t)
             ? std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment)
             : std::malloc(bytes ? bytes : 1);
}

void *allocatedOrThrown(size_t bytes) {
  if (void *const made = allocated(bytes))
    return made;
  throw std::bad_alloc();
}

} // namespace

// The library's allocations use these, too.
void *operator new(size_t bytes) { return allocatedOrThrown(bytes); }
void *operator new[](size_t bytes) { return allocatedOrThrown(bytes); }
void *operator new(size_t bytes, const std::nothrow_t &) noexcept { return allocated(bytes); }
void *operator new[](size_t bytes, const std::nothrow_t &) noexcept { return allocated(bytes); }
void *operator new(size_t bytes, std::align_val_t at) {
  if (void *const made = allocated(bytes, static_cast<size_t>(at)))
    return made;
  throw std::bad_alloc();
}
void *operator new[](size_t bytes, std::align_val_t at) { return operator new(bytes, at); }
void operator delete(void *at, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void *at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void *at, size_t, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void *at, size_t, std::align_val_t) noexcept { std::free(at); }
void operator delete(void *at) noexcept { std::free(at); }
void operator delete[](void *at) noexcept { std::free(at); }
void operator delete(void *at, size_t) noexcept { std::free(at); }
void operator delete[](void *at, size_t) noexcept { std::free(at); }

namespace {

[[noreturn]] void fail(const char *what, int64_t number) {
  std::fprintf(stderr, "fuzz_kernels: %s: %lld\n", what, static_cast<long long>(number));
  std::abort();
}

constexpr char untouched = static_cast<char>(0xa5);

class Draw {
public:
  Draw(const uint8_t *bytes, size_t count)
      : next_(bytes), end_(bytes + count), random_(static_cast<uint32_t>(size(1, 0x7ffffffe))) {}

  // Draw from as few bytes as the range needs; return `least` when all bytes are used.
  int64_t size(int64_t least, int64_t most) {
    uint64_t found = 0;
    for (auto left = static_cast<uint64_t>(most - least); left != 0 && next_ != end_; left >>= 8)
      found = found << 8 | *next_++;
    return least + static_cast<int64_t>(found % (static_cast<uint64_t>(most - least) + 1));
  }
  bool coin() { return size(0, 1) != 0; }
  bool rarely() { return size(0, 15) == 15; }

  // Return a call's status. Sometimes an allocation fails first (status 2), and the call is repeated.
  template <typename Argument, typename Call> int status(int (*function)(Argument *), Call &call) {
    int before = -1;
    bool hasFailed = false;
    if (rarely()) {
      auto once = call;
      allowed = size(1, 30);
      before = function(&once);
      hasFailed = allowed == 0;
      allowed = 0;
    }
    const int found = function(&call);
    if (before >= 0 && before != found && !(hasFailed && before == 2))
      fail("status where an allocation failed", before);
    return found;
  }
  // Draw the dtype of the call's arrays: float32 or float64, rarely one that a function refuses.
  int64_t dtype(bool mayBeRefused = true) { return dtype_ = mayBeRefused && rarely() ? size(2, 5) : size(0, 1); }
  // Draw a surrogate; return True if the library has it.
  template <typename Call> bool surrogate(Call &call, int64_t least = 0) {
    call.surrogate = size(least, rarely() ? 9 : 5);
    call.surrogate_a = static_cast<double>(size(-2, 9));
    call.surrogate_b = 0.5;
    return call.surrogate >= 0 && call.surrogate < snnipu_num_surrogates();
  }
  int64_t bytes(int64_t dtype) const { return dtype == SNNIPU_F64 ? 8 : dtype == SNNIPU_F32 ? 4 : 2; }

  char *raw(int64_t count) {
    kept_.emplace_back(new char[static_cast<size_t>(count)]);
    return kept_.back().get();
  }
  // Return random numbers.
  void *numbers(int64_t count) { return numbers(count, dtype_); }
  void *numbers(int64_t count, int64_t dtype) {
    const int kind = static_cast<int>(size(0, 3));
    char *const made = raw(count * bytes(dtype));
    for (int64_t i = 0; i < count; ++i) {
      const double value = kind == 0 ? 0 : kind == 1 ? static_cast<double>(random_() % 2) : number(kind == 3);
      if (dtype == SNNIPU_F64) {
        std::memcpy(made + 8 * i, &value, 8);
      } else if (dtype == SNNIPU_F32) {
        const float single = static_cast<float>(value);
        std::memcpy(made + 4 * i, &single, 4);
      } else {
        const auto half = static_cast<uint16_t>(kind == 0 ? 0 : random_());
        std::memcpy(made + 2 * i, &half, 2);
      }
    }
    return made;
  }
  void *maybe(int64_t count) { return maybe(count, dtype_); }
  void *maybe(int64_t count, int64_t dtype) { return coin() ? numbers(count, dtype) : nullptr; }
  // Return an output buffer of the call's dtype, of another dtype, or of integers.
  void *room(int64_t count) { return room(count, dtype_); }
  void *room(int64_t count, int64_t dtype) { return room<char>(count * bytes(dtype)); }
  template <typename T> T *room(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    char *const made = raw(bytes);
    std::memset(made, untouched, static_cast<size_t>(bytes));
    written_.emplace_back(made, bytes);
    return reinterpret_cast<T *>(made);
  }
  void *maybeRoom(int64_t count) { return maybeRoom(count, dtype_); }
  void *maybeRoom(int64_t count, int64_t dtype) { return coin() ? room(count, dtype) : nullptr; }
  void checkUntouched() const {
    for (const auto &[at, bytes] : written_)
      if (std::count(at, at + bytes, untouched) != bytes)
        fail("a refused call has written", bytes);
  }
  void forgetRoom() { written_.clear(); }

  // Draw the spikes of all rows; if `broken`, one count or id is out of range. The ids of the spikes of a row, and
  // those of its other slots, may have to ascend.
  void spikes(snnipu_sparse_call &call, int64_t neurons, bool *broken, bool ascending = false) {
    const int64_t rows = call.steps * call.batch, slots = call.slots;
    auto *const ids = reinterpret_cast<int32_t *>(raw(4 * rows * slots));
    auto *const counts = reinterpret_cast<int32_t *>(raw(8 * rows));
    std::vector<int32_t> every(static_cast<size_t>(neurons));
    std::iota(every.begin(), every.end(), 0);
    for (int64_t row = 0; row < rows; ++row) {
      std::shuffle(every.begin(), every.end(), random_);
      const auto most = static_cast<uint32_t>(std::min(slots, neurons));
      const auto carried = static_cast<int32_t>(random_() % (most + 1));
      counts[2 * row + 1] = carried;
      counts[2 * row] = static_cast<int32_t>(random_() % static_cast<uint32_t>(carried + 1));
      for (int64_t slot = 0; slot < slots; ++slot)
        ids[row * slots + slot] = slot < carried ? every[static_cast<size_t>(slot)] : static_cast<int32_t>(random_());
      if (ascending) {
        int32_t *const first = ids + row * slots;
        std::sort(first, first + counts[2 * row]);
        std::sort(first + counts[2 * row], first + carried);
      }
    }
    *broken = rows > 0 && rarely();
    if (*broken) {
      const int64_t row = size(0, rows - 1);
      int32_t *const of = counts + 2 * row;
      if (of[1] > 0 && coin())
        ids[row * slots + size(0, of[1] - 1)] = coin() ? static_cast<int32_t>(neurons) : -1;
      else if (coin())
        of[1] = static_cast<int32_t>(slots) + 1;
      else if (coin())
        of[0] = of[1] + 1;
      else
        of[0] = coin() ? -1 : std::numeric_limits<int32_t>::min();
    }
    call.ids = ids;
    call.counts = counts;
    call.values = numbers(rows * slots);
  }

private:
  double number(bool special) {
    static constexpr double rare[] = {std::numeric_limits<double>::quiet_NaN(),
                                      std::numeric_limits<double>::infinity(),
                                      -std::numeric_limits<double>::infinity(),
                                      1e-310,
                                      -1e-40,
                                      -0.0,
                                      3e38,
                                      1.0};
    return special && random_() % 4 == 0 ? rare[random_() % 8] : random_() / 1073741824.0 - 2;
  }

  const uint8_t *next_, *const end_;
  int64_t dtype_ = SNNIPU_F32;
  std::minstd_rand random_;
  std::vector<std::unique_ptr<char[]>> kept_;
  std::vector<std::pair<const char *, int64_t>> written_;
};

using Function = int (*)(snnipu_sparse_call *);

// Return True if the function checks ids row by row, while it writes.
bool looksRowByRow(Function function) {
  return function == snnipu_sparse_conv2d_fwd || function == snnipu_sparse_conv2d_bwd ||
         function == snnipu_sparse_conv_lif_sequence_fwd;
}

// Run a call and check its status: `broken` spikes are refused, and the outputs do not change.
bool run(Draw &draw, Function function, snnipu_sparse_call &call, bool broken, bool known = true) {
  const int status = draw.status(function, call);
  if (status == 3 && !broken)
    fail("spikes within their range are refused", status);
  if (status == 0 && broken && !looksRowByRow(function))
    fail("spikes out of their range are taken", status);
  known = known && call.dtype <= SNNIPU_F64;
  if ((status == 1) == known && !(status != 1 && broken))
    fail(known ? "what is known is refused" : "what is unknown is taken", status);
  if (status == 2 || status < 0 || status > 4)
    fail("status", status);
  if (status == 1 || (status == 3 && !looksRowByRow(function)))
    draw.checkUntouched();
  return status == 0;
}

snnipu_sparse_call sparseCall(Draw &draw, int64_t mostSteps = 6, int64_t mostBatch = 4) {
  snnipu_sparse_call call = {};
  call.dtype = draw.dtype();
  call.threads = draw.size(1, 3);
  call.steps = draw.rarely() ? 0 : draw.size(1, mostSteps);
  call.batch = draw.rarely() ? 0 : draw.size(1, mostBatch);
  return call;
}

// ---- connections

void setMatrix(Draw &draw, snnipu_sparse_call &call) {
  call.inputs = draw.size(1, 90);
  call.neurons = draw.size(1, 150);
  call.slots = draw.size(0, std::min<int64_t>(call.inputs + 2, 70));
}

void *packed(Draw &draw, const snnipu_sparse_call &like, int64_t neurons, int64_t inputs) {
  snnipu_sparse_call call = {};
  call.dtype = like.dtype;
  call.threads = like.threads;
  call.neurons = neurons;
  call.inputs = inputs;
  call.weight = draw.numbers(neurons * inputs);
  call.out = draw.room(snnipu_packed_size(neurons, inputs));
  run(draw, snnipu_pack_weight, call, false);
  draw.forgetRoom();
  return call.out;
}

struct Maps {
  int64_t sizes[15];
  int64_t weights() const { return sizes[3] * sizes[0] / sizes[14] * sizes[6] * sizes[7]; }
};

void setMaps(Draw &draw, snnipu_sparse_call &call, Maps &maps) {
  auto &s = maps.sizes;
  s[14] = draw.size(1, 3);
  s[0] = s[14] * draw.size(1, 3);
  s[3] = s[14] * draw.size(1, draw.coin() ? 3 : 20);
  for (int axis = 0; axis < 2; ++axis) {
    s[6 + axis] = draw.size(1, 4);
    s[8 + axis] = draw.size(1, 3);
    s[10 + axis] = draw.size(0, 3);
    s[12 + axis] = draw.size(1, 2);
    const int64_t reach = s[12 + axis] * (s[6 + axis] - 1) + 1, least = std::max<int64_t>(1, reach - 2 * s[10 + axis]);
    s[1 + axis] = draw.size(least, least + 9);
    s[4 + axis] = (s[1 + axis] + 2 * s[10 + axis] - reach) / s[8 + axis] + 1;
  }
  call.geometry = s;
  call.inputs = s[0] * s[1] * s[2];
  call.neurons = s[3] * s[4] * s[5];
  call.slots = draw.size(0, std::min<int64_t>(call.inputs + 2, 60));
}

struct Connected {
  snnipu_sparse_call call;
  Maps maps;
  bool isMaps, broken;
  int64_t parameters; // per neuron or channel
};

// Draw spikes and their weights.
void connect(Draw &draw, Connected &c, bool isMaps) {
  c.call = sparseCall(draw);
  c.isMaps = isMaps;
  if (isMaps)
    setMaps(draw, c.call, c.maps);
  else
    setMatrix(draw, c.call);
  c.parameters = isMaps ? c.maps.sizes[3] : c.call.neurons;
  c.call.weight = isMaps ? draw.numbers(c.maps.weights()) : packed(draw, c.call, c.call.neurons, c.call.inputs);
  draw.spikes(c.call, c.call.inputs, &c.broken);
}

void setGradients(Draw &draw, Connected &c) {
  auto &call = c.call;
  call.grad_values = draw.maybeRoom(call.steps * call.batch * call.slots);
  call.grad_weight = draw.maybeRoom(c.isMaps ? c.maps.weights() : call.inputs * call.neurons);
  call.grad_bias = draw.maybeRoom(c.parameters);
  if (!call.grad_values && draw.coin())
    call.weight = nullptr;
}

void currents(Draw &draw, bool isMaps) {
  Connected c;
  connect(draw, c, isMaps);
  const int64_t results = c.call.steps * c.call.batch * c.call.neurons;
  if (draw.coin()) {
    c.call.bias = draw.maybe(c.parameters);
    c.call.out = draw.room(results);
    run(draw, isMaps ? snnipu_sparse_conv2d_fwd : snnipu_sparse_linear_fwd, c.call, c.broken);
  } else {
    c.call.grad = draw.numbers(results);
    setGradients(draw, c);
    run(draw, isMaps ? snnipu_sparse_conv2d_bwd : snnipu_sparse_linear_bwd, c.call, c.broken);
  }
}

void delays(Draw &draw) {
  auto call = sparseCall(draw, 12);
  setMatrix(draw, call);
  const int64_t taps = draw.size(1, 3), span = taps + draw.size(0, 20), geometry[] = {span, taps};
  call.geometry = geometry;
  auto *const lags = reinterpret_cast<int32_t *>(draw.raw(4 * call.inputs * call.neurons));
  for (int64_t i = 0; i < call.inputs * call.neurons; ++i)
    lags[i] = static_cast<int32_t>((i * 2654435761u) % static_cast<uint32_t>(span - taps + 1));
  call.lags = lags;
  const int64_t weights = call.inputs * call.neurons * taps;
  const int64_t results = call.steps * call.batch * call.neurons;
  call.weight = draw.numbers(weights);
  bool broken = false;
  switch (draw.size(0, 2)) {
  case 0:
    draw.spikes(call, call.inputs, &broken);
    call.bias = draw.maybe(call.neurons);
    call.out = draw.room(results);
    run(draw, snnipu_delay_linear_fwd, call, broken);
    break;
  case 1:
    draw.spikes(call, call.inputs, &broken);
    call.grad = draw.numbers(results);
    call.grad_weight = draw.room(weights);
    run(draw, snnipu_delay_linear_bwd, call, broken);
    break;
  default:
    call.grad = draw.numbers(results);
    call.grad_x = draw.room(call.steps * call.batch * call.inputs);
    run(draw, snnipu_delay_linear_input_bwd, call, false);
  }
}

// ---- layers

thread_local std::function<void(snnipu_sparse_call *)> makeRoom;

// Make the outputs of all slots of a call.
void makeSlots(Draw &draw, snnipu_sparse_call &call) {
  const int64_t rows = call.steps * call.batch, slots = rows * call.output_slots;
  call.ids_out = draw.room<int32_t>(slots);
  call.values_out = draw.room(slots);
  call.counts_out = draw.room<int32_t>(2 * rows);
  call.dropped = draw.room<int32_t>(2 * rows);
}

// Let a call ask for room for at most `most` slots, and sometimes refuse it.
void offerRoom(Draw &draw, snnipu_sparse_call &call, int64_t most) {
  const bool hasRoom = !draw.rarely();
  makeRoom = [&draw, most, hasRoom](snnipu_sparse_call *of) {
    const int64_t left = allowed.exchange(0); // the test's own allocations must not fail
    if (of->output_slots < 0 || of->output_slots > most)
      fail("slots", of->output_slots);
    makeSlots(draw, *of);
    const int64_t rows = of->steps * of->batch;
    of->slot_mem = draw.room(rows * of->output_slots);
    if (of->window) {
      of->source = draw.room<int32_t>(rows * of->output_slots);
      of->neuron_counts = draw.room<int32_t>(2 * rows);
    }
    allowed = left;
    of->most = hasRoom;
  };
  call.room = [](snnipu_sparse_call *of) { makeRoom(of); };
}

void layer(Draw &draw, bool isMaps) {
  Connected c;
  connect(draw, c, isMaps);
  auto &call = c.call;
  const int64_t rows = call.steps * call.batch, neurons = call.neurons;
  const auto forwards = isMaps ? snnipu_sparse_conv_lif_sequence_fwd : snnipu_sparse_lif_sequence_fwd;
  const auto backwards = isMaps ? snnipu_sparse_conv_lif_sequence_bwd : snnipu_sparse_lif_sequence_bwd;
  void *const weight = const_cast<void *>(call.weight);
  int64_t window[2] = {};
  if (isMaps && draw.coin()) {
    window[0] = draw.size(1, std::min<int64_t>(c.maps.sizes[4], 16));
    window[1] = draw.size(1, std::min<int64_t>(c.maps.sizes[5], 16));
    call.window = window;
  }
  if (!isMaps && draw.coin())
    call.recurrent_weight = packed(draw, call, neurons, neurons);
  call.bias = draw.maybe(c.parameters);
  call.beta_size = draw.coin() ? 1 : c.parameters;
  call.threshold_size = draw.coin() ? 1 : c.parameters;
  call.beta = draw.numbers(call.beta_size);
  call.threshold = draw.numbers(call.threshold_size);
  call.has_second_threshold = draw.coin();
  call.second_threshold = static_cast<double>(draw.size(-4, 4)) / 2;
  call.input_scale = draw.coin() ? 1 : -0.5;
  call.reset = draw.size(0, 2);
  call.delay = draw.size(0, std::min<int64_t>(call.steps, 2));
  call.rotate = draw.coin();
  call.output_slots = call.window || draw.coin() ? -1 : draw.size(0, neurons);
  call.fired = draw.room<uint32_t>(rows * ((neurons + 31) / 32));
  const bool keepsMembranes = draw.coin();
  offerRoom(draw, call, neurons);
  call.mem = keepsMembranes ? draw.room(rows * neurons) : nullptr;
  if (!run(draw, forwards, call, c.broken) || !draw.coin())
    return;
  draw.forgetRoom();
  call.bias = nullptr;
  call.room = nullptr;
  call.weight = weight;
  call.neuron_threshold = call.threshold;
  if (isMaps && call.threshold_size > 1)
    call.neuron_threshold = draw.numbers(neurons);
  if (call.window)
    call.ids_out = call.source;
  call.grad = draw.numbers(rows * call.output_slots);
  const bool known = draw.surrogate(call);
  setGradients(draw, c);
  call.grad_recurrent = call.recurrent_weight ? draw.maybeRoom(neurons * neurons) : nullptr;
  call.grad_beta = keepsMembranes ? draw.maybeRoom(call.beta_size) : nullptr;
  call.grad_threshold = draw.maybeRoom(call.threshold_size);
  call.grad_current = draw.maybeRoom(rows * neurons);
  run(draw, backwards, call, false, known);
}

// ---- spikes and pools

void select(Draw &draw) {
  auto call = sparseCall(draw);
  call.neurons = draw.size(1, 300);
  const int64_t rows = call.steps * call.batch, words = (call.neurons + 31) / 32;
  call.threshold_size = draw.coin() ? 1 : call.neurons;
  call.threshold = draw.numbers(call.threshold_size);
  call.has_second_threshold = draw.coin();
  call.second_threshold = static_cast<double>(draw.size(-4, 4)) / 2;
  call.x = draw.numbers(rows * call.neurons);
  call.fired = draw.room<uint32_t>(rows * words);
  call.carried = draw.room<uint32_t>(rows * words);
  run(draw, snnipu_above, call, false);
  if (call.most < 0 || call.most > call.neurons)
    fail("neurons above a threshold", call.most);
  call.output_slots = draw.coin() ? call.most : draw.size(0, call.neurons + 3);
  call.rotate = draw.coin();
  makeSlots(draw, call);
  run(draw, snnipu_select_spikes_fwd, call, false);
  draw.forgetRoom();
  call.grad = draw.numbers(rows * call.output_slots);
  call.slot_mem = draw.numbers(rows * call.output_slots);
  const bool known = draw.surrogate(call);
  call.grad_values = draw.room(rows * call.output_slots);
  run(draw, snnipu_select_spikes_bwd, call, false, known);
}

void eventprop(Draw &draw) {
  auto call = sparseCall(draw);
  call.neurons = draw.size(1, 200);
  call.slots = draw.size(0, call.neurons + 2);
  const int64_t rows = call.steps * call.batch;
  bool broken = false;
  draw.spikes(call, call.neurons, &broken, true);
  call.output_slots = call.slots;
  call.ids_out = const_cast<int32_t *>(call.ids);
  call.counts_out = const_cast<int32_t *>(call.counts);
  for (const void **const slots : {&call.grad, &call.early, &call.late})
    *slots = draw.numbers(rows * call.slots);
  for (const void **const each : {&call.alpha, &call.beta, &call.threshold})
    *each = draw.numbers(call.neurons);
  call.mem = draw.maybe(rows * call.neurons);
  call.recurrent_weight = draw.maybe(call.neurons * call.neurons);
  call.grad_current = draw.room(rows * call.neurons);
  call.out = draw.maybeRoom(rows * call.neurons);
  run(draw, snnipu_eventprop_bwd, call, broken);
}

void nonzero(Draw &draw) {
  auto call = sparseCall(draw);
  call.neurons = draw.rarely() ? draw.size(1, 20000) : draw.size(1, 300);
  offerRoom(draw, call, call.neurons + 3);
  call.x = draw.numbers(call.steps * call.batch * call.neurons);
  call.output_slots = draw.coin() ? -1 : draw.size(0, call.neurons + 3);
  call.rotate = draw.coin();
  run(draw, snnipu_dense_to_sparse_fwd, call, false);
}

void dense(Draw &draw) {
  if (draw.coin())
    return nonzero(draw);
  auto call = sparseCall(draw);
  call.neurons = draw.size(1, 200);
  call.slots = draw.size(0, call.neurons + 2);
  const int64_t rows = call.steps * call.batch;
  call.cells = draw.coin() ? rows : call.batch;
  bool broken = false;
  draw.spikes(call, call.neurons, &broken);
  if (draw.coin()) {
    call.out = draw.room(call.cells * call.neurons);
    run(draw, snnipu_sparse_to_dense_fwd, call, broken);
  } else {
    call.x = draw.numbers(call.cells * call.neurons);
    call.values_out = draw.room(rows * call.slots);
    run(draw, snnipu_sparse_to_dense_bwd, call, broken);
  }
}

void sparsePool(Draw &draw) {
  auto call = sparseCall(draw);
  int64_t s[11];
  s[0] = draw.size(1, 4);
  for (int axis = 0; axis < 2; ++axis) {
    s[5 + axis] = draw.size(1, 4);
    s[7 + axis] = draw.size(1, 4);
    s[9 + axis] = draw.size(0, s[5 + axis] / 2);
    const int64_t least = std::max<int64_t>(1, s[5 + axis] - 2 * s[9 + axis]);
    s[1 + axis] = draw.size(least, least + 11);
    s[3 + axis] = (s[1 + axis] + 2 * s[9 + axis] - s[5 + axis]) / s[7 + axis] + 1;
  }
  call.geometry = s;
  call.inputs = s[0] * s[1] * s[2];
  const int64_t neurons = s[0] * s[3] * s[4], rows = call.steps * call.batch;
  call.slots = draw.size(0, std::min<int64_t>(call.inputs + 2, 60));
  call.mode = draw.size(0, draw.rarely() ? 4 : 2);
  bool broken = false;
  draw.spikes(call, call.inputs, &broken);
  call.output_slots = draw.coin() ? neurons : draw.size(0, neurons);
  makeSlots(draw, call);
  call.source = call.mode == 0 ? draw.room<int32_t>(rows * call.output_slots) : nullptr;
  const int status = draw.status(snnipu_sparse_pool2d_fwd, call);
  if (call.dtype > SNNIPU_F64) {
    if (status != 1)
      fail("what is unknown is taken", status);
    return;
  }
  if (status == 3 && broken)
    draw.checkUntouched();
  else if (status != 0 && !(status == 1 && (call.output_slots < neurons || call.mode > 2)))
    fail("status of a pool", status);
  if (status != 0 || call.mode > 2)
    return;
  draw.forgetRoom();
  call.grad = draw.numbers(rows * call.output_slots);
  call.grad_values = draw.room(rows * call.slots);
  run(draw, snnipu_sparse_pool2d_bwd, call, false);
}

void densePool(Draw &draw) {
  snnipu_sparse_call call = {};
  call.dtype = draw.dtype(false);
  call.threads = draw.size(1, 3);
  const bool average = draw.coin();
  int64_t s[8];
  for (int axis = 0; axis < 2; ++axis) {
    s[2 + axis] = draw.size(1, draw.rarely() ? 17 : 4);
    s[4 + axis] = draw.size(1, 4);
    s[axis] = draw.size(s[2 + axis], s[2 + axis] + 13);
    s[6 + axis] = (s[axis] - s[2 + axis]) / s[4 + axis] + 1;
  }
  call.geometry = s;
  const int64_t places = s[2] * s[3];
  call.neurons = draw.size(1, 9);
  const int64_t in = call.neurons * s[0] * s[1], out = call.neurons * s[6] * s[7];
  call.x = draw.numbers(in);
  call.out = draw.room(out);
  call.which = draw.room<uint8_t>(out);
  const auto forward = average ? snnipu_avg_pool2d_fwd : snnipu_max_pool2d_fwd;
  const auto backward = average ? snnipu_avg_pool2d_bwd : snnipu_max_pool2d_bwd;
  const int status = draw.status(forward, call);
  if (status != (places > 256 ? 3 : 0))
    fail("status of a pool", status);
  if (status != 0)
    return;
  draw.forgetRoom();
  call.grad = draw.numbers(out);
  call.grad_x = draw.room(in);
  run(draw, backward, call, false);
}

// ---- neurons

// Return true if the library has this neuron and variant, by a step of one element.
bool hasNeuron(int64_t neuron, int64_t variant) {
  snnipu_neuron_call call = {};
  float one = 1, states[SNNIPU_MOST_STATES] = {};
  call.neuron = neuron;
  call.variant = variant;
  call.threads = call.steps = call.elements = 1;
  call.x = &one;
  call.spk = &states[0];
  std::fill_n(call.parameters, SNNIPU_MOST_PARAMETERS, &one);
  std::fill_n(call.parameter_sizes, SNNIPU_MOST_PARAMETERS, 1);
  return snnipu_neuron_forward(&call) == 0;
}

void neuron(Draw &draw) {
  snnipu_neuron_call call = {};
  call.neuron = draw.rarely() ? draw.size(-1, 40) : draw.size(0, 7);
  call.variant = draw.rarely() ? draw.size(-1, 40) : draw.size(0, 5);
  call.dtype = draw.size(0, draw.rarely() ? 5 : 3);
  call.threads = draw.size(1, 3);
  call.constant_input = draw.rarely();
  call.steps = draw.rarely() ? 0 : draw.size(1, draw.rarely() ? 400 : 9);
  call.elements = draw.rarely() ? 0 : draw.size(1, draw.rarely() ? 2000 : 70);
  const int64_t storage = std::min<int64_t>(call.dtype, 3), computed = storage == SNNIPU_F64 ? SNNIPU_F64 : SNNIPU_F32;
  const int64_t all = call.steps * call.elements, given = call.constant_input ? call.elements : all;
  const bool backward = draw.coin();
  call.x = backward && draw.coin() ? nullptr : draw.numbers(given, storage);
  for (int s = 0; s < SNNIPU_MOST_STATES; ++s)
    call.initial[s] = draw.maybe(call.elements, computed);
  for (int p = 0; p < SNNIPU_MOST_PARAMETERS; ++p) {
    int64_t size = draw.coin() || call.elements == 0 ? 1 : draw.size(1, call.elements);
    while (call.elements % size)
      --size;
    call.parameter_sizes[p] = size;
    call.parameters[p] = draw.numbers(size, computed);
  }
  bool hasSurrogate = true;
  int status;
  if (!backward) {
    call.spk = draw.room(all, storage);
    for (int s = 0; s < SNNIPU_MOST_STATES; ++s) {
      call.states[s] = draw.maybeRoom(all, storage);
      call.final[s] = draw.maybeRoom(call.elements, computed);
    }
    status = draw.status(snnipu_neuron_forward, call);
  } else {
    hasSurrogate = draw.surrogate(call, draw.rarely() ? -1 : 0);
    call.grad_constant = draw.coin() ? 0 : draw.size(0, 511);
    const auto seeds = [&](int bit) { return call.grad_constant >> bit & 1 ? call.elements : all; };
    call.grad_spk = draw.maybe(seeds(0), storage);
    for (int s = 0; s < SNNIPU_MOST_STATES; ++s) {
      call.states[s] = draw.coin() ? draw.numbers(all, storage) : nullptr;
      call.grad_states[s] = draw.maybe(seeds(1 + s), storage);
      call.grad_final[s] = draw.maybe(call.elements, computed);
      call.grad_initial[s] = draw.maybeRoom(call.elements, computed);
    }
    for (int p = 0; p < SNNIPU_MOST_PARAMETERS; ++p)
      call.grad_parameters[p] = draw.maybeRoom(call.parameter_sizes[p], computed);
    call.grad_x = draw.room(given, storage);
    status = draw.status(snnipu_neuron_backward, call);
  }
  const bool known = hasNeuron(call.neuron, call.variant) && call.dtype <= SNNIPU_BF16 && all > 0 && hasSurrogate;
  if (status != (known ? 0 : 1) && !(known && status == 1 && !call.x))
    fail("status of a neuron", status);
  if (status == 1)
    draw.checkUntouched();
}

template <typename C>
void multiply(const char *transA, const char *transB, const int *m, const int *n, const int *k, const void *alpha,
              const void *a, const int *lda, const void *b, const int *ldb, const void *beta, void *c, const int *ldc) {
  const auto at = [](const void *of, int ld, bool turned, int row, int column) {
    return static_cast<const C *>(of)[turned ? column + row * ld : row + column * ld];
  };
  for (int column = 0; column < *n; ++column)
    for (int row = 0; row < *m; ++row) {
      C sum = 0;
      for (int i = 0; i < *k; ++i)
        sum += at(a, *lda, *transA == 'T', row, i) * at(b, *ldb, *transB == 'T', i, column);
      C &out = static_cast<C *>(c)[row + column * *ldc];
      const C factor = *static_cast<const C *>(beta);
      out = *static_cast<const C *>(alpha) * sum + (factor == 0 ? 0 : factor * out);
    }
}

void recurrence(Draw &draw) {
  snnipu_neuron_call all = {};
  snnipu_recurrent_call call = {};
  call.all = &all;
  call.features = draw.size(1, 9);
  call.num_states = draw.size(1, 4);
  call.adds = draw.coin();
  call.transposed = draw.coin();
  all.neuron = draw.size(0, 7);
  all.variant = draw.size(0, draw.rarely() ? 40 : 5);
  all.dtype = draw.dtype();
  all.threads = draw.size(1, 3);
  all.constant_input = draw.rarely();
  all.steps = draw.size(1, 6);
  all.elements = call.features * draw.size(1, 5);
  call.gemm = all.dtype == SNNIPU_F64 ? multiply<double> : multiply<float>;
  const int64_t every = all.steps * all.elements;
  call.weight = draw.numbers(call.features * call.features);
  for (int p = 0; p < SNNIPU_MOST_PARAMETERS; ++p) {
    all.parameter_sizes[p] = draw.coin() ? 1 : call.features;
    all.parameters[p] = draw.numbers(all.parameter_sizes[p]);
  }
  const auto own = static_cast<int>(call.adds ? 0 : 1);
  for (int s = own; s < call.num_states; ++s)
    all.initial[s] = draw.maybe(all.elements);
  all.x = draw.numbers(all.constant_input ? all.elements : every);
  const bool backward = draw.coin();
  call.neuron = backward ? snnipu_neuron_backward : snnipu_neuron_forward;
  int status;
  if (!backward) {
    call.bias = draw.maybe(call.features);
    call.first = draw.maybe(all.elements);
    call.incoming = draw.maybeRoom(every);
    all.spk = draw.room(every);
    for (int s = own; s < call.num_states; ++s) {
      all.states[s] = draw.maybeRoom(every);
      all.final[s] = draw.maybeRoom(all.elements);
    }
    status = draw.status(snnipu_recurrent_forward, call);
  } else {
    all.surrogate = draw.size(0, 5);
    all.surrogate_a = static_cast<double>(draw.size(-2, 9));
    all.grad_constant = draw.coin() ? 0 : draw.size(0, 511);
    const auto seeds = [&](int bit) { return all.grad_constant >> bit & 1 ? all.elements : every; };
    all.spk = draw.numbers(every);
    call.incoming = draw.maybe(every);
    call.grad_last = draw.maybe(all.elements);
    call.grad_first = draw.maybeRoom(all.elements);
    all.grad_spk = draw.maybe(seeds(0));
    for (int s = 0; s < call.num_states; ++s)
      all.grad_states[s] = draw.maybe(seeds(1 + s));
    for (int s = own; s < call.num_states; ++s) {
      all.states[s] = draw.coin() ? draw.numbers(every) : nullptr;
      all.grad_final[s] = draw.maybe(all.elements);
      all.grad_initial[s] = draw.maybeRoom(all.elements);
    }
    for (int p = 0; p < SNNIPU_MOST_PARAMETERS; ++p) // the call adds to it
      all.grad_parameters[p] = draw.coin() ? draw.numbers(all.parameter_sizes[p]) : nullptr;
    all.grad_x = draw.room(every);
    status = draw.status(snnipu_recurrent_backward, call);
  }
  const bool known = hasNeuron(all.neuron, all.variant) && all.dtype <= SNNIPU_F64;
  bool whole = !backward || call.incoming; // else the status is 1 if the adjoint reads a missing array
  for (int s = own; backward && s < call.num_states; ++s)
    whole = whole && all.states[s];
  if (status != (known ? 0 : 1) && (whole || status != 1))
    fail("status of a recurrence", status);
  if (all.dtype > SNNIPU_F64)
    draw.checkUntouched();
}

void spikingLstm(Draw &draw) {
  snnipu_lstm_call call = {};
  call.dtype = draw.dtype();
  call.threads = draw.size(1, 3);
  call.rows = draw.size(1, 9);
  call.width = draw.rarely() ? draw.size(900, 1100) : draw.size(1, 40);
  call.tanh_gate = draw.size(2, 3);
  call.reset = draw.size(0, 2);
  call.threshold = draw.coin() ? 0.0 : 0.5;
  const int64_t every = call.rows * call.width;
  call.syn_before = draw.maybe(every);
  call.mem_before = draw.maybe(every);
  call.gates = draw.numbers(4 * every);
  int status;
  if (draw.coin()) {
    call.syn = draw.room(every);
    call.mem = draw.room(every);
    status = draw.status(snnipu_lstm_forward, call);
  } else {
    call.syn = draw.numbers(every);
    for (const void **grad : {&call.grad_syn, &call.grad_mem, &call.carried_syn, &call.carried_mem})
      *grad = draw.maybe(every);
    call.grad_gates = draw.room(4 * every);
    call.grad_before = draw.room(every);
    call.grad_reset = draw.maybeRoom(every);
    status = draw.status(snnipu_lstm_backward, call);
  }
  if (status != (call.dtype <= SNNIPU_F64 ? 0 : 1))
    fail("status of a spiking LSTM", status);
  if (call.dtype > SNNIPU_F64)
    draw.checkUntouched();
}

void fingerprint(Draw &draw) {
  const int64_t count = draw.size(0, 3000);
  auto *const bytes = static_cast<char *>(draw.numbers(count, SNNIPU_F16));
  const auto threads = static_cast<int32_t>(draw.size(1, 4));
  const uint64_t found = snnipu_fingerprint(bytes, 2 * count, threads);
  if (found != snnipu_fingerprint(bytes, 2 * count, 1))
    fail("a fingerprint depends on the number of threads", threads);
  if (count) {
    bytes[draw.size(0, 2 * count - 1)] ^= 1;
    if (found == snnipu_fingerprint(bytes, 2 * count, threads))
      fail("a bit that changes leaves the fingerprint", count);
  }
}

const std::vector<std::pair<std::string, std::function<void(Draw &)>>> families = {
    {"neurons", neuron},
    {"recurrence", recurrence},
    {"spiking_lstm", spikingLstm},
    {"linear", [](Draw &draw) { currents(draw, false); }},
    {"convolution", [](Draw &draw) { currents(draw, true); }},
    {"delays", delays},
    {"layers", [](Draw &draw) { layer(draw, false); }},
    {"layers-on-maps", [](Draw &draw) { layer(draw, true); }},
    {"selection", select},
    {"eventprop", eventprop},
    {"dense", dense},
    {"sparse-pools", sparsePool},
    {"dense-pools", densePool},
    {"fingerprint", fingerprint},
};

// Inputs that ended a run, by the name of the family.
[[maybe_unused]] const std::vector<std::pair<std::string, std::vector<uint8_t>>> found = {
    {"neurons",
     {0x7a, 0xff, 0xa, 0xff, 0x7a, 0xa, 0x23, 0xa, 0xa, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}, // no neuron
    {"layers", {0xff, 0x55, 0xff, 0x55, 0xff, 0x0, 0x0, 0x0, 0x2a, 0x3f}},                          // no step
    {"spiking_lstm", {0xa, 0x1, 0x5e, 0x5e, 0x5e, 0x5e, 0x5e, 0x5e, 0x5e, 0x5e, 0xff, 0x0,
                      0x0, 0x0, 0xff, 0x81, 0xff, 0xff, 0xf4, 0xfc, 0xef, 0xff, 0x96}}, // no memory for threads
};

size_t numberOf(const std::string &name) {
  size_t family = 0;
  while (family < families.size() && families[family].first != name)
    ++family;
  if (family == families.size())
    fail("there is no such family", 0);
  return family;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  if (count < 8)
    return 0;
  static const char *const only = std::getenv("SNNIPU_FUZZ_FAMILY");
  if (only && std::strcmp(only, "names") == 0) {
    for (const auto &family : families)
      std::printf("%s\n", family.first.c_str());
    std::fflush(stdout);
    std::_Exit(0); // libFuzzer counts any other exit as a crash
  }
  size_t family = bytes[0] % families.size();
  if (only)
    family = numberOf(only);
  snnipu_set_workers(1 + bytes[1] % 6, bytes[1] & 128);
  Draw draw(bytes + 2, count - 2);
  families[family].second(draw);
  return 0;
}

#if defined(SNNIPU_FUZZ_ALONE)
int main(int count, char **arguments) {
  if (count != 3)
    fail("the arguments are how many cases of each family, and a seed; got", count - 1);
  for (auto [name, bytes] : found) {
    bytes[0] = static_cast<uint8_t>(numberOf(name));
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::mt19937_64 random(std::strtoull(arguments[2], nullptr, 10));
  std::vector<uint8_t> bytes(400);
  const long long cases = std::strtoll(arguments[1], nullptr, 10);
  for (long long number = 0; number < cases * static_cast<long long>(families.size()); ++number) {
    for (auto &byte : bytes)
      byte = static_cast<uint8_t>(random());
    bytes[0] = static_cast<uint8_t>(number % static_cast<long long>(families.size()));
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%lld cases of each of %zu families\n", cases, families.size());
}
#endif
