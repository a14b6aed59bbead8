/* Products of rows (row, n, i) with a circulant table of matrices, in the Fourier basis over the n rotations, in which
   it has one block (2i, 2j) per pair of waves, of which the first is two of (i, j); and the gradients. On a circle with its mirror image likewise in
   the basis of the dihedral group.

   Loop order: blocks of rows │ transform them │ pairs of waves, panels of columns, tiles of rows │ depth │ the tile.
   Why: done one after the other, transforms and products write and read all features three times. A block of rows
   stays in the cache from its first transform to its last, so features are read once and written once. In a product a
   tile's sums are registers (DOWN rows, two vectors across), a panel of the matrix stays in the nearest cache for all
   tiles. The backward pass transforms a block of both x and the result's gradient, once, for both gradients. That of
   the matrices is summed over a block in registers, over a part of the rows in float32, over the parts in float64; the
   number of parts does not depend on that of threads, so the same run twice gives the same bits. */
#include <stdlib.h>

#include "fourier.h"
#include "tiles.h"

#define PARTS 16
#define WORKING (64 << 10) /* bytes of a block's transform */
#define LARGE (1 << 17)    /* numbers in a matrix that is read from memory for every block: then blocks are larger */

typedef struct {
    const sepgconv_circular *a;
    waves w;
    int64_t unmixed;        /* pairs whose two functions do not mix */
    int64_t pairs, in, out; /* columns of a block's transforms of x and of the result: 2i and 2j, filled up */
    int64_t block, parts;   /* rows in a block */
    float *there, *back;    /* the matrices and the transposed ones, packed: (pair, panel, depth, PANEL) */
    float *sums;            /* (part, pair, in, out) */
} job;

static int64_t filled(int64_t columns) { /* whole panels, and whole tiles when read from top to bottom */
    return up_to(most(up_to(columns, PANEL), up_to(columns, DOWN)), BLOCK);
}

/* Which entries of a pair's block are there in `size` columns (or rows) from `first` on, if the other side is `across`
   long: all of them, but half in the first pair, or two pairs, whose functions do not mix. */
typedef struct {
    int64_t first, count;
} range;

INLINE range entries(int64_t mixes, int64_t first, int64_t size, int64_t length, int64_t across) {
    if (mixes || (first < length / 2 && first + size > length / 2)) return (range){0, across};
    return (range){first < length / 2 ? 0 : across / 2, across / 2};
}

/* Rows of one transform times the packed matrices: (pair, block, from) to (pair, block, to). */
static void products(const job *j, int64_t rows, const float *a, int64_t from, int64_t depth, const float *packed,
                     float *c, int64_t to, int64_t columns) {
    for (int64_t f = 0; f < j->pairs; f++, a += j->block * from, c += j->block * to)
        for (int64_t p = 0; p < columns; p += PANEL, packed += depth * PANEL) {
            range k = entries(f >= j->unmixed, p, PANEL, columns, depth);
            for (int64_t r = 0; r < rows; r += DOWN)
                tile(DOWN, a + r * from + k.first, from, 1, packed + k.first * PANEL, PANEL, k.count, c + r * to + p, to, 0);
        }
}

INLINE void transform_rows(const int n, const int mirrored, const job *j, const int back, int64_t rows,
                           int64_t channels, float *x, float *to, int64_t row) {
    const int64_t step = (mirrored ? 2 : 1) * n * channels;
    for (int64_t r = 0; r < rows; r++)
        row_transform(n, mirrored, &j->w, back, channels, x + r * step, channels, to + r * row, j->block * row, channels);
}

static void transforms(const job *j, int back, int64_t rows, int64_t channels, float *x, float *to, int64_t row) {
    switch (j->a->points * 2 + j->a->mirrored) {
#define CASE(N, M) \
    case N * (M + 1) * 2 + M: \
        back ? transform_rows(N, M, j, 1, rows, channels, x, to, row) \
             : transform_rows(N, M, j, 0, rows, channels, x, to, row); \
        return;
        FOR_POINTS(CASE)
#undef CASE
    }
}

static void forward(const void *context, int64_t i, float *scratch) {
    const job *j = context;
    const sepgconv_circular *a = j->a;
    int64_t first = i * j->block, rows = least(j->block, a->rows - first), n = a->points;
    float *x = scratch, *y = scratch + j->pairs * j->block * j->in;
    transforms(j, 0, rows, a->in, (float *)a->x + first * n * a->in, x, j->in);
    products(j, rows, x, j->in, 2 * a->in, j->there, y, j->out, 2 * a->out);
    transforms(j, 1, rows, a->out, a->y + first * n * a->out, y, j->out);
}

