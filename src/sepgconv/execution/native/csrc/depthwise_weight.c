/* The gradient of a depthwise convolution for its kernel: per tap the sum of x times the result's gradient.

   Loop order: parts of the batch, images, bands of rows, blocks of 16 channels │ copy x, padded, and the gradient │
   a few rows │ runs of up to 7 taps │ rows, tiles of up to 8 pixels │ inputs of the tile, taps of the run.
   Why: as in depthwise.c, but here a run's sums and a tile's gradients are the registers. A chain of sums is SUM
   products long, then added to the part's; the parts, of which there are at most PARTS whatever the number of threads,
   are added up in float64 at the end: short chains round less, and the same run twice gives the same bits. */
#include <stdlib.h>

#include "segments.h"

int NAME(depthwise_axis_weight)(const sepgconv_convolution *, float *gradient, int threads);

#define PARTS 8
#define SUM 128
#define GROUP 16 /* blocks in a task */

typedef struct {
    const sepgconv_convolution *a;
    plan p;
    float *sums; /* (part, block, tap in the order of the segments, BLOCK) */
    int64_t parts, groups;
} job;

/* Sums over `rows` rows of `tiles` tiles, for the taps of one run, added to what is there. */
INLINE void products(const int tile, const int length, const float *restrict in, int64_t in_row,
                     const float *restrict slope, int64_t slope_row, int64_t rows, int64_t tiles, float *restrict to) {
    vec sum[RUN];
    UNROLL for (int k = 0; k < length; k++) sum[k] = splat(0.f);
    for (int64_t y = 0; y < rows; y++, in += in_row, slope += slope_row)
        for (int64_t t = 0; t < tiles; t++) {
            const float *x = in + t * tile * BLOCK, *g = slope + t * tile * BLOCK;
            vec s[TILE];
            UNROLL for (int o = 0; o < tile; o++) s[o] = load(g + o * BLOCK);
            UNROLL for (int i = 0; i < tile + length - 1; i++) {
                vec v = load(x + i * BLOCK);
                UNROLL for (int k = 0; k < length; k++)
                    if (i - k >= 0 && i - k < tile) sum[k] += v * s[i - k];
            }
        }
    UNROLL for (int k = 0; k < length; k++) store(to + k * BLOCK, load(to + k * BLOCK) + sum[k]);
}

#define TILES(CASE, L) CASE(1, L) CASE(2, L) CASE(3, L) CASE(4, L) CASE(5, L) CASE(6, L) CASE(7, L) CASE(8, L)
#define ALL(CASE) TILES(CASE, 1) TILES(CASE, 2) TILES(CASE, 3) TILES(CASE, 4) TILES(CASE, 5) TILES(CASE, 6) TILES(CASE, 7)

static void run_products(int64_t tile, int32_t length, const float *in, int64_t in_row, const float *slope,
                         int64_t slope_row, int64_t rows, int64_t tiles, float *to) {
    switch (tile * 8 + length) {
#define CASE(T, L) \
    case T * 8 + L: \
        products(T, L, in, in_row, slope, slope_row, rows, tiles, to); \
        return;
        ALL(CASE)
#undef CASE
    }
}

/* All runs over a few rows of one block. */
static void few_rows(const job *j, const float *in, const float *slope, int64_t rows, int64_t channels, float *to) {
    const sepgconv_convolution *a = j->a;
    int64_t tile = tile_of(a->out_x), tiles = a->out_x / tile, rest = a->out_x % tile;
    int64_t in_row = a->stride * j->p.row, slope_row = a->out_x * BLOCK;
    for (const segment *s = j->p.segments; s < j->p.segments + j->p.count; to += s->length * BLOCK, s++)
        for (int64_t v = 0; v < channels; v += LANES) {
            const float *x = in + s->offset + v, *g = slope + v;
            run_products(tile, s->length, x, in_row, g, slope_row, rows, tiles, to + v);
            int64_t done = tiles * tile * BLOCK;
            if (rest) run_products(rest, s->length, x + done, in_row, g + done, slope_row, rows, 1, to + v);
        }
}

