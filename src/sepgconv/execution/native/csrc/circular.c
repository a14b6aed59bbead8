/* Products of rows (row, n, i) with a circulant table of matrices, in the Fourier basis over the n rotations, in which
   it has one block [a −b; b a] per pair of waves; and the gradients. On a circle with its mirror image likewise in the
   basis of the dihedral group, whose blocks have four matrices.

   Loop order: blocks of rows │ transform them │ pairs of waves, panels of columns, tiles of rows │ depth │ the tile;
   meanwhile the next block and the places of this one's results are fetched, which saves a quarter.
   Why: done one after the other, transforms and products write and read all features three times. A block of rows
   stays in the cache from its first transform to its last, so features are read once and written once. In a product a
   tile's sums are registers, a panel of a matrix stays in the nearest cache for all tiles. A block [a −b; b a] takes
   three products instead of four, (c + s)·a, s·(b − a) and c·(a + b), and its gradient s⊗(g + h), (c − s)⊗g and
   (c + s)⊗h. The backward pass transforms a block of both x and the result's gradient, once, for both gradients. That of
   the matrices is summed over a block in registers, over a part of the rows in float32, over the parts in float64; the
   number of parts does not depend on that of threads, so the same run twice gives the same bits. */
#include <stdlib.h>

#include "fourier.h"
#include "tiles.h"

#define PARTS 16
#define WORKING (96 << 10) /* bytes of a block's transform */
#define LARGE (1 << 15)    /* numbers in a matrix that is read from memory for every block: then blocks are larger */
#define MATRICES 4         /* of a pair, at most */

typedef struct {
    const sepgconv_circular *a;
    waves w;
    int64_t unmixed;        /* pairs whose two functions do not mix */
    int64_t pairs, in, out; /* channels of x and of the result, filled up to whole panels */
    int64_t block, group, parts; /* rows in a block, blocks in a task of the forward pass, tasks of the backward pass */
    float *there, *back;    /* matrices and transposed ones, packed: (pair, matrix, panel, depth, PANEL) */
    float *sums;            /* (part, pair, matrix, in, out) */
} job;

/* A row's transform in scratch memory has, per pair, the two waves' coefficients c and s and their sum c + s, each as
   wide as the channels are when filled up. */
#define GROUPS 3

/* Adds c + s for rows of a transform; with `less` c becomes c − s. */
static void add_sums(const job *j, int64_t rows, int64_t wide, float *x, int less) {
    for (int64_t f = j->unmixed; f < j->pairs && !j->a->mirrored; f++)
        for (int64_t r = 0; r < rows; r++) {
            float *c = x + (f * j->block + r) * GROUPS * wide;
            for (int64_t v = 0; v < wide; v += LANES) {
                vec cosine = load(c + v), sine = load(c + wide + v);
                store(c + 2 * wide + v, cosine + sine);
                if (less) store(c + v, cosine - sine);
            }
        }
}

/* Rows of one transform times the packed matrices: (pair, block, group of `from`) to (pair, block, group of `to`). */
static void products(const job *j, int64_t rows, const float *x, int64_t from, int64_t depth, const float *packed,
                     float *y, int64_t to, ahead *next) {
    const int64_t row = GROUPS * from, out = GROUPS * to, matrix = depth * to;
#define TIMES(group, n, start, half) \
    tile(DOWN, a + group * from, row, 1, m + n * matrix, PANEL, depth, start, c + half * to, out)
    for (int64_t f = 0; f < j->pairs; f++, packed += MATRICES * matrix)
        for (int64_t p = 0; p < to; p += PANEL)
            for (int64_t r = 0; r < rows; r += DOWN) {
                const float *a = x + (f * j->block + r) * row, *m = packed + p * depth;
                float *c = y + (f * j->block + r) * out + p;
                fetch(next);
                if (f < j->unmixed) {
                    TIMES(0, 0, NULL, 0), TIMES(1, 1, NULL, 1);
                } else if (!j->a->mirrored) {
                    TIMES(2, 0, NULL, 0), TIMES(0, 2, c, 1), TIMES(1, 1, c, 0);
                } else {
                    TIMES(0, 0, NULL, 0), TIMES(1, 2, c, 0), TIMES(0, 1, NULL, 1), TIMES(1, 3, c + to, 1);
                }
            }
#undef TIMES
}

