/* Products of rows (row, n, i) with a banded table of matrices over n elements, of which each sees itself and a few
   neighbours: y(s) = Σ_d x(s + d)·w(d); and the gradients.

   Loop order: blocks of rows │ elements │ panels of columns, tiles of rows │ depth │ the tile.
   Why: the neighbours of an element lie side by side in a row, so that they are one long row of a matrix and the sum over
   d and i is one product, of rows that overlap: nothing is copied, and at the ends the product is shorter. The gradient
   for x is the same with the matrices transposed and turned round. That of the matrices is summed over a block in
   registers, over a part of the rows in float32, over the parts, whose number does not depend on that of threads, in
   float64. Where channels or rows do not fill panels and tiles, a block is copied and filled up with zeros.
   Where an element sees one neighbour on either side, two elements at a time take four products instead of six: pairs.h. */
#include <stdlib.h>

#include "pairs.h"

#define PARTS 16
#define WORKING (128 << 10) /* bytes of a block's rows */

typedef struct {
    const sepgconv_band *a;
    int64_t taps, matrices; /* as many, or the four of pairs */
    int64_t in, out; /* channels, filled up to whole panels */
    int64_t block, group, parts; /* rows in a block, blocks in a task of the forward pass, tasks of the backward pass */
    float *there, *back; /* the matrices and the transposed ones, packed: (panel, matrix, depth, PANEL) */
    float *sums;         /* (part, matrix, in, out) */
} job;

static rows view(const float *x, int64_t n, int64_t channels) { return (rows){(float *)x, n * channels, channels}; }

/* Rows of `channels`, copied to `to` and filled up with zeros to `tall` rows of `wide` channels. */
static rows filled(const float *x, int64_t count, int64_t n, int64_t channels, float *to, int64_t tall, int64_t wide) {
    memset(to, 0, (size_t)(tall * n * wide) * sizeof(float));
    for (int64_t r = 0; r < count * n; r++) memcpy(to + r * wide, x + r * channels, (size_t)channels * sizeof(float));
    return view(to, n, wide);
}

static void cut(rows from, int64_t count, int64_t n, int64_t channels, float *to) {
    for (int64_t r = 0; r < count * n; r++)
        memcpy(to + r * channels, from.at + r * from.element, (size_t)channels * sizeof(float));
}

typedef struct {
    int64_t first, last; /* elements that an element sees */
} span;

INLINE span seen(const sepgconv_band *a, int64_t s) {
    return (span){most(s - a->neighbours, 0), least(s + a->neighbours, a->elements - 1)};
}

/* y = x times the packed matrices, for whole tiles of rows and whole panels of columns. */
static void products(const job *j, int64_t count, rows x, int64_t depth, const float *packed, rows y, int64_t columns,
                     float *spread, ahead *next) {
    const sepgconv_band *a = j->a;
    if (j->matrices != j->taps) {
        pair_products(a->elements, count, x, depth, packed, y, columns, spread, next);
        return;
    }
    for (int64_t s = 0; s < a->elements; s++) {
        span e = seen(a, s);
        int64_t skipped = (e.first - s + a->neighbours) * depth, length = (e.last - e.first + 1) * depth;
        for (int64_t p = 0; p < columns; p += PANEL) {
            const float *matrix = packed + (p * j->taps * depth + skipped * PANEL);
            for (int64_t r = 0; r < count; r += DOWN) {
                fetch(next);
                tile(DOWN, x.at + r * x.row + e.first * x.element, x.row, 1, matrix, PANEL, length, NULL,
                     y.at + r * y.row + s * y.element + p, y.row);
            }
        }
    }
}

