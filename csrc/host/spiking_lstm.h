/* C interface of a spiking LSTM's step after its matrix products: gates, states and reset in one pass, and its
 * adjoint.
 *
 * The caller has checked pointers and sizes. Type C is float for SNNIPU_F32 and double for SNNIPU_F64; other types
 * are not supported. */
#ifndef SNNIPU_SPIKING_LSTM_H
#define SNNIPU_SPIKING_LSTM_H

#include "host/neuron.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct snnipu_lstm_call {
  int64_t dtype;
  int64_t threads;   /* the most threads */
  int64_t rows;      /* of a batch, 1 or more */
  int64_t width;     /* neurons of a row, 1 or more */
  int64_t tanh_gate; /* index of the tanh gate, 2 or 3; the output gate has the other index */
  int64_t reset;     /* 0: subtract the threshold from the hidden state; 1: set it to zero; 2: no reset */
  double threshold;
  void *gates;            /* C [rows, 4, width]. Forward: inputs, replaced by the activations. Backward: activations */
  const void *syn_before; /* C [rows, width] (as all below), or NULL for zeros */
  const void *mem_before; /* or NULL for zeros */
  void *syn;              /* forward: output; backward: input */
  void *mem;              /* forward: output */
  const void *grad_syn;   /* backward: gradients of the states after the step from the loss, or NULL */
  const void *grad_mem;
  const void *carried_syn; /* and from the next step, or NULL */
  const void *carried_mem;
  void *grad_gates;  /* C [rows, 4, width] */
  void *grad_before; /* of the cell state before the step; may be the array carried_syn */
  void *grad_reset;  /* of the threshold at each neuron, or NULL */
} snnipu_lstm_call;

/* Return 0, or 1 for an unsupported dtype. */
SNNIPU_API int snnipu_lstm_forward(const snnipu_lstm_call *call);
SNNIPU_API int snnipu_lstm_backward(const snnipu_lstm_call *call);
/* sizeof(snnipu_lstm_call), which a caller compares with its own. */
SNNIPU_API int64_t snnipu_lstm_call_size(void);

#ifdef __cplusplus
}
#endif

#endif
