/* Depthwise convolution of rows (b, y, x, c), and with the kernel turned round its gradient for x.

   Loop order: images, blocks of 16 channels, bands of rows │ copy the band, padded │ rows, tiles of up to 8 pixels │
   runs of up to 7 taps │ inputs of the tile, taps of the run.
   Why: pixels of an image with hundreds of channels lie a kilobyte apart, so a block of channels read in place misses
   the cache at every tap; copied once, it stays there for all taps, and the border is a border of zeros instead of a
   branch. In the inner loop a tile's sums and a run's weights are registers, and an input is loaded once for all taps:
   7×7 products for 13 + 7 loads. Meanwhile the next block is fetched, which saves a fifth. The sum of a result is one
   chain over the taps in a fixed order, whatever the number of threads. What comes after it in inference (bias, ReLU, a
   residual block's sum) is done while a tile is at hand, and saves up to five passes over memory. */
#include <stdlib.h>

#include "segments.h"

int NAME(depthwise_axis)(const sepgconv_convolution *, int threads);

#define GROUP 16 /* blocks that a thread takes one after the other, each fetched while the one before it is worked on */
#define WORTH (1 << 18) /* multiply-adds for which another thread is worth being woken: about 5 µs */
#define TASKS 8  /* per thread, at least: a thread that is late is waited for */

typedef int32_t mask __attribute__((vector_size(4 * LANES)));

typedef struct {
    const sepgconv_convolution *a;
    plan p;
    const float *weight; /* (block, tap in the order of the segments, BLOCK) */
    int64_t group;       /* blocks in a task */
    int finishes;        /* whether something comes after the sums */
} job;

/* The sums of `tile` pixels over `count` runs of `length` taps, added to what is there if `add`. */
INLINE void sums(const int tile, const int length, const float *restrict in, const float *restrict weight,
                 const segment *s, int64_t count, float *restrict out, int64_t pixel, int add) {
    vec sum[TILE];
    UNROLL for (int o = 0; o < tile; o++) sum[o] = add ? load(out + o * pixel) : splat(0.f);
    for (int64_t n = 0; n < count; n++, weight += length * BLOCK) {
        const float *x = in + s[n].offset;
        vec w[RUN];
        UNROLL for (int k = 0; k < length; k++) w[k] = load(weight + k * BLOCK);
        UNROLL for (int i = 0; i < tile + length - 1; i++) {
            vec v = load(x + i * BLOCK);
            UNROLL for (int k = 0; k < length; k++)
                if (i - k >= 0 && i - k < tile) sum[i - k] += v * w[k];
        }
    }
    UNROLL for (int o = 0; o < tile; o++) store(out + o * pixel, sum[o]);
}

#define TILES(CASE, L) CASE(1, L) CASE(2, L) CASE(3, L) CASE(4, L) CASE(5, L) CASE(6, L) CASE(7, L) CASE(8, L)
#define ALL(CASE) TILES(CASE, 1) TILES(CASE, 2) TILES(CASE, 3) TILES(CASE, 4) TILES(CASE, 5) TILES(CASE, 6) TILES(CASE, 7)

static void tile_sums(int64_t tile, int32_t length, const float *in, const float *weight, const segment *s,
                      int64_t count, float *out, int64_t pixel, int add) {
    switch (tile * 8 + length) {
#define CASE(T, L) \
    case T * 8 + L: \
        sums(T, L, in, weight, s, count, out, pixel, add); \
        return;
        ALL(CASE)
#undef CASE
    }
}

/* One tile: all lengths of runs, all vectors of the block. */
static void tile(const job *j, const float *in, const float *weight, int64_t width, int64_t channels, float *out,
                 int64_t pixel) {
    const plan *p = &j->p;
    if (!p->count) /* a phase that no tap reaches */
        for (int64_t o = 0; o < width; o++) memset(out + o * pixel, 0, BLOCK * sizeof(float));
    for (int32_t first = 0, last; first < p->count; first = last) {
        const segment *s = p->segments + first;
        for (last = first; last < p->count && p->segments[last].length == s->length; last++) {}
        for (int64_t v = 0; v < channels; v += LANES)
            tile_sums(width, s->length, in + v, weight + v, s, last - first, out + v, pixel, first > 0);
        weight += (int64_t)(last - first) * s->length * BLOCK;
    }
}

/* What comes after the sums of a tile, while they are in the nearest cache: bias, ReLU, addend, ReLU. A ReLU keeps what
   is not a number. */
INLINE vec rectified(vec v) { return (vec)((mask)v & ~(v < 0)); }

static void finish(const sepgconv_convolution *a, const float *bias, const float *addend, int64_t width,
                   int64_t channels, float *out, int64_t pixel) {
    float shift[BLOCK] = {0}, more[BLOCK] = {0};
    if (bias) memcpy(shift, bias, (size_t)channels * sizeof(float));
    for (int64_t o = 0; o < width; o++, out += pixel) {
        const float *beside = addend ? addend + o * a->y_pixel : NULL;
        if (beside && channels < BLOCK) beside = memcpy(more, beside, (size_t)channels * sizeof(float));
        for (int64_t v = 0; v < BLOCK; v += LANES) {
            vec sum = load(out + v) + load(shift + v);
            if (a->relu) sum = rectified(sum);
            if (beside) sum = rectified(sum + load(beside + v));
            store(out + v, sum);
        }
    }
}

