/* The spectra of images (b, y, x, c), and images of spectra (frequency, b, c), complex numbers side by side.

   Loop order: images and panels of channels │ lines │ the tile, then the lines across likewise.
   Why: the transforms of stock libraries want an image's pixels side by side, and products of matrices its channels, so
   that more time goes into copies from one to the other than into either. A panel of channels stays in the second-level
   cache from the first line to the last, and all is done in vectors of channels. A line of p points is a product with
   p/2 cosines and p/2 sines of what is even and odd about its first point: a quarter of the multiplications, and as
   quick as what has fewer of them at these lengths. Points beyond the image are zero and take no part. */
#include <math.h>
#include <stdlib.h>

#include "tiles.h"

#define HEIGHT 6 /* rows of a tile: lines have half of 18 to 72 points and one, so that few rows are for nothing */

typedef struct {
    int64_t points, half, wide, tall; /* wide: half and one; tall: rows of a table, up to whole tiles */
    float *cosines, *sines;           /* (tall, wide): of 2πab/points, zero beyond a = half */
} line;

typedef struct {
    const sepgconv_plane *a;
    int64_t panels;
    line down, across;
} job;

static line make_line(int64_t points) {
    line l = {.points = points, .half = points / 2, .wide = points / 2 + 1, .tall = up_to(points / 2 + 1, HEIGHT)};
    const double turn = 2 * 3.14159265358979323846 / (double)points;
    l.cosines = calloc((size_t)(l.tall * l.wide), sizeof(float));
    l.sines = calloc((size_t)(l.tall * l.wide), sizeof(float));
    for (int64_t a = 0; a < l.wide && l.cosines && l.sines; a++)
        for (int64_t b = 0; b < l.wide; b++) {
            int64_t k = a * b % points;
            l.cosines[a * l.wide + b] = (float)cos(turn * (double)k);
            l.sines[a * l.wide + b] = k % l.half ? (float)sin(turn * (double)k) : 0.f;
        }
    return l;
}

/* Sums of `depth` vectors, times cosines or times sines; the first of these vectors has no sine. */
static void cosine_sums(const line *l, int64_t rows, const float *from, int64_t step, int64_t depth, float *to,
                        int64_t to_step) {
    for (int64_t r = 0; r < rows; r += HEIGHT)
        tile(HEIGHT, l->cosines + r * l->wide, l->wide, 1, from, step, depth, NULL, to + r * to_step, to_step);
}

static void sine_sums(const line *l, int64_t rows, const float *from, int64_t step, int64_t depth, float *to,
                      int64_t to_step) {
    for (int64_t r = 0; r < rows; r += HEIGHT)
        tile(HEIGHT, l->sines + r * l->wide + 1, l->wide, 1, from + step, step, depth - 1, NULL, to + r * to_step,
             to_step);
}

INLINE vec sum_of(const float *a, const float *b) { return load(a) + load(b); }
INLINE vec rest_of(const float *a, const float *b) { return load(a) - load(b); }

/* What is even about the first of n points, and what is odd: (half and one, PANEL) each. */
static void fold(const line *l, const float *x, int64_t step, int64_t n, float *even, float *odd) {
    for (int64_t t = 0; t < least(n, l->wide); t++) {
        const float *a = x + t * step, *b = x + (l->points - t) * step;
        const int two = t && t < l->half && l->points - t < n;
        UNROLL for (int k = 0; k < PANEL; k += LANES) {
            store(even + t * PANEL + k, two ? sum_of(a + k, b + k) : load(a + k));
            store(odd + t * PANEL + k, two ? rest_of(a + k, b + k) : load(a + k));
        }
    }
}

#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t lanes __attribute__((vector_size(4 * LANES)));
#define PICK(a, b, ...) __builtin_shuffle(a, b, (lanes){__VA_ARGS__})
#endif
#if LANES == 16
#define FIRSTS(a, b) PICK(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define LASTS(a, b) PICK(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define EVENS(a, b) PICK(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ODDS(a, b) PICK(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#elif LANES == 8
#define FIRSTS(a, b) PICK(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define LASTS(a, b) PICK(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define EVENS(a, b) PICK(a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define ODDS(a, b) PICK(a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#else
#define FIRSTS(a, b) PICK(a, b, 0, 4, 1, 5)
#define LASTS(a, b) PICK(a, b, 2, 6, 3, 7)
#define EVENS(a, b) PICK(a, b, 0, 2, 4, 6)
#define ODDS(a, b) PICK(a, b, 1, 3, 5, 7)
#endif

