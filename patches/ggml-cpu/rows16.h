// Products of a quantised matrix A with columns B: sixteen rows of A lie in the sixteen lanes of a register.
//
// However many columns there are, an element of C is the same chain of operations over the blocks of its row, so that a
// column has the same bits in any company. Blocks are unpacked once for all columns. The rows lie apart as in a file, or
// side by side where the matrix was laid out anew when it was loaded; the numbers that are read are the same.
#pragma once

#include "ggml-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-quants.h"
#include "simd-mappings.h"

#include <type_traits>
#include <vector>

// Tests compile all this for processors without it (tests/emulated).
#ifdef ROWS16_EMULATED
#include <avx512_emulated.h>
#endif

#if defined(ROWS16_EMULATED) || \
    (defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__F16C__))
#define GGML_ROWS16

// Compilers give up on inlining in functions of this size, and a call for each register would take five times as long.
#define ALWAYS inline __attribute__((always_inline))
#define FLAT __attribute__((flatten))
#ifdef __clang__
#define ROLLED _Pragma("clang loop unroll(disable)")
#else
#define ROLLED _Pragma("GCC unroll 1")
#endif

namespace rows16 {

using Rows = const char * [16];

// Lane r of x[i] becomes four bytes of row r, those that begin `offset` + 4 i bytes behind its beginning.
ALWAYS void words4(const Rows & rows, int64_t offset, __m512i * x) {
    // Masked broadcasts are loads and blends; inserting would be a shuffle each.
    const auto four = [&](int r) {
        const auto load = [&](int row) { return _mm_loadu_si128((const __m128i *)(rows[row] + offset)); };
        __m512i y = _mm512_castsi128_si512(load(r));
        y = _mm512_mask_broadcast_i32x4(y, 0x00F0, load(r + 4));
        y = _mm512_mask_broadcast_i32x4(y, 0x0F00, load(r + 8));
        return _mm512_mask_broadcast_i32x4(y, 0xF000, load(r + 12));
    };
    const __m512i y0 = four(0), y1 = four(1), y2 = four(2), y3 = four(3);
    const __m512i a = _mm512_unpacklo_epi32(y0, y1), b = _mm512_unpackhi_epi32(y0, y1);
    const __m512i c = _mm512_unpacklo_epi32(y2, y3), d = _mm512_unpackhi_epi32(y2, y3);
    x[0] = _mm512_unpacklo_epi64(a, c);
    x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d);
    x[3] = _mm512_unpackhi_epi64(b, d);
}

// A block's words, and where they begin. If its size is no multiple of four, its scale is apart: two bytes before the
// words, or behind them.
template <typename A> inline constexpr int64_t WORDS = sizeof(A) / 4;
template <typename A> inline constexpr int64_t BEGIN = sizeof(A) % 4;
template <> inline constexpr int64_t BEGIN<block_q6_K> = 0;

// Sixteen rows that lie apart.
template <typename A> struct Apart {
    Rows rows;

    // `a`: the first of them; lanes without a row have the last.
    void begin(const A * a, int64_t lda, int64_t n_rows) {
        for (int64_t r = 0; r < 16; ++r) {
            rows[r] = (const char *)(a + MIN(r, n_rows - 1) * lda);
        }
    }

    // Those that begin `offset` + 4 i bytes behind the beginning of block l.
    ALWAYS void words4(int64_t l, int64_t offset, __m512i * x) const {
        rows16::words4(rows, sizeof(A) * l + offset, x);
    }

    // The scale of block l, where it is apart.
    ALWAYS __m256i scale(int64_t l) const {
        __m512i x[4];
        words4(l, BEGIN<A> ? 0 : sizeof(A) - 16, x);
        return _mm512_cvtepi32_epi16(BEGIN<A> ? x[0] : _mm512_srli_epi32(x[3], 16));
    }
};

