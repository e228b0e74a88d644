// What this machine can do at most: read memory, and multiply and add 8-bit integers. Prints a line for each.
// Usage: peaks THREADS BYTES SECONDS. Each thread reads its own part of BYTES again and again.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

static int n_threads;
static size_t n_bytes;
static double min_s;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

// ── the kernels: each does a piece of work and returns how much it was ───────────────────────────────

static volatile uint64_t sink;

// Bytes.
static double read_memory(void *memory) {
    const uint64_t *words = memory;
    size_t n_words = n_bytes / n_threads / sizeof *words;
    uint64_t sum = 0;
    for (size_t i = 0; i < n_words; i++) {
        sum += words[i];
    }
    sink = sum;
    return (double)(n_words * sizeof *words);
}

#define N_PASSES 100000
// Enough sums to keep two units busy over the latency of an instruction, few enough for 16 registers.
#define N_SUMS 12
#define FOR_EACH_SUM(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

#if defined(__AVX2__)
// Without VNNI it takes three instructions.
static double avx2(void *memory) {
    __m256i a = _mm256_loadu_si256(memory), b = _mm256_loadu_si256((__m256i *)memory + 1);
#if defined(__AVXVNNI__)
#define ADD(i) sum##i = _mm256_dpbusd_avx_epi32(sum##i, a, b);
#else
    const __m256i ones = _mm256_set1_epi16(1);
#define ADD(i) sum##i = _mm256_add_epi32(sum##i, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
#endif
#define BEGIN(i) __m256i sum##i = _mm256_setzero_si256();
// The compiler may neither leave out an addition nor compute the product once.
#define PIECE(i) ADD(i) __asm__ volatile("" : "+x"(sum##i), "+x"(a));
#define END(i) sink += (uint64_t)_mm256_extract_epi32(sum##i, 0);
    FOR_EACH_SUM(BEGIN)
    for (int pass = 0; pass < N_PASSES; pass++) {
        FOR_EACH_SUM(PIECE)
    }
    FOR_EACH_SUM(END)
#undef ADD
#undef BEGIN
#undef PIECE
#undef END
    return 32.0 * N_SUMS * N_PASSES;
}
#endif

#if defined(__AVX512VNNI__)
static double avx512_vnni(void *memory) {
    __m512i a = _mm512_loadu_si512(memory), b = _mm512_loadu_si512((char *)memory + 64);
#define BEGIN(i) __m512i sum##i = _mm512_setzero_si512();
#define PIECE(i) sum##i = _mm512_dpbusd_epi32(sum##i, a, b); __asm__ volatile("" : "+v"(sum##i));
#define END(i) sink += (uint64_t)_mm512_reduce_add_epi32(sum##i);
    FOR_EACH_SUM(BEGIN)
    for (int pass = 0; pass < N_PASSES; pass++) {
        FOR_EACH_SUM(PIECE)
    }
    FOR_EACH_SUM(END)
#undef BEGIN
#undef PIECE
#undef END
    return 64.0 * N_SUMS * N_PASSES;
}
#endif

#if defined(__AMX_INT8__) && defined(__linux__)
// Two tiles of each factor make four products of 16 by 16 sums over 64 numbers.
static double amx(void *memory) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t n_rows[16];
    } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.n_rows[tile] = 16;
    }
    // GCC before 12.4, 13.3 and 14 does not see that the next instruction reads memory (GCC bug 114098).
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, memory, 64);
    _tile_loadd(5, (char *)memory + 1024, 64);
    _tile_loadd(6, (char *)memory + 2048, 64);
    _tile_loadd(7, (char *)memory + 3072, 64);
    for (int pass = 0; pass < N_PASSES; pass++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
    return 4.0 * 16 * 16 * 64 * N_PASSES;
}

static int may_use_amx(void) {
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
}
#endif

