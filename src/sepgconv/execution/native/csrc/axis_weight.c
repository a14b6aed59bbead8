/* The gradient for a kernel along all of an axis of n pixels (axis.c): per difference of two pixels the sum of x at the one
   times the result's gradient at the other.

   Loop order: parts of the rows │ a few rows │ blocks of 16 channels │ pairs of tiles of up to 8 pixels │ rows │ pixels of
   both tiles.
   Why: two tiles have 64 products for 16 loads, and the sums of their 15 differences are registers; the general way
   multiplies with padding, seven taps at a time, and took four times as long. The few rows are in the cache for all pairs,
   and those that come next are fetched meanwhile. A chain is SUM products long, then added to the part's sums; parts, whose
   number does not depend on that of threads, are added up in float64. */
#include <stdlib.h>

#include "segments.h"

#define PARTS 16
#define SUM 128

typedef struct {
    const sepgconv_convolution *a;
    float *sums; /* (part, block, tap, BLOCK) */
    int64_t tile, few, parts;
} job;

/* Adds x(i)·g(o) to the sum of i − o, for i and o up to `tile`, over `rows` rows; `to` is the place of i = o. */
INLINE void products(const int tile, const float *restrict x, const float *restrict g, int64_t pixel, int64_t row,
                     int64_t rows, float *restrict to) {
    vec sum[2 * TILE - 1];
    UNROLL for (int d = 0; d < 2 * tile - 1; d++) sum[d] = splat(0.f);
    for (int64_t r = 0; r < rows; r++, x += row, g += row) {
        vec v[TILE];
        UNROLL for (int i = 0; i < tile; i++) v[i] = load(x + i * pixel);
        UNROLL for (int o = 0; o < tile; o++) {
            vec slope = load(g + o * pixel);
            UNROLL for (int i = 0; i < tile; i++) sum[i - o + tile - 1] += v[i] * slope;
        }
    }
    to -= (tile - 1) * BLOCK;
    UNROLL for (int d = 0; d < 2 * tile - 1; d++) store(to + d * BLOCK, load(to + d * BLOCK) + sum[d]);
}

static void tile_products(int64_t tile, const float *x, const float *g, int64_t pixel, int64_t row, int64_t rows,
                          float *to) {
    switch (tile) {
#define CASE(T) \
    case T: \
        products(T, x, g, pixel, row, rows, to); \
        return;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
    }
}

/* All differences of one block of channels over a few rows; `to` is the place of difference zero. */
static void differences(const job *j, const float *x, const float *g, int64_t channels, int64_t pixel, int64_t rows,
                        float *to) {
    const int64_t n = j->a->in_x, row = n * pixel;
    for (int64_t i = 0; i < n; i += j->tile)
        for (int64_t o = 0; o < n; o += j->tile)
            for (int64_t v = 0; v < channels; v += LANES)
                tile_products(j->tile, x + i * pixel + v, g + o * pixel + v, pixel, row, rows, to + (i - o) * BLOCK + v);
}

static void part(const void *context, int64_t p, float *scratch) {
    const job *j = context;
    const sepgconv_convolution *a = j->a;
    const int64_t n = a->in_x, c = a->channels, taps = 2 * n - 1, blocks = blocks_of(c), all = a->batch * a->in_y;
    const int64_t last = all * (p + 1) / j->parts;
    float *sums = j->sums + p * blocks * taps * BLOCK, *in = scratch, *slope = scratch + j->few * n * BLOCK;
    memset(sums, 0, (size_t)(blocks * taps * BLOCK) * sizeof(float));
    for (int64_t r = all * p / j->parts; r < last; r += j->few) {
        const int64_t rows = least(j->few, last - r), next = least(j->few, last - r - rows);
        const float *x = a->x + r * n * c, *g = a->y + r * n * c;
        for (int64_t block = 0; block < blocks; block++, x += BLOCK, g += BLOCK) {
            float *to = sums + (block * taps + n - 1) * BLOCK;
            for (int64_t k = rows * n; k < (rows + next) * n; k++)
                __builtin_prefetch(x + k * c, 0, 2), __builtin_prefetch(g + k * c, 0, 2);
            if (c - block * BLOCK >= BLOCK) {
                differences(j, x, g, BLOCK, c, rows, to);
                continue;
            }
            for (int64_t k = 0; k < rows * n; k++) { /* the last block, filled up */
                copy_pixel(in + k * BLOCK, x + k * c, c % BLOCK);
                copy_pixel(slope + k * BLOCK, g + k * c, c % BLOCK);
            }
            differences(j, in, slope, BLOCK, BLOCK, rows, to);
        }
    }
}

int NAME(depthwise_axis_weight)(const sepgconv_convolution *a, float *gradient, int threads) {
    const int64_t n = a->in_x, taps = 2 * n - 1, blocks = blocks_of(a->channels), all = a->batch * a->in_y;
    job j = {.a = a, .tile = least(n, TILE)};
    while (n % j.tile) j.tile--; /* tiles of one size */
    j.few = most(SUM / j.tile, 1);
    j.parts = most(least(PARTS, all / j.few), 1);
    j.sums = aligned_alloc(64, (size_t)(j.parts * blocks * taps * BLOCK) * sizeof(float));
    int failed = !j.sums;
    if (!failed) failed = sepgconv_run(part, &j, j.parts, threads, 2 * j.few * n * BLOCK * (int64_t)sizeof(float));
    for (int64_t c = 0; c < a->channels && !failed; c++)
        for (int64_t k = 0; k < taps; k++) {
            double sum = 0;
            for (int64_t p = 0; p < j.parts; p++) sum += j.sums[((p * blocks + c / BLOCK) * taps + k) * BLOCK + c % BLOCK];
            gradient[c * taps + k] = (float)sum;
        }
    free(j.sums);
    return failed;
}
