/* Tries the kernels without Python, for the sanitisers: many shapes, every width of vectors, one thread and three.

   Every array has exactly its size on the heap, so that a read or write beside it is found, and results are compared
   with plain loops in float64: a sum of n float32 products is off by at most n·2⁻²⁴ times the sum of their sizes. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

int sepgconv_use_vectors(const char *name);
int sepgconv_depthwise(const sepgconv_convolution *, int);
int sepgconv_depthwise_weight(const sepgconv_convolution *, float *, int);
int sepgconv_depthwise_input(const sepgconv_convolution *, float *, int);
int sepgconv_norm_statistics(const sepgconv_norm *, int);
int sepgconv_norm_result(const sepgconv_norm *, int);
int sepgconv_norm_backward(const sepgconv_norm *, int);
int sepgconv_pool_result(const sepgconv_pool *, int);
int sepgconv_pool_backward(const sepgconv_pool *, int);
int sepgconv_circular_product(const sepgconv_circular *, int);
int sepgconv_circular_gradients(const sepgconv_circular *, int);
int sepgconv_banded_product(const sepgconv_band *, int);
int sepgconv_banded_gradients(const sepgconv_band *, int);
int sepgconv_spectra(const sepgconv_plane *, int);
int sepgconv_spectra_back(const sepgconv_plane *, int);
int sepgconv_same(const void *const *, const void *const *, const int64_t *, int64_t);

static const double UNIT = 1. / (1 << 24);
static int wrong = 0, tried = 0;
static uint64_t state = 88172645463325252ull;

static int64_t draw(int64_t below) { /* xorshift */
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (int64_t)(state % (uint64_t)below);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static float *numbers(int64_t count) {
    float *p = malloc((size_t)(count ? count : 1) * sizeof(float));
    for (int64_t i = 0; i < count; i++) p[i] = (float)(draw(2001) - 1000) / 500.f;
    return p;
}

static double *zeros(int64_t count) { return calloc((size_t)(count ? count : 1), sizeof(double)); }

static void compare(const char *what, const float *found, const double *exact, const double *size, int64_t count,
                    double terms) {
    tried++;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(found[i] - exact[i]) <= (terms + 4) * UNIT * (size ? size[i] : 1 + fabs(exact[i])))) {
            printf("%s: %g instead of %g\n", what, found[i], exact[i]);
            wrong++;
            return;
        }
}