/* Complex numbers of a panel, or of its first channels. */
INLINE void put(float *to, int64_t channels, const vec *real, const vec *imaginary) {
    float aside[2 * PANEL], *at = channels < PANEL ? aside : to;
    UNROLL for (int k = 0; k < 2; k++) {
        store(at + 2 * k * LANES, FIRSTS(real[k], imaginary[k]));
        store(at + (2 * k + 1) * LANES, LASTS(real[k], imaginary[k]));
    }
    if (at == aside) memcpy(to, aside, (size_t)(2 * channels) * sizeof(float));
}

INLINE void take(const float *from, int64_t channels, vec *real, vec *imaginary) {
    float aside[2 * PANEL] = {0};
    if (channels < PANEL) from = memcpy(aside, from, (size_t)(2 * channels) * sizeof(float));
    UNROLL for (int k = 0; k < 2; k++) {
        vec first = load(from + 2 * k * LANES), last = load(from + (2 * k + 1) * LANES);
        real[k] = EVENS(first, last), imaginary[k] = ODDS(first, last);
    }
}

/* A panel of channels of one image. With R and Q, the sums over a line times cosines and sines, a line's spectrum is
   R − iQ; what is even and odd in y of both then makes up the spectrum at u and at −u. */
static void forward(const void *context, int64_t task, float *scratch) {
    const job *j = context;
    const sepgconv_plane *a = j->a;
    const line *down = &j->down, *across = &j->across;
    int64_t b = task / j->panels, first = task % j->panels * PANEL, channels = least(a->channels - first, PANEL);
    int64_t size = most(down->tall, across->tall) * PANEL, step = a->channels, column = a->y * PANEL;
    float *even = scratch, *odd = even + size, *sums = odd + size; /* R over cosines and sines, Q likewise */
    float *columns = sums + 4 * size, *filled = columns + 2 * across->tall * column;
    const float *x = a->image + b * a->y * a->x * step + first;
    if (channels < PANEL) {
        memset(filled, 0, (size_t)(a->y * a->x * PANEL) * sizeof(float));
        for (int64_t p = 0; p < a->y * a->x; p++)
            memcpy(filled + p * PANEL, x + p * step, (size_t)channels * sizeof(float));
        x = filled, step = PANEL;
    }
    for (int64_t y = 0; y < a->y; y++) {
        float *to = columns + y * PANEL;
        fold(across, x + y * a->x * step, step, a->x, even, odd);
        cosine_sums(across, across->wide, even, PANEL, least(a->x, across->wide), to, 2 * column);
        sine_sums(across, across->wide, odd, PANEL, least(a->x, across->half), to + column, 2 * column);
    }
    const vec sign = splat(a->conjugate ? 1.f : -1.f);
    for (int64_t v = 0; v < across->wide; v++) {
        for (int part = 0; part < 2; part++) {
            fold(down, columns + (2 * v + part) * column, PANEL, a->y, even, odd);
            cosine_sums(down, down->wide, even, PANEL, least(a->y, down->wide), sums + 2 * part * size, PANEL);
            sine_sums(down, down->wide, odd, PANEL, least(a->y, down->half), sums + (2 * part + 1) * size, PANEL);
        }
        for (int64_t u = 0; u < down->wide; u++) {
            const float *at = sums + u * PANEL;
            int64_t mirror = down->points - u;
            vec real[2], imaginary[2], other[2], beside[2];
            UNROLL for (int k = 0; k < 2; k++) {
                const float *r = at + k * LANES, *q = r + 2 * size;
                real[k] = rest_of(r, q + size), imaginary[k] = sign * sum_of(q, r + size);
                other[k] = sum_of(r, q + size), beside[k] = sign * rest_of(q, r + size);
            }
            float *to = a->spectrum + 2 * ((v * a->batch + b) * a->channels + first);
            int64_t next = 2 * across->wide * a->batch * a->channels;
            put(to + u * next, channels, real, imaginary);
            if (u && u < down->half) put(to + mirror * next, channels, other, beside);
        }
    }
}