/* Adds the sums over these rows of x(s + d) times the gradient at s to (matrix, in, out). */
static void add_matrices(const job *j, int64_t count, rows x, rows grad, float *sums, float *spread,
                         ahead *next) {
    const sepgconv_band *a = j->a;
    if (j->matrices != j->taps) {
        pair_matrices(a->elements, count, x, j->in, grad, j->out, sums, spread, next);
        return;
    }
    for (int64_t s = 0; s < a->elements; s++) {
        span e = seen(a, s);
        float *to = sums + (e.first - s + a->neighbours) * j->in * j->out;
        for (int64_t p = 0; p < j->out; p += PANEL)
            for (int64_t i = 0; i < (e.last - e.first + 1) * j->in; i += ACROSS) {
                float *sum = to + i * j->out + p;
                fetch(next);
                tile(ACROSS, x.at + e.first * x.element + i, 1, x.row, grad.at + s * grad.element + p, grad.row, count,
                     sum, sum, j->out);
            }
    }
}

/* Whether rows of so many channels can be taken where they are. */
static int fits(int64_t count, int64_t channels) { return count % DOWN == 0 && channels % PANEL == 0; }

/* What of these rows of `channels` lies in the block that begins at `first`, to be fetched during `tiles` tiles. */
static stretch block_at(const job *j, int64_t first, const float *x, int64_t channels, int64_t tiles) {
    int64_t row = j->a->elements * channels, rows = most(least(j->block, j->a->rows - first), 0);
    return coming(x + first * row, rows * row, tiles);
}

static void forward_block(const job *j, int64_t b, int more, float *scratch) {
    const sepgconv_band *a = j->a;
    int64_t n = a->elements, first = b * j->block, count = least(j->block, a->rows - first), tall = up_to(count, DOWN);
    const float *from = a->x + first * n * a->in;
    float *to = a->y + first * n * a->out, *aside = scratch + j->block * n * j->in;
    float *spread = aside + j->block * n * j->out;
    const int whole = fits(count, a->out) && a->in == j->in;
    rows x = whole ? view(from, n, a->in) : filled(from, count, n, a->in, scratch, tall, j->in);
    rows y = view(whole ? to : aside, n, j->out);
    int64_t tiles = n * (tall / DOWN) * (j->out / PANEL), behind = first + count;
    ahead next = {0};
    if (more) next = (ahead){block_at(j, behind, a->x, a->in, tiles), block_at(j, behind, a->y, a->out, tiles)};
    products(j, tall, x, j->in, j->there, y, j->out, spread, &next);
    if (!whole) cut(y, count, n, a->out, to);
}

static void forward(const void *context, int64_t task, float *scratch) {
    const job *j = context;
    int64_t blocks = (j->a->rows + j->block - 1) / j->block, last = least((task + 1) * j->group, blocks);
    for (int64_t b = task * j->group; b < last; b++) forward_block(j, b, b + 1 < last, scratch);
}

/* One part of the rows: the gradient for x, and its sum of the gradients for the matrices. */
static void backward(const void *context, int64_t part, float *scratch) {
    const job *j = context;
    const sepgconv_band *a = j->a;
    int64_t n = a->elements, blocks = (a->rows + j->block - 1) / j->block, size = j->matrices * j->in * j->out;
    int64_t end = blocks * (part + 1) / j->parts;
    float *sums = j->sums ? j->sums + part * size : NULL, *aside = scratch + j->block * n * j->in;
    float *spread = aside + j->block * n * j->out;
    if (sums) memset(sums, 0, (size_t)size * sizeof(float));
    for (int64_t b = blocks * part / j->parts; b < end; b++) {
        int64_t first = b * j->block, count = least(j->block, a->rows - first), tall = up_to(count, DOWN);
        int64_t behind = first + count;
        const float *slope = a->grad + first * n * a->out, *from = a->x + first * n * a->in;
        const int whole = fits(count, a->out) && fits(count, a->in);
        rows g = whole ? view(slope, n, a->out) : filled(slope, count, n, a->out, aside, tall, j->out);
        if (sums) {
            rows x = whole ? view(from, n, a->in) : filled(from, count, n, a->in, scratch, tall, j->in);
            ahead next = {0};
            if (b + 1 < end) next.read = block_at(j, behind, a->x, a->in, n * (j->in / ACROSS) * (j->out / PANEL));
            add_matrices(j, count, x, g, sums, spread, &next);
        }
        if (!a->y) continue;
        float *to = a->y + first * n * a->in;
        rows dx = view(whole ? to : scratch, n, j->in);
        int64_t tiles = n * (tall / DOWN) * (j->in / PANEL);
        ahead next = {0};
        if (b + 1 < end) next = (ahead){block_at(j, behind, a->grad, a->out, tiles), block_at(j, behind, a->y, a->in, tiles)};
        products(j, tall, g, j->out, j->back, dx, j->in, spread, &next);
        if (!whole) cut(dx, count, n, a->in, to);
    }
}