static void convolution(int threads) {
    sepgconv_convolution a = {.batch = draw(4), .channels = 1 + draw(40), .in_y = 1 + draw(20), .in_x = 1 + draw(20)};
    a.taps_y = draw(3) ? 1 + draw(15) : 1, a.taps_x = 1 + draw(draw(4) ? 15 : 63);
    a.stride = 1 + draw(3), a.pad_y = draw(a.taps_y + 1), a.pad_x = draw(a.taps_x + 1);
    if (draw(20) == 0) a.batch = 1, a.channels = 1 + draw(20), a.in_y = 100 + draw(60), a.in_x = 100 + draw(60);
    if (draw(6) == 0) a.stride = a.taps_y = 1, a.pad_y = 0, a.taps_x = 2 * a.in_x - 1, a.pad_x = a.in_x - 1;
    int64_t span_y = a.in_y + 2 * a.pad_y - a.taps_y, span_x = a.in_x + 2 * a.pad_x - a.taps_x;
    if (span_y < 0 || span_x < 0) return;
    a.out_y = span_y / a.stride + 1, a.out_x = span_x / a.stride + 1;
    int64_t taps = a.taps_y * a.taps_x, ins = a.batch * a.in_y * a.in_x * a.channels;
    int64_t outs = a.batch * a.out_y * a.out_x * a.channels, weights = a.channels * taps;
    int last = (int)draw(2); /* channels first or last in the kernel */
    a.weight_c = last ? 1 : taps, a.weight_x = last ? a.channels : 1, a.weight_y = a.taps_x * a.weight_x;
    a.y_pixel = a.channels, a.y_row = a.out_x * a.channels, a.y_image = a.out_y * a.y_row;
    float *x = numbers(ins), *w = numbers(weights), *g = numbers(outs), *y = numbers(outs), *dx = numbers(ins);
    float *dw = numbers(weights);
    double *ey = zeros(outs), *sy = zeros(outs), *ex = zeros(ins), *sx = zeros(ins), *ew = zeros(weights);
    double *sw = zeros(weights);
    for (int64_t o = 0; o < outs; o++) {
        int64_t c = o % a.channels, ox = o / a.channels % a.out_x, oy = o / a.y_row % a.out_y, b = o / a.y_image;
        for (int64_t k = 0; k < taps; k++) {
            int64_t iy = oy * a.stride - a.pad_y + k / a.taps_x, ix = ox * a.stride - a.pad_x + k % a.taps_x;
            if (iy < 0 || iy >= a.in_y || ix < 0 || ix >= a.in_x) continue;
            int64_t i = ((b * a.in_y + iy) * a.in_x + ix) * a.channels + c;
            double v = x[i], t = w[c * a.weight_c + k / a.taps_x * a.weight_y + k % a.taps_x * a.weight_x], s = g[o];
            ey[o] += v * t, sy[o] += fabs(v * t), ex[i] += s * t, sx[i] += fabs(s * t);
            ew[c * taps + k] += v * s, sw[c * taps + k] += fabs(v * s);
        }
    }
    a.x = x, a.weight = w, a.y = y;
    wrong += sepgconv_depthwise(&a, threads);
    compare("depthwise", y, ey, sy, outs, (double)taps);
    float *bias = numbers(a.channels), *addend = numbers(outs);
    a.bias = draw(2) ? bias : NULL, a.relu = draw(2), a.addend = draw(2) ? addend : NULL;
    for (int64_t o = 0; o < outs; o++) {
        double v = ey[o] + (a.bias ? bias[o % a.channels] : 0);
        v = a.relu && v < 0 ? 0 : v;
        if (a.addend) v = v + addend[o] < 0 ? 0 : v + addend[o];
        ey[o] = v, sy[o] += 4;
    }
    wrong += sepgconv_depthwise(&a, threads);
    compare("depthwise with what follows", y, ey, sy, outs, (double)taps);
    free(bias), free(addend);
    a.bias = a.addend = NULL, a.relu = 0;
    a.y = g;
    wrong += sepgconv_depthwise_input(&a, dx, threads) + sepgconv_depthwise_weight(&a, dw, threads);
    compare("depthwise_input", dx, ex, sx, ins, (double)taps);
    compare("depthwise_weight", dw, ew, sw, weights, (double)(a.batch * a.out_y * a.out_x));
    free(x), free(w), free(g), free(y), free(dx), free(dw);
    free(ey), free(sy), free(ex), free(sx), free(ew), free(sw);
}

