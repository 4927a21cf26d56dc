/* A neuron whose own spikes come back through a fully connected layer: all steps of one call.
 *
 * The layer's products are the caller's BLAS, PyTorch's own, so that they round as PyTorch's do. Pointers and sizes
 * have been checked by the caller; of type C: float for SNNIPU_F32, double for SNNIPU_F64, the only two. */
#ifndef SNNIPU_RECURRENT_H
#define SNNIPU_RECURRENT_H

#include "host/neuron.h"

#ifdef __cplusplus
extern "C" {
#endif

/* BLAS's xGEMM, column-major. */
typedef void (*snnipu_gemm)(const char *trans_a, const char *trans_b, const int *m, const int *n, const int *k,
                            const void *alpha, const void *a, const int *lda, const void *b, const int *ldb,
                            const void *beta, void *c, const int *ldc);

typedef struct snnipu_recurrent_call {
  /* All steps, as for snnipu_neuron_forward or _backward. The state that is the neuron's own output, if there is one,
   * is its first: initial, states, final and grad_initial are NULL for it. Other states after the last step: in final;
   * a backward pass finds those after each step in states, NULL where its adjoint does not read them. */
  const snnipu_neuron_call *all;
  int (*neuron)(const snnipu_neuron_call *); /* the neuron's forward or backward function: called for each step */
  snnipu_gemm gemm;
  int64_t num_states;
  int64_t features;   /* of a row; elements is a multiple of it */
  int64_t adds;       /* the layer's output is added to x; else it takes the place of the first state */
  int64_t transposed; /* the weight is [inputs, outputs] in memory, else [outputs, inputs] */
  const void *weight; /* C [features, features] */
  const void *bias;   /* C [features], or NULL */
  const void *first;  /* C [elements]: spikes before the first step; or NULL */
  void *incoming;     /* C [steps, elements], or NULL: what the neuron is given with adds, the layer's output without.
                         Forward: out; backward: in */
  const void *grad_last; /* backward: C [elements], of the spikes of the last step beside grad_spk, or NULL */
  void *grad_first;      /* backward: C [elements], or NULL */
} snnipu_recurrent_call;

/* As snnipu_neuron_forward and _backward: 0, 1 for what is unknown, 2 where memory could not be had. */
SNNIPU_API int snnipu_recurrent_forward(const snnipu_recurrent_call *call);
SNNIPU_API int snnipu_recurrent_backward(const snnipu_recurrent_call *call);
SNNIPU_API int64_t snnipu_recurrent_call_size(void);

#ifdef __cplusplus
}
#endif

#endif
