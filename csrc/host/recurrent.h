/* C interface of a neuron whose spikes are its input through a fully connected layer one step later: all steps of
 * one call.
 *
 * The caller passes the BLAS for the layer's products, PyTorch's own, so that they round as PyTorch's do. The caller
 * has checked pointers and sizes. Type C is float for SNNIPU_F32 and double for SNNIPU_F64; other types are not
 * supported. */
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
  /* All steps, as for snnipu_neuron_forward or _backward. If a state is the neuron's own output, it is the first:
   * initial, states, final and grad_initial are NULL for it. Forward: `final` has the other states after the last
   * step. Backward: `states` has those after each step, or NULL if the adjoint does not read them. */
  const snnipu_neuron_call *all;
  int (*neuron)(const snnipu_neuron_call *); /* the neuron's forward or backward function, called for each step */
  snnipu_gemm gemm;
  int64_t num_states;
  int64_t features;   /* elements of a row; a divisor of all->elements */
  int64_t adds;       /* 1: the layer's output is added to x; 0: it replaces the first state */
  int64_t transposed; /* 1: the weight is [inputs, outputs] in memory; 0: [outputs, inputs] */
  const void *weight; /* C [features, features] */
  const void *bias;   /* C [features], or NULL */
  const void *first;  /* C [elements]: spikes before the first step, or NULL */
  /* C [steps, elements], or NULL: x plus the layer's output if `adds`, else the layer's output. Forward: output;
   * backward: input. */
  void *incoming;
  /* Backward: C [elements], gradient of the last step's spikes in addition to grad_spk, or NULL. */
  const void *grad_last;
  void *grad_first; /* backward: C [elements], or NULL */
} snnipu_recurrent_call;

/* Return 0, 1 or 2, as snnipu_neuron_forward and _backward. */
SNNIPU_API int snnipu_recurrent_forward(const snnipu_recurrent_call *call);
SNNIPU_API int snnipu_recurrent_backward(const snnipu_recurrent_call *call);
SNNIPU_API int64_t snnipu_recurrent_call_size(void);

#ifdef __cplusplus
}
#endif

#endif
