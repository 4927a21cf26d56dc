/* A spiking LSTM's step behind its products: gates, states and reset in one pass, and its adjoint.
 *
 * Pointers and sizes have been checked by the caller; of type C: float for SNNIPU_F32, double for SNNIPU_F64, the only
 * two. */
#ifndef SNNIPU_SPIKING_LSTM_H
#define SNNIPU_SPIKING_LSTM_H

#include "host/neuron.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct snnipu_lstm_call {
  int64_t dtype;
  int64_t threads;   /* at most this many run */
  int64_t rows;      /* of a batch, 1 or more */
  int64_t width;     /* neurons of a row, 1 or more */
  int64_t tanh_gate; /* which of a row's four gates is tanh's: 2, or 3; the other one of these is the output's */
  int64_t reset;     /* 0 takes the threshold from the hidden state, 1 makes it zero, 2 does neither */
  double threshold;
  void *gates;            /* C [rows, 4, width]. Forward: in, and the activations out; backward: activations in */
  const void *syn_before; /* C [rows, width], as all below, or NULL for zeros */
  const void *mem_before; /* or NULL for zeros */
  void *syn;              /* forward: out; backward: in */
  void *mem;              /* forward: out */
  const void *grad_syn;   /* backward: of the states after the step: the loss's own, or NULL, */
  const void *grad_mem;
  const void *carried_syn; /* and from the step after, or NULL */
  const void *carried_mem;
  void *grad_gates;  /* C [rows, 4, width] */
  void *grad_before; /* of the cell state before the step; may be carried_syn's */
  void *grad_reset;  /* of the threshold at each neuron, or NULL */
} snnipu_lstm_call;

/* Both return 0, or 1 for a dtype that is none of theirs. */
SNNIPU_API int snnipu_lstm_forward(const snnipu_lstm_call *call);
SNNIPU_API int snnipu_lstm_backward(const snnipu_lstm_call *call);
/* sizeof(snnipu_lstm_call), against which a caller checks its own. */
SNNIPU_API int64_t snnipu_lstm_call_size(void);

#ifdef __cplusplus
}
#endif

#endif