// Sixteen rows side by side: of each block the first word of every row, the second of every row, and so on, and the two
// bytes that are left over. They take as many bytes as before and are one stream, which a processor fetches by itself.
template <typename A> struct Panel {
    const char * blocks;

    void begin(const A * a, int64_t, int64_t) { blocks = (const char *)a; }

    ALWAYS void words4(int64_t l, int64_t offset, __m512i * x) const {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            x[i] = _mm512_loadu_si512(blocks + 16 * (sizeof(A) * l + offset - BEGIN<A> + 4 * i));
        }
    }

    ALWAYS __m256i scale(int64_t l) const {
        return _mm256_loadu_si256((const __m256i *)(blocks + 16 * (sizeof(A) * l + 4 * WORDS<A>)));
    }

    // Lays out k blocks of sixteen rows.
    static void lay_out(const Apart<A> & from, int64_t k, char * to) {
        for (int64_t l = 0; l < k; ++l, to += 16 * sizeof(A)) {
            for (int64_t w = 0; w < WORDS<A>; w += 4) {
                const int64_t first = MIN(w, WORDS<A> - 4);
                __m512i x[4];
                from.words4(l, BEGIN<A> + 4 * first, x);
                for (int i = 0; i < 4; ++i) {
                    _mm512_storeu_si512(to + 64 * (first + i), x[i]);
                }
            }
            if (sizeof(A) % 4) {
                _mm256_storeu_si256((__m256i *)(to + 64 * WORDS<A>), from.scale(l));
            }
        }
    }
};

// The float in the low half, or with 16 the high half, of each word.
ALWAYS __m512 half(__m512i words, int shift = 0) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(words, shift)));
}

ALWAYS __m512 half(__m256i halves) {
    return _mm512_cvtph_ps(halves);
}

ALWAYS __m512i shifted(__m512i words, int shift, int mask) {
    return _mm512_and_si512(_mm512_srli_epi32(words, shift), _mm512_set1_epi8(mask));
}

// Bytes with four bits of `low` and, of those above them, the ones of `high` that are in the mask.
ALWAYS __m512i joined(__m512i low, __m512i high, int mask) {
    const __m512i either = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), low, high, 0xCA);
    return _mm512_and_si512(either, _mm512_set1_epi8(mask));
}

ALWAYS __m512i word_of(const void * at) {
    int32_t word;
    memcpy(&word, at, sizeof(word));
    return _mm512_set1_epi32(word);
}

