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

/* All channels of one row, there or back: points `step` apart in x, waves `pair` and `second` apart. Channels beyond the
   last full vector go through a small array of their own. */
INLINE void row_transform(const int n, const waves *w, const int back, int64_t channels, float *x, int64_t step,
                          float *to, int64_t pair, int64_t second) {
    int64_t v = 0;
    for (; v + LANES <= channels; v += LANES)
        back ? transform_back(n, w, to + v, pair, second, x + v, step)
             : transform(n, w, x + v, step, to + v, pair, second);
    if (v == channels) return;
    const size_t size = (size_t)(channels - v) * sizeof(float);
    float in[POINTS * LANES] = {0}, out[POINTS * LANES];
    for (int t = 0; t < n; t++)
        memcpy(in + t * LANES, back ? to + v + t / 2 * pair + t % 2 * second : x + v + t * step, size);
    back ? transform_back(n, w, in, 2 * LANES, LANES, out, LANES) : transform(n, w, in, LANES, out, 2 * LANES, LANES);
    for (int t = 0; t < n; t++)
        memcpy(back ? x + v + t * step : to + v + t / 2 * pair + t % 2 * second, out + t * LANES, size);
}

#define FOR_POINTS(CASE) CASE(4) CASE(8) CASE(12) CASE(16) CASE(24) CASE(32)

#endif