static void norm(int threads) {
    sepgconv_norm a = {.rows = 2 + draw(draw(8) ? 300 : 40000), .channels = 1 + draw(70), .relu = draw(2), .eps = 1e-5};
    int64_t count = a.rows * a.channels, c, i, added = a.relu && draw(2);
    float *x = numbers(count), *g = numbers(count), *y = numbers(count), *w = numbers(a.channels), *s = numbers(count);
    float *b = numbers(a.channels), *dw = numbers(a.channels), *db = numbers(a.channels), *ds = numbers(count);
    double *mean = zeros(a.channels), *variance = zeros(a.channels), *exact = zeros(count), *found = zeros(a.channels);
    double *slope = zeros(count), *dot = zeros(a.channels), *sum = zeros(a.channels), *size = zeros(a.channels);
    for (i = 0; i < count; i++) found[i % a.channels] += x[i] / (double)a.rows;
    a.x = x, a.weight = draw(2) ? w : NULL, a.bias = draw(2) ? b : NULL, a.mean = mean, a.variance = variance;
    wrong += sepgconv_norm_statistics(&a, threads);
    for (c = 0; c < a.channels; c++) wrong += fabs(found[c] - mean[c]) > 1e-12 * (1 + fabs(mean[c]));
    a.y = y, a.addend = added ? s : NULL;
    wrong += sepgconv_norm_result(&a, threads);
    for (i = 0; i < count; i++) {
        c = i % a.channels;
        double n = (x[i] - mean[c]) / sqrt(variance[c] + a.eps) * (a.weight ? w[c] : 1) + (a.bias ? b[c] : 0);
        exact[i] = a.relu && n < 0 ? 0 : n;
        slope[i] = a.relu && n <= 0 ? 0 : 1;
        if (added) exact[i] = exact[i] + s[i] < 0 ? 0 : exact[i] + s[i];
        if (fabs(n) < 1e-5 || (added && y[i] < 1e-5)) g[i] = 0; /* rounding may decide on which side it falls */
    }
    compare("norm_result", y, exact, NULL, count, 60);
    for (i = 0; i < count; i++) {
        c = i % a.channels;
        exact[i] = added && y[i] <= 0 ? 0 : g[i];
        slope[i] *= exact[i];
        sum[c] += slope[i], dot[c] += slope[i] * (x[i] - mean[c]), size[c] += fabs(slope[i]) * 8;
    }
    a.result = added ? y : NULL, a.addend = NULL, a.fixed = draw(2);
    a.grad = g, a.grad_addend = added ? draw(2) ? ds : g : NULL;
    float *dx = numbers(count);
    a.y = draw(4) ? dx : NULL, a.grad_weight = dw, a.grad_bias = db;
    wrong += sepgconv_norm_backward(&a, threads);
    if (added) compare("norm_backward for the addend", a.grad_addend, exact, NULL, count, 0);
    compare("norm_backward for the bias", db, sum, size, a.channels, 8);
    for (i = 0; i < count; i++) {
        c = i % a.channels;
        double inverse = 1 / sqrt(variance[c] + a.eps), scale = inverse * (a.weight ? w[c] : 1);
        double mine = (sum[c] + (x[i] - mean[c]) * inverse * inverse * dot[c]) / (double)a.rows;
        exact[i] = scale * (slope[i] - (a.fixed ? 0 : mine));
        slope[i] = 8 * (1 + fabs(scale));
    }
    if (a.y) compare("norm_backward for x", dx, exact, slope, count, 60);
    free(x), free(g), free(y), free(w), free(b), free(dw), free(db), free(mean), free(variance), free(exact), free(found);
    free(s), free(ds), free(dx), free(slope), free(dot), free(sum), free(size);
}

static void pool(int threads) {
    sepgconv_pool a = {.batch = draw(4), .channels = 1 + draw(40), .in_y = 1 + draw(12), .in_x = 1 + draw(12)};
    a.size = 1 + draw(4), a.stride = draw(2) ? a.size : 1 + draw(4), a.pad = draw(a.size / 2 + 1);
    if (a.in_y + 2 * a.pad < a.size || a.in_x + 2 * a.pad < a.size) return;
    a.out_y = (a.in_y + 2 * a.pad - a.size) / a.stride + 1, a.out_x = (a.in_x + 2 * a.pad - a.size) / a.stride + 1;
    int64_t ins = a.batch * a.in_y * a.in_x * a.channels, outs = a.batch * a.out_y * a.out_x * a.channels;
    float *x = numbers(ins), *dx = numbers(ins), *y = numbers(outs), *g = numbers(outs);
    double *ey = zeros(outs), *ex = zeros(ins);
    uint8_t *places = malloc((size_t)(outs ? outs : 1));
    for (int64_t o = 0; o < outs; o++) {
        int64_t c = o % a.channels, ox = o / a.channels % a.out_x, oy = o / a.channels / a.out_x % a.out_y;
        int64_t b = o / a.channels / a.out_x / a.out_y, best = -1;
        for (int64_t k = 0; k < a.size * a.size; k++) {
            int64_t iy = oy * a.stride - a.pad + k / a.size, ix = ox * a.stride - a.pad + k % a.size;
            if (iy < 0 || iy >= a.in_y || ix < 0 || ix >= a.in_x) continue;
            int64_t i = ((b * a.in_y + iy) * a.in_x + ix) * a.channels + c;
            if (best < 0 || x[i] > x[best]) best = i;
        }
        ey[o] = x[best], ex[best] += g[o];
    }
    a.x = x, a.y = y, a.places = places;
    wrong += sepgconv_pool_result(&a, threads);
    a.y = dx, a.grad = g;
    wrong += sepgconv_pool_backward(&a, threads);
    compare("pool_result", y, ey, NULL, outs, 0);
    compare("pool_backward", dx, ex, NULL, ins, 60);
    free(x), free(dx), free(y), free(g), free(ey), free(ex), free(places);
}

