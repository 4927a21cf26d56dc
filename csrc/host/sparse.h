/* C interface of the event-driven operators and of pools: every function takes one struct and reads the fields that
 * are documented for it.
 *
 * Every field has 64 bits. Arrays are contiguous and row-major and must not overlap. The caller has checked sizes;
 * steps and batch may be 0. Type C is double for SNNIPU_F64, else float. Spikes are ids [steps, batch, slots],
 * values of the same shape and counts [steps, batch, 2]: the number of slots with spikes, and the number of carried
 * slots. Carried slots are those of neurons that carry gradient, spikes first; further slots are padding. Bits of
 * neurons are [steps, batch, words] with 32 bits in a word, the lowest first. A result that may be NULL is then not
 * computed. Ids of maps index [channels, height, width] flattened. */
#ifndef SNNIPU_SPARSE_H
#define SNNIPU_SPARSE_H

#include "host/neuron.h"

#ifdef __cplusplus
extern "C" {
#endif

enum snnipu_reset { SNNIPU_RESET_SUBTRACT = 0, SNNIPU_RESET_ZERO = 1, SNNIPU_RESET_NONE = 2 };
typedef struct snnipu_sparse_call {
  int64_t dtype;   /* SNNIPU_F32 or SNNIPU_F64 */
  int64_t threads; /* the most threads */
  int64_t steps, batch, slots, inputs;
  int64_t neurons; /* not read with a geometry; for dense pools the number of maps */
  /* Of the layer or pool. Layers, forward, and dense_to_sparse: -1 for as many as the fullest row needs. */
  int64_t output_slots;
  /* Convolution: channels, height and width of the input, the same of the output, kernel height and width, stride,
   * padding and dilation (vertical, horizontal each), groups. sparse_pool2d: channels, height and width of the
   * input, height and width of the output and of the window, stride, padding. Dense pools: height, width, height and
   * width of the window, stride, height and width of the output. delay_linear: steps to the last tap of any synapse,
   * plus one; taps. */
  const int64_t *geometry;
  /* sparse_conv_lif_sequence_fwd: NULL, or height and width of the windows of a max pool without overlap after the
   * layer. The slots are then the pool's. */
  const int64_t *window;
  const int32_t *lags; /* delay_linear: [inputs, neurons], steps to a synapse's first tap */
  const int32_t *ids;
  const void *values; /* C */
  const int32_t *counts;
  /* C: a matrix packed by pack_weight, or [out channels, in channels / groups, kernel height, kernel width]. */
  const void *weight;
  /* C [neurons, neurons], packed by pack_weight, or NULL. eventprop_bwd: a row for each neuron that sends spikes. */
  const void *recurrent_weight;
  const void *bias;             /* C [neurons] or [out channels], or NULL */
  const void *beta, *threshold; /* C [*_size]: 1, or one for each neuron or channel */
  const void *neuron_threshold; /* layers, backward: C [1], or one for each neuron */
  const void *alpha;            /* eventprop_bwd: C [neurons] */
  const void *early, *late;     /* eventprop_bwd: C [steps, batch, output_slots] */
  int64_t beta_size, threshold_size;
  double second_threshold;      /* neurons above it carry gradient */
  int64_t has_second_threshold; /* 0: all neurons carry gradient */
  double input_scale;
  int64_t reset; /* enum snnipu_reset */
  int64_t delay; /* at most steps */
  int64_t rotate;
  int64_t mode;                    /* pools: 0 maximum, 1 average, 2 sum */
  int64_t surrogate;               /* index in SNNIPU_SURROGATES */
  double surrogate_a, surrogate_b; /* and its two parameters, in the order of csrc/neuron/surrogate.hpp */
  /* Layers, forward, and dense_to_sparse: called when output_slots is known. It sets ids_out, values_out, counts_out
   * and dropped, for a layer also slot_mem, source and neuron_counts, and at last `most` to 1. If it does not set
   * `most`, the function returns 4. */
  void (*room)(struct snnipu_sparse_call *call);
  /* Slots of the layer or pool. Backward passes read them; that of a layer with a window reads the neurons in source
   * instead. */
  int32_t *ids_out;
  void *values_out;              /* C */
  int32_t *counts_out, *dropped; /* [steps, batch, 2] */
  void *slot_mem;                /* C [steps, batch, output_slots]: membranes of the carried slots, 0 in padding */
  /* With a window: the neuron that a slot shows. sparse_pool2d: the slot that receives a maximum's gradient, NULL
   * for other modes. */
  int32_t *source;
  int32_t *neuron_counts;    /* with a window: [steps, batch, 2], counts before the pool */
  uint32_t *fired, *carried; /* bits of the neurons above the threshold, and of those that carry gradient */
  /* C [steps, batch, neurons], or [steps, batch, height * width, out channels]. Forward: output, or NULL. Backward:
   * input, read for grad_beta. */
  void *mem;
  int64_t most;     /* output: the largest number of carried neurons, or of slots, in a row */
  const void *x;    /* C: dense input */
  void *out;        /* C: dense output */
  uint8_t *which;   /* max_pool2d: index of the maximum in its window */
  int64_t cells;    /* sparse_to_dense */
  const void *grad; /* C: gradient of out, or of values_out */
  void *grad_x, *grad_values, *grad_weight, *grad_bias, *grad_recurrent, *grad_beta, *grad_threshold; /* C, or NULL */
  void *grad_current; /* C, of mem's shape, or NULL: gradient of the membranes */
} snnipu_sparse_call;

/* All return 0; 1 for an unknown option; 2 if out of memory; 3 if a count or a carried id is out of range (nothing
 * has been written then, except by convolutions, which check ids as they read them); 4 if room failed. */
#define SNNIPU_SPARSE(NAME) SNNIPU_API int snnipu_##NAME(snnipu_sparse_call *call)

/* out: the matrix weight [neurons, inputs] in blocks of 64 neurons, [block][inputs][lanes], as gathers read it. */
SNNIPU_SPARSE(pack_weight);
/* Length of a packed weight. */
SNNIPU_API int64_t snnipu_packed_size(int64_t neurons, int64_t inputs);

/* out [steps, batch, neurons]: weighted spikes plus bias. Backward: grad -> grad_values, grad_weight, grad_bias;
 * weight may be NULL if grad_values is. */
SNNIPU_SPARSE(sparse_linear_fwd);
SNNIPU_SPARSE(sparse_linear_bwd);
SNNIPU_SPARSE(sparse_conv2d_fwd);
SNNIPU_SPARSE(sparse_conv2d_bwd);

/* The same with delays. weight is [inputs, neurons, taps]. A spike arrives once at each tap of a synapse: at the
 * first after lags steps, at each further one a step later. Backward: grad -> grad_weight; input_bwd: grad -> grad_x
 * [steps, batch, inputs]. */
SNNIPU_SPARSE(delay_linear_fwd);
SNNIPU_SPARSE(delay_linear_bwd);
SNNIPU_SPARSE(delay_linear_input_bwd);

/* A layer of leaky integrate-and-fire neurons on spikes, over a sequence; the docstring of
 * snnipu.ops.sparse_lif_sequence has the equations. With recurrent_weight, rotate selects which of the layer's own
 * spikes are fed back. Backward reads grad [steps, batch, output_slots] and ids_out, counts_out, slot_mem, fired and
 * mem of the forward pass. */
SNNIPU_SPARSE(sparse_lif_sequence_fwd);
SNNIPU_SPARSE(sparse_lif_sequence_bwd);
SNNIPU_SPARSE(sparse_conv_lif_sequence_fwd);
SNNIPU_SPARSE(sparse_conv_lif_sequence_bwd);

/* grad_current [steps, batch, neurons]: gradient of the synaptic currents from grad, that of the spikes' times in their
 * slots, and from mem, that of the membranes, or NULL. Spikes arrive at the layer's own neurons a step later through
 * recurrent_weight, or NULL. out: grad_current of the next step minus that of this step, or
 * NULL. alpha and beta are decays. threshold is the difference that a reset makes to the rise of a membrane. The three
 * have one element for each neuron. snnipu/ops/eventprop.py has the equations. */
SNNIPU_SPARSE(eventprop_bwd);

/* Pools from ids to ids. Return 1 if output_slots is too small. Backward: grad -> grad_values. */
SNNIPU_SPARSE(sparse_pool2d_fwd);
SNNIPU_SPARSE(sparse_pool2d_bwd);

/* Slots of the nonzero elements of x [steps, batch, neurons], with their values: ids_out, values_out, counts_out,
 * dropped. */
SNNIPU_SPARSE(dense_to_sparse_fwd);
/* Bits of x [steps, batch, neurons]: fired if x > threshold; carried if fired, or above the second threshold, or for
 * all if there is no second threshold. */
SNNIPU_SPARSE(above);
/* Slots from bits: ids_out, values_out (1 for a spike, else 0), counts_out, dropped. */
SNNIPU_SPARSE(select_spikes_fwd);
/* grad_values: the gradient through the spike function at each slot, 0 in padding, from grad and slot_mem at
 * ids_out. */
SNNIPU_SPARSE(select_spikes_bwd);
/* out [cells, neurons]: values added up at the carried slots, of row r in cell r modulo cells. Backward: values_out
 * = x there, 0 in padding. cells is the number of rows, or the batch to sum over the steps. */
SNNIPU_SPARSE(sparse_to_dense_fwd);
SNNIPU_SPARSE(sparse_to_dense_bwd);

/* out: the maximum of each window of maps x [neurons, height, width]. which: its index in the window, row by row; of
 * equal values the first, of NaNs the last. Every window lies within the map. Return 3 if a window has more than 256
 * elements. Backward: grad -> grad_x. */
SNNIPU_SPARSE(max_pool2d_fwd);
SNNIPU_SPARSE(max_pool2d_bwd);
/* out: the average of each of these windows, added row by row. Backward: grad -> grad_x. */
SNNIPU_SPARSE(avg_pool2d_fwd);
SNNIPU_SPARSE(avg_pool2d_bwd);

/* sizeof(snnipu_sparse_call), which a caller compares with its own. */
SNNIPU_API int64_t snnipu_sparse_call_size(void);

#ifdef __cplusplus
}
#endif

#endif
