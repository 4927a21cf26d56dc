/* C interface of the host library. Torch-free; loaded with ctypes (snnipu/backends/host.py).
 *
 * Pointers are to contiguous, row-major arrays and must not overlap. Sizes have been checked by the caller. One library
 * is built for each instruction set; all have this same interface. */
#ifndef SNNIPU_H
#define SNNIPU_H

#include <stdint.h>

#if defined(__GNUC__)
#define SNNIPU_API __attribute__((visibility("default")))
#else
#define SNNIPU_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the package the library was built for. */
SNNIPU_API const char *snnipu_version(void);
/* Instruction set this library was compiled for: "baseline", "avx2", "avx512" or "neon". */
SNNIPU_API const char *snnipu_isa(void);
/* The best of them for this processor. */
SNNIPU_API const char *snnipu_best_isa(void);
/* What runs the threads: "openmp" (the process's own OpenMP runtime) or "std::thread". */
SNNIPU_API const char *snnipu_thread_runtime(void);
/* Workers a vertex is split into, as on a tile, on the calling thread, run in ascending or descending order; for tests.
 * The default is 1. */
SNNIPU_API void snnipu_set_workers(uint32_t workers, uint32_t descending);

/* Storage of x, spk, mem and their gradients; state, parameters and their gradients are double for SNNIPU_F64, else
 * float. */
enum snnipu_reset { SNNIPU_RESET_SUBTRACT = 0, SNNIPU_RESET_ZERO = 1, SNNIPU_RESET_NONE = 2 };
enum snnipu_surrogate {
  SNNIPU_LEAKY_STEP = 0,
  SNNIPU_TRIANGULAR = 1,
  SNNIPU_FAST_SIGMOID = 2,
  SNNIPU_ATAN = 3,
  SNNIPU_SIGMOID = 4,
  SNNIPU_SPIKE_RATE_ESCAPE = 5
};

/* Leaky integrate-and-fire over a sequence; the equations are in csrc/neuron/lif.hpp.
 *   x                       [steps, elements], or [elements] with constant_input: the same at every step
 *   spk                     [steps, elements]
 *   mem                     [steps, elements] or NULL
 *   pre_reset               [steps, elements] or NULL: the membrane before an immediate reset
 *   mem0                    [elements] or NULL for zeros
 *   beta, threshold, graded [*_size], 1 or a divisor of elements: value i % size belongs to element i
 *   threads                 at most this many run
 * Returns 0, 1 where reset is not one of enum snnipu_reset, 2 where memory could not be had. */
#define SNNIPU_LIF_SEQUENCE_FWD(NAME, S, C)                                                                            \
  SNNIPU_API int NAME(const S *x, const C *mem0, const C *beta, const C *threshold, const C *graded, S *spk, S *mem,   \
                      S *pre_reset, int64_t steps, int64_t elements, int64_t beta_size, int64_t threshold_size,        \
                      int64_t graded_size, int32_t constant_input, int32_t reset, int32_t reset_delay,                 \
                      int32_t threads)

/* Its adjoint.
 *   grad_spk, grad_mem [steps, elements], or [elements] where *_constant: the same at every step; either may be NULL
 *   mem, pre_reset     of the forward pass; or mem NULL: recomputed, block by block, from
 *   x                  of the forward pass, else not read
 *   grad_x             of x's shape
 *   grad_mem0          [elements] or NULL
 *   grad_beta, grad_threshold, grad_graded  [*_size] or NULL; sums over time and elements in a fixed order,
 *                      whatever the number of threads
 *   surrogate_a, surrogate_b  its parameters, in the order of csrc/neuron/surrogate.hpp
 * Returns 0, 1 where reset or surrogate is unknown, 2 where memory could not be had. */
#define SNNIPU_LIF_SEQUENCE_BWD(NAME, S, C)                                                                            \
  SNNIPU_API int NAME(const S *grad_spk, const S *grad_mem, const S *x, const S *mem, const S *pre_reset,              \
                      const C *mem0, const C *beta, const C *threshold, const C *graded, S *grad_x, C *grad_mem0,      \
                      C *grad_beta, C *grad_threshold, C *grad_graded, int64_t steps, int64_t elements,                \
                      int64_t beta_size, int64_t threshold_size, int64_t graded_size, int32_t grad_spk_constant,       \
                      int32_t grad_mem_constant, int32_t constant_input, int32_t reset, int32_t reset_delay,           \
                      int32_t surrogate, double surrogate_a, double surrogate_b, int32_t threads)

#ifdef __cplusplus
} /* the functions themselves are declared where their storage types are: csrc/host/lif.cpp */
#endif

#endif
