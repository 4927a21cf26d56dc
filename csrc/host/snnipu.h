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

enum snnipu_reset { SNNIPU_RESET_SUBTRACT = 0, SNNIPU_RESET_ZERO = 1, SNNIPU_RESET_NONE = 2 };
enum snnipu_surrogate {
  SNNIPU_LEAKY_STEP = 0,
  SNNIPU_TRIANGULAR = 1,
  SNNIPU_FAST_SIGMOID = 2,
  SNNIPU_ATAN = 3,
  SNNIPU_SIGMOID = 4,
  SNNIPU_SPIKE_RATE_ESCAPE = 5
};

/* Sparse operators. Spikes come as ids [steps, batch, slots] of `inputs` (or `neurons`) neurons, values of the same
 * shape and counts [steps, batch, 2]: how many slots hold spikes, and how many are carried. Slots behind those are
 * padding. Bits of neurons: [steps, batch, words], 32 to a word, the lowest bit first. All return 0, 1 for an unknown
 * option, 2 where memory could not be had, 3 where a count or a carried id is out of range (nothing has been written
 * then). */

/* Length of a packed weight. */
SNNIPU_API int64_t snnipu_packed_size(int64_t neurons, int64_t inputs);
/* A number that tells arrays of `count` bytes apart. */
SNNIPU_API uint64_t snnipu_fingerprint(const void *bytes, int64_t count, int32_t threads);

/* The matrix weight [neurons, inputs] in blocks of 64 neurons, [block][inputs][lanes]: what gathers read. */
#define SNNIPU_PACK_WEIGHT(NAME, C)                                                                                    \
  SNNIPU_API int NAME(const C *weight, int64_t neurons, int64_t inputs, C *packed, int32_t threads)

/* out [steps, batch, neurons] = spikes * weight^T + bias; bias may be NULL. */
#define SNNIPU_SPARSE_LINEAR_FWD(NAME, C)                                                                              \
  SNNIPU_API int NAME(const int32_t *ids, const C *values, const int32_t *counts, const C *packed, const C *bias,      \
                      C *out, int64_t steps, int64_t batch, int64_t slots, int64_t inputs, int64_t neurons,            \
                      int32_t threads)

/* Its adjoint: grad [steps, batch, neurons] -> grad_values [steps, batch, slots], grad_weight [neurons, inputs],
 * grad_bias [neurons]; each may be NULL, packed where grad_values is. */
#define SNNIPU_SPARSE_LINEAR_BWD(NAME, C)                                                                              \
  SNNIPU_API int NAME(const C *grad, const int32_t *ids, const C *values, const int32_t *counts, const C *packed,      \
                      C *grad_values, C *grad_weight, C *grad_bias, int64_t steps, int64_t batch, int64_t slots,       \
                      int64_t inputs, int64_t neurons, int32_t threads)

/* A layer of leaky integrate-and-fire neurons on spikes, over a sequence; the equations are in the docstring of
 * snnipu.ops.sparse_lif_sequence.
 *   recurrent            packed [neurons, neurons], or NULL; then own_slots, rotate tell which own spikes are seen
 *   bias                 [neurons] or NULL
 *   beta, threshold      [*_size], 1 or neurons
 *   has_grad_threshold   0: every neuron carries gradient
 *   fired, carried       out: bits of the neurons above the threshold, and above the second one too
 *   mem                  out: [steps, batch, neurons] or NULL
 *   kept                 out: the membranes of the carried neurons, for snnipu_slot_membranes_*, which frees them;
 *                        NULL unless the result is 0
 *   most                 out: the most neurons carried in a row, or NULL */
#define SNNIPU_SPARSE_LIF_SEQUENCE_FWD(NAME, C)                                                                        \
  SNNIPU_API int NAME(const int32_t *ids, const C *values, const int32_t *counts, const C *packed, const C *recurrent, \
                      const C *bias, const C *beta, const C *threshold, double grad_threshold, double input_scale,     \
                      uint32_t *fired, uint32_t *carried, C *mem, void **kept, int64_t *most, int64_t steps,           \
                      int64_t batch, int64_t slots, int64_t inputs, int64_t neurons, int64_t beta_size,                \
                      int64_t threshold_size, int64_t own_slots, int64_t delay, int32_t has_grad_threshold,            \
                      int32_t rotate, int32_t reset, int32_t threads)