/* Back: from u and −u come sums A and differences D, a line down is Σ A·cos + iD·sin, and one across is real. */
static void backward(const void *context, int64_t task, float *scratch) {
    const job *j = context;
    const sepgconv_plane *a = j->a;
    const line *down = &j->down, *across = &j->across;
    int64_t b = task / j->panels, first = task % j->panels * PANEL, channels = least(a->channels - first, PANEL);
    int64_t size = most(down->tall, across->tall) * PANEL, row = 2 * across->wide * PANEL;
    float *folded = scratch, *sums = folded + 4 * size; /* A real and imaginary, D likewise */
    float *lines = sums + 4 * size;
    const float scale = 1.f / (float)(down->points * across->points);
    for (int64_t v = 0; v < across->wide; v++) {
        const float *from = a->spectrum + 2 * ((v * a->batch + b) * a->channels + first);
        int64_t next = 2 * across->wide * a->batch * a->channels;
        for (int64_t u = 0; u < down->wide; u++) {
            const int two = u && u < down->half;
            vec real[2], imaginary[2], other[2] = {{0}}, beside[2] = {{0}};
            take(from + u * next, channels, real, imaginary);
            if (two) take(from + (down->points - u) * next, channels, other, beside);
            UNROLL for (int k = 0; k < 2; k++) {
                float *to = folded + u * PANEL + k * LANES;
                store(to, real[k] + other[k]), store(to + size, imaginary[k] + beside[k]);
                store(to + 2 * size, real[k] - other[k]), store(to + 3 * size, imaginary[k] - beside[k]);
            }
        }
        int64_t rows = least(a->y, down->wide);
        for (int part = 0; part < 2; part++) {
            cosine_sums(down, rows, folded + part * size, PANEL, down->wide, sums + part * size, PANEL);
            sine_sums(down, rows, folded + (2 + part) * size, PANEL, down->half, sums + (2 + part) * size, PANEL);
        }
        const vec weight = splat(v && v < across->half ? 2 * scale : scale); /* −v is the conjugate of v */
        for (int64_t y = 0; y < rows; y++) {
            const int two = y && y < down->half && down->points - y < a->y;
            UNROLL for (int k = 0; k < PANEL; k += LANES) {
                const float *at = sums + y * PANEL + k;
                float *to = lines + 2 * v * PANEL + k, *here = to + y * row, *there = to + (down->points - y) * row;
                store(here, weight * rest_of(at, at + 3 * size));
                store(here + PANEL, weight * sum_of(at + size, at + 2 * size));
                if (!two) continue;
                store(there, weight * sum_of(at, at + 3 * size));
                store(there + PANEL, weight * rest_of(at + size, at + 2 * size));
            }
        }
    }
    for (int64_t y = 0; y < a->y; y++) {
        int64_t rows = least(a->x, across->wide);
        float *x = a->pixels + (b * a->y + y) * a->x * a->channels + first;
        cosine_sums(across, rows, lines + y * row, 2 * PANEL, across->wide, sums, PANEL);
        sine_sums(across, rows, lines + y * row + PANEL, 2 * PANEL, across->half, sums + size, PANEL);
        for (int64_t t = 0; t < a->x; t++) {
            const int mirrored = t > across->half;
            const float *at = sums + (mirrored ? across->points - t : t) * PANEL;
            float aside[PANEL], *to = channels < PANEL ? aside : x + t * a->channels;
            UNROLL for (int k = 0; k < PANEL; k += LANES)
                store(to + k, mirrored ? sum_of(at + k, at + size + k) : rest_of(at + k, at + size + k));
            if (to == aside) memcpy(x + t * a->channels, aside, (size_t)channels * sizeof(float));
        }
    }
}

static int run(sepgconv_task task, const sepgconv_plane *a, int threads) {
    job j = {.a = a, .panels = (a->channels + PANEL - 1) / PANEL};
    j.down = make_line(a->period_y), j.across = make_line(a->period_x);
    int64_t size = most(j.down.tall, j.across.tall), columns = 2 * j.across.tall * a->y;
    int64_t bytes = (8 * size + columns + a->y * a->x) * PANEL * (int64_t)sizeof(float);
    int failed = !(j.down.cosines && j.down.sines && j.across.cosines && j.across.sines);
    if (!failed) failed = sepgconv_run(task, &j, a->batch * j.panels, threads, bytes);
    free(j.down.cosines), free(j.down.sines), free(j.across.cosines), free(j.across.sines);
    return failed;
}

int NAME(spectra)(const sepgconv_plane *a, int threads) { return run(forward, a, threads); }
int NAME(spectra_back)(const sepgconv_plane *a, int threads) { return run(backward, a, threads); }
