/* How a kernel is cut into runs of taps that fit into registers, and images into padded blocks that fit into a cache.

   A strided convolution is a sum of convolutions with stride 1, one per phase: the columns of a padded row are stored
   phase by phase, so that the taps kx = phase, phase + stride, … of all outputs lie side by side. A run is up to RUN
   of these taps in one row of the kernel. Runs are sorted by length, so that each length is one unrolled loop. */
#ifndef SEPGCONV_SEGMENTS_H
#define SEPGCONV_SEGMENTS_H

#include "vectors.h"

#define RUN 7  /* taps in a run and */
#define TILE 8 /* outputs in a tile: with one input, 16 registers */
#define AXIS 32 /* at most so many pixels along an axis that a kernel spans */
#define BAND (192 << 10) /* bytes of an image's padded block: fits into most second-level caches with what is beside it */

typedef struct {
    int64_t offset; /* in the padded block, of the first tap */
    int32_t tap, length; /* first tap ky·taps_x + kx; the next one is `stride` further */
} segment;

typedef struct {
    int64_t cols, phase, row; /* floats: columns of a phase, of all phases */
    int64_t rows, bands;      /* result rows in a band */
    int64_t in_rows;          /* padded rows for a band */
    int32_t count;
    segment *segments;
} plan;

INLINE int64_t blocks_of(int64_t channels) { return (channels + BLOCK - 1) / BLOCK; }

/* Number of runs: at most one per tap. */
INLINE int64_t most_segments(const sepgconv_convolution *a) { return a->taps_y * a->taps_x; }

INLINE plan make_plan(const sepgconv_convolution *a, segment *segments) {
    plan p = {.segments = segments};
    int64_t needed = a->stride * (a->out_x - 1) + a->taps_x;
    p.cols = most((needed + a->stride - 1) / a->stride, 1);
    p.phase = p.cols * BLOCK;
    p.row = p.phase * a->stride;
    int64_t fit = BAND / (p.row * (int64_t)sizeof(float));
    p.rows = least(most((fit - a->taps_y) / a->stride + 1, 1), a->out_y);
    p.bands = (a->out_y + p.rows - 1) / p.rows;
    p.rows = (a->out_y + p.bands - 1) / p.bands; /* evenly */
    p.in_rows = a->stride * (p.rows - 1) + a->taps_y;
    for (int length = RUN; length >= 1; length--)
        for (int64_t ky = 0; ky < a->taps_y; ky++)
            for (int64_t phase = 0; phase < least(a->stride, a->taps_x); phase++) {
                int64_t taps = (a->taps_x - phase + a->stride - 1) / a->stride;
                int64_t runs = (taps + RUN - 1) / RUN, first = 0;
                for (int64_t run = 0; run < runs; run++) {
                    int64_t size = taps / runs + (run < taps % runs);
                    if (size == length)
                        p.segments[p.count++] = (segment){
                            .offset = ky * p.row + phase * p.phase + first * BLOCK,
                            .tap = (int32_t)(ky * a->taps_x + phase + first * a->stride),
                            .length = length,
                        };
                    first += size;
                }
            }
    return p;
}

/* Whether every result sees every input of its row: a kernel along the rotations. */
INLINE int spans_axis(const sepgconv_convolution *a) {
    return a->taps_y == 1 && a->stride == 1 && a->pad_y == 0 && a->in_x == a->out_x && a->in_x <= AXIS &&
           a->taps_x == 2 * a->in_x - 1 && a->pad_x == a->in_x - 1 && a->y_pixel == a->channels;
}

/* Columns of a row of results: tiles of one width, and a last one that may be narrower. */
INLINE int64_t tile_of(int64_t columns) {
    int64_t tiles = (columns + TILE - 1) / TILE;
    return (columns + tiles - 1) / tiles;
}

INLINE void copy_pixel(float *to, const float *from, int64_t channels) {
    if (channels == BLOCK) {
        for (int v = 0; v < BLOCK; v += LANES) store(to + v, load(from + v));
    } else {
        for (int64_t c = 0; c < BLOCK; c++) to[c] = c < channels ? from[c] : 0.f;
    }
}

/* Rows `first`, … of one image's block of channels, padded with zeros: to (rows, phase, cols, BLOCK). */
INLINE void copy_padded(float *to, const float *image, const sepgconv_convolution *a, const plan *p, int64_t first,
                        int64_t rows, int64_t channels) {
    for (int64_t r = 0; r < rows; r++, to += p->row) {
        int64_t y = first + r;
        if (y < 0 || y >= a->in_y) {
            memset(to, 0, (size_t)p->row * sizeof(float));
            continue;
        }
        const float *from = image + y * a->in_x * a->channels;
        for (int64_t phase = 0; phase < a->stride; phase++) {
            float *out = to + phase * p->phase;
            int64_t x = phase - a->pad_x, col = 0;
            for (; col < p->cols && x < 0; col++, x += a->stride) memset(out + col * BLOCK, 0, BLOCK * sizeof(float));
            for (; col < p->cols && x < a->in_x; col++, x += a->stride)
                copy_pixel(out + col * BLOCK, from + x * a->channels, channels);
            memset(out + col * BLOCK, 0, (size_t)(p->cols - col) * BLOCK * sizeof(float));
        }
    }
}

/* Asks for rows of one image's block of channels. */
INLINE void fetch_rows(const float *image, const sepgconv_convolution *a, int64_t first, int64_t last) {
    const float *from = image + most(first, 0) * a->in_x * a->channels;
    const float *end = image + most(least(last, a->in_y), 0) * a->in_x * a->channels;
    for (; from < end; from += a->channels) __builtin_prefetch(from, 0, 2);
}

#endif