// Dots: what one type of blocks is unpacked to (Tile, and its Scales), `unpack`, which hands over each register of
// numbers with its place, `dot`, which goes on with N sums, `dot_of_one`, which needs no tile for its only sum, and what
// all rows need of a column's block (Side).
// From: where the sixteen rows are, Apart or Panel.
template <typename Dots, template <typename> typename From> class Product {
    using A = typename Dots::A;
    using Place = From<A>;
    using B = typename Dots::B;
    using Side = typename Dots::Side;

  public:
    // k in blocks, lda, ldb and ldc in blocks and floats. The thread pool's chunk is nth, and all threads know.
    void run(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const A * a, int64_t lda, const B * b,
             int64_t ldb, float * c, int64_t ldc) {
        // Panels of sixteen rows. Several that follow each other make a job. A thread takes its next job before it has
        // ended one, so that it knows what it reads next.
        const int64_t n_panels = (m + 15) / 16;
        const int64_t n_each = MAX(1, MIN(MOST_PANELS, n_panels / (4 * params->nth)));
        const int64_t n_jobs = (n_panels + n_each - 1) / n_each;
        const auto panel_at = [&](int64_t panel) { return (const char *)(a + 16 * MIN(panel, n_panels - 1) * lda); };
        for (int64_t l = 0; l < MIN(k, Dots::FIRST); ++l) {
            fetch(panel_at(params->ith * n_each), l);
        }
        // Sides of few columns are kept whole, those of many for the blocks that are unpacked at once.
        lds = n > FEW && DEPTH > 1 ? DEPTH : k;
        static thread_local std::vector<Side> kept;
        kept.resize(MAX((int64_t)kept.size(), n * lds));
        sides = kept.data();
        for (int64_t job = params->ith; job < n_jobs;) {
            const int64_t then = ggml_threadpool_chunk_add(params->threadpool, 1);
            const int64_t end = MIN((job + 1) * n_each, n_panels);
            for (int64_t from = 0; from < k; from += lds) {
                const int64_t to = MIN(from + lds, k);
                for (int64_t j = 0; (lds < k || job == params->ith) && j < n; ++j) {
                    for (int64_t l = from; l < to; ++l) {
                        kept[j * lds + l - from] = Dots::side_of(b[j * ldb + l]);
                    }
                }
                for (int64_t panel = job * n_each; panel < end; ++panel) {
                    const char * next = panel_at(panel + 1 < end ? panel + 1 : then * n_each);
                    rows.begin(a + 16 * panel * lda, lda, m - 16 * panel);
                    lanes = 0xFFFF >> (16 - MIN(m - 16 * panel, 16));
                    if (n == 1) {
                        one_column(next, k, b, c + 16 * panel);
                    } else {
                        multiply(next, n, from, to, b, ldb, c + 16 * panel, ldc);
                    }
                }
            }
            job = then;
        }
    }

  private:
    // A part of the panel that follows, in the order in which it lies: processors find one stream of bytes by themselves, and
    // not the sixteen in which it is read. It is fetched into the second cache: few misses of the first may be open at once
    // (Zen 4: 8 GB/s into the first, 20 to 24 into the second). Without the loop Zen 5 multiplies at 0.65 of the speed, as if
    // it left out some of many fetches.
    static ALWAYS void fetch(const char * next, int64_t l) {
        ROLLED
        for (size_t line = 0; line < 16 * sizeof(A); line += 64) {
            _mm_prefetch(next + 16 * sizeof(A) * l + line, _MM_HINT_T1);
        }
    }

    // Goes on with blocks `from` to `to`.
    void multiply(const char * next, int64_t n, int64_t from, int64_t to, const B * b, int64_t ldb, float * c, int64_t ldc) {
        // With few columns the memory is what is waited for, so little is fetched at a time, and multiplied meanwhile.
        const int64_t most = n > FEW ? DEPTH : MIN(DEPTH, 4);
        for (int64_t l = from; l < to; l += most) {
            const int64_t depth = MIN(to - l, most);
            for (int64_t d = 0; d < depth; ++d) {
                Dots::fill(rows, l + d, tile[d]);
                fetch(next, l + d);
            }
            int64_t j = 0;
            const auto go_on = [&](auto width) {
                for (; j + width() <= n; j += width()) {
                    columns<width()>(b + j * ldb + l, sides + j * lds + l - from, ldb, c + j * ldc, ldc, depth, l == 0);
                }
            };
            go_on(std::integral_constant<int, 8>());
            go_on(std::integral_constant<int, 4>());
            go_on(std::integral_constant<int, 2>());
            go_on(std::integral_constant<int, 1>());
        }
    }

    // Nothing is kept for other columns, so that it goes straight from the weights into the sum.
    __attribute__((noinline)) void one_column(const char * next, int64_t k, const B * b, float * c) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t l = 0; l < k; ++l) {
            sum = Dots::dot_of_one(rows, l, b[l], sides[l], sum);
            fetch(next, l);
        }
        _mm512_mask_storeu_ps(c, lanes, sum);
    }

    template <int N>
    __attribute__((noinline)) void columns(const B * b, const Side * side, int64_t ldb, float * c, int64_t ldc, int64_t depth,
                                           bool is_first) {
        __m512 sum[N];
        for (int j = 0; j < N; ++j) {
            sum[j] = is_first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, c + j * ldc);
        }
        for (int64_t d = 0; d < depth; ++d) {
            Dots::template dot<N>(tile[d], b + d, side + d, ldb, lds, sum);
        }
        for (int j = 0; j < N; ++j) {
            _mm512_mask_storeu_ps(c + j * ldc, lanes, sum[j]);
        }
    }

    static constexpr int64_t MOST_PANELS = 32, FEW = 32;
    static constexpr int64_t DEPTH = Dots::DEPTH;
    Place rows;
    const Side * sides;
    int64_t lds;
    __mmask16 lanes;
    typename Dots::Tile tile[DEPTH];
};

