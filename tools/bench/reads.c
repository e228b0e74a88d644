// What this machine can do at most: read memory. Prints bytes per second, all threads together.
// Usage: reads THREADS BYTES SECONDS. Each thread reads its own part of BYTES again and again.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int n_threads;
static size_t n_bytes;
static double min_s;
static pthread_barrier_t ready;
static volatile uint64_t sink;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static double read_memory(const uint64_t *words) {
    size_t n_words = n_bytes / n_threads / sizeof *words;
    uint64_t sum = 0;
    for (size_t i = 0; i < n_words; i++) {
        sum += words[i];
    }
    sink = sum;
    return (double)(n_words * sizeof *words);
}

static void *run(void *per_s) {
    // Each thread writes its own memory first, so that it is near.
    uint64_t *memory = aligned_alloc(4096, (n_bytes / n_threads + 8191) / 4096 * 4096);
    if (memory == NULL) {
        exit(1);
    }
    memset(memory, 1, n_bytes / n_threads + 4096);
    read_memory(memory);
    pthread_barrier_wait(&ready);
    double begun_s = now_s(), end_s = begun_s, done = 0;
    while (end_s - begun_s < min_s) {
        done += read_memory(memory);
        end_s = now_s();
    }
    *(double *)per_s = done / (end_s - begun_s);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        return 2;
    }
    n_threads = atoi(argv[1]);
    n_bytes = strtoull(argv[2], NULL, 10);
    min_s = atof(argv[3]);
    pthread_t ids[n_threads];
    double rates[n_threads], per_s = 0;
    pthread_barrier_init(&ready, NULL, n_threads);
    for (int i = 0; i < n_threads; i++) {
        if (pthread_create(&ids[i], NULL, run, &rates[i]) != 0) {
            return 1;
        }
    }
    for (int i = 0; i < n_threads; i++) {
        pthread_join(ids[i], NULL);
        per_s += rates[i];
    }
    printf("%.6g\n", per_s);
    return 0;
}