/* The basis: wave m at point t, on a circle, or on one of n/2 points and its mirror image. */
static int64_t mirrored = 0;

static double wave(int64_t n, int64_t m, int64_t t) {
    if (mirrored) {
        const int64_t h = n / 2, a = t % h;
        const double turn = 2 * 3.14159265358979323846 * (double)(m / 4 * a % h) / (double)h, sign = t < h ? 1 : -1;
        if (m < 4) return (m % 2 ? sign : 1) * (m > 1 && a % 2 ? -1 : 1) / sqrt((double)n);
        const double entries[] = {cos(turn), -sign * sin(turn), sin(turn), sign * cos(turn)};
        return entries[m % 4] / sqrt((double)h);
    }
    const double angle = 2 * 3.14159265358979323846 * (double)(m / 2 * t % n) / (double)n;
    if (m < 2) return (m && t % 2 ? -1 : 1) / sqrt((double)n);
    return sqrt(2. / (double)n) * (m % 2 ? sin(angle) : cos(angle));
}

/* Rows (row, n, c) to (row, n, c) in the basis, or back. */
static void change(const double *from, double *to, int64_t rows, int64_t n, int64_t c, int back) {
    for (int64_t i = 0; i < rows * n * c; i++)
        for (int64_t t = 0; t < n; t++)
            to[i] += from[i / (n * c) * n * c + t * c + i % c] * (back ? wave(n, t, i / c % n) : wave(n, i / c % n, t));
}

/* A pair's block (2·in, 2·out) as a dense matrix: entry (i, o) and which number of `weight` it is, with its sign. */
static double block_entry(const sepgconv_circular *a, int64_t pair, int64_t i, int64_t o, int64_t *at) {
    int64_t from = i / a->in, to = o / a->out;
    if (a->mirrored) {
        *at = (pair * 2 * a->in + i) * 2 * a->out + o;
        return pair < 2 && from != to ? 0 : 1;
    }
    const int64_t second = pair ? from != to : from;
    *at = ((pair * 2 + second) * a->in + i % a->in) * a->out + o % a->out;
    return !pair && from != to ? 0 : from < to ? -1 : 1;
}

static void circular(int threads) {
    static const int64_t points[] = {4, 8, 12, 16, 24, 32};
    sepgconv_circular a = {.rows = draw(60), .points = points[draw(6)], .in = 1 + draw(40), .out = 1 + draw(40)};
    a.mirrored = mirrored = a.points % 8 == 0 && draw(2);
    int64_t n = a.points, ins = a.rows * n * a.in, outs = a.rows * n * a.out;
    int64_t size = n / 2 * (a.mirrored ? 4 : 2) * a.in * a.out, entries = n / 2 * 4 * a.in * a.out, at;
    float *x = numbers(ins), *g = numbers(outs), *w = numbers(size), *y = numbers(outs), *dx = numbers(ins);
    float *dw = numbers(size);
    double *fx = zeros(ins), *fg = zeros(outs), *fy = zeros(outs), *fdx = zeros(ins), *ew = zeros(size), *d = zeros(ins);
    double *e = zeros(outs), *ey = zeros(outs), *ex = zeros(ins);
    for (int64_t i = 0; i < ins; i++) d[i] = x[i];
    for (int64_t i = 0; i < outs; i++) e[i] = g[i];
    change(d, fx, a.rows, n, a.in, 0), change(e, fg, a.rows, n, a.out, 0);
    for (int64_t r = 0; r < a.rows; r++)
        for (int64_t k = 0; k < entries; k++) {
            int64_t pair = k / (4 * a.in * a.out), i = k / (2 * a.out) % (2 * a.in), o = k % (2 * a.out);
            int64_t in = (r * n + 2 * pair) * a.in + i, to = (r * n + 2 * pair) * a.out + o;
            const double sign = block_entry(&a, pair, i, o, &at);
            if (sign == 0) continue;
            fy[to] += fx[in] * sign * w[at], fdx[in] += fg[to] * sign * w[at], ew[at] += fx[in] * sign * fg[to];
        }
    change(fy, ey, a.rows, n, a.out, 1), change(fdx, ex, a.rows, n, a.in, 1);
    a.x = x, a.weight = w, a.y = y, a.weight_pair = (a.mirrored ? 4 : 2) * a.in * a.out, a.weight_second = a.in * a.out;
    a.weight_in = a.mirrored ? 2 * a.out : a.out, a.weight_out = 1;
    wrong += sepgconv_circular_product(&a, threads);
    a.y = draw(4) ? dx : NULL, a.grad = g, a.grad_weight = draw(4) ? dw : NULL;
    wrong += sepgconv_circular_gradients(&a, threads);
    compare("circular_product", y, ey, NULL, outs, 2000); /* sums of some hundred terms of size 4 */
    if (a.y) compare("circular_gradients for x", dx, ex, NULL, ins, 2000);
    if (a.grad_weight) compare("circular_gradients for the matrices", dw, ew, NULL, size, 2000);
    free(x), free(g), free(w), free(y), free(dx), free(dw), free(fx), free(fg), free(fy), free(fdx), free(ew), free(d);
    free(e), free(ey), free(ex);
}

