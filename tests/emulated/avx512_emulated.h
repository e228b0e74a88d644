// The AVX-512 that patches/ggml-cpu uses, for processors without it: by SIMDe (Debian's libsimde-dev), and lane by lane
// what that lacks. Bits are those of the instructions. It is slow, and for tests alone.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

namespace emulated {

// A register as lanes of a type.
template <typename Lane, typename Register> struct Lanes {
    static constexpr int N = sizeof(Register) / sizeof(Lane);
    Lane lane[N];

    Lanes(const Register & from) { memcpy(lane, &from, sizeof(from)); }
    template <typename Function> explicit Lanes(Function function) {
        for (int i = 0; i < N; ++i) {
            lane[i] = function(i);
        }
    }
    operator Register() const {
        Register to;
        memcpy(&to, lane, sizeof(to));
        return to;
    }
};

using Floats = Lanes<float, __m512>;
using Words = Lanes<int32_t, __m512i>;
using Halves = Lanes<int16_t, __m512i>;
using Halves16 = Lanes<int16_t, __m256i>;

inline __m256i cvtepi32_epi16(__m512i a) {
    const Words from = a;
    return Halves16([&](int i) { return (int16_t)from.lane[i]; });
}

inline __m512 cvtepi32_ps(__m512i a) {
    const Words from = a;
    return Floats([&](int i) { return (float)from.lane[i]; });
}

inline __m512 cvtph_ps(__m256i a) {
    __m512 to;
    const __m256 halves[2] = { _mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)) };
    memcpy(&to, halves, sizeof(to));
    return to;
}

inline __mmask32 mask_cmpneq_epi16_mask(__mmask32 mask, __m512i a, __m512i b) {
    const Halves x = a, y = b;
    __mmask32 found = 0;
    for (int i = 0; i < 32; ++i) {
        found |= (__mmask32)(x.lane[i] != y.lane[i]) << i;
    }
    return found & mask;
}

inline void mask_storeu_ps(void * to, __mmask16 mask, __m512 a) {
    const Floats from = a;
    for (int i = 0; i < 16; ++i) {
        if (mask >> i & 1) {
            memcpy((float *)to + i, &from.lane[i], sizeof(float));
        }
    }
}

inline __m512i maskz_loadu_epi16(__mmask32 mask, const void * from) {
    return Halves([&](int i) { return mask >> i & 1 ? ((const int16_t *)from)[i] : (int16_t)0; });
}

inline __m512 maskz_loadu_ps(__mmask16 mask, const void * from) {
    return Floats([&](int i) { return mask >> i & 1 ? ((const float *)from)[i] : 0.0f; });
}

inline float reduce_max_ps(__m512 a) {
    const Floats from = a;
    float most = from.lane[0];
    for (float lane : from.lane) {
        most = lane > most ? lane : most;
    }
    return most;
}

inline __m512i shuffle_epi32(__m512i a, int order) {
    const Words from = a;
    return Words([&](int i) { return from.lane[i / 4 * 4 + (order >> i % 4 * 2 & 3)]; });
}

inline __m512i srai_epi32(__m512i a, int shift) {
    const Words from = a;
    return Words([&](int i) { return from.lane[i] >> shift; });
}

}  // namespace emulated

#define _mm512_cvtepi32_epi16 emulated::cvtepi32_epi16
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_mask_cmpneq_epi16_mask emulated::mask_cmpneq_epi16_mask
#define _mm512_mask_storeu_ps emulated::mask_storeu_ps
#define _mm512_maskz_loadu_epi16 emulated::maskz_loadu_epi16
#define _mm512_maskz_loadu_ps emulated::maskz_loadu_ps
#define _mm512_reduce_max_ps emulated::reduce_max_ps
#define _mm512_shuffle_epi32 emulated::shuffle_epi32
#define _mm512_srai_epi32 emulated::srai_epi32
