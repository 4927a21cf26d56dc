/* C interface of the host library. Torch-free; loaded with ctypes (snnipu/backends/host.py).
 *
 * One library is built for each instruction set; all have this same interface. Neurons are in host/neuron.h, the
 * event-driven operators in host/sparse.h. */
#ifndef SNNIPU_H
#define SNNIPU_H

#include "host/neuron.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the package the library was built for. */
SNNIPU_API const char *snnipu_version(void);
/* Instruction set this library was compiled for: "baseline", "avx2", "avx512" or "neon". */
SNNIPU_API const char *snnipu_isa(void);
/* The best of them for this processor. */
SNNIPU_API const char *snnipu_best_isa(void);
/* Surrogates that backward functions know: numbers from 0 on, the order of snnipu/equations.py. */
SNNIPU_API int64_t snnipu_num_surrogates(void);
/* What runs the threads: "openmp" (the process's own OpenMP runtime) or "std::thread". */
SNNIPU_API const char *snnipu_thread_runtime(void);
/* Workers a vertex is split into, as on a tile, on the calling thread, run in ascending or descending order; for tests.
 * The default is 1. */
SNNIPU_API void snnipu_set_workers(uint32_t workers, uint32_t descending);

/* A number that tells arrays of `count` bytes apart. */
SNNIPU_API uint64_t snnipu_fingerprint(const void *bytes, int64_t count, int32_t threads);

#ifdef __cplusplus
}
#endif

#endif
