/* The real Fourier transform over the n rotations of rows (row, n, c), to one matrix (row, cos and sin of c) per
   frequency, and back: what lies around the block products of a convolution over rotations.

   Loop order: blocks of rows │ rows │ vectors of channels │ the transform, see fourier.h.
   Why: a row's n·c numbers are read once and written once; all sums are registers. The frequencies' matrices lie one
   after the other, so that a library takes all their products in one batch. Channels beyond the last full vector go
   through a small array of their own. */
#include "fourier.h"

#define ROWS 64 /* in a task */

typedef struct {
    const sepgconv_fourier *a;
    waves w;
} job;

INLINE void rows(const int n, const job *j, int64_t first, int64_t last) {
    const sepgconv_fourier a = *j->a;
    const int64_t c = a.channels, pair = a.rows * 2 * c, full = c - c % LANES;
    float in[POINTS * LANES], out[POINTS * LANES];
    for (int64_t r = first; r < last; r++) {
        const float *from = a.from + r * c * (a.back ? 2 : n);
        float *to = a.to + r * c * (a.back ? n : 2);
        for (int64_t v = 0; v < full; v += LANES)
            a.back ? transform_back(n, &j->w, from + v, pair, c, to + v, c)
                   : transform(n, &j->w, from + v, c, to + v, pair, c);
        if (full == c) continue;
        const size_t size = (size_t)(c - full) * sizeof(float);
        memset(in, 0, sizeof in);
        for (int t = 0; t < n; t++)
            memcpy(in + t * LANES, from + full + (a.back ? t / 2 * pair + t % 2 * c : t * c), size);
        a.back ? transform_back(n, &j->w, in, 2 * LANES, LANES, out, LANES)
               : transform(n, &j->w, in, LANES, out, 2 * LANES, LANES);
        for (int t = 0; t < n; t++)
            memcpy(to + full + (a.back ? t * c : t / 2 * pair + t % 2 * c), out + t * LANES, size);
    }
}

static void task(const void *context, int64_t i, float *scratch) {
    const job *j = context;
    int64_t first = i * ROWS, last = least(first + ROWS, j->a->rows);
    (void)scratch;
    switch (j->a->points) {
#define CASE(N) \
    case N: \
        rows(N, j, first, last); \
        return;
        CASE(4) CASE(8) CASE(12) CASE(16) CASE(24) CASE(32)
#undef CASE
    }
}

int NAME(fourier)(const sepgconv_fourier *a, int threads) {
    job j = {.a = a};
    make_waves(&j.w, (int)a->points);
    return sepgconv_run(task, &j, (a->rows + ROWS - 1) / ROWS, threads, 0);
}