// Blocks of 32 numbers: their scales, their minima where they have them, and what all numbers were raised by.
struct Scales32 {
    __m512 d, m;
};
struct Tile32 : Scales32 {
    __m512i q[8];
};

template <typename TA, typename TB, int BIAS> struct Dots32 {
    using A = TA;
    using B = TB;
    using Tile = Tile32;

    // The scale of a column's block, and what its sums of integers begin with because of BIAS, or its minimum's factor.
    struct Side {
        float d;
        union {
            int32_t first;
            float m;
        };
    };

    static Side side_of(const B & b) {
        Side side;
        side.d = GGML_CPU_FP16_TO_FP32(b.d);
        if constexpr (BIAS) {
            side.first = 0;
            for (const int8_t q : b.qs) {
                side.first -= BIAS * q;
            }
        } else {
            side.m = GGML_CPU_FP16_TO_FP32(b.s);
        }
        return side;
    }

    // How many blocks of sixteen rows are fetched before the first of a thread, and how many are unpacked before they are
    // multiplied: as many as the nearest cache has room for beside columns.
    static constexpr int64_t FIRST = 38, DEPTH = 38;

    template <typename Place, typename Take>
    static void unpack(const Place & rows, int64_t l, Scales32 & scales, const Take & take);

    template <typename Place> FLAT static void fill(const Place & rows, int64_t l, Tile & tile) {
        unpack(rows, l, tile, [&](int t, __m512i q) __attribute__((always_inline)) { tile.q[t] = q; });
    }

    template <typename Place>
    FLAT static __m512 dot_of_one(const Place & rows, int64_t l, const B & b, const Side & side, __m512 sum) {
        Scales32 scales;
        __m512i isum[2] = { begun(side) };
        unpack(rows, l, scales, [&](int t, __m512i q) __attribute__((always_inline)) {
            isum[t % 2] = _mm512_dpbusd_epi32(isum[t % 2], q, word_of(b.qs + 4 * t));
        });
        return added(scales, _mm512_add_epi32(isum[0], isum[1]), side, sum);
    }

    template <int N>
    static void dot(const Tile & tile, const B * b, const Side * side, int64_t ldb, int64_t lds, __m512 * sum) {
        __m512i isum[N];
        for (int j = 0; j < N; ++j) {
            isum[j] = begun(side[j * lds]);
        }
        for (int t = 0; t < 8; ++t) {
            for (int j = 0; j < N; ++j) {
                isum[j] = _mm512_dpbusd_epi32(isum[j], tile.q[t], word_of(b[j * ldb].qs + 4 * t));
            }
        }
        for (int j = 0; j < N; ++j) {
            sum[j] = added(tile, isum[j], side[j * lds], sum[j]);
        }
    }

  private:
    static ALWAYS __m512i begun(const Side & side) {
        return BIAS ? _mm512_set1_epi32(side.first) : _mm512_setzero_si512();
    }

    static ALWAYS __m512 added(const Scales32 & scales, __m512i isum, const Side & side, __m512 sum) {
        const __m512 d = _mm512_mul_ps(scales.d, _mm512_set1_ps(side.d));
        sum = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(isum), sum);
        return BIAS ? sum : _mm512_fmadd_ps(scales.m, _mm512_set1_ps(side.m), sum);
    }
};

