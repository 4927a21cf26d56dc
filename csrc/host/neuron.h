/* C interface of neurons over a sequence: a forward and a backward function for all neurons, with their arguments in
 * a struct.
 *
 * Every field has 64 bits. Arrays are contiguous and row-major and must not overlap. The caller has checked sizes
 * and numbers. Type S is the storage of `dtype`; type C is double for SNNIPU_F64, else float. The struct that the
 * generator prints for a neuron has its numbers of states, parameters and variants (choices of its options);
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
  int64_t neuron;         /* index in the list that the library was generated from */
  int64_t variant;        /* index of the choice of its options */
  int64_t dtype;          /* enum snnipu_dtype */
  int64_t threads;        /* the most threads */
  int64_t constant_input; /* 1: x is the same at every step */
  int64_t surrogate;      /* backward: index in SNNIPU_SURROGATES */
  double surrogate_a;     /* and its two parameters, in the order of csrc/neuron/surrogate.hpp */
  double surrogate_b;
  /* Backward: bit 0 for grad_spk, bit 1 + s for grad_states[s]: [elements], the same at every step. */
  int64_t grad_constant;
  int64_t steps;                                   /* 1 or more */
  int64_t elements;                                /* of a step, 1 or more */
  const void *x;                                   /* S [steps, elements], or [elements] with constant_input */
  const void *initial[SNNIPU_MOST_STATES];         /* C [elements], or NULL for zeros */
  const void *parameters[SNNIPU_MOST_PARAMETERS];  /* C [size]: element i has value i % size; */
  int64_t parameter_sizes[SNNIPU_MOST_PARAMETERS]; /* size is 1 or a divisor of elements */
  void *spk;                                       /* forward: S [steps, elements] */
  /* S [steps, elements]: after each step. Forward: output, or NULL. Backward: input; if one that the adjoint reads
   * is NULL, all are recomputed from x. NULL for a state that is the output. */
  void *states[SNNIPU_MOST_STATES];
  void *final[SNNIPU_MOST_STATES];             /* forward: C [elements], after the last step, or NULL */
  const void *grad_spk;                        /* backward: S [steps, elements], or NULL */
  const void *grad_states[SNNIPU_MOST_STATES]; /* S [steps, elements], or NULL */
  const void *grad_final[SNNIPU_MOST_STATES];  /* C [elements], or NULL */
  void *grad_x;                                /* S, of x's shape */
  void *grad_initial[SNNIPU_MOST_STATES];      /* C [elements], or NULL */
  /* C [size], or NULL: sums over time and elements, in an order that does not depend on the number of threads. */
  void *grad_parameters[SNNIPU_MOST_PARAMETERS];
} snnipu_neuron_call;

/* Return 0; 1 if neuron, variant, dtype or surrogate is unknown or x is NULL but needed; 2 if out of memory. */
SNNIPU_API int snnipu_neuron_forward(const snnipu_neuron_call *call);
SNNIPU_API int snnipu_neuron_backward(const snnipu_neuron_call *call);
/* sizeof(snnipu_neuron_call), which a caller compares with its own. */
SNNIPU_API int64_t snnipu_neuron_call_size(void);

#ifdef __cplusplus
}
#endif

#endif
