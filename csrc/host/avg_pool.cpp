// Average of the windows of maps, and its adjoint: sums in PyTorch's order.
#include "host/max_pool.hpp"

namespace snnipu {
namespace {

template <typename C> void averagesOfMap(const Windows &w, const C *in, C *__restrict__ out) {
  const size_t stride = w.strideWidth, count = w.outWidth;
  const bool pairs = w.strideWidth == 2 && w.kernelWidth == 2;
  const auto places = static_cast<C>(w.places());
  for (size_t y = 0; y < w.outHeight; ++y, out += count) {
    std::fill(out, out + count, C(0));
    for (size_t ky = 0; ky < w.kernelHeight; ++ky) {
      const C *const line = in + (y * w.strideHeight + ky) * w.width;
      if (pairs)
        for (size_t x = 0; x < count; ++x)
          out[x] = (out[x] + line[2 * x]) + line[2 * x + 1];
      else
        for (size_t kx = 0; kx < w.kernelWidth; ++kx)
          for (size_t x = 0; x < count; ++x)
            out[x] += line[stride * x + kx];
    }
    for (size_t x = 0; x < count; ++x)
      out[x] /= places;
  }
}

template <typename C> void gradientOfAverages(const Windows &w, const C *grad, C *__restrict__ gradIn) {
  const size_t stride = w.strideWidth;
  const bool pairs = w.strideWidth == 2 && w.kernelWidth == 2;
  const auto places = static_cast<C>(w.places());
  C shares[Columns];
  std::fill(gradIn, gradIn + w.in(), C(0));
  for (size_t y = 0; y < w.outHeight; ++y, grad += w.outWidth)
    for (size_t first = 0; first < w.outWidth; first += Columns) {
      const size_t count = std::min(Columns, w.outWidth - first);
      for (size_t x = 0; x < count; ++x)
        shares[x] = grad[first + x] / places;
      for (size_t ky = 0; ky < w.kernelHeight; ++ky) {
        C *const line = gradIn + (y * w.strideHeight + ky) * w.width + first * stride;
        if (pairs)
          for (size_t x = 0; x < count; ++x) {
            line[2 * x] += shares[x];
            line[2 * x + 1] += shares[x];
          }
        else // the last place first: what a value gets is added up from window to window
          for (size_t kx = w.kernelWidth; kx-- > 0;)
            for (size_t x = 0; x < count; ++x)
              line[stride * x + kx] += shares[x];
      }
    }
}

} // namespace
} // namespace snnipu

extern "C" {

int snnipu_avg_pool2d_fwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) {
    const snnipu::Windows w(a.c.geometry);
    return snnipu::forMaps(w, a.c.neurons, a.threads(), [&](std::size_t map) {
      snnipu::averagesOfMap(w, a.in(a.c.x) + map * w.in(), a.out(a.c.out) + map * w.out());
    });
  });
}

int snnipu_avg_pool2d_bwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) {
    const snnipu::Windows w(a.c.geometry);
    return snnipu::forMaps(w, a.c.neurons, a.threads(), [&](std::size_t map) {
      snnipu::gradientOfAverages(w, a.in(a.c.grad) + map * w.out(), a.out(a.c.grad_x) + map * w.in());
    });
  });
}
}
