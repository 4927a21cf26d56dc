/* C interface of the event-driven operators and of pools: every function takes one struct and reads what is told for
 * it.
 *
 * Every field has 64 bits. Arrays are contiguous and row-major and must not overlap; sizes have been checked by the
 * caller, and steps and batch may be 0. Of type C: double for SNNIPU_F64, else float. Spikes come as ids [steps, batch,
 * slots], values of the same shape and counts [steps, batch, 2]: how many slots hold spikes, and how many are carried.
 * Slots behind those are padding. Bits of neurons: [steps, batch, words], 32 to a word, the lowest bit first. A result
 * that may be NULL is then not computed. Ids of maps are those of [channels, height, width] flattened. */
#ifndef SNNIPU_SPARSE_H
#define SNNIPU_SPARSE_H

#include "host/neuron.h"

#ifdef __cplusplus
extern "C" {
#endif

enum snnipu_reset { SNNIPU_RESET_SUBTRACT = 0, SNNIPU_RESET_ZERO = 1, SNNIPU_RESET_NONE = 2 };
typedef struct snnipu_sparse_call {
  int64_t dtype;   /* SNNIPU_F32 or SNNIPU_F64 */
  int64_t threads; /* at most this many run */
  int64_t steps, batch, slots, inputs;
  int64_t neurons;         /* without geometry; of dense pools all maps */
  int64_t output_slots;    /* of the layer or pool. Layers, forward, and dense_to_sparse: -1 for as many as the fullest
                           row needs */
  const int64_t *geometry; /* of a convolution: channels, height and width of the input, the same of the output, kernel
                              height and width, stride, padding and dilation (vertical, horizontal each), groups. Of
                              sparse_pool2d: channels, height and width of the input, height and width of the output and
                              of the window, stride, padding. Of dense pools: height, width, height and width of the
                              window, stride, height and width of the output. Of delay_linear: steps to the last tap
                              of any synapse and one; taps */
  const int64_t *window;   /* sparse_conv_lif_sequence_fwd: NULL, or height and width of the windows of a maximum behind
                              the layer, side by side; the slots are then theirs */
  const int32_t *lags;     /* of delay_linear [inputs, neurons]: steps to a synapse's first tap */
  const int32_t *ids;
  const void *values; /* C */
  const int32_t *counts;
  const void *weight;           /* C: a matrix as pack_weight gives it, or [out channels, in channels / groups,
                                   kernel height, kernel width] */
  const void *recurrent_weight; /* C [neurons, neurons], as pack_weight gives it, or NULL */
  const void *bias;             /* C [neurons], or of channels, or NULL */
  const void *beta, *threshold; /* C [*_size], 1 or one for each neuron, or channel */
  const void *neuron_threshold; /* of a layer, backward: C [1], or one for each neuron */
  int64_t beta_size, threshold_size;
  double second_threshold;      /* above which neurons carry gradient, */
  int64_t has_second_threshold; /* or 0: all do */
  double input_scale;
  int64_t reset; /* enum snnipu_reset */
  int64_t delay; /* at most steps */
  int64_t rotate;
  int64_t mode;                    /* of a pool: 0 maximum, 1 average, 2 sum */
  int64_t surrogate;               /* its place in SNNIPU_SURROGATES, */
  double surrogate_a, surrogate_b; /* and its parameters, in the order of csrc/neuron/surrogate.hpp */
  /* Of a layer, forward, and of dense_to_sparse: called when output_slots is known, to set ids_out, values_out,
   * counts_out, dropped, and of a layer slot_mem, source and neuron_counts, and at last `most` to 1: where it ends
   * before, the function ends with 4. */
  void (*room)(struct snnipu_sparse_call *call);
  int32_t *ids_out;              /* the layer's spikes, or the pool's; backward passes read them. Of a layer with
                                    a pool they read source in their place. */
  void *values_out;              /* C */
  int32_t *counts_out, *dropped; /* [steps, batch, 2] */
  void *slot_mem;                /* C [steps, batch, output_slots]: membranes at the carried slots, 0 in padding */
  int32_t *source;               /* with a window, the neuron that a slot shows; of sparse_pool2d the slot that gets
                                    a maximum's gradient, NULL for other modes */
  int32_t *neuron_counts;        /* with a window: [steps, batch, 2] in front of it */
  uint32_t *fired, *carried;     /* bits of the neurons above the threshold, and above the second one too */
  void *mem;                     /* C [steps, batch, neurons], or [steps, batch, height * width, out channels]:
                                    forward, out, or NULL; backward, in, with grad_beta */
  int64_t most;                  /* out: the most neurons carried in a row, slots in use in a row */
  const void *x;                 /* C: dense input */
  void *out;                     /* C: dense output */
  uint8_t *which;                /* of max_pool2d: place in its window of what is seen */
  int64_t cells;                 /* of sparse_to_dense */
  const void *grad;              /* C: of out, or of values_out */
  void *grad_x, *grad_values, *grad_weight, *grad_bias, *grad_recurrent, *grad_beta, *grad_threshold; /* C; or NULL */
  void *grad_current; /* C, of mem's shape, or NULL: of the membranes */
} snnipu_sparse_call;

/* All return 0, 1 for an unknown option, 2 where memory could not be had, 3 where a count or a carried id is out of
 * range (nothing has been written then; convolutions look at the ids that they read, as they go), 4 where room did not
 * end.
 */
#define SNNIPU_SPARSE(NAME) SNNIPU_API int snnipu_##NAME(snnipu_sparse_call *call)

/* out: the matrix weight [neurons, inputs] in blocks of 64 neurons, [block][inputs][lanes]: what gathers read. */
SNNIPU_SPARSE(pack_weight);
/* Length of a packed weight. */
SNNIPU_API int64_t snnipu_packed_size(int64_t neurons, int64_t inputs);

/* out [steps, batch, neurons]: weighted spikes, and the bias. Backward: grad -> grad_values, grad_weight, grad_bias;
 * weight may be NULL where grad_values is. */
SNNIPU_SPARSE(sparse_linear_fwd);
SNNIPU_SPARSE(sparse_linear_bwd);
SNNIPU_SPARSE(sparse_conv2d_fwd);
SNNIPU_SPARSE(sparse_conv2d_bwd);

/* The same with delays: weight [inputs, neurons, taps]; a spike arrives at each tap of a synapse, the first of which is
 * lags steps later and every other one a step behind. Backward: grad -> grad_weight; input_bwd: grad -> grad_x [steps,
 * batch, inputs]. */
SNNIPU_SPARSE(delay_linear_fwd);
SNNIPU_SPARSE(delay_linear_bwd);
SNNIPU_SPARSE(delay_linear_input_bwd);

/* A layer of leaky integrate-and-fire neurons on spikes, over a sequence; the equations are in the docstring of
 * snnipu.ops.sparse_lif_sequence. Of one with recurrent_weight rotate tells which own spikes are seen.
 * Backward: from grad [steps, batch, output_slots], ids_out, counts_out, slot_mem, fired and mem of the forward pass.
 */
SNNIPU_SPARSE(sparse_lif_sequence_fwd);
SNNIPU_SPARSE(sparse_lif_sequence_bwd);
SNNIPU_SPARSE(sparse_conv_lif_sequence_fwd);
SNNIPU_SPARSE(sparse_conv_lif_sequence_bwd);

/* Pools from ids to ids; output_slots must be enough (else 1 is returned). Backward: grad -> grad_values. */
SNNIPU_SPARSE(sparse_pool2d_fwd);
SNNIPU_SPARSE(sparse_pool2d_bwd);

/* Slots of what is not 0 in x [steps, batch, neurons], with its values: ids_out, values_out, counts_out, dropped. */
SNNIPU_SPARSE(dense_to_sparse_fwd);
/* Bits of x [steps, batch, neurons]: fired where x > threshold, carried also where x is above the second one or,
 * without one, everywhere. */
SNNIPU_SPARSE(above);
/* Slots from bits: ids_out, values_out (1 for a spike, else 0), counts_out, dropped. */
SNNIPU_SPARSE(select_spikes_fwd);
/* grad_values: behind the spike function at each slot, 0 in padding, from grad and slot_mem at ids_out. */
SNNIPU_SPARSE(select_spikes_bwd);
/* out [cells, neurons]: values added up at the carried slots, of row r in cell r modulo cells; and back: values_out = x
 * there, 0 in padding. cells: rows, or the batch, which sums over the steps. */
SNNIPU_SPARSE(sparse_to_dense_fwd);
SNNIPU_SPARSE(sparse_to_dense_bwd);

/* out: the largest value of each window of maps x [neurons, height, width], and which, its place in the window, row by
 * row: the first of equal ones, the last NaN. Every window lies within the map. Return 3 where a window has more than
 * 256 places. Backward: grad -> grad_x. */
SNNIPU_SPARSE(max_pool2d_fwd);
SNNIPU_SPARSE(max_pool2d_bwd);
/* out: the average of each of these windows, added up row by row. Backward: grad -> grad_x. */
SNNIPU_SPARSE(avg_pool2d_fwd);
SNNIPU_SPARSE(avg_pool2d_bwd);

/* sizeof(snnipu_sparse_call), against which a caller checks its own. */
SNNIPU_API int64_t snnipu_sparse_call_size(void);

#ifdef __cplusplus
}
#endif

#endif