/* Adds the sums over these rows to (pair, matrix, in, out). */
static void add_matrices(const job *j, int64_t rows, const float *x, const float *g, float *sums, ahead *next) {
    const int64_t size = j->in * j->out;
#define PLUS(group, other, n) \
    tile(ACROSS, a + group * j->in, 1, GROUPS * j->in, b + other * j->out, GROUPS * j->out, rows, c + n * size, \
         c + n * size, j->out)
    for (int64_t f = 0; f < j->pairs; f++, sums += MATRICES * size)
        for (int64_t p = 0; p < j->out; p += PANEL)
            for (int64_t i = 0; i < j->in; i += ACROSS) {
                const float *a = x + f * j->block * GROUPS * j->in + i, *b = g + f * j->block * GROUPS * j->out + p;
                float *c = sums + i * j->out + p;
                fetch(next);
                if (f < j->unmixed) {
                    PLUS(0, 0, 0), PLUS(1, 1, 1);
                } else if (!j->a->mirrored) {
                    PLUS(1, 2, 0), PLUS(0, 0, 1), PLUS(2, 1, 2);
                } else {
                    PLUS(0, 0, 0), PLUS(0, 1, 1), PLUS(1, 0, 2), PLUS(1, 1, 3);
                }
            }
#undef PLUS
}

INLINE void transform_rows(const int n, const int mirrored, const job *j, const int back, int64_t rows,
                           int64_t channels, float *x, float *to, int64_t wide) {
    const int64_t step = (mirrored ? 2 : 1) * n * channels, row = GROUPS * wide;
    for (int64_t r = 0; r < rows; r++)
        row_transform(n, mirrored, &j->w, back, channels, x + r * step, channels, to + r * row, j->block * row, wide);
}

static void transforms(const job *j, int back, int64_t rows, int64_t channels, float *x, float *to, int64_t wide) {
    switch (j->a->points * 2 + j->a->mirrored) {
#define CASE(N, M) \
    case N * (M + 1) * 2 + M: \
        back ? transform_rows(N, M, j, 1, rows, channels, x, to, wide) \
             : transform_rows(N, M, j, 0, rows, channels, x, to, wide); \
        return;
        FOR_POINTS(CASE)
#undef CASE
    }
}

/* What of these rows of `channels` lies in the block that begins at `first`, to be fetched during `tiles` tiles. */
static stretch block_at(const job *j, int64_t first, const float *x, int64_t channels, int64_t tiles) {
    int64_t row = j->a->points * channels, rows = most(least(j->block, j->a->rows - first), 0);
    return coming(x + first * row, rows * row, tiles);
}

static void forward_block(const job *j, int64_t b, int more, float *scratch) {
    const sepgconv_circular *a = j->a;
    int64_t first = b * j->block, rows = least(j->block, a->rows - first), n = a->points;
    float *x = scratch, *y = scratch + j->pairs * j->block * GROUPS * j->in;
    transforms(j, 0, rows, a->in, (float *)a->x + first * n * a->in, x, j->in);
    add_sums(j, rows, j->in, x, 0);
    int64_t tiles = j->pairs * (j->out / PANEL) * (up_to(rows, DOWN) / DOWN);
    ahead next = {.written = block_at(j, first, a->y, a->out, tiles)};
    if (more) next.read = block_at(j, first + rows, a->x, a->in, tiles);
    products(j, rows, x, j->in, a->in, j->there, y, j->out, &next);
    transforms(j, 1, rows, a->out, a->y + first * n * a->out, y, j->out);
}

static void forward(const void *context, int64_t i, float *scratch) {
    const job *j = context;
    int64_t blocks = (j->a->rows + j->block - 1) / j->block, last = least((i + 1) * j->group, blocks);
    for (int64_t b = i * j->group; b < last; b++) forward_block(j, b, b + 1 < last, scratch);
}

