// Tries how a compiler translates Intel's AMX; scripts/build_llama.sh compiles and runs it.
//
// With LLORCH_CONFIG, it checks the bytes that the instruction that configures the tiles would read. build_llama.sh replaces
// the instruction by a call of check_config, so that the check runs on every processor.
// Without it, it multiplies two tiles, which needs a processor with AMX. It exits with 0 if the product is right, or if the
// kernel does not let a process use AMX: then nothing can crash.
#ifndef __AMX_INT8__
#error "another name of AMX, as in clang before 16: ggml's code for it would be left out without a word"
#endif

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROWS = 16, COLUMNS = 16, DEPTH = 64, TILES = 3 };

typedef struct {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} Config;

static inline __attribute__((always_inline)) void configure(void) {
    Config config = {0};
    config.palette = 1;
    for (int tile = 0; tile < TILES; tile++) {
        config.rows[tile] = ROWS;
        config.row_bytes[tile] = DEPTH;
    }
    _tile_loadconfig(&config);
}

#ifdef LLORCH_CONFIG

void check_config(const uint8_t *read) {
    uint8_t wanted[64] = {1};
    for (int tile = 0; tile < TILES; tile++) {
        wanted[16 + 2 * tile] = DEPTH;
        wanted[48 + tile] = ROWS;
    }
    _exit(memcmp(read, wanted, sizeof wanted) != 0);
}

// Fills the stack below, so that bytes that were never written do not have the right values by chance.
__attribute__((noinline)) void dirty(void) {
    volatile uint8_t stack[1024];
    for (size_t i = 0; i < sizeof stack; i++) {
        stack[i] = 0xa5;
    }
}

__attribute__((noinline)) void configure_alone(void) { configure(); }

int main(void) {
    dirty();
    configure_alone();
    return 1;
}

#else

static int8_t a[ROWS][DEPTH], b[DEPTH / 4][COLUMNS][4];
static int32_t product[ROWS][COLUMNS];

int main(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) {
        return 0;
    }
    for (int i = 0; i < ROWS * DEPTH; i++) {
        ((int8_t *)a)[i] = (int8_t)(i * 37 + 11);
        ((int8_t *)b)[i] = (int8_t)(i * 53 + 7);
    }
    configure();
    _tile_zero(0);
    _tile_loadd(1, a, DEPTH);
    _tile_loadd(2, b, COLUMNS * 4);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, product, COLUMNS * 4);
    _tile_release();
    for (int row = 0; row < ROWS; row++) {
        for (int column = 0; column < COLUMNS; column++) {
            int32_t sum = 0;
            for (int k = 0; k < DEPTH; k++) {
                sum += a[row][k] * b[k / 4][column][k % 4];
            }
            if (sum != product[row][column]) {
                return 1;
            }
        }
    }
    return 0;
}

#endif
