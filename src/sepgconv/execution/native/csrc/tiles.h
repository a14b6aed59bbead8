/* The inner loop of all products: a tile of the result, whose sums are registers. */
#ifndef SEPGCONV_TILES_H
#define SEPGCONV_TILES_H

#include "vectors.h"

#if LANES == 16
#define DOWN 8 /* rows of a tile: with two vectors across and one row of the right matrix, 18 of 32 registers */
#define ACROSS 8 /* rows of a tile of a matrix's gradient, which divide PANEL */
#else
#define DOWN 6 /* 14 of 16 */
#define ACROSS 4
#endif
#define PANEL (2 * LANES) /* columns of a tile */

#define GROUP 8 /* blocks of rows, at most, that a thread takes one after the other, each fetched during the one before it */

static inline int64_t up_to(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

/* Rows to be fetched bit by bit, tile by tile, before they are read or written: at once they would be waited for. */
typedef struct {
    const float *at;
    int64_t left, step; /* floats */
} stretch;
typedef struct {
    stretch read, written;
} ahead;

static inline stretch coming(const float *at, int64_t floats, int64_t tiles) {
    return (stretch){at, floats, up_to(floats / tiles + 1, 16)};
}

INLINE void fetch_some(stretch *s, const int writing) {
    int64_t some = least(s->step, s->left);
    for (int64_t k = 0; k < some; k += 16) __builtin_prefetch(s->at + k, writing, 2);
    s->at += some, s->left -= some;
}

INLINE void fetch(ahead *next) { fetch_some(&next->read, 0), fetch_some(&next->written, 1); }

/* How many blocks a task has: enough tasks for all threads come first. */
static inline int64_t group_of(int64_t blocks, int threads) { return most(least(GROUP, blocks / (8 * (int64_t)threads)), 1); }

/* c = start + a·b for `down` rows, without `start` if there is none: a's entry (row, k) lies at row·a_row + k·a_step, b's
   rows lie b_row apart, those of c and start c_row. */
INLINE void tile(const int down, const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_row,
                 int64_t depth, const float *start, float *c, int64_t c_row) {
    vec sum[DOWN][2];
    UNROLL for (int r = 0; r < down; r++) {
        sum[r][0] = start ? load(start + r * c_row) : splat(0.f);
        sum[r][1] = start ? load(start + r * c_row + LANES) : splat(0.f);
    }
    for (int64_t k = 0; k < depth; k++, a += a_step, b += b_row) {
        vec left = load(b), right = load(b + LANES);
        UNROLL for (int r = 0; r < down; r++) {
            vec v = splat(a[r * a_row]);
            sum[r][0] += v * left, sum[r][1] += v * right;
        }
    }
    UNROLL for (int r = 0; r < down; r++) store(c + r * c_row, sum[r][0]), store(c + r * c_row + LANES, sum[r][1]);
}

#endif
