/* C interface of neurons over a sequence: one pair of functions for every neuron, their arguments in a struct.
 *
 * Every field has 64 bits. Arrays are contiguous and row-major and must not overlap; sizes and numbers have been
 * checked by the caller. Of type S: storage, of the dtype; of type C: double for SNNIPU_F64, else float. What a neuron
 * has (states, parameters, variants: the choices of its options) is in the struct that the generator printed, and
 * snnipu._generator.neuron gives the same in Python. */
#ifndef SNNIPU_NEURON_H
#define SNNIPU_NEURON_H

#include <stdint.h>

#if defined(_WIN32)
#define SNNIPU_API __declspec(dllexport)
#elif defined(__GNUC__)
#define SNNIPU_API __attribute__((visibility("default")))
#else
#define SNNIPU_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum snnipu_dtype { SNNIPU_F32 = 0, SNNIPU_F64 = 1, SNNIPU_F16 = 2, SNNIPU_BF16 = 3 };
enum { SNNIPU_MOST_STATES = 8, SNNIPU_MOST_PARAMETERS = 16 };

typedef struct snnipu_neuron_call {
  int64_t neuron;         /* its place in the list the library was generated from */
  int64_t variant;        /* choice of its options */
  int64_t dtype;          /* enum snnipu_dtype */
  int64_t threads;        /* at most this many run */
  int64_t constant_input; /* x is the same at every step */
  int64_t surrogate;      /* backward: its place in SNNIPU_SURROGATES, */
  double surrogate_a;     /* and its parameters, in the order of csrc/neuron/surrogate.hpp */
  double surrogate_b;
  int64_t grad_constant; /* backward: bit 0 for grad_spk, bit 1 + s for grad_states[s]: [elements], the same at every
                            step */
  int64_t steps;         /* 1 or more */
  int64_t elements;      /* of a step, 1 or more */
  const void *x;         /* S [steps, elements], or [elements] with constant_input */
  const void *initial[SNNIPU_MOST_STATES];         /* C [elements], or NULL for zeros */
  const void *parameters[SNNIPU_MOST_PARAMETERS];  /* C [size]: value i % size belongs to element i, */
  int64_t parameter_sizes[SNNIPU_MOST_PARAMETERS]; /* and size, 1 or a divisor of elements */
  void *spk;                                       /* forward: S [steps, elements] */
  void *states[SNNIPU_MOST_STATES];                /* S [steps, elements]: after each step. Forward: out, or NULL.
                                                      Backward: in; with NULL for one that is needed, all are
                                                      computed again from x. A state that is the output: NULL. */
  void *final[SNNIPU_MOST_STATES];                 /* forward: C [elements], after the last step, or NULL */
  const void *grad_spk;                            /* backward: S [steps, elements], or NULL */
  const void *grad_states[SNNIPU_MOST_STATES];     /* S [steps, elements], or NULL */
  const void *grad_final[SNNIPU_MOST_STATES];      /* C [elements], or NULL */
  void *grad_x;                                    /* S, of x's shape */
  void *grad_initial[SNNIPU_MOST_STATES];          /* C [elements], or NULL */
  void *grad_parameters[SNNIPU_MOST_PARAMETERS];   /* C [size], or NULL; sums over time and elements in a fixed order,
                                                      whatever the number of threads */
} snnipu_neuron_call;

/* Both return 0, 1 where neuron, variant, dtype or surrogate is unknown or x is missing where it is needed, 2 where
 * memory could not be had. */
SNNIPU_API int snnipu_neuron_forward(const snnipu_neuron_call *call);
SNNIPU_API int snnipu_neuron_backward(const snnipu_neuron_call *call);
/* sizeof(snnipu_neuron_call), against which a caller checks its own. */
SNNIPU_API int64_t snnipu_neuron_call_size(void);

#ifdef __cplusplus
}
#endif

#endif
