/* C interface of the host library, which does not depend on PyTorch and is loaded with ctypes
 * (snnipu/backends/host.py).
 *
 * There is one library for each instruction set, all with this interface. host/neuron.h has the neurons,
 * host/sparse.h the event-driven operators. */
#ifndef SNNIPU_H
#define SNNIPU_H

#include "host/neuron.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the package that the library was built for. */
SNNIPU_API const char *snnipu_version(void);
/* Instruction set that the library was compiled for: "baseline", "avx2", "avx512" or "neon". */
SNNIPU_API const char *snnipu_isa(void);
/* The best of these instruction sets that this processor has. */
SNNIPU_API const char *snnipu_best_isa(void);
/* Number of surrogates. They are numbered from 0 in the order of snnipu/equations.py. */
SNNIPU_API int64_t snnipu_num_surrogates(void);
/* The source of threads: "openmp" (the OpenMP runtime of the process) or "std::thread". */
SNNIPU_API const char *snnipu_thread_runtime(void);
/* Set the workers that run a vertex on the calling thread, one after another in ascending or descending order. The
 * default is 1. For tests. */
SNNIPU_API void snnipu_set_workers(uint32_t workers, uint32_t descending);

/* Return a hash of an array of `count` bytes. */
SNNIPU_API uint64_t snnipu_fingerprint(const void *bytes, int64_t count, int32_t threads);

#ifdef __cplusplus
}
#endif

#endif