/* Membranes at the carried slots, 0 in padding. ids NULL: only frees. */
#define SNNIPU_SLOT_MEMBRANES(NAME, C)                                                                                 \
  SNNIPU_API int NAME(void *kept, const int32_t *ids, const int32_t *counts, const uint32_t *carried, C *slot_mem,     \
                      int64_t slots, int32_t threads)

/* Its adjoint, from grad [steps, batch, own_slots], the gradient of the layer's values.
 *   packed               may be NULL without grad_values
 *   recurrent            packed [neurons, neurons], or NULL
 *   own_*                the layer's spikes; slot_mem [steps, batch, own_slots], fired, mem: of the forward pass, mem
 *                        only with grad_beta
 *   grad_values          [steps, batch, slots]        grad_weight     [neurons, inputs]
 *   grad_bias            [neurons]                    grad_recurrent  [neurons, neurons]
 *   grad_beta            [beta_size]                  grad_threshold  [threshold_size]
 *   grad_current         [steps, batch, neurons]: of the membrane
 * Each result may be NULL. */
#define SNNIPU_SPARSE_LIF_SEQUENCE_BWD(NAME, C)                                                                        \
  SNNIPU_API int NAME(                                                                                                 \
      const C *grad, const int32_t *ids, const C *values, const int32_t *counts, const C *packed, const C *recurrent,  \
      const C *beta, const C *threshold, const int32_t *own_ids, const int32_t *own_counts, const C *slot_mem,         \
      const uint32_t *fired, const C *mem, C *grad_values, C *grad_weight, C *grad_bias, C *grad_recurrent,            \
      C *grad_beta, C *grad_threshold, C *grad_current, double input_scale, int64_t steps, int64_t batch,              \
      int64_t slots, int64_t inputs, int64_t neurons, int64_t own_slots, int64_t beta_size, int64_t threshold_size,    \
      int64_t delay, int32_t reset, int32_t surrogate, double surrogate_a, double surrogate_b, int32_t threads)

/* Convolutions and pools of maps: ids are those of [channels, height, width] flattened.
 *   geometry of a convolution  15 numbers: channels, height, width of the input, the same of the output, kernel height
 * and width, stride, padding and dilation (vertical, horizontal each), groups geometry of a pool         11 numbers:
 * channels, height and width of the input, of the output height and width, of the window height and width, stride and
 * padding weight                     [out channels, in channels / groups, kernel height, kernel width] */

/* out [rows, out channels, height, width] = the convolution of the spikes, + bias [out channels], which may be NULL. */
#define SNNIPU_SPARSE_CONV2D_FWD(NAME, C)                                                                              \
  SNNIPU_API int NAME(const int32_t *ids, const C *values, const int32_t *counts, const C *weight, const C *bias,      \
                      C *out, const int64_t *geometry, int64_t rows, int64_t slots, int32_t threads)

/* Its adjoint; each result may be NULL. */
#define SNNIPU_SPARSE_CONV2D_BWD(NAME, C)                                                                              \
  SNNIPU_API int NAME(const C *grad, const int32_t *ids, const C *values, const int32_t *counts, const C *weight,      \
                      C *grad_values, C *grad_weight, C *grad_bias, const int64_t *geometry, int64_t rows,             \
                      int64_t slots, int32_t threads)

/* A convolution and leaky integrate-and-fire neurons over a sequence, as SNNIPU_SPARSE_LIF_SEQUENCE_FWD.
 *   beta, threshold      [*_size], 1 or out channels
 *   mem                  out: [steps, batch, height * width, out channels] or NULL
 *   kept                 out: what snnipu_sparse_conv_select_* makes the layer's spikes of, and frees
 *   most                 out: the most neurons carried in a row
 *   pool                 NULL, or height and width of windows that lie side by side: the slots are then theirs */
