/* C interface of the IPU model: PopART operators of the domain ai.snnipu, forward and backward, on a modelled
 * machine. It does not depend on PyTorch and is loaded with ctypes.
 *
 * Functions that return an int return 0, or another number on failure. snnipu_ipu_error() is then the name of the
 * exception's class, a colon, and its message. A program may be run by one thread at a time. */
#ifndef SNNIPU_IPU_MODEL_H
#define SNNIPU_IPU_MODEL_H

#include <stdint.h>

#if defined(__GNUC__)
#define SNNIPU_IPU_API __attribute__((visibility("default")))
#else
#define SNNIPU_IPU_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One operator, or its gradient, on one target. */
typedef struct snnipu_ipu_request snnipu_ipu_request;
typedef struct snnipu_ipu_program snnipu_ipu_program;

enum snnipu_ipu_source { SNNIPU_IPU_GRAD_OUT = 0, SNNIPU_IPU_IN = 1, SNNIPU_IPU_OUT = 2 };

SNNIPU_IPU_API const char *snnipu_ipu_version(void);
/* Error of the calling thread's last failure. */
SNNIPU_IPU_API const char *snnipu_ipu_error(void);
/* JSON: a list of {"domain", "name", "version", "inputs": [{"name", "types"}], "outputs", "attributes": [names]}. */
SNNIPU_IPU_API const char *snnipu_ipu_operators(void);

SNNIPU_IPU_API snnipu_ipu_request *snnipu_ipu_request_new(const char *domain, const char *op, int version);
SNNIPU_IPU_API void snnipu_ipu_request_free(snnipu_ipu_request *request);
/* Add the next input. type: "FLOAT", "FLOAT16", "INT32", ...; NULL for an optional input that is missing. */
SNNIPU_IPU_API int snnipu_ipu_request_input(snnipu_ipu_request *request, const char *type, const int64_t *shape,
                                            int rank);
/* Set the number of outputs. The default is the number of the operator's shape inference, or else of its definition. */
SNNIPU_IPU_API int snnipu_ipu_request_outputs(snnipu_ipu_request *request, int outputs);
SNNIPU_IPU_API int snnipu_ipu_request_int(snnipu_ipu_request *request, const char *name, int64_t value);
SNNIPU_IPU_API int snnipu_ipu_request_float(snnipu_ipu_request *request, const char *name, double value);
SNNIPU_IPU_API int snnipu_ipu_request_string(snnipu_ipu_request *request, const char *name, const char *value);
SNNIPU_IPU_API int snnipu_ipu_request_ints(snnipu_ipu_request *request, const char *name, const int64_t *values,
                                           int count);
SNNIPU_IPU_API int snnipu_ipu_request_floats(snnipu_ipu_request *request, const char *name, const double *values,
                                             int count);
/* architecture: "mk1", "mk2" or "bow". tiles_per_ipu: 0 for all. */
SNNIPU_IPU_API int snnipu_ipu_request_target(snnipu_ipu_request *request, const char *architecture, int tiles_per_ipu,
                                             int ipus);
/* Set an option of poplar::Engine (poplar/Engine.hpp): "workerOrder", "threads", "tileMemory", ... */
SNNIPU_IPU_API int snnipu_ipu_request_option(snnipu_ipu_request *request, const char *name, const char *value);
/* Compile the gradient operator for gradients of these outputs. The program's inputs are those of its
 * gradInputInfo(); see snnipu_ipu_input_source(). */
SNNIPU_IPU_API int snnipu_ipu_request_gradient(snnipu_ipu_request *request, const int *outputs_with_gradient,
                                               int count);

SNNIPU_IPU_API int snnipu_ipu_compile(const snnipu_ipu_request *request, snnipu_ipu_program **out);
SNNIPU_IPU_API void snnipu_ipu_program_free(snnipu_ipu_program *program);

SNNIPU_IPU_API int snnipu_ipu_outputs(const snnipu_ipu_program *program);
SNNIPU_IPU_API int snnipu_ipu_output_rank(const snnipu_ipu_program *program, int output);
SNNIPU_IPU_API const int64_t *snnipu_ipu_output_shape(const snnipu_ipu_program *program, int output);
SNNIPU_IPU_API const char *snnipu_ipu_output_type(const snnipu_ipu_program *program, int output);
/* Number of inputs without missing ones. */
SNNIPU_IPU_API int snnipu_ipu_inputs(const snnipu_ipu_program *program);
/* Set kind and index of the operator's tensor that an input of the program is: the index-th input or output, or an
 * output's gradient. */
SNNIPU_IPU_API int snnipu_ipu_input_source(const snnipu_ipu_program *program, int input, int *kind, int *index);
/* The operator's input whose gradient an output of the program is; -1 for a forward program. */
SNNIPU_IPU_API int snnipu_ipu_gradient_target(const snnipu_ipu_program *program, int output);

/* Run with row-major arrays in the order of inputs and outputs; FLOAT16 has two bytes per element. */
SNNIPU_IPU_API int snnipu_ipu_run(snnipu_ipu_program *program, const void *const *inputs, void *const *outputs);
/* JSON of the counts of all runs so far (csrc/ipu_model/report.hpp), valid until the next call for this program.
 * NULL on failure. */
SNNIPU_IPU_API const char *snnipu_ipu_report(snnipu_ipu_program *program);
/* The same for one run, without running it. */
SNNIPU_IPU_API const char *snnipu_ipu_estimate(snnipu_ipu_program *program);

#ifdef __cplusplus
}
#endif

#endif
