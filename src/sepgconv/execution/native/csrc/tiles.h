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

static inline int64_t up_to(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

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
