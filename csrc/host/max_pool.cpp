// Maximum of the windows of maps, and its adjoint.
#include "host/max_pool.hpp"

namespace snnipu {
namespace {

template <typename C> void largestOfMap(const Windows &w, const C *in, const C *end, C *out, uint8_t *which) {
  for (size_t y = 0; y < w.outHeight; ++y)
    largestOfRow(w, in + y * w.strideHeight * w.width, end, out + y * w.outWidth, which + y * w.outWidth);
}

template <typename C> void gradientOfMap(const Windows &w, const C *grad, const uint8_t *which, C *gradIn) {
  const std::array<size_t, MostPlaces> offsets = w.offsets();
  std::fill(gradIn, gradIn + w.in(), C(0));
  for (size_t y = 0; y < w.outHeight; ++y)
    for (size_t x = 0; x < w.outWidth; ++x)
      gradIn[y * w.strideHeight * w.width + x * w.strideWidth + offsets[*which++]] += *grad++;
}

} // namespace
} // namespace snnipu

extern "C" {

int snnipu_max_pool2d_fwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) {
    const snnipu::Windows w(a.c.geometry);
    const auto *const x = a.in(a.c.x), *const end = x + snnipu::size(a.c.neurons) * w.in();
    return snnipu::forMaps(w, a.c.neurons, a.threads(), [&](std::size_t map) {
      snnipu::largestOfMap(w, x + map * w.in(), end, a.out(a.c.out) + map * w.out(), a.c.which + map * w.out());
    });
  });
}

int snnipu_max_pool2d_bwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) {
    const snnipu::Windows w(a.c.geometry);
    return snnipu::forMaps(w, a.c.neurons, a.threads(), [&](std::size_t map) {
      snnipu::gradientOfMap(w, a.in(a.c.grad) + map * w.out(), a.c.which + map * w.out(),
                            a.out(a.c.grad_x) + map * w.in());
    });
  });
}
}
