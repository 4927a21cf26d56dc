// Leaky integrate-and-fire neurons of maps and the maximum of their spikes' windows, in one pass: the spikes of a map,
// several times its pool, never leave the cache.
#include "host/max_pool.hpp"
#include "host/sparse_layer.hpp"
#include "neuron/surrogate.hpp"

namespace snnipu {
namespace {

// Bytes of a band's membranes at all steps, which the backward pass recomputes: they and as many gradients stay in the
// second-level cache.
constexpr size_t bandBytes = 384 * 1024;
// Maps are worked on together as long as there are so many pieces of work, whatever the number of threads.
constexpr size_t fewestPieces = 16;
// Where no neuron of a window carries gradient.
constexpr uint8_t nowhere = 255;

template <typename C> struct LifPool {
  const C *x;
  const C *beta, *threshold;
  size_t betaSize, thresholdSize;
  bool second;
  C gradThreshold;
  Windows windows; // side by side
  size_t steps, batch, channels;
  int32_t reset, offered;

  // Rows of a band: those of whole windows.
  size_t bandRows() const {
    const size_t fit = bandBytes / std::max<size_t>(1, sizeof(C) * steps * windows.kernelHeight * windows.width);
    return std::max<size_t>(1, fit) * windows.kernelHeight;
  }
  size_t bands() const { return std::max<size_t>(1, windows.outHeight * windows.kernelHeight / bandRows()); }
  // Small maps side by side: each step's part of one is less than a page.
  size_t together() const {
    if (betaSize > 1 || thresholdSize > 1 || bands() > 1)
      return 1;
    const size_t fit = bandBytes / std::max<size_t>(1, sizeof(C) * steps * windows.in());
    return std::max<size_t>(1, std::min({channels, fit, batch * channels / fewestPieces}));
  }
  // Of a sample.
  size_t pieces() const { return bands() > 1 ? channels * bands() : (channels + together() - 1) / together(); }
  size_t tasks() const { return batch * pieces(); }
};

// All steps of some rows of one map, or of several maps of one sample.
template <typename C> class Band {
public:
  using V = Register<C>;

  Band(const LifPool<C> &a, size_t task) : a(a) {
    const Windows &w = a.windows;
    const size_t piece = task % a.pieces(), bands = a.bands(), together = a.together(), band = piece % bands;
    const size_t channel = piece / bands * together;
    map = task / a.pieces() * a.channels + channel;
    maps = std::min(together, a.channels - channel);
    firstWindow = band * w.outHeight / bands;
    windowRows = (band + 1) * w.outHeight / bands - firstWindow;
    // The last one has the rows behind all windows, too.
    const size_t end = band + 1 == bands ? w.height : (firstWindow + windowRows) * w.kernelHeight;
    begin = firstWindow * w.kernelHeight * w.width;
    size = static_cast<unsigned>(maps * (end * w.width - begin));
    padded = (size + registerLanes<C> - 1) / registerLanes<C> * registerLanes<C>;
    p.decay = clampUnit(splat<V>(a.beta[a.betaSize > 1 ? channel : 0]));
    p.threshold = splat<V>(a.threshold[a.thresholdSize > 1 ? channel : 0]);
  }

  // Of a step, in arrays over all maps.
  size_t inMap(size_t t) const { return (t * a.batch * a.channels + map) * a.windows.in() + begin; }
  size_t inPool(size_t t) const {
    return (t * a.batch * a.channels + map) * a.windows.out() + firstWindow * a.windows.outWidth;
  }

  // body(first lane, input there) for the registers of a step; behind the band the input is 0.
  template <typename Body> void forInput(size_t t, const Body &body) const {
    const C *const x = a.x + inMap(t), *const next = a.x + inMap(t + 1 < a.steps ? t + 1 : t);
    unsigned lane = 0;
    for (; lane + registerLanes<C> <= size; lane += registerLanes<C>) {
      // Each step's part is a page or two of its own, which no processor sees coming.
      __builtin_prefetch(next + lane);
      body(lane, load<V>(x + lane));
    }
    if (lane < size)
      body(lane, loadFirst<V>(x, size, lane));
  }
  // body(number, first neuron) for the rows of windows.
  template <typename Body> void forWindowRows(const Body &body) const {
    for (size_t m = 0, row = 0; m < maps; ++m)
      for (size_t y = 0; y < windowRows; ++y, ++row)
        body(row, m * a.windows.in() + y * a.windows.kernelHeight * a.windows.width);
  }
  template <Reset R> V after(V before, V x) const { return leakyMembrane<R>(p, x, before); }

  const LifPool<C> &a;
  size_t map, maps, begin, firstWindow, windowRows, padded;
  unsigned size;
  LeakyParameters<V> p;
};

// What a neuron is for the maximum of its window: twice this where it fires, once where it carries gradient, and added
// to that so much less than it as there are places before its own. The maximum tells the first place of the best.
constexpr int rank = 256;

// The windows of a band, all of them at once.
template <typename C> class BandWindows {
public:
  explicit BandWindows(const Band<C> &band) : band_(band), w_(band.a.windows), columns_(w_.outWidth * w_.kernelWidth) {
    static thread_local ThreadBuffer<C> all;
    // Behind each there is room for a register.
    const size_t room = band.padded + w_.kernelWidth * (Lanes + registerLanes<C>);
    C *const memory = all.reserve(3 * room);
    ranks = memory;
    keys = memory + room;
    highest_ = keys + room;
    std::fill_n(memory, 3 * room, C(0));
    for (size_t row = 0, at = 0, y = 0; row < band.size / w_.width; ++row, y = y + 1 == w_.height ? 0 : y + 1)
      for (size_t x = 0, column = 0; x < w_.width; ++x, ++at) {
        ranks[at] = static_cast<C>(rank - 1 - static_cast<int>(y % w_.kernelHeight * w_.kernelWidth + column));
        column = column + 1 == w_.kernelWidth ? 0 : column + 1;
      }
  }

  C *ranks, *keys; // of the band's neurons

  // Returns how many windows have a spike.
  size_t pool(C *out, uint8_t *which) {
    using V = Register<C>;
    band_.forWindowRows([&](size_t row, size_t first) {
      for (size_t x = 0; x < columns_; x += registerLanes<C>) {
        const C *const from = keys + first + x;
        V most = load<V>(from);
        for (size_t ky = 1; ky < w_.kernelHeight; ++ky) {
          const V other = load<V>(from + ky * w_.width);
          most = other > most ? other : most;
        }
        store(highest_ + row * columns_ + x, most);
      }
    });
    const size_t count = band_.maps * band_.windowRows * w_.outWidth;
    size_t fired = 0;
    for (size_t first = 0; first < count; first += Columns) {
      // Whole vectors, behind the last window too: what is found there is left.
      const size_t some = std::min(Columns, count - first), whole = (some + Lanes - 1) / Lanes * Lanes;
      C most[Columns], told[Columns];
      uint8_t places[Columns];
      if (w_.kernelWidth == 2)
        across<2>(highest_ + 2 * first, 2, whole, most);
      else
        across<0>(highest_ + w_.kernelWidth * first, w_.kernelWidth, whole, most);
      for (size_t i = 0; i < whole; ++i)
        told[i] = most[i] >= C(2 * rank) ? C(1) : C(0);
      for (size_t i = 0; i < whole; ++i) {
        const int32_t key = static_cast<int32_t>(most[i]);
        places[i] = static_cast<uint8_t>(key < rank ? nowhere : rank - 1 - (key & (rank - 1)));
      }
      C spikes = 0;
      for (size_t i = 0; i < some; i += registerLanes<C>)
        spikes += sumLanes(loadFirst<V>(told, static_cast<unsigned>(some), static_cast<unsigned>(i)));
      fired += static_cast<size_t>(spikes);
      std::copy_n(told, some, out + first);
      std::copy_n(places, some, which + first);
    }
    return fired;
  }

private:
  // Width 0: any.
  template <size_t Width>
  static void across(const C *__restrict__ from, size_t width, size_t count, C *__restrict__ to) {
    const size_t step = Width ? Width : width;
    if constexpr (Width == 2) {
      for (size_t i = 0; i < count; ++i)
        to[i] = from[2 * i + 1] > from[2 * i] ? from[2 * i + 1] : from[2 * i];
      return;
    }
    for (size_t i = 0; i < count; ++i)
      to[i] = from[i * step];
    for (size_t k = 1; k < step; ++k)
      for (size_t i = 0; i < count; ++i)
        to[i] = from[i * step + k] > to[i] ? from[i * step + k] : to[i];
  }

  const Band<C> &band_;
  const Windows &w_;
  size_t columns_;
  C *highest_;
};

template <Reset R, typename C> size_t poolBand(const Band<C> &band, C *out, uint8_t *which, int32_t *counts) {
  using V = Register<C>;
  static thread_local ThreadBuffer<C> states;
  const LifPool<C> &a = band.a;
  C *const state = states.zeros(band.padded);
  BandWindows<C> windows(band);
  const V one = splat<V>(1), none = splat<V>(0);
  const V second = splat<V>(a.second ? a.gradThreshold : -std::numeric_limits<C>::infinity());
  const V everyone = a.second ? none : one;
  V real = none; // of the last register
  for (unsigned lane = 0; lane < registerLanes<C>; ++lane)
    real[lane] = C(band.padded - registerLanes<C> + lane < band.size);
  size_t spikes = 0;
  for (size_t t = 0; t < a.steps; ++t) {
    V fired = none, carried = none;
    band.forInput(t, [&](unsigned lane, V x) {
      const V u = band.template after<R>(load<V>(state + lane), x);
      store(state + lane, u);
      V spike = heaviside(u - band.p.threshold), slot = u > second ? one : everyone;
      slot = spike > slot ? spike : slot;
      if (lane + registerLanes < C >> band.size) {
        spike *= real;
        slot *= real;
      }
      store(windows.keys + lane, (spike + slot) * C(rank) + load<V>(windows.ranks + lane));
      fired += spike;
      carried += slot;
    });
    counts[2 * t] = static_cast<int32_t>(sumLanes(fired));
    counts[2 * t + 1] = static_cast<int32_t>(sumLanes(carried));
    spikes += windows.pool(out + band.inPool(t), which + band.inPool(t));
  }
  return spikes;
}

template <typename C>
int lifPoolForward(const LifPool<C> &a, C *out, uint8_t *which, int32_t *counts, int64_t *pooled) {
  const size_t updates = a.steps * a.batch * a.channels * a.windows.in();
  const auto pool = a.reset == SNNIPU_RESET_SUBTRACT ? poolBand<Reset::Subtract, C>
                    : a.reset == SNNIPU_RESET_ZERO   ? poolBand<Reset::Zero, C>
                                                     : poolBand<Reset::None, C>;
  // Of each band on its own: several have a part of a sample.
  std::vector<int32_t> parts(2 * a.steps * a.tasks());
  std::vector<size_t> spikes(a.tasks());
  const int status = parallelTry(a.tasks(), threadsFor(updates, a.offered), [&](size_t task) {
    spikes[task] = pool(Band<C>(a, task), out, which, parts.data() + 2 * a.steps * task);
  });
  std::fill_n(counts, 2 * a.steps * a.batch, 0);
  *pooled = 0;
  for (size_t task = 0; task < a.tasks(); ++task) {
    *pooled += static_cast<int64_t>(spikes[task]);
    for (size_t t = 0; t < a.steps; ++t)
      for (size_t which = 0; which < 2; ++which)
        counts[2 * (t * a.batch + task / a.pieces()) + which] += parts[2 * (a.steps * task + t) + which];
  }
  return status;
}

// Sums of one band, for beta and the threshold.
struct BandSums {
  double beta = 0, threshold = 0;
};

template <Reset R, bool Sums, typename C, typename Surrogate>
BandSums bandBackward(const Band<C> &band, const Surrogate &surrogate, const C *grad, const uint8_t *which, C *gradX) {
  using V = Register<C>;
  static thread_local ThreadBuffer<C> membranes, gradients, carries;
  const LifPool<C> &a = band.a;
  const Windows &w = a.windows;
  const std::array<size_t, MostPlaces> offsets = w.offsets();
  C *const mem = membranes.zeros((a.steps + 1) * band.padded); // [step], from the one before the first
  // Of all steps: what has just been written, piece by piece, cannot be read again at once without waiting for it.
  C *const gradSpk = gradients.zeros(a.steps * band.padded), *const carry = carries.zeros(band.padded);
  for (size_t t = 0; t < a.steps; ++t) {
    const C *const before = mem + t * band.padded;
    C *const now = mem + (t + 1) * band.padded;
    band.forInput(t, [&](unsigned lane, V x) { store(now + lane, band.template after<R>(load<V>(before + lane), x)); });
    const C *g = grad + band.inPool(t);
    const uint8_t *place = which + band.inPool(t);
    band.forWindowRows([&](size_t, size_t first) {
      C *to = gradSpk + t * band.padded + first;
      // Nobody's gradient goes to the window's first place, as none at all.
      for (size_t x = 0; x < w.outWidth; ++x, ++g, ++place, to += w.kernelWidth)
        to[offsets[*place]] = *place == nowhere ? C(0) : *g;
    });
  }
  BandSums total;
  for (size_t t = a.steps; t-- > 0;) {
    const C *const before = mem + t * band.padded, *const now = before + band.padded;
    C *const to = gradX + band.inMap(t);
    V ofBeta{}, ofThreshold{};
    const auto back = [&](unsigned lane) {
      const LeakyGradients<V> found = leakyAdjoint<R>(band.p, surrogate, load<V>(now + lane), load<V>(before + lane),
                                                      load<V>(gradSpk + t * band.padded + lane), load<V>(carry + lane));
      store(carry + lane, found.gradMem);
      // What lies behind the band has no gradient.
      if constexpr (Sums) {
        ofBeta += found.gradDecay;
        ofThreshold += found.gradThreshold;
      }
      return found.gradX;
    };
    unsigned lane = 0;
    C *const following = gradX + band.inMap(t > 0 ? t - 1 : t);
    for (; lane + registerLanes<C> <= band.size; lane += registerLanes<C>) {
      __builtin_prefetch(following + lane, 1);
      store(to + lane, back(lane));
    }
    if (lane < band.size)
      storeFirst(to + lane, back(lane), band.size, lane);
    if constexpr (Sums) {
      total.beta += static_cast<double>(sumLanes(ofBeta));
      total.threshold += static_cast<double>(sumLanes(ofThreshold));
    }
  }
  return total;
}

template <typename C> struct LifPoolGradients {
  const C *grad;
  const uint8_t *which;
  C *x, *beta, *threshold;
  SurrogateKind surrogate;
  C surrogateA, surrogateB;
};

// What goes back through a band. Networks are trained in float, and without these sums: of the others, that a kernel is
// slower does not matter, and that it is code does.
template <Reset R, typename C> auto bandKernel(const LifPoolGradients<C> &g) {
  return [&g](const Band<C> &band) {
    const AnySurrogate<C> any{{g.surrogateA, g.surrogate}, g.surrogateB};
    if (g.beta || g.threshold)
      return bandBackward<R, true>(band, any, g.grad, g.which, g.x);
    if constexpr (std::is_same_v<C, float>) {
      if (g.surrogate == SurrogateKind::FastSigmoid)
        return bandBackward<R, false>(band, FastSigmoid<C>{g.surrogateA, g.surrogateB}, g.grad, g.which, g.x);
      if (g.surrogate == SurrogateKind::Atan)
        return bandBackward<R, false>(band, Atan<C>{g.surrogateA, g.surrogateB}, g.grad, g.which, g.x);
    }
    return bandBackward<R, false>(band, any, g.grad, g.which, g.x);
  };
}

template <Reset R, typename C> int lifPoolBackwardBy(const LifPool<C> &a, const LifPoolGradients<C> &g) {
  const size_t updates = 2 * a.steps * a.batch * a.channels * a.windows.in(), bands = a.bands(), pieces = a.pieces();
  const auto kernel = bandKernel<R>(g);
  std::vector<BandSums> sums(a.tasks());
  const int status = parallelTry(a.tasks(), threadsFor(updates, a.offered),
                                 [&](size_t task) { sums[task] = kernel(Band<C>(a, task)); });
  // In a fixed order, whatever the number of threads.
  const auto finish = [&](C *result, size_t size, double BandSums::*of) {
    std::vector<double> totals(result ? size : 0);
    for (size_t task = 0; result && task < sums.size(); ++task)
      totals[size > 1 ? task % pieces / bands : 0] += sums[task].*of;
    std::transform(totals.begin(), totals.end(), result, [](double total) { return static_cast<C>(total); });
  };
  finish(g.beta, a.betaSize, &BandSums::beta);
  onlyInUnit(a.beta, g.beta, a.betaSize);
  finish(g.threshold, a.thresholdSize, &BandSums::threshold);
  return status;
}

template <typename C> int lifPoolBackward(const LifPool<C> &a, const LifPoolGradients<C> &g) {
  switch (static_cast<Reset>(a.reset)) {
  case Reset::Subtract:
    return lifPoolBackwardBy<Reset::Subtract>(a, g);
  case Reset::Zero:
    return lifPoolBackwardBy<Reset::Zero>(a, g);
  default:
    return lifPoolBackwardBy<Reset::None>(a, g);
  }
}

template <typename C> LifPool<C> lifPool(const Call<C> &a) {
  return {a.in(a.c.x),
          a.in(a.c.beta),
          a.in(a.c.threshold),
          size(a.c.beta_size),
          size(a.c.threshold_size),
          a.c.has_second_threshold != 0,
          a.number(a.c.second_threshold),
          Windows(a.c.geometry),
          size(a.c.steps),
          size(a.c.batch),
          size(a.c.neurons),
          a.reset(),
          a.threads()};
}

inline bool knownOptions(const Windows &w, int32_t reset) {
  return knownReset(reset) && w.places() < MostPlaces && w.strideHeight == w.kernelHeight &&
         w.strideWidth == w.kernelWidth;
}

template <typename C> int lifPoolForward(const Call<C> &a) {
  if (!knownOptions(Windows(a.c.geometry), a.reset()))
    return Unknown;
  return lifPoolForward(lifPool(a), a.out(a.c.out), a.c.which, a.c.counts_out, &a.c.most);
}

template <typename C> int lifPoolBackward(const Call<C> &a) {
  const int64_t surrogate = a.c.surrogate;
  if (!knownOptions(Windows(a.c.geometry), a.reset()) || !isSurrogate(surrogate))
    return Unknown;
  return lifPoolBackward(lifPool(a),
                         LifPoolGradients<C>{a.in(a.c.grad), a.c.which, a.out(a.c.grad_x), a.out(a.c.grad_beta),
                                             a.out(a.c.grad_threshold), static_cast<SurrogateKind>(surrogate),
                                             a.number(a.c.surrogate_a), a.number(a.c.surrogate_b)});
}

} // namespace
} // namespace snnipu

extern "C" {

int snnipu_lif_max_pool2d_fwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) { return snnipu::lifPoolForward(a); });
}

int snnipu_lif_max_pool2d_bwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) { return snnipu::lifPoolBackward(a); });
}
}