static void banded(int threads) {
    sepgconv_band a = {.rows = draw(draw(3) ? 60 : 2000), .elements = 1 + draw(9), .neighbours = draw(4)};
    a.in = draw(3) ? 1 + draw(70) : 32, a.out = draw(3) ? 1 + draw(70) : 32;
    int64_t n = a.elements, taps = 2 * a.neighbours + 1, ins = a.rows * n * a.in, outs = a.rows * n * a.out;
    int64_t size = taps * a.in * a.out, last = draw(2); /* which of the matrices' axes lies innermost */
    a.weight_tap = a.in * a.out, a.weight_in = last ? a.out : 1, a.weight_out = last ? 1 : a.in;
    float *x = numbers(ins), *g = numbers(outs), *w = numbers(size), *y = numbers(outs), *dx = numbers(ins);
    float *dw = numbers(size);
    double *ey = zeros(outs), *sy = zeros(outs), *ex = zeros(ins), *sx = zeros(ins), *ew = zeros(size), *sw = zeros(size);
    for (int64_t o = 0; o < outs; o++)
        for (int64_t k = 0; k < taps * a.in; k++) {
            int64_t s = o / a.out % n, other = s + k / a.in - a.neighbours, i = k % a.in, c = o % a.out;
            if (other < 0 || other >= n) continue;
            int64_t at = (o / a.out - s + other) * a.in + i;
            double v = x[at], t = w[k / a.in * a.weight_tap + i * a.weight_in + c * a.weight_out], d = g[o];
            ey[o] += v * t, sy[o] += fabs(v * t), ex[at] += d * t, sx[at] += fabs(d * t);
            ew[k * a.out + c] += v * d, sw[k * a.out + c] += fabs(v * d);
        }
    if (a.neighbours == 1 && n % 2 == 0) { /* by pairs: products of sums, which round as what all of a pair might be */
        memset(sy, 0, (size_t)outs * sizeof(double)), memset(sx, 0, (size_t)ins * sizeof(double));
        memset(sw, 0, (size_t)size * sizeof(double));
        for (int64_t k = 0; k < a.rows * n * a.in * a.out; k++) {
            int64_t r = k / (a.in * a.out) / n, s = k / (a.in * a.out) % n, i = k / a.out % a.in, c = k % a.out;
            double v = 0, t = 0, d = 0, of = 0;
            for (int64_t e = most(s / 2 * 2 - 1, 0); e < least(s / 2 * 2 + 3, n); e++)
                v += fabs((double)x[(r * n + e) * a.in + i]), of += fabs((double)g[(r * n + e) * a.out + c]);
            for (int64_t e = s / 2 * 2; e < s / 2 * 2 + 2; e++) d += fabs((double)g[(r * n + e) * a.out + c]) / 2;
            for (int64_t e = 0; e < 3; e++) t += fabs((double)w[e * a.weight_tap + i * a.weight_in + c * a.weight_out]);
            sy[(r * n + s) * a.out + c] += v * t, sx[(r * n + s) * a.in + i] += of * t;
            for (int64_t e = 0; e < 3; e++) sw[(e * a.in + i) * a.out + c] += v * d;
        }
    }
    a.x = x, a.weight = w, a.y = y;
    wrong += sepgconv_banded_product(&a, threads);
    a.y = draw(4) ? dx : NULL, a.grad = g, a.grad_weight = draw(4) ? dw : NULL;
    wrong += sepgconv_banded_gradients(&a, threads);
    compare("banded_product", y, ey, sy, outs, (double)(taps * a.in));
    if (a.y) compare("banded_gradients for x", dx, ex, sx, ins, (double)(taps * a.out));
    if (a.grad_weight) compare("banded_gradients for the matrices", dw, ew, sw, size, (double)(a.rows * n));
    free(x), free(g), free(w), free(y), free(dx), free(dw), free(ey), free(sy), free(ex), free(sx), free(ew), free(sw);
}

