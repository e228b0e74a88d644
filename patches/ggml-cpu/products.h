// The products of rows16.h, for C.
#pragma once

#include "ggml-cpu-impl.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether this processor's build multiplies matrices of a type so, and was not told to leave it to ggml.
bool ggml_rows16_has(enum ggml_type type);

// Leave a type to ggml, or take it back. To be called before a model is loaded.
void ggml_rows16_use(enum ggml_type type, bool used);

// Whether a matrix is laid out anew when it is loaded, and how: its data is `data` in another order.
bool ggml_rows16_lays_out(const struct ggml_tensor * matrix);
void ggml_rows16_lay_out(struct ggml_tensor * matrix, const void * data);

// Whether a GGML_OP_MUL_MAT is a product of one such matrix with columns of floats.
bool ggml_rows16_can(const struct ggml_compute_params * params, const struct ggml_tensor * dst);

// The columns are quantised in params->wdata, the thread pool's chunk is nth, and all threads know.
void ggml_rows16_multiply(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// The speed of a product with n columns beside ggml's own product, 1 being the same, or what there is no memory for. Both
// read some rows, of a matrix of m rows of k weights, from main memory. Each has laid them out as those of a model.
double ggml_rows16_speed(enum ggml_type type, int64_t k, int64_t m, int n, int n_threads);

#ifdef __cplusplus
}
#endif
