// Leaky integrate-and-fire neurons of maps and the maximum of their spikes' windows, in one pass: the spikes of a map,
// several times its pool, never leave the cache.
#include "host/max_pool.hpp"
#include "neuron/lif.hpp"
#include "neuron/surrogate.hpp"

namespace snnipu {
namespace {

// Bytes of a band's membranes at all steps, which the backward pass recomputes: they stay in the second-level cache.
constexpr size_t bandBytes = 256 * 1024;
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
  size_t tasks() const { return batch * channels * bands(); }
};

// All steps of some rows of one map.
template <typename C> class Band {
public:
  using V = Register<C>;

  Band(const LifPool<C> &a, size_t task) : a(a), map(task / a.bands()), channel(map % a.channels) {
    const Windows &w = a.windows;
    const size_t band = task % a.bands(), bands = a.bands();
    firstWindow = band * w.outHeight / bands;
    endWindow = (band + 1) * w.outHeight / bands;
    // The last one has the rows behind all windows, too.
    const size_t end = band + 1 == bands ? w.height : endWindow * w.kernelHeight;
    begin = firstWindow * w.kernelHeight * w.width;
    size = static_cast<unsigned>(end * w.width - begin);
    padded = (size + registerLanes<C> - 1) / registerLanes<C> * registerLanes<C>;
    beta = a.beta[a.betaSize > 1 ? channel : 0];
    p.beta = clampUnit(splat<V>(beta));
    p.threshold = splat<V>(a.threshold[a.thresholdSize > 1 ? channel : 0]);
    p.graded = splat<V>(1);
  }

  // Of a step, in arrays over all maps.
  size_t inMap(size_t t) const { return (t * a.batch * a.channels + map) * a.windows.in() + begin; }
  size_t inPool(size_t t) const {
    return (t * a.batch * a.channels + map) * a.windows.out() + firstWindow * a.windows.outWidth;
  }
  size_t row(size_t t) const { return t * a.batch + map / a.channels; }

  V after(V before, size_t t, unsigned lane, Reset reset) const {
    const V x = loadFirst<V>(a.x + inMap(t), size, lane), above = heaviside(before - p.threshold);
    if (reset == Reset::Subtract)
      return lifIntegrate<Reset::Subtract>(p, x, before, above);
    return reset == Reset::Zero ? lifIntegrate<Reset::Zero>(p, x, before, above)
                                : lifIntegrate<Reset::None>(p, x, before, above);
  }

  const LifPool<C> &a;
  size_t map, channel, begin, firstWindow, endWindow, padded;
  unsigned size;
  C beta;
  LifParameters<V> p;
};

template <typename C>
void poolBand(const Band<C> &band, C *out, uint8_t *which, int32_t *counts, std::atomic<int64_t> &pooled) {
  using V = Register<C>;
  static thread_local ThreadBuffer<C> states, keys;
  const LifPool<C> &a = band.a;
  const Windows &w = a.windows;
  C *const state = states.zeros(band.padded), *const key = keys.zeros(band.padded);
  const Reset reset = static_cast<Reset>(a.reset);
  const V second = splat<V>(a.gradThreshold), one = splat<V>(1), none = splat<V>(0);
  int64_t spikes = 0;
  for (size_t t = 0; t < a.steps; ++t) {
    size_t fired = 0, carried = 0;
    for (unsigned lane = 0; lane < band.size; lane += registerLanes<C>) {
      const V u = band.after(load<V>(state + lane), t, lane, reset);
      store(state + lane, u);
      const V spike = heaviside(u - band.p.threshold);
      const V slot = a.second ? (u > second ? one : spike) : one;
      // A spike comes before what only carries gradient, and that before the others.
      store(key + lane, spike > none ? one + one : slot);
      const unsigned real = std::min<unsigned>(registerLanes<C>, band.size - lane);
      const uint64_t everyone = ~uint64_t{0} >> (64 - real);
      fired += static_cast<size_t>(__builtin_popcountll(bitsAbove(spike, none) & everyone));
      carried += static_cast<size_t>(__builtin_popcountll(bitsAbove(slot, none) & everyone));
    }
    // Several bands and channels have a part of each.
    __atomic_fetch_add(counts + 2 * band.row(t), static_cast<int32_t>(fired), __ATOMIC_RELAXED);
    __atomic_fetch_add(counts + 2 * band.row(t) + 1, static_cast<int32_t>(carried), __ATOMIC_RELAXED);
    for (size_t y = band.firstWindow; y < band.endWindow; ++y) {
      const size_t at = band.inPool(t) + (y - band.firstWindow) * w.outWidth;
      largestOfRow(w, key + (y - band.firstWindow) * w.kernelHeight * w.width, key + band.padded, out + at, which + at);
    }
    const size_t at = band.inPool(t), count = (band.endWindow - band.firstWindow) * w.outWidth;
    int32_t found = 0;
    for (size_t i = at; i < at + count; ++i) {
      which[i] = out[i] > C(0) ? which[i] : nowhere;
      out[i] = out[i] > C(1) ? C(1) : C(0);
      found += out[i] > C(0);
    }
    spikes += found;
  }
  pooled += spikes;
}

template <typename C>
int lifPoolForward(const LifPool<C> &a, C *out, uint8_t *which, int32_t *counts, int64_t *pooled) {
  std::fill_n(counts, 2 * a.steps * a.batch, 0);
  std::atomic<int64_t> total{0};
  const size_t updates = a.steps * a.batch * a.channels * a.windows.in();
  const int status = parallelTry(a.tasks(), threadsFor(updates, a.offered),
                                 [&](size_t task) { poolBand(Band<C>(a, task), out, which, counts, total); });
  *pooled = total;
  return status;
}

// Sums of one band, for beta and the threshold.
struct BandSums {
  double beta = 0, threshold = 0;
};

template <Reset R, typename C, typename Surrogate>
BandSums bandBackward(const Band<C> &band, const Surrogate &surrogate, const C *grad, const uint8_t *which, C *gradX,
                      bool sums) {
  using V = Register<C>;
  static thread_local ThreadBuffer<C> membranes, gradients, carries;
  const LifPool<C> &a = band.a;
  const Windows &w = a.windows;
  const std::array<size_t, MostPlaces> offsets = w.offsets();
  C *const mem = membranes.zeros((a.steps + 1) * band.padded); // [step], from the one before the first
  C *const gradSpk = gradients.zeros(band.padded), *const carry = carries.zeros(band.padded);
  for (size_t t = 0; t < a.steps; ++t)
    for (unsigned lane = 0; lane < band.size; lane += registerLanes<C>)
      store(mem + (t + 1) * band.padded + lane, band.after(load<V>(mem + t * band.padded + lane), t, lane, R));
  BandSums total;
  for (size_t t = a.steps; t-- > 0;) {
    const C *g = grad + band.inPool(t);
    const uint8_t *place = which + band.inPool(t);
    std::fill_n(gradSpk, band.padded, C(0));
    for (size_t y = 0; y < band.endWindow - band.firstWindow; ++y)
      for (size_t x = 0; x < w.outWidth; ++x, ++g, ++place)
        if (*place != nowhere)
          gradSpk[y * w.kernelHeight * w.width + x * w.kernelWidth + offsets[*place]] = *g;
    const C *const before = mem + t * band.padded, *const now = before + band.padded;
    C *const to = gradX + band.inMap(t);
    V ofBeta{}, ofThreshold{};
    for (unsigned lane = 0; lane < band.size; lane += registerLanes<C>) {
      const V memPrev = load<V>(before + lane), above = heaviside(memPrev - band.p.threshold);
      const LifAdjoint<V> found = lifAdjoint<R, true, HardSpike>(
          band.p, surrogate, load<V>(now + lane), memPrev, above, load<V>(gradSpk + lane), load<V>(carry + lane));
      store(carry + lane, found.gradMem);
      storeFirst(to + lane, found.gradX, band.size, lane);
      // What lies behind the band has no gradient.
      ofBeta += found.gradBeta;
      ofThreshold += found.gradThreshold;
    }
    if (sums) {
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
  AnySurrogate<C> surrogate;
};

template <Reset R, typename C> int lifPoolBackwardBy(const LifPool<C> &a, const LifPoolGradients<C> &g) {
  const size_t updates = 2 * a.steps * a.batch * a.channels * a.windows.in(), bands = a.bands();
  std::vector<BandSums> sums(a.tasks());
  const int status = parallelTry(a.tasks(), threadsFor(updates, a.offered), [&](size_t task) {
    sums[task] =
        bandBackward<R>(Band<C>(a, task), g.surrogate, g.grad, g.which, g.x, g.beta != nullptr || g.threshold != nullptr);
  });
  // In a fixed order, whatever the number of threads.
  const auto finish = [&](C *result, size_t size, double BandSums::*of) {
    std::vector<double> totals(result ? size : 0);
    for (size_t task = 0; result && task < sums.size(); ++task)
      totals[size > 1 ? task / bands % a.channels : 0] += sums[task].*of;
    std::transform(totals.begin(), totals.end(), result, [](double total) { return static_cast<C>(total); });
  };
  finish(g.beta, a.betaSize, &BandSums::beta);
  // Outside [0, 1] beta makes no difference.
  for (size_t i = 0; g.beta && i < a.betaSize; ++i)
    if (!(a.beta[i] >= C(0) && a.beta[i] <= C(1)))
      g.beta[i] = C(0);
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

template <typename C>
LifPool<C> lifPool(const C *x, const C *beta, const C *threshold, double gradThreshold, const int64_t *geometry,
                   int64_t steps, int64_t batch, int64_t channels, int64_t betaSize, int64_t thresholdSize,
                   int32_t second, int32_t reset, int32_t threads) {
  const auto of = Windows::size;
  return {x,  beta, threshold, of(betaSize), of(thresholdSize), second != 0, static_cast<C>(gradThreshold),
          Windows(geometry), of(steps), of(batch), of(channels), reset, threads};
}

inline bool knownOptions(const Windows &w, int32_t reset) {
  return reset >= SNNIPU_RESET_SUBTRACT && reset <= SNNIPU_RESET_NONE && w.places() < MostPlaces &&
         w.strideHeight == w.kernelHeight && w.strideWidth == w.kernelWidth;
}

} // namespace
} // namespace snnipu

#define LIF_MAX_POOL2D(SUFFIX, C)                                                                                      \
  SNNIPU_LIF_MAX_POOL2D_FWD(snnipu_lif_max_pool2d_fwd_##SUFFIX, C) {                                                   \
    if (!snnipu::knownOptions(snnipu::Windows(geometry), reset))                                                       \
      return snnipu::Unknown;                                                                                          \
    return snnipu::lifPoolForward(snnipu::lifPool(x, beta, threshold, grad_threshold, geometry, steps, batch,          \
                                                  channels, beta_size, threshold_size, has_grad_threshold, reset,      \
                                                  threads),                                                            \
                                  out, which, counts, pooled);                                                         \
  }                                                                                                                    \
  SNNIPU_LIF_MAX_POOL2D_BWD(snnipu_lif_max_pool2d_bwd_##SUFFIX, C) {                                                   \
    if (!snnipu::knownOptions(snnipu::Windows(geometry), reset) || !snnipu::knownSurrogate(surrogate))                 \
      return snnipu::Unknown;                                                                                          \
    const auto kind = static_cast<snnipu::SurrogateKind>(surrogate);                                                   \
    return snnipu::lifPoolBackward(snnipu::lifPool(x, beta, threshold, 0.0, geometry, steps, batch, channels,          \
                                                   beta_size, threshold_size, 0, reset, threads),                      \
                                   snnipu::LifPoolGradients<C>{grad,                                                   \
                                                               which,                                                  \
                                                               grad_x,                                                 \
                                                               grad_beta,                                              \
                                                               grad_threshold,                                         \
                                                               {{static_cast<C>(surrogate_a), kind},                   \
                                                                static_cast<C>(surrogate_b)}});                        \
  }

extern "C" {

LIF_MAX_POOL2D(f32, float)
LIF_MAX_POOL2D(f64, double)
}