using Q4_1 = Dots32<block_q4_1, block_q8_1, 0>;
using Q4_0 = Dots32<block_q4_0, block_q8_0, 8>;
using Q8_0 = Dots32<block_q8_0, block_q8_0, 128>;
using Q5_0 = Dots32<block_q5_0, block_q8_0, 16>;
using Q5_1 = Dots32<block_q5_1, block_q8_1, 0>;

template <typename Take> ALWAYS void nibbles(const __m512i * x, const Take & take) {
    for (int t = 0; t < 8; ++t) {
        take(t, shifted(x[t % 4], t / 4 * 4, 15));
    }
}

// The same with fifth bits, the bits of a word in the order of the numbers.
template <typename Take> ALWAYS void five_bits(const __m512i * x, __m512i word, const Take & take) {
    const __m512i lane = _mm512_set4_epi32(0x0C0C0C0C, 0x08080808, 0x04040404, 0);
    nibbles(x, [&](int t, __m512i q) __attribute__((always_inline)) {
        const __m512i byte = _mm512_shuffle_epi8(word, _mm512_add_epi8(lane, _mm512_set1_epi8(t / 2)));
        const __m512i bit = _mm512_set1_epi32(t % 2 ? (int)0x80402010 : 0x08040201);
        take(t, _mm512_mask_add_epi8(q, _mm512_test_epi8_mask(byte, bit), q, _mm512_set1_epi8(16)));
    });
}

#define UNPACK(Dots, Scales) \
    template <>              \
    template <typename Place, typename Take> \
    ALWAYS void Dots::unpack(const Place & rows, int64_t l, Scales & scales, const Take & take)

UNPACK(Q4_1, Scales32) {
    __m512i x[4];
    rows.words4(l, 0, x);
    scales.d = half(x[0]);
    scales.m = half(x[0], 16);
    rows.words4(l, 4, x);
    nibbles(x, take);
}

UNPACK(Q4_0, Scales32) {
    __m512i x[4];
    scales.d = half(rows.scale(l));
    rows.words4(l, 2, x);
    nibbles(x, take);
}

UNPACK(Q8_0, Scales32) {
    __m512i x[4];
    scales.d = half(rows.scale(l));
    for (int t = 0; t < 8; t += 4) {
        rows.words4(l, 2 + 4 * t, x);
        for (int i = 0; i < 4; ++i) {
            take(t + i, _mm512_xor_si512(x[i], _mm512_set1_epi8((char)128)));
        }
    }
}

UNPACK(Q5_0, Scales32) {
    __m512i x[4], h[4];
    scales.d = half(rows.scale(l));
    rows.words4(l, 2, h);
    rows.words4(l, 6, x);
    five_bits(x, h[0], take);
}

UNPACK(Q5_1, Scales32) {
    __m512i x[4], h[4];
    rows.words4(l, 0, h);
    scales.d = half(h[0]);
    scales.m = half(h[0], 16);
    rows.words4(l, 8, x);
    five_bits(x, h[1], take);
}

// Blocks of 256: sixteen or eight scales for the numbers of a block, eight pairs of minima for sums of sixteen.
template <int SCALES> struct Scales256 {
    __m512i scale[SCALES], minimum[8];
    __m512 d, dmin;
};
template <int SCALES> struct Tile256 : Scales256<SCALES> {
    __m512i q[64];
};