static void plane(int threads) {
    sepgconv_plane a = {.batch = draw(4), .channels = 1 + draw(40), .y = 1 + draw(9), .x = 1 + draw(9)};
    a.period_y = a.y + a.y % 2 + 2 * draw(4), a.period_x = a.x + a.x % 2 + 2 * draw(4), a.conjugate = draw(2);
    int64_t wide = a.period_x / 2 + 1, many = a.batch * a.channels, pixels = a.y * a.x, waves = a.period_y * wide;
    float *x = numbers(many * pixels), *y = numbers(many * pixels), *s = numbers(2 * many * waves);
    float *t = numbers(2 * many * waves);
    double *es = zeros(2 * many * waves), *ss = zeros(2 * many * waves), *ey = zeros(many * pixels);
    double *sy = zeros(many * pixels);
    for (int64_t f = 0; f < waves; f++)
        for (int64_t p = 0; p < pixels; p++) {
            double turns = (double)(f / wide * (p / a.x)) / (double)a.period_y;
            turns += (double)(f % wide * (p % a.x)) / (double)a.period_x;
            double c = cos(2 * M_PI * turns), d = sin(2 * M_PI * turns);
            double weight = (f % wide && f % wide < wide - 1 ? 2. : 1.) / (double)(a.period_y * a.period_x);
            for (int64_t k = 0; k < many; k++) {
                int64_t at = (k / a.channels * pixels + p) * a.channels + k % a.channels, to = 2 * (f * many + k);
                es[to] += x[at] * c, es[to + 1] += (a.conjugate ? d : -d) * x[at];
                ss[to] += fabs((double)x[at]), ss[to + 1] += fabs((double)x[at]);
                ey[at] += weight * (s[to] * c - s[to + 1] * d);
                sy[at] += weight * (fabs((double)s[to]) + fabs((double)s[to + 1]));
            }
        }
    a.image = x, a.spectrum = t;
    wrong += sepgconv_spectra(&a, threads);
    compare("spectra", t, es, ss, 2 * many * waves, (double)(a.y + a.x));
    a.spectrum = s, a.pixels = y;
    wrong += sepgconv_spectra_back(&a, threads);
    compare("spectra_back", y, ey, sy, many * pixels, (double)(a.period_y + a.period_x));
    free(x), free(y), free(s), free(t), free(es), free(ss), free(ey), free(sy);
}

static void same(void) {
    float *a = numbers(40), *b = malloc(40 * sizeof(float));
    memcpy(b, a, 40 * sizeof(float));
    const void *left[] = {a, a + 7}, *right[] = {b, b + 7};
    const int64_t bytes[] = {7 * sizeof(float), 33 * sizeof(float)};
    tried++, wrong += !sepgconv_same(left, right, bytes, 2);
    b[39] += 1, wrong += sepgconv_same(left, right, bytes, 2) || !sepgconv_same(left, right, bytes, 1);
    free(a), free(b);
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 200;
    const char *builds[] = {"base", "avx2", "avx512"};
    for (int n = 0; n < 3; n++) {
        if (sepgconv_use_vectors(builds[n])) {
            printf("%s: not here\n", builds[n]);
            continue;
        }
        for (int r = 0; r < rounds; r++) {
            convolution(1 + r % 3), norm(1 + r % 3), pool(1 + r % 3);
            circular(1 + r % 3), banded(1 + r % 3), plane(1 + r % 3), same();
        }
        printf("%s: %d results compared, %d wrong\n", builds[n], tried, wrong);
    }
    return wrong > 0;
}
