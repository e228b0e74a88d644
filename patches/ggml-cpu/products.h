// The products of rows16.h, for C.
#pragma once

#include "ggml-cpu-impl.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether this processor's build multiplies matrices of a type so.
bool ggml_rows16_has(enum ggml_type type);

// Whether a GGML_OP_MUL_MAT is a product of one such matrix with columns of floats.
bool ggml_rows16_can(const struct ggml_compute_params * params, const struct ggml_tensor * dst);

// The columns are quantised in params->wdata, the thread pool's chunk is nth, and all threads know.
void ggml_rows16_multiply(const struct ggml_compute_params * params, struct ggml_tensor * dst);

#ifdef __cplusplus
}
#endif