#if defined(__ARM_FEATURE_DOTPROD)
static double neon_dotprod(void *memory) {
    int8x16_t a = vld1q_s8(memory), b = vld1q_s8((int8_t *)memory + 16);
#define BEGIN(i) int32x4_t sum##i = vdupq_n_s32(0);
#define PIECE(i) sum##i = vdotq_s32(sum##i, a, b); __asm__ volatile("" : "+w"(sum##i));
#define END(i) sink += (uint64_t)vaddvq_s32(sum##i);
    FOR_EACH_SUM(BEGIN)
    for (int pass = 0; pass < N_PASSES; pass++) {
        FOR_EACH_SUM(PIECE)
    }
    FOR_EACH_SUM(END)
#undef BEGIN
#undef PIECE
#undef END
    return 16.0 * N_SUMS * N_PASSES;
}
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
static double neon_i8mm(void *memory) {
    int8x16_t a = vld1q_s8(memory), b = vld1q_s8((int8_t *)memory + 16);
#define BEGIN(i) int32x4_t sum##i = vdupq_n_s32(0);
#define PIECE(i) sum##i = vmmlaq_s32(sum##i, a, b); __asm__ volatile("" : "+w"(sum##i));
#define END(i) sink += (uint64_t)vaddvq_s32(sum##i);
    FOR_EACH_SUM(BEGIN)
    for (int pass = 0; pass < N_PASSES; pass++) {
        FOR_EACH_SUM(PIECE)
    }
    FOR_EACH_SUM(END)
#undef BEGIN
#undef PIECE
#undef END
    return 32.0 * N_SUMS * N_PASSES;
}
#endif

// ── all threads at once ──────────────────────────────────────────────────────────────────────────────

typedef double (*Kernel)(void *memory);

static Kernel kernel;
static pthread_barrier_t ready;

typedef struct {
    void *memory;
    double per_s;
} Thread;

static void *run(void *given) {
    Thread *thread = given;
    if (thread->memory == NULL) {
        // Each thread writes its own memory first, so that it is near.
        thread->memory = aligned_alloc(4096, (n_bytes / n_threads + 8191) / 4096 * 4096);
        if (thread->memory == NULL) {
            exit(1);
        }
        memset(thread->memory, 1, n_bytes / n_threads + 4096);
    }
    kernel(thread->memory);
    pthread_barrier_wait(&ready);
    double begun_s = now_s(), end_s = begun_s, done = 0;
    while (end_s - begun_s < min_s) {
        done += kernel(thread->memory);
        end_s = now_s();
    }
    thread->per_s = done / (end_s - begun_s);
    return NULL;
}

static void report(const char *name, Kernel wanted, Thread *threads) {
    pthread_t ids[n_threads];
    double per_s = 0;
    kernel = wanted;
    pthread_barrier_init(&ready, NULL, n_threads);
    for (int i = 0; i < n_threads; i++) {
        if (pthread_create(&ids[i], NULL, run, &threads[i]) != 0) {
            exit(1);
        }
    }
    for (int i = 0; i < n_threads; i++) {
        pthread_join(ids[i], NULL);
        per_s += threads[i].per_s;
    }
    pthread_barrier_destroy(&ready);
    printf("%s %.6g\n", name, per_s);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        return 2;
    }
    n_threads = atoi(argv[1]);
    n_bytes = strtoull(argv[2], NULL, 10);
    min_s = atof(argv[3]);
    Thread *threads = calloc(n_threads, sizeof *threads);
    report("read", read_memory, threads);
#if defined(__AVX2__)
    report("avx2", avx2, threads);
#endif
#if defined(__AVX512VNNI__)
    report("avx512-vnni", avx512_vnni, threads);
#endif
#if defined(__AMX_INT8__) && defined(__linux__)
    if (may_use_amx()) {
        report("amx", amx, threads);
    }
#endif
#if defined(__ARM_FEATURE_DOTPROD)
    report("neon-dotprod", neon_dotprod, threads);
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
    report("neon-i8mm", neon_i8mm, threads);
#endif
    return 0;
}