/* One part of the rows: the gradient for x, and its sum of the gradients for the matrices. */
static void backward(const void *context, int64_t i, float *scratch) {
    const job *j = context;
    const sepgconv_circular *a = j->a;
    int64_t n = a->points, blocks = (a->rows + j->block - 1) / j->block;
    int64_t size = j->pairs * MATRICES * j->in * j->out;
    float *x = scratch, *g = scratch + j->pairs * j->block * GROUPS * j->in;
    float *sums = j->sums ? j->sums + i * size : NULL;
    if (sums) memset(sums, 0, (size_t)size * sizeof(float));
    for (int64_t b = blocks * i / j->parts, end = blocks * (i + 1) / j->parts; b < end; b++) {
        int64_t first = b * j->block, rows = least(j->block, a->rows - first);
        transforms(j, 0, rows, a->out, (float *)a->grad + first * n * a->out, g, j->out);
        add_sums(j, rows, j->out, g, 0);
        if (sums) {
            transforms(j, 0, rows, a->in, (float *)a->x + first * n * a->in, x, j->in);
            add_sums(j, rows, j->in, x, 1);
            int64_t tiles = j->pairs * (j->in / ACROSS) * (j->out / PANEL);
            ahead next = {0};
            if (b + 1 < end) next.read = block_at(j, first + rows, a->x, a->in, tiles);
            add_matrices(j, rows, x, g, sums, &next);
        }
        if (a->y) {
            int64_t tiles = j->pairs * (j->in / PANEL) * (up_to(rows, DOWN) / DOWN);
            ahead next = {.written = block_at(j, first, a->y, a->in, tiles)};
            if (b + 1 < end) next.read = block_at(j, first + rows, a->grad, a->out, tiles);
            products(j, rows, g, j->out, a->out, j->back, x, j->in, &next);
            transforms(j, 1, rows, a->in, a->y + first * n * a->in, x, j->in);
        }
    }
}

INLINE int64_t matrices(const job *j, int64_t f) { return f < j->unmixed ? 2 : j->a->mirrored ? 4 : 3; }

/* Where matrix m of a pair begins as it is multiplied, and as how many times what is there and what is `second` further:
   a, b − a, −(a + b); transposed b changes its sign. */
static const float *matrix_of(const job *j, int64_t f, int64_t m, const int transposed, float *once, float *second) {
    const sepgconv_circular *a = j->a;
    const float *w = a->weight + f * a->weight_pair;
    *once = 1, *second = 0;
    if (a->mirrored) {
        if (f < j->unmixed) m *= 3;
        int64_t from = transposed ? m % 2 : m / 2, to = transposed ? m / 2 : m % 2;
        return w + from * a->in * a->weight_in + to * a->out * a->weight_out;
    }
    if (f < j->unmixed) return w + m * a->weight_second;
    if (m) *once = -1, *second = (m == 1) != transposed ? 1 : -1;
    return w;
}

/* All matrices, in panels, with zeros for columns that are not there. The inner loops decide nothing: for one image,
   packing takes a fifth of the time. */
static float *pack(const job *j, const int transposed) {
    const sepgconv_circular *a = j->a;
    int64_t depth = transposed ? a->out : a->in, columns = transposed ? a->in : a->out, to = up_to(columns, PANEL);
    int64_t down = transposed ? a->weight_out : a->weight_in, along = transposed ? a->weight_in : a->weight_out;
    float *packed = aligned_alloc(64, (size_t)(j->pairs * MATRICES * depth * to) * sizeof(float));
    for (int64_t f = 0; packed && f < j->pairs; f++)
        for (int64_t m = 0; m < matrices(j, f); m++) {
            float once, second, *p = packed + (f * MATRICES + m) * depth * to;
            const float *matrix = matrix_of(j, f, m, transposed, &once, &second);
            for (int64_t first = 0; first < to; first += PANEL)
                for (int64_t k = 0; k < depth; k++, p += PANEL) {
                    const float *w = matrix + k * down + first * along, *other = w + a->weight_second;
                    const int64_t width = least(PANEL, columns - first);
                    if (second == 0)
                        for (int64_t c = 0; c < width; c++) p[c] = w[c * along];
                    else
                        for (int64_t c = 0; c < width; c++) p[c] = once * w[c * along] + second * other[c * along];
                    for (int64_t c = width; c < PANEL; c++) p[c] = 0.f;
                }
        }
    return packed;
}

