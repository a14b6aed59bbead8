/* The real Fourier transform over n = 4·q points for a vector of channels, in registers as far as they reach.

   The basis is orthonormal, so that the way back is the transposed one: 1/√n and (−1)^θ/√n first, then √(2/n)·cos and
   √(2/n)·sin of 2πfθ/n for f = 1, 2, … Cosines are even and sines odd about θ = 0, and both are so about θ = n/4, by
   turns with f: two rounds of sums and differences leave four small products, n²/4 multiplications instead of n². */
#ifndef SEPGCONV_FOURIER_H
#define SEPGCONV_FOURIER_H

#include <math.h>

#include "vectors.h"

#define POINTS 32 /* at most */
#define QUARTER (POINTS / 4)

typedef struct {
    float even[QUARTER + 1][QUARTER + 1]; /* cosines of f = 2a at θ = b ≤ q */
    float odd[QUARTER][QUARTER];          /* cosines of f = 2a + 1 at θ = b < q */
    float rise[QUARTER][QUARTER];         /* sines of f = 2a + 1 at θ = b + 1 ≤ q */
    float fall[QUARTER][QUARTER];         /* sines of f = 2a + 2 < 2q at θ = b + 1 < q */
} waves;

static inline void make_waves(waves *w, int n) {
    const int q = n / 4;
    const double turn = 2 * 3.14159265358979323846 / n, s = sqrt(2. / n);
    for (int a = 0; a <= q; a++)
        for (int b = 0; b <= q; b++)
            w->even[a][b] = (float)((a % q ? s : s * sqrt(.5)) * cos(turn * (2 * a * b % n)));
    for (int a = 0; a < q; a++)
        for (int b = 0; b < q; b++) {
            w->odd[a][b] = (float)(s * cos(turn * ((2 * a + 1) * b % n)));
            w->rise[a][b] = (float)(s * sin(turn * ((2 * a + 1) * (b + 1) % n)));
            w->fall[a][b] = (float)(s * sin(turn * ((2 * a + 2) * (b + 1) % n)));
        }
}

/* Where the coefficient of cos f (sine = 0) or sin f (1) lies: pair f, first or second in it; cos n/2 is in pair 0. */
INLINE int64_t slot(const int n, int f, int sine, int64_t pair, int64_t second) {
    return f == n / 2 ? second : f * pair + sine * second;
}

INLINE void transform(const int n, const waves *w, const float *x, int64_t step, float *to, int64_t pair,
                      int64_t second) {
    const int q = n / 4, half = n / 2;
    vec e[POINTS / 2 + 1], o[POINTS / 2 + 1], even[QUARTER + 1], odd[QUARTER + 1], rise[QUARTER + 1], fall[QUARTER + 1];
    e[0] = load(x), e[half] = load(x + half * step);
    UNROLL for (int t = 1; t < half; t++) {
        vec a = load(x + t * step), b = load(x + (n - t) * step);
        e[t] = a + b, o[t] = a - b;
    }
    UNROLL for (int t = 0; t < q; t++) even[t] = e[t] + e[half - t], odd[t] = e[t] - e[half - t];
    UNROLL for (int t = 1; t < q; t++) rise[t - 1] = o[t] + o[half - t], fall[t - 1] = o[t] - o[half - t];
    even[q] = e[q], rise[q - 1] = o[q];
    UNROLL for (int a = 0; a <= q; a++) {
        vec sum = even[0] * w->even[a][0];
        UNROLL for (int b = 1; b <= q; b++) sum += even[b] * w->even[a][b];
        store(to + slot(n, 2 * a, 0, pair, second), sum);
    }
    UNROLL for (int a = 0; a < q; a++) {
        vec sum = odd[0] * w->odd[a][0], other = rise[0] * w->rise[a][0];
        UNROLL for (int b = 1; b < q; b++) sum += odd[b] * w->odd[a][b], other += rise[b] * w->rise[a][b];
        store(to + slot(n, 2 * a + 1, 0, pair, second), sum);
        store(to + slot(n, 2 * a + 1, 1, pair, second), other);
    }
    UNROLL for (int a = 0; a < q - 1; a++) {
        vec sum = fall[0] * w->fall[a][0];
        UNROLL for (int b = 1; b < q - 1; b++) sum += fall[b] * w->fall[a][b];
        store(to + slot(n, 2 * a + 2, 1, pair, second), sum);
    }
}

INLINE void transform_back(const int n, const waves *w, const float *from, int64_t pair, int64_t second, float *x,
                           int64_t step) {
    const int q = n / 4, half = n / 2;
    vec e[POINTS / 2 + 1], o[POINTS / 2 + 1];
    UNROLL for (int b = 0; b <= q; b++) { /* cosines */
        vec even = load(from) * w->even[0][b];
        UNROLL for (int a = 1; a <= q; a++) even += load(from + slot(n, 2 * a, 0, pair, second)) * w->even[a][b];
        e[b] = even;
        if (b == q) break;
        vec odd = load(from + slot(n, 1, 0, pair, second)) * w->odd[0][b];
        UNROLL for (int a = 1; a < q; a++) odd += load(from + slot(n, 2 * a + 1, 0, pair, second)) * w->odd[a][b];
        e[b] = even + odd, e[half - b] = even - odd;
    }
    UNROLL for (int b = 0; b < q; b++) { /* sines, of θ = b + 1 */
        vec rise = load(from + slot(n, 1, 1, pair, second)) * w->rise[0][b];
        UNROLL for (int a = 1; a < q; a++) rise += load(from + slot(n, 2 * a + 1, 1, pair, second)) * w->rise[a][b];
        o[b + 1] = rise;
        if (b == q - 1) break;
        vec fall = load(from + slot(n, 2, 1, pair, second)) * w->fall[0][b];
        UNROLL for (int a = 1; a < q - 1; a++) fall += load(from + slot(n, 2 * a + 2, 1, pair, second)) * w->fall[a][b];
        o[b + 1] = rise + fall, o[half - b - 1] = rise - fall;
    }
    store(x, e[0]), store(x + half * step, e[half]);
    UNROLL for (int t = 1; t < half; t++) store(x + t * step, e[t] + o[t]), store(x + (n - t) * step, e[t] - o[t]);
}

