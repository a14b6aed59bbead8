/* Two neighbouring elements at a time, of which each sees one neighbour on either side: four products instead of six.

   With inputs d₀ … d₃ around the pair and matrices g₀, g₁, g₂ (Winograd's F(2, 3)),
     d₀g₀ + d₁g₁ + d₂g₂ = p + q + (d₀ − d₂)·g₀  and  d₁g₀ + d₂g₁ + d₃g₂ = p − q + (d₃ − d₁)·g₂
     where  p = (d₁ + d₂)·(g₀ + g₁ + g₂)/2  and  q = (d₂ − d₁)·(g₀ − g₁ + g₂)/2.
   Loop order: pairs │ spread a block's rows to the four sums │ panels, tiles of rows │ depth; rows to come are fetched.
   Why: the four sums of one pair stay in the nearest cache for all panels; p and q, then both results, are registers, and
   nothing is stored in between. A result sees no input that it does not depend on. */
#ifndef SEPGCONV_PAIRS_H
#define SEPGCONV_PAIRS_H

#include "tiles.h"

#define MATRICES 4
#define HALF (DOWN / 2) /* rows of a tile: two results have as many sums as one tile */

/* Rows in memory, or their copy. */
typedef struct {
    float *at;
    int64_t row, element; /* floats from one to the next */
} rows;

/* Matrix m of the pair's four, out of those of the taps at w, w + step, w + 2·step. */
static inline float pair_matrix(int64_t m, const float *w, int64_t step) {
    float a = w[0], b = w[step], c = w[2 * step];
    return m == 0 ? a : m == 1 ? (a + b + c) / 2 : m == 2 ? (a - b + c) / 2 : c;
}

/* And back: the gradients of the taps from those of the four. */
static inline void pair_taps(const double *sums, float *to, int64_t step) {
    double outer = (sums[1] + sums[2]) / 2;
    to[0] = (float)(sums[0] + outer), to[step] = (float)((sums[1] - sums[2]) / 2), to[2 * step] = (float)(sums[3] + outer);
}

/* The four sums of inputs around the pair that begins at element s, (sum, row, depth). */
static void spread_pair(int64_t n, int64_t s, int64_t count, rows x, int64_t depth, float *to) {
    const int before = s > 0, behind = s + 2 < n;
    for (int64_t r = 0; r < count; r++, to += depth) {
        const float *d = x.at + r * x.row + s * x.element;
        for (int64_t k = 0; k < depth; k += LANES, d += LANES) {
            vec d0 = before ? load(d - x.element) : splat(0.f), d1 = load(d), d2 = load(d + x.element);
            vec d3 = behind ? load(d + 2 * x.element) : splat(0.f);
            store(to + k, d0 - d2);
            store(to + k + count * depth, d1 + d2);
            store(to + k + 2 * count * depth, d2 - d1);
            store(to + k + 3 * count * depth, d3 - d1);
        }
    }
}

/* first += a·b, second += e·f, for HALF rows, depth apart. */
INLINE void both(vec first[HALF][2], vec second[HALF][2], const float *a, const float *b, const float *e, const float *f,
                 int64_t depth) {
    for (int64_t k = 0; k < depth; k++, b += PANEL, f += PANEL) {
        vec left = load(b), right = load(b + LANES);
        UNROLL for (int r = 0; r < HALF; r++) {
            vec v = splat(a[r * depth + k]);
            first[r][0] += v * left, first[r][1] += v * right;
        }
        left = load(f), right = load(f + LANES);
        UNROLL for (int r = 0; r < HALF; r++) {
            vec v = splat(e[r * depth + k]);
            second[r][0] += v * left, second[r][1] += v * right;
        }
    }
}

/* Both results of a pair, for HALF rows: `in` and `matrices` are the first ones of four. */
static void pair_tile(const float *in, int64_t apart, const float *matrices, int64_t depth, float *y, rows to) {
    vec p[HALF][2], q[HALF][2];
    UNROLL for (int r = 0; r < HALF; r++) p[r][0] = p[r][1] = q[r][0] = q[r][1] = splat(0.f);
    int64_t matrix = depth * PANEL;
    both(p, q, in + apart, matrices + matrix, in + 2 * apart, matrices + 2 * matrix, depth);
    UNROLL for (int r = 0; r < HALF; r++)
        UNROLL for (int v = 0; v < 2; v++) {
            vec sum = p[r][v] + q[r][v];
            q[r][v] = p[r][v] - q[r][v], p[r][v] = sum;
        }
    both(p, q, in, matrices, in + 3 * apart, matrices + 3 * matrix, depth);
    UNROLL for (int r = 0; r < HALF; r++)
        UNROLL for (int v = 0; v < 2; v++) {
            store(y + r * to.row + v * LANES, p[r][v]);
            store(y + r * to.row + to.element + v * LANES, q[r][v]);
        }
}

/* y = x times matrices that are packed as (panel, matrix, depth, PANEL), for n elements; n is even. */
static void pair_products(int64_t n, int64_t count, rows x, int64_t depth, const float *packed, rows y, int64_t columns,
                          float *spread, ahead *next) {
    for (int64_t s = 0; s < n; s += 2) {
        spread_pair(n, s, count, x, depth, spread);
        for (int64_t p = 0; p < columns; p += PANEL)
            for (int64_t r = 0; r < count; r += HALF) {
                fetch(next);
                pair_tile(spread + r * depth, count * depth, packed + p * MATRICES * depth, depth,
                          y.at + r * y.row + s * y.element + p, y);
            }
    }
}

/* Adds the gradients for the four matrices, (matrix, in, out), of these rows. */
static void pair_matrices(int64_t n, int64_t count, rows x, int64_t in, rows grad, int64_t out, float *sums,
                          float *spread, ahead *next) {
    float *sum = spread + MATRICES * count * in, *difference = sum + count * out;
    for (int64_t s = 0; s < n; s += 2) {
        const float *first = grad.at + s * grad.element;
        spread_pair(n, s, count, x, in, spread);
        for (int64_t r = 0; r < count; r++)
            for (int64_t k = 0; k < out; k += LANES) {
                vec a = load(first + r * grad.row + k), b = load(first + r * grad.row + grad.element + k);
                store(sum + r * out + k, a + b), store(difference + r * out + k, a - b);
            }
        const float *slopes[MATRICES] = {first, sum, difference, first + grad.element};
        for (int64_t m = 0; m < MATRICES; m++)
            for (int64_t p = 0; p < out; p += PANEL)
                for (int64_t i = 0; i < in; i += ACROSS) {
                    float *to = sums + (m * in + i) * out + p;
                    fetch(next);
                    tile(ACROSS, spread + m * count * in + i, 1, in, slopes[m] + p, m == 0 || m == 3 ? grad.row : out,
                         count, to, to, out);
                }
    }
}

#endif