static job prepare(const sepgconv_circular *a) {
    job j = {.a = a, .unmixed = 1 + a->mirrored, .pairs = a->points / 2, .in = up_to(a->in, PANEL)};
    j.out = up_to(a->out, PANEL);
    int64_t fit = WORKING / (j.pairs * GROUPS * most(j.in, j.out) * (int64_t)sizeof(float));
    j.block = most(fit / 24, j.in * j.out < LARGE ? 1 : 4) * 24; /* whole tiles, of 6 or 8 rows */
    j.parts = most(least(PARTS, a->rows / j.block), 1);
    make_waves(&j.w, (int)(a->mirrored ? a->points / 2 : a->points));
    return j;
}

static int64_t scratch_bytes(const job *j) {
    return j->pairs * j->block * GROUPS * (j->in + j->out) * (int64_t)sizeof(float);
}

int NAME(circular)(const sepgconv_circular *a, int threads) {
    if (!a->rows) return 0;
    job j = prepare(a);
    j.there = pack(&j, 0);
    int failed = !j.there;
    int64_t blocks = (a->rows + j.block - 1) / j.block;
    j.group = group_of(blocks, threads);
    if (!failed) failed = sepgconv_run(forward, &j, (blocks + j.group - 1) / j.group, threads, scratch_bytes(&j));
    free(j.there);
    return failed;
}

/* The gradients of one row of a pair's matrices from the parts' sums, which `total` is the memory for. */
static void finish_row(const job *j, int64_t f, int64_t i, double *total) {
    const sepgconv_circular *a = j->a;
    const int64_t count = matrices(j, f), size = j->in * j->out, part = j->pairs * MATRICES * size;
    memset(total, 0, (size_t)(MATRICES * a->out) * sizeof(double));
    for (int64_t p = 0; p < j->parts; p++)
        for (int64_t m = 0; m < count; m++) {
            const float *sum = j->sums + p * part + (f * MATRICES + m) * size + i * j->out;
            for (int64_t o = 0; o < a->out; o++) total[m * a->out + o] += sum[o];
        }
    const double *t = total, *u = total + a->out, *v = u + a->out, *w = v + a->out;
    if (a->mirrored) {
        float *to = a->grad_weight + (f * 2 * a->in + i) * 2 * a->out, *below = to + a->in * 2 * a->out;
        const int mixed = f >= j->unmixed;
        for (int64_t o = 0; o < a->out; o++) {
            to[o] = (float)t[o], to[a->out + o] = mixed ? (float)u[o] : 0.f;
            below[o] = mixed ? (float)v[o] : 0.f, below[a->out + o] = (float)(mixed ? w[o] : u[o]);
        }
        return;
    }
    float *first = a->grad_weight + (f * 2 * a->in + i) * a->out, *second = first + a->in * a->out;
    for (int64_t o = 0; o < a->out; o++) {
        first[o] = (float)(f < j->unmixed ? t[o] : t[o] + u[o]);
        second[o] = (float)(f < j->unmixed ? u[o] : t[o] - v[o]);
    }
}

int NAME(circular_backward)(const sepgconv_circular *a, int threads) {
    job j = prepare(a);
    double *total = NULL;
    if (a->y) j.back = pack(&j, 1);
    if (a->grad_weight) {
        j.sums = aligned_alloc(64, (size_t)(j.parts * j.pairs * MATRICES * j.in * j.out) * sizeof(float));
        total = malloc((size_t)(MATRICES * a->out) * sizeof(double));
    }
    int failed = (a->y && !j.back) || (a->grad_weight && (!j.sums || !total));
    if (!failed) failed = sepgconv_run(backward, &j, j.parts, threads, scratch_bytes(&j));
    for (int64_t f = 0; f < j.pairs && !failed && a->grad_weight; f++)
        for (int64_t i = 0; i < a->in; i++) finish_row(&j, f, i, total);
    free(j.back);
    free(j.sums);
    free(total);
    return failed;
}