#define HALF 0.70710678118654752f /* √½ */

/* Two circles of n points, rotations and their mirror images, in the basis of the dihedral group: with the coefficients
   C, S of the first and c, s of the second circle these are (C + c, C − c)/√2 of f = 0 and of f = n/2, a pair each, then
   for every other f two pairs, (C + c, s − S)/√2 and (S + s, C − c)/√2. */
INLINE void mirror(const int n, const float *both, float *to, int64_t pair, int64_t second) {
    const float *other = both + n * LANES;
    UNROLL for (int k = 0; k < 2; k++) {
        vec a = load(both + k * LANES), b = load(other + k * LANES);
        store(to + k * pair, (a + b) * HALF), store(to + k * pair + second, (a - b) * HALF);
    }
    UNROLL for (int f = 1; f < n / 2; f++) {
        vec a = load(both + 2 * f * LANES), b = load(both + (2 * f + 1) * LANES);
        vec c = load(other + 2 * f * LANES), d = load(other + (2 * f + 1) * LANES);
        store(to + 2 * f * pair, (a + c) * HALF), store(to + 2 * f * pair + second, (d - b) * HALF);
        store(to + (2 * f + 1) * pair, (b + d) * HALF), store(to + (2 * f + 1) * pair + second, (a - c) * HALF);
    }
}

INLINE void mirror_back(const int n, const float *from, int64_t pair, int64_t second, float *both) {
    float *other = both + n * LANES;
    UNROLL for (int k = 0; k < 2; k++) {
        vec sum = load(from + k * pair) * HALF, difference = load(from + k * pair + second) * HALF;
        store(both + k * LANES, sum + difference), store(other + k * LANES, sum - difference);
    }
    UNROLL for (int f = 1; f < n / 2; f++) {
        vec p = load(from + 2 * f * pair) * HALF, q = load(from + 2 * f * pair + second) * HALF;
        vec r = load(from + (2 * f + 1) * pair) * HALF, t = load(from + (2 * f + 1) * pair + second) * HALF;
        store(both + 2 * f * LANES, p + t), store(other + 2 * f * LANES, p - t);
        store(both + (2 * f + 1) * LANES, r - q), store(other + (2 * f + 1) * LANES, r + q);
    }
}

/* A vector of channels of one row, there or back. */
INLINE void vector_transform(const int n, const int mirrored, const waves *w, const int back, float *x, int64_t step,
                             float *to, int64_t pair, int64_t second) {
    float both[2 * POINTS * LANES];
    if (!mirrored) {
        back ? transform_back(n, w, to, pair, second, x, step) : transform(n, w, x, step, to, pair, second);
    } else if (back) {
        mirror_back(n, to, pair, second, both);
        transform_back(n, w, both, 2 * LANES, LANES, x, step);
        transform_back(n, w, both + n * LANES, 2 * LANES, LANES, x + n * step, step);
    } else {
        transform(n, w, x, step, both, 2 * LANES, LANES);
        transform(n, w, x + n * step, step, both + n * LANES, 2 * LANES, LANES);
        mirror(n, both, to, pair, second);
    }
}

/* All channels of one row, there or back: points `step` apart in x, waves `pair` and `second` apart. Channels beyond the
   last full vector go through a small array of their own. */
INLINE void row_transform(const int n, const int mirrored, const waves *w, const int back, int64_t channels, float *x,
                          int64_t step, float *to, int64_t pair, int64_t second) {
    int64_t v = 0;
    for (; v + LANES <= channels; v += LANES)
        vector_transform(n, mirrored, w, back, x + v, step, to + v, pair, second);
    if (v == channels) return;
    const int points = mirrored ? 2 * n : n;
    const size_t size = (size_t)(channels - v) * sizeof(float);
    float in[POINTS * LANES] = {0}, out[POINTS * LANES];
    for (int t = 0; t < points; t++)
        memcpy(in + t * LANES, back ? to + v + t / 2 * pair + t % 2 * second : x + v + t * step, size);
    back ? vector_transform(n, mirrored, w, 1, out, LANES, in, 2 * LANES, LANES)
         : vector_transform(n, mirrored, w, 0, in, LANES, out, 2 * LANES, LANES);
    for (int t = 0; t < points; t++)
        memcpy(back ? x + v + t * step : to + v + t / 2 * pair + t % 2 * second, out + t * LANES, size);
}

/* Points, and whether they are two circles. */
#define FOR_POINTS(CASE) \
    CASE(4, 0) CASE(8, 0) CASE(12, 0) CASE(16, 0) CASE(24, 0) CASE(32, 0) CASE(4, 1) CASE(8, 1) CASE(12, 1) CASE(16, 1)

#endif
