/* Depthwise convolution along an axis of n pixels with a kernel that is 2n − 1 wide, so that every result sees every
   pixel: k_H per channel over n rotations, laid out over twice the period.

   Loop order: blocks of rows │ rows │ blocks of 16 channels │ tiles of up to 8 results │ pixels, results of the tile.
   Why: the general way pads a row to three times its length, and half of its products are with zeros. Here nothing is
   padded or copied: a row is read in its order, a pixel is loaded once for a tile's sums, which are registers, and the
   weights, n² of them per channel and row, come from the nearest cache. */
#include <stdlib.h>

#include "segments.h"

#define ROWS 32 /* in a task */
#define WORTH (1 << 18) /* multiply-adds for which another thread is worth being woken */

typedef struct {
    const sepgconv_convolution *a;
    const float *weight; /* (block, tap, BLOCK) */
} job;

/* Results first, …, first + tile of one row, for a vector of channels; w points to the tap of difference zero. */
INLINE void sums(const int tile, int64_t n, const float *restrict x, const float *restrict w, float *restrict y,
                 int64_t first, int64_t pixel) {
    vec sum[TILE];
    UNROLL for (int o = 0; o < tile; o++) sum[o] = splat(0.f);
    w -= first * BLOCK;
    for (int64_t i = 0; i < n; i++, w += BLOCK) {
        vec v = load(x + i * pixel);
        UNROLL for (int o = 0; o < tile; o++) sum[o] += v * load(w - o * BLOCK);
    }
    UNROLL for (int o = 0; o < tile; o++) store(y + (first + o) * pixel, sum[o]);
}

static void row(int64_t n, int64_t channels, const float *x, const float *w, float *y, int64_t pixel) {
    const int64_t tile = tile_of(n);
    for (int64_t v = 0; v < channels; v += LANES)
        for (int64_t first = 0; first < n; first += tile) switch (least(tile, n - first)) {
#define CASE(T) \
    case T: \
        sums(T, n, x + v, w + v, y + v, first, pixel); \
        break;
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
            }
}

static void rows(const void *context, int64_t i, float *scratch) {
    const job *j = context;
    const int64_t n = j->a->in_x, c = j->a->channels, full = c / BLOCK, rest = c % BLOCK, taps = 2 * n - 1;
    float *in = scratch, *out = scratch + n * BLOCK;
    for (int64_t r = i * ROWS; r < least((i + 1) * ROWS, j->a->batch * j->a->in_y); r++) {
        const float *x = j->a->x + r * n * c, *w = j->weight + (n - 1) * BLOCK;
        float *y = j->a->y + r * n * c;
        for (int64_t block = 0; block < full; block++, x += BLOCK, y += BLOCK, w += taps * BLOCK)
            row(n, BLOCK, x, w, y, c);
        if (!rest) continue;
        for (int64_t t = 0; t < n; t++) copy_pixel(in + t * BLOCK, x + t * c, rest);
        row(n, rest, in, w, out, BLOCK);
        for (int64_t t = 0; t < n; t++) memcpy(y + t * c, out + t * BLOCK, (size_t)rest * sizeof(float));
    }
}

int NAME(depthwise_axis)(const sepgconv_convolution *a, int threads) {
    const int64_t n = a->in_x, taps = 2 * n - 1, blocks = blocks_of(a->channels), all = a->batch * a->in_y;
    float *weight = aligned_alloc(64, (size_t)(blocks * taps * BLOCK) * sizeof(float));
    if (!weight) return 1;
    for (int64_t k = 0; k < taps; k++)
        for (int64_t c = 0; c < blocks * BLOCK; c++)
            weight[(c / BLOCK * taps + k) * BLOCK + c % BLOCK] =
                c < a->channels ? a->weight[c * a->weight_c + k * a->weight_x] : 0.f;
    job j = {.a = a, .weight = weight};
    threads = (int)least(threads, most(all * n * n * a->channels / WORTH, 1));
    int failed = sepgconv_run(rows, &j, (all + ROWS - 1) / ROWS, threads, 2 * AXIS * BLOCK * (int64_t)sizeof(float));
    free(weight);
    return failed;
}