/* Matrices in panels, with zeros for rows and columns that are not there: w(d), or w(−d) transposed; of pairs, their sums. */
static float *pack(const job *j, const int transposed) {
    const sepgconv_band *a = j->a;
    int64_t depth = transposed ? j->out : j->in, columns = transposed ? j->in : j->out;
    float *packed = aligned_alloc(64, (size_t)(j->matrices * depth * columns) * sizeof(float)), *to = packed;
    int64_t step = transposed ? -a->weight_tap : a->weight_tap;
    for (int64_t p = 0; packed && p < columns; p += PANEL)
        for (int64_t m = 0; m < j->matrices; m++)
            for (int64_t k = 0; k < depth; k++)
                for (int64_t c = p; c < p + PANEL; c++) {
                    int64_t i = transposed ? c : k, o = transposed ? k : c;
                    const float *w = a->weight + i * a->weight_in + o * a->weight_out;
                    w += transposed ? (j->taps - 1) * a->weight_tap : 0;
                    const int there = i < a->in && o < a->out;
                    *to++ = !there ? 0.f : j->matrices == j->taps ? w[m * step] : pair_matrix(m, w, step);
                }
    return packed;
}

static job prepare(const sepgconv_band *a) {
    job j = {.a = a, .taps = 2 * a->neighbours + 1, .in = up_to(a->in, PANEL), .out = up_to(a->out, PANEL)};
    j.matrices = a->neighbours == 1 && a->elements % 2 == 0 ? MATRICES : j.taps;
    j.block = most(WORKING / (a->elements * (j.in + j.out) * (int64_t)sizeof(float)) / 24, 1) * 24; /* whole tiles */
    j.parts = most(least(PARTS, a->rows / j.block), 1);
    return j;
}

static int64_t scratch_bytes(const job *j) {
    int64_t spread = j->matrices == j->taps ? 0 : MATRICES * most(j->in, j->out) + 2 * j->out;
    return j->block * (j->a->elements * (j->in + j->out) + spread) * (int64_t)sizeof(float);
}

int NAME(banded)(const sepgconv_band *a, int threads) {
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

/* The sum over all parts. */
static double total(const job *j, int64_t matrix, int64_t i, int64_t o) {
    double sum = 0;
    for (int64_t p = 0; p < j->parts; p++) sum += j->sums[((p * j->matrices + matrix) * j->in + i) * j->out + o];
    return sum;
}

int NAME(banded_backward)(const sepgconv_band *a, int threads) {
    job j = prepare(a);
    int64_t size = j.matrices * j.in * j.out;
    if (a->y) j.back = pack(&j, 1);
    if (a->grad_weight) j.sums = aligned_alloc(64, (size_t)(j.parts * size) * sizeof(float));
    int failed = (a->y && !j.back) || (a->grad_weight && !j.sums);
    if (!failed) failed = sepgconv_run(backward, &j, j.parts, threads, scratch_bytes(&j));
    for (int64_t i = 0; i < a->in && !failed && a->grad_weight; i++)
        for (int64_t o = 0; o < a->out; o++) {
            float *to = a->grad_weight + i * a->out + o;
            double sums[MATRICES];
            if (j.matrices == j.taps)
                for (int64_t d = 0; d < j.taps; d++) to[d * a->in * a->out] = (float)total(&j, d, i, o);
            else {
                for (int64_t m = 0; m < MATRICES; m++) sums[m] = total(&j, m, i, o);
                pair_taps(sums, to, a->in * a->out);
            }
        }
    free(j.back);
    free(j.sums);
    return failed;
}
