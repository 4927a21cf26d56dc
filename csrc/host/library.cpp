// Version, instruction set and threads of the library.
#include "host/parallel.hpp"
#include "host/snnipu.h"
#include "host/workers.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if !defined(SNNIPU_VERSION) || !defined(SNNIPU_ISA)
#error "SNNIPU_VERSION and SNNIPU_ISA are set by setup.py"
#endif

namespace snnipu {

WorkerOrder &workerOrder() {
  static thread_local WorkerOrder order;
  return order;
}

#if defined(__x86_64__)
// CPUID is read here, because not every compiler's runtime sets what __builtin_cpu_supports reads.
static const char *bestIsa() {
  const auto all = [](unsigned flags, unsigned required) { return (flags & required) == required; };
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !all(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C | bit_POPCNT))
    return "baseline";
  // The operating system must save the registers: 256-bit ones (0x06), and 512-bit ones with their masks (0xe6).
  unsigned savedRegisters, high;
  __asm__("xgetbv" : "=a"(savedRegisters), "=d"(high) : "c"(0));
  if (!all(savedRegisters, 0x06) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !all(b, bit_AVX2 | bit_BMI))
    return "baseline";
  if (all(savedRegisters, 0xe6) && all(b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL))
    return "avx512";
  return "avx2";
}
#else
static const char *bestIsa() { return SNNIPU_ISA; }
#endif

} // namespace snnipu

extern "C" {

const char *snnipu_version(void) { return SNNIPU_VERSION; }

const char *snnipu_isa(void) { return SNNIPU_ISA; }

const char *snnipu_best_isa(void) { return snnipu::bestIsa(); }

const char *snnipu_thread_runtime(void) { return snnipu::threadRuntime(); }

void snnipu_set_workers(uint32_t workers, uint32_t descending) {
  snnipu::workerOrder() = {workers ? workers : 1, descending != 0};
}
}