template <typename TA, int SCALES> struct Dots256 {
    using A = TA;
    using B = block_q8_K;
    using Tile = Tile256<SCALES>;
    using Scales = Scales256<SCALES>;

    struct Side {};
    static Side side_of(const B &) { return {}; }

    static constexpr int64_t FIRST = 8, DEPTH = 1;
    // How many registers of numbers have a scale.
    static constexpr int SPAN = 64 / SCALES;

    template <typename Place, typename Take>
    static void unpack(const Place & rows, int64_t l, Scales & scales, const Take & take);

    template <typename Place> FLAT static void fill(const Place & rows, int64_t l, Tile & tile) {
        unpack(rows, l, tile, [&](int t, __m512i q) __attribute__((always_inline)) { tile.q[t] = q; });
    }

    template <typename Place>
    FLAT static __m512 dot_of_one(const Place & rows, int64_t l, const B & b, const Side &, __m512 sum) {
        Scales scales;
        __m512i isum[SCALES] = {};
        unpack(rows, l, scales, [&](int t, __m512i q) __attribute__((always_inline)) {
            isum[t / SPAN] = _mm512_dpbusd_epi32(isum[t / SPAN], q, word_of(b.qs + 4 * t));
        });
        __m512i total = _mm512_setzero_si512();
        for (int s = 0; s < SCALES; ++s) {
            total = _mm512_add_epi32(total, _mm512_mullo_epi32(isum[s], scales.scale[s]));
        }
        __m512i low = _mm512_setzero_si512();
        for (int s = 0; s < 8; ++s) {
            low = _mm512_dpwssd_epi32(low, scales.minimum[s], word_of(b.bsums + 2 * s));
        }
        return added(scales, total, low, b, sum);
    }

    template <int N> static void dot(const Tile & tile, const B * b, const Side *, int64_t ldb, int64_t, __m512 * sum) {
        __m512i total[N] = {}, low[N] = {};
        for (int s = 0; s < SCALES; ++s) {
            __m512i isum[N] = {};
#pragma GCC unroll 8
            for (int t = SPAN * s; t < SPAN * (s + 1); ++t) {
                for (int j = 0; j < N; ++j) {
                    isum[j] = _mm512_dpbusd_epi32(isum[j], tile.q[t], word_of(b[j * ldb].qs + 4 * t));
                }
            }
            for (int j = 0; j < N; ++j) {
                total[j] = _mm512_add_epi32(total[j], _mm512_mullo_epi32(isum[j], tile.scale[s]));
            }
        }
        for (int s = 0; s < 8; ++s) {
            for (int j = 0; j < N; ++j) {
                low[j] = _mm512_dpwssd_epi32(low[j], tile.minimum[s], word_of(b[j * ldb].bsums + 2 * s));
            }
        }
        for (int j = 0; j < N; ++j) {
            sum[j] = added(tile, total[j], low[j], b[j * ldb], sum[j]);
        }
    }

  private:
    static ALWAYS __m512 added(const Scales & scales, __m512i total, __m512i low, const B & y, __m512 sum) {
        const __m512 dy = _mm512_set1_ps(y.d);
        sum = _mm512_fmadd_ps(_mm512_mul_ps(scales.d, dy), _mm512_cvtepi32_ps(total), sum);
        return _mm512_fnmadd_ps(_mm512_mul_ps(scales.dmin, dy), _mm512_cvtepi32_ps(low), sum);
    }
};

using Q4_K = Dots256<block_q4_K, 8>;
using Q5_K = Dots256<block_q5_K, 8>;
using Q6_K = Dots256<block_q6_K, 16>;

// Six bits of a scale and of a minimum for each 32 numbers: x[1] to x[3] (get_scale_min_k4).
ALWAYS void scales_and_minima(const __m512i * x, __m512i * scale, __m512i * minimum) {
    const auto high = [&](__m512i words) { return _mm512_slli_epi32(shifted(words, 6, 3), 4); };
    const __m512i s[2] = { shifted(x[1], 0, 63), _mm512_or_si512(shifted(x[3], 0, 15), high(x[1])) };
    const __m512i m[2] = { shifted(x[2], 0, 63), _mm512_or_si512(shifted(x[3], 4, 15), high(x[2])) };
    for (int i = 0; i < 8; ++i) {
        const __m512i byte = _mm512_set1_epi32(255);
        scale[i] = _mm512_and_si512(_mm512_srli_epi32(s[i / 4], i % 4 * 8), byte);
        const __m512i one = _mm512_and_si512(_mm512_srli_epi32(m[i / 4], i % 4 * 8), byte);
        minimum[i] = _mm512_or_si512(one, _mm512_slli_epi32(one, 16));
    }
}