#define SNNIPU_SPARSE_CONV_LIF_SEQUENCE_FWD(NAME, C)                                                                   \
  SNNIPU_API int NAME(const int32_t *ids, const C *values, const int32_t *counts, const C *weight, const C *bias,      \
                      const C *beta, const C *threshold, double grad_threshold, double input_scale, C *mem,            \
                      void **kept, int64_t *most, const int64_t *geometry, const int64_t *pool, int64_t steps,         \
                      int64_t batch, int64_t slots, int64_t beta_size, int64_t threshold_size, int64_t delay,          \
                      int32_t has_grad_threshold, int32_t reset, int32_t threads)

/* The layer's slots, the membranes there and the bits of the neurons that fired. counts NULL: only frees.
 *   source, neuron_counts  with a pool: the neuron that a slot shows, and [steps, batch, 2] those that fired and that
 *                          carried gradient; else NULL. There must be room for all slots then */
#define SNNIPU_SPARSE_CONV_SELECT(NAME, C)                                                                             \
  SNNIPU_API int NAME(void *kept, int32_t *ids, C *values, int32_t *counts, int32_t *dropped, C *slot_mem,             \
                      uint32_t *fired, int32_t *source, int32_t *neuron_counts, int64_t slots, int32_t rotate,         \
                      int32_t threads)

/* Its adjoint, as SNNIPU_SPARSE_LIF_SEQUENCE_BWD. With a pool own_ids are the sources.
 *   neuron_threshold     [1], or one for each neuron where threshold_size is not 1
 *   grad_current         [steps, batch, height * width, out channels]: of the membrane
 * Each result may be NULL. */
#define SNNIPU_SPARSE_CONV_LIF_SEQUENCE_BWD(NAME, C)                                                                   \
  SNNIPU_API int NAME(const C *grad, const int32_t *ids, const C *values, const int32_t *counts, const C *weight,      \
                      const C *beta, const C *threshold, const C *neuron_threshold, const int32_t *own_ids,            \
                      const int32_t *own_counts, const C *slot_mem, const uint32_t *fired, const C *mem,               \
                      C *grad_values, C *grad_weight, C *grad_bias, C *grad_beta, C *grad_threshold, C *grad_current,  \
                      const int64_t *geometry, double input_scale, int64_t steps, int64_t batch, int64_t slots,        \
                      int64_t own_slots, int64_t beta_size, int64_t threshold_size, int64_t delay, int32_t reset,      \
                      int32_t surrogate, double surrogate_a, double surrogate_b, int32_t threads)

/* Pools: mode 0 maximum, 1 average, 2 sum.
 *   own_*                out: the pool's spikes; own_slots of them, which must be enough (else 1 is returned)
 *   source               out: [rows, own_slots]: the slot that gets a maximum's gradient; NULL for the other modes
 *   most                 out: the most slots in use */
#define SNNIPU_SPARSE_POOL2D_FWD(NAME, C)                                                                              \
  SNNIPU_API int NAME(const int32_t *ids, const C *values, const int32_t *counts, int32_t *own_ids, C *own_values,     \
                      int32_t *own_counts, int32_t *source, int64_t *most, const int64_t *geometry, int64_t rows,      \
                      int64_t slots, int64_t own_slots, int32_t mode, int32_t threads)
#define SNNIPU_SPARSE_POOL2D_BWD(NAME, C)                                                                              \
  SNNIPU_API int NAME(const C *grad, const int32_t *ids, const int32_t *counts, const int32_t *own_ids,                \
                      const int32_t *own_counts, const int32_t *source, C *grad_values, const int64_t *geometry,       \
                      int64_t rows, int64_t slots, int64_t own_slots, int32_t mode, int32_t threads)

/* Bits of x [rows, neurons]. With threshold: fired where x > threshold ([threshold_size], 1 or neurons), carried also
 * where x > grad_threshold or, without one, everywhere. threshold NULL: both where x is not 0. */
#define SNNIPU_ABOVE(NAME, C)                                                                                          \
  SNNIPU_API int NAME(const C *x, const C *threshold, int64_t threshold_size, double grad_threshold,                   \
                      int32_t has_grad_threshold, uint32_t *fired, uint32_t *carried, int64_t *most, int64_t rows,     \
                      int64_t neurons, int32_t threads)

/* Slots from bits: ids, values (1 for a spike, else 0), counts, dropped. */
#define SNNIPU_SELECT_SPIKES_FWD(NAME, C)                                                                              \
  SNNIPU_API int NAME(const uint32_t *fired, const uint32_t *carried, int32_t *ids, C *values, int32_t *counts,        \
                      int32_t *dropped, int64_t steps, int64_t batch, int64_t neurons, int64_t slots, int32_t rotate,  \
                      int32_t threads)

