// Attention whose sums do not depend on what else is computed, or lies, beside a row.
//
// A row looks at its own cells only, in their order and sixty-four at a time, counted from its own first one: softmax
// and sum go on from one such block to the next. Other sequences' cells between them, the rows of the same step and the
// number of threads change nothing, so that a row has the same bits in any company. Rows of one sequence and the heads
// that share K and V are computed together, which reads and converts each cell once for all of them.
#pragma once

#include "rows16.h"
#include "simd-gemm.h"
#include "vec.h"

#include <algorithm>
#include <utility>

#ifdef GGML_ROWS16

namespace attention16 {

constexpr int BLOCK = 64;

inline const ggml_fp16_t * mask_of(const ggml_tensor * mask, int64_t row, int64_t head, int64_t batch) {
    return (const ggml_fp16_t *)((const char *)mask->data + row * mask->nb[1] + head % mask->ne[2] * mask->nb[2] +
                                 batch % mask->ne[3] * mask->nb[3]);
}

// The cells that a row sees, of 32 of them.
inline uint32_t seen(const ggml_fp16_t * mask, int64_t cell, int64_t n) {
    const __mmask32 there = n - cell < 32 ? (1u << (n - cell)) - 1 : ~0u;
    return _mm512_mask_cmpneq_epi16_mask(there, _mm512_maskz_loadu_epi16(there, mask + cell), _mm512_set1_epi16((short)0xFC00));
}

// Whether the cells that a row sees are the first ones of those that the next row sees.
inline bool is_beginning(const ggml_fp16_t * row, const ggml_fp16_t * next, int64_t n) {
    bool has_ended = false;
    for (int64_t cell = 0; cell < n; cell += 32) {
        const uint32_t a = seen(row, cell, n), b = seen(next, cell, n), more = b & ~a;
        if ((a & ~b) || (has_ended && a) || (more && a > (more & -more))) {
            return false;
        }
        has_ended |= more != 0;
    }
    return true;
}

// Sixteen cells of K to floats, a number of each to a line: k[number * BLOCK + lane].
inline void transpose(const rows16::Rows & cells, int64_t n_numbers, float * k) {
    for (int64_t i = 0; i < n_numbers; i += 8) {
        __m512i x[4];
        rows16::words4(cells, 2 * i, x);
        for (int t = 0; t < 4; ++t) {
            _mm512_storeu_ps(k + (i + 2 * t) * BLOCK, rows16::half(x[t]));
            _mm512_storeu_ps(k + (i + 2 * t + 1) * BLOCK, rows16::half(x[t], 16));
        }
    }
}

inline void fetch(const char * at, int64_t n_numbers) {
    for (int64_t line = 0; line < n_numbers * (int64_t)sizeof(ggml_fp16_t); line += 64) {
        _mm_prefetch(at + line, _MM_HINT_T0);
    }
}

struct Attention {
    const ggml_tensor * q, * k, * v, * mask, * sinks;
    ggml_tensor * dst;
    float scale, max_bias, softcap;
    int64_t n_heads;  // that share K and V

    static bool can(const ggml_tensor * dst) {
        const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * mask = dst->src[3];
        const int64_t n_heads = q->ne[2] / k->ne[2];
        return q->type == GGML_TYPE_F32 && k->type == GGML_TYPE_F16 && v->type == GGML_TYPE_F16 && mask != nullptr &&
               k->ne[0] % 8 == 0 && v->ne[0] % 16 == 0 && k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] &&
               n_heads <= BLOCK && (n_heads == 1 || mask->ne[2] == 1);
    }