UNPACK(Q4_K, Scales256<8>) {
    __m512i x[4];
    rows.words4(l, 0, x);
    scales.d = half(x[0]);
    scales.dmin = half(x[0], 16);
    scales_and_minima(x, scales.scale, scales.minimum);
#pragma GCC unroll 8
    for (int w = 0; w < 32; w += 4) {
        rows.words4(l, 16 + 4 * w, x);
        for (int i = 0; i < 4; ++i) {
            const int t = (w + i) / 8 * 16 + (w + i) % 8;
            take(t, shifted(x[i], 0, 15));
            take(t + 8, shifted(x[i], 4, 15));
        }
    }
}

UNPACK(Q5_K, Scales256<8>) {
    __m512i x[4], h[8];
    rows.words4(l, 0, x);
    scales.d = half(x[0]);
    scales.dmin = half(x[0], 16);
    scales_and_minima(x, scales.scale, scales.minimum);
    rows.words4(l, 16, h);
    rows.words4(l, 32, h + 4);
#pragma GCC unroll 8
    for (int w = 0; w < 32; w += 4) {
        rows.words4(l, 48 + 4 * w, x);
        for (int i = 0; i < 4; ++i) {
            const int t = (w + i) / 8 * 16 + (w + i) % 8;
            for (int nibble = 0; nibble < 2; ++nibble) {
                const int bit = w / 8 * 2 + nibble;
                const __m512i word = h[(w + i) % 8];
                const __m512i fifth = bit < 4 ? _mm512_slli_epi32(word, 4 - bit) : _mm512_srli_epi32(word, bit - 4);
                take(t + 8 * nibble, joined(_mm512_srli_epi32(x[i], 4 * nibble), fifth, 31));
            }
        }
    }
}

// Numbers from 0 to 63 that stand for -32 to 31: the minima are 32 scales.
UNPACK(Q6_K, Scales256<16>) {
    __m512i x[4], y[4], high[4];
    rows.words4(l, 192, x);
    for (int i = 0; i < 16; ++i) {
        scales.scale[i] = _mm512_srai_epi32(_mm512_slli_epi32(x[i / 4], 24 - i % 4 * 8), 24);
    }
    for (int i = 0; i < 8; ++i) {
        const __m512i low = _mm512_and_si512(_mm512_slli_epi32(scales.scale[2 * i], 5), _mm512_set1_epi32(0xFFFF));
        scales.minimum[i] = _mm512_or_si512(low, _mm512_slli_epi32(scales.scale[2 * i + 1], 21));
    }
    scales.dmin = scales.d = half(rows.scale(l));
#pragma GCC unroll 4
    for (int w = 0; w < 16; w += 4) {
        const int first = w / 8 * 32 + w % 8;
        rows.words4(l, w / 8 * 64 + w % 8 * 4, x);
        rows.words4(l, w / 8 * 64 + w % 8 * 4 + 32, y);
        rows.words4(l, 128 + 4 * w, high);
        for (int i = 0; i < 4; ++i) {
            for (int quarter = 0; quarter < 4; ++quarter) {
                const __m512i low = _mm512_srli_epi32((quarter % 2 ? y : x)[i], quarter / 2 * 4);
                const __m512i bits = quarter < 3 ? _mm512_slli_epi32(high[i], 4 - 2 * quarter) : _mm512_srli_epi32(high[i], 2);
                take(first + i + 8 * quarter, joined(low, bits, 0x3F));
            }
        }
    }
}

#undef UNPACK
#undef ALWAYS
#undef FLAT
#undef ROLLED

}  // namespace rows16
#endif
