#include "products.h"
#include "rows16.h"

#ifdef GGML_ROWS16
namespace {

template <typename Dots>
void multiply(const ggml_compute_params * params, const ggml_tensor * a, const ggml_tensor * b, ggml_tensor * c) {
    using A = typename Dots::A;
    using B = typename Dots::B;
    const int64_t k = a->ne[0] / ggml_blck_size(a->type);
    rows16::Product<Dots> product;
    product.run(params, a->ne[1], ggml_nrows(b), k, (const A *)a->data, a->nb[1] / sizeof(A), (const B *)params->wdata, k,
                (float *)c->data, c->nb[1] / sizeof(float));
}

}  // namespace
#endif

bool ggml_rows16_has(enum ggml_type type) {
#ifdef GGML_ROWS16
    return type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_0 || type == GGML_TYPE_Q5_1 ||
           type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q5_K || type == GGML_TYPE_Q6_K;
#else
    GGML_UNUSED(type);
    return false;
#endif
}

bool ggml_rows16_can(const struct ggml_compute_params * params, const struct ggml_tensor * dst) {
    const ggml_tensor * a = dst->src[0], * b = dst->src[1];
    return ggml_rows16_has(a->type) && !params->use_ref && b->type == GGML_TYPE_F32 && a->ne[2] * a->ne[3] == 1 &&
           dst->nb[2] == dst->nb[1] * dst->ne[1] && dst->nb[3] == dst->nb[2] * dst->ne[2];
}

void ggml_rows16_multiply(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
#ifdef GGML_ROWS16
    const ggml_tensor * a = dst->src[0], * b = dst->src[1];
    switch (a->type) {
        case GGML_TYPE_Q4_0: return multiply<rows16::Q4_0>(params, a, b, dst);
        case GGML_TYPE_Q4_1: return multiply<rows16::Q4_1>(params, a, b, dst);
        case GGML_TYPE_Q5_0: return multiply<rows16::Q5_0>(params, a, b, dst);
        case GGML_TYPE_Q5_1: return multiply<rows16::Q5_1>(params, a, b, dst);
        case GGML_TYPE_Q8_0: return multiply<rows16::Q8_0>(params, a, b, dst);
        case GGML_TYPE_Q4_K: return multiply<rows16::Q4_K>(params, a, b, dst);
        case GGML_TYPE_Q5_K: return multiply<rows16::Q5_K>(params, a, b, dst);
        case GGML_TYPE_Q6_K: return multiply<rows16::Q6_K>(params, a, b, dst);
        default: GGML_ABORT("no product of this type");
    }
#else
    GGML_UNUSED(params);
    GGML_UNUSED(dst);
#endif
}
