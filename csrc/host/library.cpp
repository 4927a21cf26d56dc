// What the library says of itself.
#include "host/parallel.hpp"
#include "host/snnipu.h"
#include "host/workers.hpp"

#if !defined(SNNIPU_VERSION) || !defined(SNNIPU_ISA)
#error "SNNIPU_VERSION and SNNIPU_ISA are set by setup.py"
#endif

namespace snnipu {

WorkerOrder &workerOrder() {
  static thread_local WorkerOrder order;
  return order;
}

} // namespace snnipu

extern "C" {

const char *snnipu_version(void) { return SNNIPU_VERSION; }

const char *snnipu_isa(void) { return SNNIPU_ISA; }

const char *snnipu_best_isa(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return "avx512";
  // Every processor with AVX2 and FMA has F16C too, which Clang 14 cannot ask for.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi"))
    return "avx2";
  return "baseline";
#else
  return SNNIPU_ISA;
#endif
}

const char *snnipu_thread_runtime(void) { return snnipu::threadRuntime(); }

void snnipu_set_workers(uint32_t workers, uint32_t descending) {
  snnipu::workerOrder() = {workers ? workers : 1, descending != 0};
}
}
