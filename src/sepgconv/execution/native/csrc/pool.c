/* Max pooling of rows (b, y, x, c): the maximum of every window and, in a byte, where in the window it is.

   Loop order: images, rows of results │ pixels │ vectors of channels │ pixels of the window.
   Why: a row of results reads a few rows of the image from end to end, once if windows do not overlap; the maximum and
   its place are registers. The backward pass writes each pixel of such windows once, the gradient or zero, from one
   byte per result; where windows overlap or leave pixels out, an image is one task, filled with zeros and added to in
   the order of the windows. As torch has it, the first of equal maxima counts, and the last one that is not a number. */
#include "vectors.h"

typedef int32_t mask __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

typedef struct {
    const sepgconv_pool *a;
    int64_t exact; /* windows side by side, without rest */
} job;

typedef struct {
    int64_t first, last; /* rows or columns of a window that are in the image, counted in the window */
} span;

INLINE span inside(const sepgconv_pool *a, int64_t at, int64_t length) {
    int64_t start = at * a->stride - a->pad;
    return (span){most(-start, 0), least(a->size, length - start)};
}

/* The window's pixel (y, x) of result (oy, ox) in an image. */
INLINE int64_t place(const sepgconv_pool *a, int64_t oy, int64_t ox, int64_t y, int64_t x) {
    return ((oy * a->stride - a->pad + y) * a->in_x + ox * a->stride - a->pad + x) * a->channels;
}

INLINE void pool_vector(const sepgconv_pool *a, const float *in, span rows, span cols, float *out, uint8_t *where) {
    vec best = load(in);
    mask at = (mask){0} + (int32_t)(rows.first * a->size + cols.first);
    for (int64_t y = rows.first; y < rows.last; y++)
        for (int64_t x = cols.first; x < cols.last; x++) {
            vec v = load(in + ((y - rows.first) * a->in_x + x - cols.first) * a->channels);
            mask better = (v > best) | (v != v);
            best = (vec)(((mask)v & better) | ((mask)best & ~better));
            at = (((mask){0} + (int32_t)(y * a->size + x)) & better) | (at & ~better);
        }
    store(out, best);
    if (where) {
        bytes small = __builtin_convertvector(at, bytes);
        memcpy(where, &small, sizeof small);
    }
}

INLINE void pool_one(const sepgconv_pool *a, const float *in, span rows, span cols, float *out, uint8_t *where) {
    float best = *in;
    int64_t at = rows.first * a->size + cols.first;
    for (int64_t y = rows.first; y < rows.last; y++)
        for (int64_t x = cols.first; x < cols.last; x++) {
            float v = in[((y - rows.first) * a->in_x + x - cols.first) * a->channels];
            if (v > best || v != v) best = v, at = y * a->size + x;
        }
    *out = best;
    if (where) *where = (uint8_t)at;
}

static void pool_row(const void *context, int64_t i, float *scratch) {
    const sepgconv_pool a = *((const job *)context)->a;
    int64_t b = i / a.out_y, oy = i % a.out_y;
    span rows = inside(&a, oy, a.in_y);
    (void)scratch;
    for (int64_t ox = 0; ox < a.out_x; ox++) {
        span cols = inside(&a, ox, a.in_x);
        int64_t to = (i * a.out_x + ox) * a.channels, c = 0;
        const float *in = a.x + b * a.in_y * a.in_x * a.channels + place(&a, oy, ox, rows.first, cols.first);
        for (; c + LANES <= a.channels; c += LANES)
            pool_vector(&a, in + c, rows, cols, a.y + to + c, a.places ? a.places + to + c : NULL);
        for (; c < a.channels; c++)
            pool_one(&a, in + c, rows, cols, a.y + to + c, a.places ? a.places + to + c : NULL);
    }
}

/* Gives the gradients of one row of results to the pixels they came from. */
INLINE void spread_row(const sepgconv_pool *a, int64_t b, int64_t oy, float *image, const int adds) {
    span rows = inside(a, oy, a->in_y);
    for (int64_t ox = 0; ox < a->out_x; ox++) {
        span cols = inside(a, ox, a->in_x);
        int64_t from = ((b * a->out_y + oy) * a->out_x + ox) * a->channels;
        const float *grad = a->grad + from;
        const uint8_t *where = a->places + from;
        for (int64_t y = rows.first; y < rows.last; y++)
            for (int64_t x = cols.first; x < cols.last; x++) {
                float *out = image + place(a, oy, ox, y, x);
                int32_t here = (int32_t)(y * a->size + x);
                int64_t c = 0;
                for (; c + LANES <= a->channels; c += LANES) {
                    bytes small;
                    memcpy(&small, where + c, sizeof small);
                    mask hit = __builtin_convertvector(small, mask) == here;
                    vec g = (vec)((mask)load(grad + c) & hit);
                    store(out + c, adds ? load(out + c) + g : g);
                }
                for (; c < a->channels; c++) {
                    float g = where[c] == here ? grad[c] : 0.f;
                    out[c] = adds ? out[c] + g : g;
                }
            }
    }
}

static void spread(const void *context, int64_t i, float *scratch) {
    const job *j = context;
    const sepgconv_pool a = *j->a;
    int64_t size = a.in_y * a.in_x * a.channels;
    (void)scratch;
    if (j->exact) {
        spread_row(&a, i / a.out_y, i % a.out_y, a.y + i / a.out_y * size, 0);
        return;
    }
    memset(a.y + i * size, 0, (size_t)size * sizeof(float));
    for (int64_t oy = 0; oy < a.out_y; oy++) spread_row(&a, i, oy, a.y + i * size, 1);
}

int NAME(pool_result)(const sepgconv_pool *a, int threads) {
    job j = {.a = a};
    return sepgconv_run(pool_row, &j, a->batch * a->out_y, threads, 0);
}

int NAME(pool_backward)(const sepgconv_pool *a, int threads) {
    int64_t fits = a->stride == a->size && !a->pad;
    job j = {.a = a, .exact = fits && a->in_y == a->out_y * a->size && a->in_x == a->out_x * a->size};
    return sepgconv_run(spread, &j, j.exact ? a->batch * a->out_y : a->batch, threads, 0);
}
