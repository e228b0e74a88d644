#include "products.h"
#include "rows16.h"
#include "traits.h"

#include "ggml-cpu.h"

#include <chrono>
#include <cmath>
#include <vector>

// Of repack.h, which cannot be included beside rows16.h.
ggml_backend_buffer_type_t ggml_backend_cpu_repack_buffer_type(void);

namespace {

bool is_unused[GGML_TYPE_COUNT];

#ifdef GGML_ROWS16

bool is_laid_out(const ggml_tensor * a) {
    return a->buffer && a->buffer->buft == ggml_backend_cpu_repack_buffer_type();
}

template <typename Dots>
void multiply(const ggml_compute_params * params, const ggml_tensor * a, const ggml_tensor * b, ggml_tensor * c) {
    using A = typename Dots::A;
    using B = typename Dots::B;
    const int64_t k = a->ne[0] / ggml_blck_size(a->type);
    const auto run = [&](auto product) {
        product.run(params, a->ne[1], ggml_nrows(b), k, (const A *)a->data, a->nb[1] / sizeof(A), (const B *)params->wdata,
                    k, (float *)c->data, c->nb[1] / sizeof(float));
    };
    is_laid_out(a) ? run(rows16::Product<Dots, rows16::Panel>()) : run(rows16::Product<Dots, rows16::Apart>());
}

template <typename Dots> void lay_out(ggml_tensor * a, const void * data) {
    using A = typename Dots::A;
    const int64_t k = a->ne[0] / ggml_blck_size(a->type);
    for (int64_t row = 0; row < a->ne[1]; row += 16) {
        rows16::Apart<A> rows;
        rows.begin((const A *)data + row * k, k, 16);
        rows16::Panel<A>::lay_out(rows, k, (char *)((A *)a->data + row * k));
    }
}

#endif

}  // namespace

#ifdef GGML_ROWS16
#define OF_TYPE(type, function, ...)                                     \
    switch (type) {                                                      \
        case GGML_TYPE_Q4_0: return function<rows16::Q4_0>(__VA_ARGS__); \
        case GGML_TYPE_Q4_1: return function<rows16::Q4_1>(__VA_ARGS__); \
        case GGML_TYPE_Q5_0: return function<rows16::Q5_0>(__VA_ARGS__); \
        case GGML_TYPE_Q5_1: return function<rows16::Q5_1>(__VA_ARGS__); \
        case GGML_TYPE_Q8_0: return function<rows16::Q8_0>(__VA_ARGS__); \
        case GGML_TYPE_Q4_K: return function<rows16::Q4_K>(__VA_ARGS__); \
        case GGML_TYPE_Q5_K: return function<rows16::Q5_K>(__VA_ARGS__); \
        case GGML_TYPE_Q6_K: return function<rows16::Q6_K>(__VA_ARGS__); \
        default: GGML_ABORT("no product of this type");                  \
    }
#else
#define OF_TYPE(type, function, ...) GGML_ABORT("no products")
#endif

bool ggml_rows16_has(enum ggml_type type) {
#ifdef GGML_ROWS16
    return !is_unused[type] &&
           (type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_0 || type == GGML_TYPE_Q5_1 ||
            type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q5_K || type == GGML_TYPE_Q6_K);
#else
    GGML_UNUSED(type);
    return false;
#endif
}

void ggml_rows16_use(enum ggml_type type, bool used) {
    is_unused[type] = !used;
}

bool ggml_rows16_lays_out(const struct ggml_tensor * matrix) {
    return ggml_rows16_has(matrix->type) && matrix->ne[2] * matrix->ne[3] == 1 && matrix->ne[1] % 16 == 0;
}

void ggml_rows16_lay_out(struct ggml_tensor * matrix, const void * data) {
    OF_TYPE(matrix->type, lay_out, matrix, data);
}