/* One band of one block of one image. Meanwhile the next block, if there is one, is fetched from memory. */
static void block_of_band(const job *j, int64_t b, int64_t band, int64_t block, int fetch, float *to, float *scratch) {
    const sepgconv_convolution *a = j->a;
    const plan *p = &j->p;
    int64_t start = band * p->rows, rows = least(p->rows, a->out_y - start), c = block * BLOCK;
    int64_t channels = least(BLOCK, a->channels - c), few = most(SUM / a->out_x, 1);
    int64_t first = start * a->stride - a->pad_y, in_rows = a->stride * (rows - 1) + a->taps_y;
    const float *image = a->x + b * a->in_y * a->in_x * a->channels + c;
    const float *gradient = a->y + b * a->y_image + start * a->y_row + c;
    float *in = scratch, *slope = scratch + p->in_rows * p->row;
    copy_padded(in, image, a, p, first, in_rows, channels);
    for (int64_t y = 0; y < rows; y++)
        for (int64_t x = 0; x < a->out_x; x++)
            copy_pixel(slope + (y * a->out_x + x) * BLOCK, gradient + y * a->y_row + x * a->y_pixel, channels);
    for (int64_t y = 0; y < rows; y += few) {
        int64_t now = least(few, rows - y);
        if (fetch) {
            fetch_rows(image + BLOCK, a, first + y * in_rows / rows, first + (y + now) * in_rows / rows);
            for (int64_t r = y; r < y + now; r++)
                for (int64_t x = 0; x < a->out_x; x++)
                    __builtin_prefetch(gradient + BLOCK + r * a->y_row + x * a->y_pixel, 0, 2);
        }
        few_rows(j, in + y * a->stride * p->row, slope + y * a->out_x * BLOCK, now, channels, to);
    }
}

static void part(const void *context, int64_t i, float *scratch) {
    const job *j = context;
    int64_t blocks = blocks_of(j->a->channels), size = j->a->taps_y * j->a->taps_x * BLOCK;
    int64_t n = i / j->groups, units = j->a->batch * j->p.bands;
    int64_t first = i % j->groups * GROUP, last = least(first + GROUP, blocks);
    float *to = j->sums + n * blocks * size;
    memset(to + first * size, 0, (size_t)((last - first) * size) * sizeof(float));
    for (int64_t unit = units * n / j->parts; unit < units * (n + 1) / j->parts; unit++)
        for (int64_t block = first; block < last; block++)
            if (unit % j->p.bands * j->p.rows < j->a->out_y)
                block_of_band(j, unit / j->p.bands, unit % j->p.bands, block, block + 1 < last, to + block * size, scratch);
}

/* The parts' sums, as a contiguous gradient (c, ky, kx). */
static void put_together(const job *j, float *gradient) {
    const sepgconv_convolution *a = j->a;
    int64_t taps = a->taps_y * a->taps_x, size = blocks_of(a->channels) * taps * BLOCK;
    for (int64_t c = 0; c < a->channels; c++) {
        const float *from = j->sums + c / BLOCK * taps * BLOCK + c % BLOCK;
        for (int32_t n = 0; n < j->p.count; n++)
            for (int32_t k = 0; k < j->p.segments[n].length; k++, from += BLOCK) {
                double sum = 0;
                for (int64_t q = 0; q < j->parts; q++) sum += from[q * size];
                gradient[c * taps + j->p.segments[n].tap + k * a->stride] = (float)sum;
            }
    }
}

int NAME(depthwise_weight)(const sepgconv_convolution *a, float *gradient, int threads) {
    int64_t blocks = blocks_of(a->channels), taps = a->taps_y * a->taps_x;
    if (a->batch * a->out_y * a->out_x == 0) {
        memset(gradient, 0, (size_t)(a->channels * taps) * sizeof(float));
        return 0;
    }
    if (spans_axis(a)) return NAME(depthwise_axis_weight)(a, gradient, threads);
    job j = {.a = a, .groups = (blocks + GROUP - 1) / GROUP};
    segment *segments = malloc((size_t)(most_segments(a) + 1) * sizeof(segment));
    if (!segments) return 1;
    j.p = make_plan(a, segments);
    j.parts = least(a->batch * j.p.bands, PARTS);
    j.sums = aligned_alloc(64, (size_t)(j.parts * blocks * taps + 1) * BLOCK * sizeof(float));
    int failed = !j.sums;
    if (!failed) {
        int64_t bytes = (j.p.in_rows * j.p.row + j.p.rows * a->out_x * BLOCK) * (int64_t)sizeof(float);
        failed = sepgconv_run(part, &j, j.parts * j.groups, threads, bytes);
        if (!failed) put_together(&j, gradient);
    }
    free(j.sums);
    free(segments);
    return failed;
}