/* One part of the rows: the gradient for x, and its sum of the gradients for the matrices. */
static void backward(const void *context, int64_t i, float *scratch) {
    const job *j = context;
    const sepgconv_circular *a = j->a;
    int64_t n = a->points, blocks = (a->rows + j->block - 1) / j->block, size = j->in * j->out;
    float *x = scratch, *g = scratch + j->pairs * j->block * j->in;
    float *sums = j->sums ? j->sums + i * j->pairs * size : NULL;
    if (sums) memset(sums, 0, (size_t)(j->pairs * size) * sizeof(float));
    for (int64_t b = blocks * i / j->parts; b < blocks * (i + 1) / j->parts; b++) {
        int64_t first = b * j->block, rows = least(j->block, a->rows - first);
        transforms(j, 0, rows, a->out, (float *)a->grad + first * n * a->out, g, j->out);
        if (sums) {
            transforms(j, 0, rows, a->in, (float *)a->x + first * n * a->in, x, j->in);
            for (int64_t f = 0; f < j->pairs; f++)
                for (int64_t p = 0; p < 2 * a->out; p += PANEL) {
                    range k = entries(f >= j->unmixed, p, PANEL, 2 * a->out, 2 * a->in);
                    for (int64_t r = k.first / DOWN * DOWN; r < k.first + k.count; r += DOWN)
                        tile(DOWN, x + f * j->block * j->in + r, 1, j->in, g + f * j->block * j->out + p, j->out, rows,
                             sums + f * size + r * j->out + p, j->out, 1);
                }
        }
        if (a->y) {
            products(j, rows, g, j->out, 2 * a->out, j->back, x, j->in, 2 * a->in);
            transforms(j, 1, rows, a->in, a->y + first * n * a->in, x, j->in);
        }
    }
}

/* Matrices `depth` × `columns` with the given strides, in panels, with zeros for columns that are not there. */
static float *pack(const job *j, int64_t depth, int64_t columns, int64_t down, int64_t across) {
    int64_t to = up_to(columns, PANEL);
    float *packed = aligned_alloc(64, (size_t)(j->pairs * depth * to) * sizeof(float)), *p = packed;
    for (int64_t f = 0; packed && f < j->pairs; f++)
        for (int64_t first = 0; first < to; first += PANEL)
            for (int64_t k = 0; k < depth; k++)
                for (int64_t c = first; c < first + PANEL; c++)
                    *p++ = c < columns && (f >= j->unmixed || (k < depth / 2) == (c < columns / 2))
                               ? j->a->weight[f * j->a->weight_pair + k * down + c * across]
                               : 0.f;
    return packed;
}

static job prepare(const sepgconv_circular *a) {
    job j = {.a = a, .unmixed = 1 + a->mirrored, .pairs = a->points / 2, .in = filled(2 * a->in), .out = filled(2 * a->out)};
    int64_t fit = WORKING / (j.pairs * most(j.in, j.out) * (int64_t)sizeof(float));
    j.block = most(fit / 24, j.in * j.out < LARGE ? 1 : 4) * 24; /* whole tiles, of 6 or 8 rows */
    j.parts = most(least(PARTS, a->rows / j.block), 1);
    make_waves(&j.w, (int)(a->mirrored ? a->points / 2 : a->points));
    return j;
}

static int64_t scratch_bytes(const job *j) {
    return j->pairs * j->block * (j->in + j->out) * (int64_t)sizeof(float);
}

int NAME(circular)(const sepgconv_circular *a, int threads) {
    if (!a->rows) return 0;
    job j = prepare(a);
    j.there = pack(&j, 2 * a->in, 2 * a->out, a->weight_in, a->weight_out);
    int failed = !j.there;
    if (!failed) failed = sepgconv_run(forward, &j, (a->rows + j.block - 1) / j.block, threads, scratch_bytes(&j));
    free(j.there);
    return failed;
}

int NAME(circular_backward)(const sepgconv_circular *a, int threads) {
    job j = prepare(a);
    int64_t size = j.pairs * j.in * j.out;
    if (a->y) j.back = pack(&j, 2 * a->out, 2 * a->in, a->weight_out, a->weight_in);
    if (a->grad_weight) j.sums = aligned_alloc(64, (size_t)(j.parts * size) * sizeof(float));
    int failed = (a->y && !j.back) || (a->grad_weight && !j.sums);
    if (!failed) failed = sepgconv_run(backward, &j, j.parts, threads, scratch_bytes(&j));
    for (int64_t f = 0; f < j.pairs && !failed && a->grad_weight; f++)
        for (int64_t r = 0; r < 2 * a->in; r++)
            for (int64_t c = 0; c < 2 * a->out; c++) {
                double sum = 0;
                const int mixed = f >= j.unmixed || (r < a->in) == (c < a->out);
                for (int64_t p = 0; p < j.parts && mixed; p++) sum += j.sums[p * size + (f * j.in + r) * j.out + c];
                a->grad_weight[(f * 2 * a->in + r) * 2 * a->out + c] = (float)sum;
            }
    free(j.back);
    free(j.sums);
    return failed;
}