bool ggml_rows16_can(const struct ggml_compute_params * params, const struct ggml_tensor * dst) {
    const ggml_tensor * a = dst->src[0], * b = dst->src[1];
    return ggml_rows16_has(a->type) && !params->use_ref && b->type == GGML_TYPE_F32 && a->ne[2] * a->ne[3] == 1 &&
           dst->nb[2] == dst->nb[1] * dst->ne[1] && dst->nb[3] == dst->nb[2] * dst->ne[2];
}

void ggml_rows16_multiply(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    OF_TYPE(dst->src[0]->type, multiply, params, dst->src[0], dst->src[1], dst);
}

namespace {

// Seconds of a product, the least of some.
double time_of(ggml_type type, int64_t k, int64_t m, int n, int n_threads) {
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, n_threads);
    ggml_threadpool_params wanted = ggml_threadpool_params_default(n_threads);
    ggml_threadpool * threads = ggml_threadpool_new(&wanted);
    ggml_backend_cpu_set_threadpool(cpu, threads);
    ggml_context * context = ggml_init({ 8 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true });
    ggml_tensor * a = ggml_new_tensor_2d(context, type, k, m);
    ggml_tensor * b = ggml_new_tensor_2d(context, GGML_TYPE_F32, k, n);
    ggml_tensor * c = ggml_mul_mat(context, a, b);
    ggml_cgraph * graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, c);

    // The buffers that the library itself would choose.
    ggml_backend_buffer_t buffer = nullptr;
    for (ggml_backend_buffer_type_t buft : ggml_backend_cpu_get_extra_buffer_types()) {
        if (buft && !buffer) {
            buffer = a->buffer = ggml_backend_buft_alloc_buffer(buft, ggml_backend_buft_get_alloc_size(buft, a));
            if (buffer && !ggml_backend_supports_op(cpu, c)) {
                ggml_backend_buffer_free(buffer);
                buffer = nullptr;
            }
            a->buffer = nullptr;
        }
    }
    if (!buffer) {
        buffer = ggml_backend_alloc_buffer(cpu, ggml_nbytes(a));
    }
    if (buffer) {
        ggml_backend_tensor_alloc(buffer, a, ggml_backend_buffer_get_base(buffer));
    }
    double least = INFINITY;
    ggml_backend_buffer_t others = buffer ? ggml_backend_alloc_ctx_tensors(context, cpu) : nullptr;
    if (others) {
        // Bytes of which no scale is infinite, or so small that it takes longer.
        const std::vector<char> rows(ggml_nbytes(a), 0x2C);
        ggml_backend_tensor_set(a, rows.data(), 0, rows.size());
        const std::vector<float> numbers(k * n, 0.25f);
        ggml_backend_tensor_set(b, numbers.data(), 0, ggml_nbytes(b));
        for (int i = 0; i < 4; ++i) {
#ifdef __SSE2__
            for (const char * line = (const char *)a->data; line < (const char *)a->data + ggml_nbytes(a); line += 64) {
                _mm_clflush(line);
            }
            _mm_mfence();
#endif
            const auto begun = std::chrono::steady_clock::now();
            ggml_backend_graph_compute(cpu, graph);
            least = MIN(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
        }
    }
    ggml_backend_buffer_free(others);
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
    ggml_backend_free(cpu);
    ggml_threadpool_free(threads);
    return least;
}

}  // namespace

double ggml_rows16_speed(enum ggml_type type, int64_t k, int64_t m, int n, int n_threads) {
    const int64_t n_rows = MIN(m, MAX(16, (4 << 20) / (int64_t)ggml_row_size(type, k) / 16 * 16));
    const bool was_unused = is_unused[type];
    double time[2];
    for (bool unused : { false, true }) {
        is_unused[type] = unused;
        time[unused] = time_of(type, k, n_rows, n, n_threads);
    }
    is_unused[type] = was_unused;
    return std::isinf(time[0]) || std::isinf(time[1]) ? 1 : time[1] / time[0];
}