/* One band of one block. Meanwhile the next block, if there is one, is fetched from memory. */
static void block_of_band(const job *j, int64_t b, int64_t part, int64_t block, int fetch, float *scratch) {
    const sepgconv_convolution *a = j->a;
    const plan *p = &j->p;
    int64_t start = part * p->rows, rows = least(p->rows, a->out_y - start), c = block * BLOCK;
    int64_t channels = least(BLOCK, a->channels - c), width = tile_of(a->out_x);
    int64_t first = start * a->stride - a->pad_y, in_rows = a->stride * (rows - 1) + a->taps_y;
    const float *image = a->x + b * a->in_y * a->in_x * a->channels + c;
    const float *weight = j->weight + block * a->taps_y * a->taps_x * BLOCK;
    float *aside = scratch, *in = scratch + TILE * BLOCK;
    copy_padded(in, image, a, p, first, in_rows, channels);
    for (int64_t y = 0; y < rows; y++) {
        float *out = a->y + b * a->y_image + (start + y) * a->y_row + c;
        if (a->addend && y + 1 < rows)
            for (int64_t x = 0; x < a->out_x; x++)
                __builtin_prefetch(a->addend + (out - a->y) + a->y_row + x * a->y_pixel, 0, 2);
        if (fetch) fetch_rows(image + BLOCK, a, first + y * in_rows / rows, first + (y + 1) * in_rows / rows);
        for (int64_t x = 0; x < a->out_x; x += width) {
            const float *from = in + y * a->stride * p->row + x * BLOCK;
            int64_t size = least(width, a->out_x - x);
            const float *bias = a->bias ? a->bias + c : NULL;
            const float *addend = a->addend ? a->addend + (out - a->y) + x * a->y_pixel : NULL;
            if (channels == BLOCK) {
                tile(j, from, weight, size, BLOCK, out + x * a->y_pixel, a->y_pixel);
                if (j->finishes) finish(a, bias, addend, size, BLOCK, out + x * a->y_pixel, a->y_pixel);
                continue;
            }
            tile(j, from, weight, size, channels, aside, BLOCK); /* the last block: written aside, then cut */
            if (j->finishes) finish(a, bias, addend, size, channels, aside, BLOCK);
            for (int64_t o = 0; o < size; o++)
                memcpy(out + (x + o) * a->y_pixel, aside + o * BLOCK, (size_t)channels * sizeof(float));
        }
    }
}

static void band(const void *context, int64_t i, float *scratch) {
    const job *j = context;
    int64_t blocks = blocks_of(j->a->channels), groups = (blocks + j->group - 1) / j->group;
    int64_t first = i % groups * j->group, last = least(first + j->group, blocks);
    int64_t part = i / groups % j->p.bands, b = i / groups / j->p.bands;
    if (part * j->p.rows >= j->a->out_y) return;
    for (int64_t block = first; block < last; block++)
        block_of_band(j, b, part, block, block + 1 < last, scratch);
}

/* Kernels as the segments read them, channels innermost, with zeros for channels that are not there. */
static void pack(const sepgconv_convolution *a, const plan *p, float *to) {
    for (int64_t c = 0; c < a->channels + (-a->channels & (BLOCK - 1)); c++) {
        float *out = to + c / BLOCK * a->taps_y * a->taps_x * BLOCK + c % BLOCK;
        for (int32_t n = 0; n < p->count; n++)
            for (int32_t k = 0; k < p->segments[n].length; k++, out += BLOCK) {
                int64_t tap = p->segments[n].tap + k * a->stride;
                const float *w = a->weight + c * a->weight_c + tap / a->taps_x * a->weight_y;
                *out = c < a->channels ? w[tap % a->taps_x * a->weight_x] : 0.f;
            }
    }
}

int NAME(depthwise_forward)(const sepgconv_convolution *a, int threads) {
    int64_t blocks = blocks_of(a->channels), taps = a->taps_y * a->taps_x;
    int64_t results = a->batch * a->channels * a->out_y * a->out_x;
    if (!results) return 0;
    const int finishes = a->bias || a->relu || a->addend;
    if (spans_axis(a) && !finishes) return NAME(depthwise_axis)(a, threads);
    threads = (int)least(threads, most(results * taps / WORTH, 1));
    segment *segments = malloc((size_t)(most_segments(a) + 1) * sizeof(segment));
    float *weight = aligned_alloc(64, (size_t)(blocks * taps + 1) * BLOCK * sizeof(float));
    int failed = !segments || !weight;
    if (!failed) {
        job j = {.a = a, .p = make_plan(a, segments), .weight = weight, .finishes = finishes};
        pack(a, &j.p, weight);
        int64_t bytes = (j.p.in_rows * j.p.row + TILE * BLOCK) * (int64_t)sizeof(float);
        int64_t bands = a->batch * j.p.bands;
        j.group = least(most(bands * blocks / (TASKS * threads), 1), GROUP);
        failed = sepgconv_run(band, &j, bands * ((blocks + j.group - 1) / j.group), threads, bytes);
    }
    free(segments);
    free(weight);
    return failed;
}