/* Gradient behind the spike function at each slot, 0 in padding; mem [steps, batch, slots]. */
#define SNNIPU_SELECT_SPIKES_BWD(NAME, C)                                                                              \
  SNNIPU_API int NAME(const C *grad, const C *mem, const C *threshold, const int32_t *ids, const int32_t *counts,      \
                      C *through, int64_t rows, int64_t slots, int64_t threshold_size, int32_t surrogate,              \
                      double surrogate_a, double surrogate_b, int32_t threads)

/* dense [cells, neurons] += values at the carried slots, of row r in cell r modulo cells (dense is cleared first), and
 * back: values = dense there, 0 in padding. cells: rows, or the batch, which sums over the steps. */
#define SNNIPU_SPARSE_TO_DENSE_FWD(NAME, C)                                                                            \
  SNNIPU_API int NAME(const int32_t *ids, const C *values, const int32_t *counts, C *dense, int64_t rows,              \
                      int64_t cells, int64_t slots, int64_t neurons, int32_t threads)
#define SNNIPU_SPARSE_TO_DENSE_BWD(NAME, C)                                                                            \
  SNNIPU_API int NAME(const C *dense, const int32_t *ids, const int32_t *counts, C *values, int64_t rows,              \
                      int64_t cells, int64_t slots, int64_t neurons, int32_t threads)

/* The largest value of each window of maps [maps, height, width], and its place in the window, row by row: the first
 * of equal ones, the last NaN. geometry: height, width, kernel height and width, stride, height and width of out
 * [maps, ...]. Every window lies within the map. Returns 3 where a window has more than 256 places. */
#define SNNIPU_MAX_POOL2D_FWD(NAME, C)                                                                                 \
  SNNIPU_API int NAME(const C *x, C *out, uint8_t *which, const int64_t *geometry, int64_t maps, int32_t threads)
/* Its adjoint. */
#define SNNIPU_MAX_POOL2D_BWD(NAME, C)                                                                                 \
  SNNIPU_API int NAME(const C *grad, const uint8_t *which, C *grad_x, const int64_t *geometry, int64_t maps,           \
                      int32_t threads)

/* Leaky integrate-and-fire neurons of maps x [steps, batch, channels, height, width], delayed reset, and the maximum of
 * their spikes' windows, which lie side by side: of the windows of SNNIPU_MAX_POOL2D_FWD those whose stride is their
 * size, of up to 255 places.
 *   beta, threshold      [*_size], 1 or channels
 *   out                  of the windows, 1 where a neuron fires
 *   which                place of the first neuron that fires, else of the first that carries gradient, 255: nowhere
 *   counts               [steps, batch, 2]: neurons that fire, and that carry gradient
 *   pooled               how many of out are 1 */
#define SNNIPU_LIF_MAX_POOL2D_FWD(NAME, C)                                                                             \
  SNNIPU_API int NAME(const C *x, const C *beta, const C *threshold, double grad_threshold, C *out, uint8_t *which,    \
                      int32_t *counts, int64_t *pooled, const int64_t *geometry, int64_t steps, int64_t batch,         \
                      int64_t channels, int64_t beta_size, int64_t threshold_size, int32_t has_grad_threshold,         \
                      int32_t reset, int32_t threads)
/* Its adjoint; grad_beta [beta_size], grad_threshold [threshold_size] may be NULL. */
#define SNNIPU_LIF_MAX_POOL2D_BWD(NAME, C)                                                                             \
  SNNIPU_API int NAME(const C *grad, const C *x, const C *beta, const C *threshold, const uint8_t *which, C *grad_x,   \
                      C *grad_beta, C *grad_threshold, const int64_t *geometry, int64_t steps, int64_t batch,          \
                      int64_t channels, int64_t beta_size, int64_t threshold_size, int32_t reset, int32_t surrogate,   \
                      double surrogate_a, double surrogate_b, int32_t threads)

#ifdef __cplusplus
} /* the functions themselves are declared where their storage types are, in the files of csrc/host */
#endif

#endif