    explicit Attention(ggml_tensor * dst)
        : q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), mask(dst->src[3]), sinks(dst->src[4]), dst(dst) {
        memcpy(&scale, (const float *)dst->op_params + 0, sizeof(float));
        memcpy(&max_bias, (const float *)dst->op_params + 1, sizeof(float));
        memcpy(&softcap, (const float *)dst->op_params + 2, sizeof(float));
        scale = softcap == 0.0f ? scale : scale / softcap;
        n_heads = q->ne[2] / k->ne[2];
    }

    // The thread pool's chunk is nth, and all threads know.
    void run(const ggml_compute_params * params) const {
        int64_t n_rows = BLOCK / n_heads, n_parts = 1;
        const auto n_jobs_of = [&](int64_t rows, int64_t parts) {
            return (q->ne[1] + rows - 1) / rows * parts * k->ne[2] * q->ne[3];
        };
        // Smaller jobs where there would be too few for all threads; rows have the same bits in any of them.
        while (n_rows > 1 && n_jobs_of(n_rows, 1) < 2 * params->nth) {
            n_rows = (n_rows + 1) / 2;
        }
        while (n_jobs_of(n_rows, n_parts) < params->nth && n_parts < n_heads) {
            do {
                ++n_parts;
            } while (n_heads % n_parts != 0);
        }
        const int64_t n_together = n_heads / n_parts, n_groups = q->ne[2] / n_together;
        const int64_t n_tiles = (q->ne[1] + n_rows - 1) / n_rows, n_jobs = n_jobs_of(n_rows, n_parts);
        // As large as ggml_graph_plan reserves for its own tiles.
        const int64_t size = BLOCK * (2 * k->ne[0] + 2 * v->ne[0] + 2 * BLOCK) + CACHE_LINE_SIZE_F32;
        float * scratch = (float *)params->wdata + params->ith * size;
        for (int64_t job = params->ith; job < n_jobs; job = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int64_t tile = job % n_tiles, batch = job / n_tiles / n_groups;
            const int64_t head = job / n_tiles % n_groups * n_together;
            const int64_t end = MIN((tile + 1) * n_rows, q->ne[1]);
            for (int64_t row = tile * n_rows, next; row < end; row = next) {
                const auto mask_at = [&](int64_t at) { return mask_of(mask, at, head, batch); };
                for (next = row + 1; next < end && is_beginning(mask_at(next - 1), mask_at(next), k->ne[1]); ++next) {
                }
                compute(row, next, head, n_together, batch, scratch);
            }
        }
    }

    float slope_of(int64_t head) const {
        const uint32_t n_log2 = 1u << (uint32_t)floor(log2(q->ne[2]));
        const float m0 = powf(2.0f, -max_bias / n_log2), m1 = powf(2.0f, -(max_bias / 2.0f) / n_log2);
        return head < n_log2 ? powf(m0, head + 1) : powf(m1, 2 * (head - n_log2) + 1);
    }

    // Cells that are not there get -infinity. Returns the greatest.
    static float add_mask(float * of, const ggml_fp16_t * mask, const int64_t * cells, int64_t n_cells, float slope) {
        alignas(64) ggml_fp16_t values[BLOCK];
        std::fill(values + n_cells, values + BLOCK, 0xFC00);
        if (cells[n_cells - 1] - cells[0] == n_cells - 1) {
            memcpy(values, mask + cells[0], n_cells * sizeof(values[0]));
        } else {
            std::transform(cells, cells + n_cells, values, [&](int64_t cell) { return mask[cell]; });
        }
        const __m512 none = _mm512_set1_ps(-INFINITY);
        __m512 most = none;
        __mmask16 odd = 0;
        for (int64_t i = 0; i < BLOCK; i += 16) {
            const __m512 value = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(values + i)));
            // Of cells that the row does not see not even what is no number counts.
            const __mmask16 sees = _mm512_cmp_ps_mask(value, none, _CMP_NEQ_OQ);
            const __m512 masked = _mm512_mask_mov_ps(none, sees, _mm512_fmadd_ps(_mm512_set1_ps(slope), value, _mm512_loadu_ps(of + i)));
            _mm512_storeu_ps(of + i, masked);
            most = _mm512_max_ps(most, masked);
            odd |= _mm512_cmp_ps_mask(masked, masked, _CMP_UNORD_Q);
        }
        return odd ? NAN : _mm512_reduce_max_ps(most);
    }

    // Rows [begin, end) of heads that share K and V: line = (row - begin) * n_together + head - first_head.
    void compute(int64_t begin, int64_t end, int64_t first_head, int64_t n_together, int64_t batch, float * scratch) const {
        const int64_t dk = k->ne[0], dv = v->ne[0], n = k->ne[1];
        // Lines that nobody reads fill up what is computed four at a time.
        const int64_t n_lines = (end - begin) * n_together, n_padded = (n_lines + 3) & -4;
        float * qs = scratch, * ks = qs + BLOCK * dk, * vs = ks + BLOCK * dk, * sum = vs + BLOCK * dv, * p = sum + BLOCK * dv;
        float total[BLOCK], most[BLOCK];
        const auto line_of = [&](int64_t line) { return std::make_pair(begin + line / n_together, first_head + line % n_together); };
        for (int64_t line = 0; line < n_lines; ++line) {
            const auto [row, head] = line_of(line);
            memcpy(qs + line * dk, (const char *)q->data + row * q->nb[1] + head * q->nb[2] + batch * q->nb[3], dk * sizeof(float));
            total[line] = 0.0f;
            most[line] = -INFINITY;
        }
        memset(qs + n_lines * dk, 0, (n_padded - n_lines) * dk * sizeof(float));
        memset(sum, 0, n_padded * dv * sizeof(float));

        const int64_t kv_head = first_head / n_heads;
        const char * k_head = (const char *)k->data + kv_head * k->nb[2] + batch / (q->ne[3] / k->ne[3]) * k->nb[3];
        const char * v_head = (const char *)v->data + kv_head * v->nb[2] + batch / (q->ne[3] / v->ne[3]) * v->nb[3];
        const ggml_fp16_t * last = mask_of(mask, end - 1, first_head, batch);
        int64_t cells[BLOCK + 32], n_cells = 0;
        for (int64_t cell = 0; cell < n || n_cells > 0; cell += 32) {
            for (uint32_t bits = cell < n ? seen(last, cell, n) : 0; bits; bits &= bits - 1) {
                cells[n_cells++] = cell + __builtin_ctz(bits);
            }
            if (n_cells < BLOCK && cell + 32 < n) {
                continue;
            }
            const int64_t n_now = MIN(n_cells, BLOCK);
            if (n_now == 0) {
                break;
            }
            for (int64_t i = 0; i < n_now; ++i) {
                fetch(v_head + cells[i] * v->nb[1], dv);
                fetch(k_head + (cells[i] + BLOCK) * k->nb[1], dk);
            }
            for (int64_t i = 0; i < n_now; i += 16) {
                rows16::Rows at;
                for (int64_t lane = 0; lane < 16; ++lane) {
                    at[lane] = k_head + cells[MIN(i + lane, n_now - 1)] * k->nb[1];
                }
                transpose(at, dk, ks + i);
            }
            bool is_finite = true;
            for (int64_t i = 0; i < n_now; ++i) {
                for (int64_t x = 0; x < dv; x += 16) {
                    const char * half = v_head + cells[i] * v->nb[1] + x * sizeof(ggml_fp16_t);
                    const __m512 value = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)half));
                    _mm512_storeu_ps(vs + i * dv + x, value);
                    is_finite &= _mm512_cmp_ps_mask(_mm512_sub_ps(value, value), _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0;
                }
            }
            memset(vs + n_now * dv, 0, (BLOCK - n_now) * dv * sizeof(float));
            memset(p, 0, n_padded * BLOCK * sizeof(float));
            simd_gemm(p, qs, ks, n_padded, dk, BLOCK);
            ggml_vec_scale_f32(n_lines * BLOCK, p, scale);
            if (softcap != 0.0f) {
                ggml_vec_tanh_f32(n_lines * BLOCK, p, p);
                ggml_vec_scale_f32(n_lines * BLOCK, p, softcap);
            }
            int64_t first = n_lines;  // lines before it see none of these cells
            for (int64_t line = n_lines - 1; line >= 0; --line) {
                const auto [row, head] = line_of(line);
                const ggml_fp16_t * seen_by = mask_of(mask, row, first_head, batch);
                float * of = p + line * BLOCK;
                if (seen_by[cells[0]] == 0xFC00) {
                    break;
                }
                first = line;
                const float now = add_mask(of, seen_by, cells, n_now, max_bias > 0.0f ? slope_of(head) : 1.0f);
                if (now == -INFINITY) {
                    memset(of, 0, BLOCK * sizeof(float));
                    continue;
                }
                if (now > most[line]) {
                    const float less = expf(most[line] - now);
                    ggml_vec_scale_f32(dv, sum + line * dv, less);
                    total[line] *= less;
                    most[line] = now;
                }
                total[line] += ggml_vec_soft_max_f32(BLOCK, of, of, most[line]);
            }
            if (is_finite) {
                simd_gemm(sum + first * dv, p + first * BLOCK, vs, n_padded - first, BLOCK, dv);
            }
            for (int64_t line = first; line < n_lines && !is_finite; ++line) {
                // What a row does not see must not reach it as zero times infinity.
                const ggml_fp16_t * seen_by = mask_of(mask, line_of(line).first, first_head, batch);
                int64_t n_seen = 0;
                while (n_seen < n_now && seen_by[cells[n_seen]] != 0xFC00) {
                    ++n_seen;
                }
                simd_gemm(sum + line * dv, p + line * BLOCK, vs, 1, n_seen, dv);
            }
            memmove(cells, cells + n_now, (n_cells - n_now) * sizeof(cells[0]));
            n_cells -= n_now;
        }
        for (int64_t line = 0; line < n_lines; ++line) {
            const auto [row, head] = line_of(line);
            if (sinks) {
                const float sink = ((const float *)sinks->data)[head], all = fmaxf(most[line], sink);
                ggml_vec_scale_f32(dv, sum + line * dv, expf(most[line] - all));
                total[line] = total[line] * expf(most[line] - all) + expf(sink - all);
            }
            ggml_vec_scale_f32(dv, sum + line * dv, total[line] == 0.0f ? 0.0f : 1.0f / total[line]);
            memcpy((char *)dst->data + (batch * dst->ne[2] * dst->ne[1] + head + row * dst->ne[1]) * dst->nb[1], sum + line * dv, dst->nb[1]);
        }
    }
};

}  // namespace attention16
#endif
