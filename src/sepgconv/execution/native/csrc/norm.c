/* Batch norm over rows (…, c), with or without a ReLU behind it, or a ReLU, an addend and another ReLU: statistics,
   result, and gradients.

   Loop order: parts of the rows │ wide rows │ vectors along them.
   Why: these read every number once and do little with it, so memory decides: it is read in its order (four rows at a
   time, to load a channel's factors less often, took half as long again), and large results are written past the cache,
   which saves reading them first. A wide row is as many rows side by side as fill whole vectors, so that neither few
   nor odd numbers of channels need a loop of their own.
   Statistics are sums of x − x₀ and its square in float64, x₀ being the channel's first number: exact to 1e-12 also
   where the mean is a million deviations off. The result is (x − m)·a + b with m the mean in float32 and b taking up
   what m lacks, so that a large mean costs no digits. The backward pass finds out again, by the same operations, what
   was negative, instead of keeping it. There are at most PARTS parts, whatever the number of threads, and their sums
   are added in their order. */
#include <math.h>
#include <stdlib.h>

#include "vectors.h"

#define PARTS 64
#define PART (1 << 15) /* numbers in a part, at least */
#define WIDE 128       /* numbers in a wide row, at least */
#define LARGE (1 << 20) /* numbers in a result that would push all else out of a cache: it is written past it */

typedef float half __attribute__((vector_size(2 * LANES)));
typedef double wide __attribute__((vector_size(4 * LANES))); /* LANES / 2 of them */
typedef int32_t mask __attribute__((vector_size(4 * LANES)));

typedef struct job job;
/* Where a wide row lies: its numbers, the result's gradient, an addend or a sum with one, and what is written. */
typedef struct {
    const float *x, *grad, *beside;
    float *y;
    double *sums;
} place;
/* Works on one wide row, and writes past the cache if told to. */
typedef void body(const job *, place, int past);

struct job {
    const sepgconv_norm *a;
    body *run;
    const float *beside;
    int64_t width, count, rest; /* numbers in a wide row; wide rows; numbers left over, less than a wide row */
    int64_t parts;
    double *sums;                                   /* (part, 2, width) */
    float *centre, *scale, *shift, *along, *offset; /* (width) */
};

INLINE wide widened(const float *p) {
    half h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, wide);
}

INLINE void add(double *to, wide v) {
    wide old;
    memcpy(&old, to, sizeof old);
    old += v;
    memcpy(to, &old, sizeof old);
}

INLINE vec choose(mask m, vec v) { return (vec)((mask)v & m); } /* v or zero */

INLINE vec rectified(vec v) { return choose(~(v < 0), v); } /* what is not a number stays */

/* The bodies, with the choices as constants. What they need of the job is copied first: for all the compiler knows, their
   stores might change it. */
#define BODY(name) \
    static void name(const job *j, place r, int past) { \
        const job k = *j; \
        if (k.beside) \
            past ? name##_(&k, r, 1, 1, 1) : name##_(&k, r, 0, 1, 1); \
        else if (k.a->relu) \
            past ? name##_(&k, r, 1, 1, 0) : name##_(&k, r, 0, 1, 0); \
        else \
            past ? name##_(&k, r, 1, 0, 0) : name##_(&k, r, 0, 0, 0); \
    }
#define ARGUMENTS const job *j, place r, const int past, const int relu, const int added

INLINE void put(float *p, vec v, const int past) { past ? store_past_cache(p, v) : store(p, v); }

/* Sums of x − x₀ and its square. */
INLINE void statistics_(ARGUMENTS) {
    const int64_t w = j->width;
    const float *centre = j->centre;
    (void)relu, (void)past, (void)added;
    for (int64_t v = 0; v < w; v += LANES / 2) {
        wide d = widened(r.x + v) - widened(centre + v);
        add(r.sums + v, d);
        add(r.sums + w + v, d * d);
    }
}
BODY(statistics)

INLINE void result_(ARGUMENTS) {
    const int64_t w = j->width;
    const float *centre = j->centre, *scale = j->scale, *shift = j->shift;
    for (int64_t v = 0; v < w; v += LANES) {
        vec n = (load(r.x + v) - load(centre + v)) * load(scale + v) + load(shift + v);
        if (relu) n = rectified(n);
        if (added) n = rectified(n + load(r.beside + v));
        put(r.y + v, n, past);
    }
}
BODY(result)

/* Sums of the gradient in front of the ReLU, and of it times x − m. The gradient of an addend is written on the way. */
INLINE void slopes_(ARGUMENTS) {
    const int64_t w = j->width;
    const float *centre = j->centre, *scale = j->scale, *shift = j->shift;
    for (int64_t v = 0; v < w; v += LANES) {
        vec d = load(r.x + v) - load(centre + v), slope = load(r.grad + v);
        if (added) {
            slope = choose(~(load(r.beside + v) <= 0), slope);
            put(r.y + v, slope, past);
        }
        if (relu) slope = choose(~(d * load(scale + v) + load(shift + v) <= 0), slope);
        float both[2 * LANES];
        store(both, slope), store(both + LANES, slope * d);
        UNROLL for (int h = 0; h < LANES; h += LANES / 2) {
            add(r.sums + v + h, widened(both + h));
            add(r.sums + w + v + h, widened(both + LANES + h));
        }
    }
}
BODY(slopes)

/* scale·gradient + along·(x − m) + offset; the result may lie over the gradient. */
INLINE void input_(ARGUMENTS) {
    const int64_t w = j->width;
    const float *centre = j->centre, *scale = j->scale, *shift = j->shift, *along = j->along, *offset = j->offset;
    (void)added;
    for (int64_t v = 0; v < w; v += LANES) {
        vec d = load(r.x + v) - load(centre + v), slope = load(r.grad + v), s = load(scale + v);
        if (relu) slope = choose(~(d * s + load(shift + v) <= 0), slope);
        put(r.y + v, slope * s + (d * load(along + v) + load(offset + v)), past);
    }
}
BODY(input)

/* One part of the rows. Numbers left over are filled up to a wide row with some that add nothing to any sum. */
static void part(const void *context, int64_t i, float *scratch) {
    const job *j = context;
    const sepgconv_norm *a = j->a;
    const int64_t w = j->width, end = j->count * (i + 1) / j->parts;
    double *sums = j->sums + i * 2 * w;
    memset(sums, 0, (size_t)(2 * w) * sizeof(double));
    const int past = a->y && a->rows * a->channels >= LARGE && (uintptr_t)a->y % sizeof(vec) == 0;
    for (int64_t at = j->count * i / j->parts * w; at < end * w; at += w)
        j->run(j, (place){a->x + at, a->grad ? a->grad + at : NULL, j->beside ? j->beside + at : NULL,
                          a->y ? a->y + at : NULL, sums}, past);
    if (past) settle_stores();
    if (i + 1 < j->parts || !j->rest) return;
    float *x = scratch, *grad = x + w, *beside = grad + w, *y = beside + w;
    const size_t bytes = (size_t)j->rest * sizeof(float);
    memcpy(x, j->centre, (size_t)w * sizeof(float));
    memcpy(x, a->x + j->count * w, bytes);
    memset(grad, 0, (size_t)(2 * w) * sizeof(float));
    if (a->grad) memcpy(grad, a->grad + j->count * w, bytes);
    if (j->beside) memcpy(beside, j->beside + j->count * w, bytes);
    j->run(j, (place){x, grad, beside, y, sums}, 0);
    if (a->y) memcpy(a->y + j->count * w, y, bytes);
}

/* Sets up a job; its memory is one block. Returns NULL if there is none. */
static float *prepare(job *j, const sepgconv_norm *a) {
    int64_t times = 1;
    j->beside = NULL;
    while (a->channels * times % BLOCK || a->channels * times < WIDE) times++;
    j->a = a;
    j->width = a->channels * times;
    j->count = a->rows / times;
    j->rest = a->rows % times * a->channels;
    j->parts = most(least(least(PARTS, j->count), a->rows * a->channels / PART), 1);
    int64_t sums = j->parts * 2 * j->width;
    char *memory = malloc((size_t)(sums * 8 + j->width * 20));
    if (!memory) return NULL;
    j->sums = (double *)memory;
    j->centre = (float *)(j->sums + sums);
    j->scale = j->centre + j->width, j->shift = j->scale + j->width;
    j->along = j->shift + j->width, j->offset = j->along + j->width;
    return j->centre;
}

static int run(job *j, body *what, int threads) {
    j->run = what;
    return sepgconv_run(part, j, j->parts, threads, 4 * j->width * (int64_t)sizeof(float));
}

/* A channel's sum over all parts and all its places in a wide row, in a fixed order. */
static double total(const job *j, int64_t channel, int which) {
    double sum = 0;
    for (int64_t p = 0; p < j->parts; p++)
        for (int64_t v = channel; v < j->width; v += j->a->channels) sum += j->sums[(p * 2 + which) * j->width + v];
    return sum;
}

static void factors(const job *j) {
    const sepgconv_norm *a = j->a;
    for (int64_t v = 0; v < j->width; v++) {
        int64_t c = v % a->channels;
        double scale = (a->weight ? a->weight[c] : 1.) / sqrt(a->variance[c] + a->eps);
        j->centre[v] = (float)a->mean[c];
        j->scale[v] = (float)scale;
        j->shift[v] = (float)((a->bias ? a->bias[c] : 0.) - (a->mean[c] - j->centre[v]) * scale);
    }
}

int NAME(norm_statistics)(const sepgconv_norm *a, int threads) {
    job j;
    if (!prepare(&j, a)) return 1;
    for (int64_t v = 0; v < j.width; v++) j.centre[v] = a->x[v % a->channels];
    int failed = run(&j, statistics, threads);
    for (int64_t c = 0; c < a->channels && !failed; c++) {
        double mean = total(&j, c, 0) / (double)a->rows, square = total(&j, c, 1) / (double)a->rows;
        a->mean[c] = a->x[c] + mean;
        double variance = square - mean * mean;
        a->variance[c] = variance < 0 ? 0. : variance;
    }
    free(j.sums);
    return failed;
}

int NAME(norm_result)(const sepgconv_norm *a, int threads) {
    job j;
    if (!prepare(&j, a)) return 1;
    factors(&j);
    j.beside = a->addend;
    int failed = run(&j, result, threads);
    free(j.sums);
    return failed;
}

/* The gradients: for weight and bias always, also for an addend, and for x if there is a place for it. */
int NAME(norm_backward)(const sepgconv_norm *a, int threads) {
    job j;
    sepgconv_norm first = *a, second = *a;
    first.y = a->grad_addend;
    if (a->result) second.grad = a->grad_addend;
    if (!prepare(&j, &first)) return 1;
    factors(&j);
    j.beside = a->result;
    int failed = run(&j, slopes, threads);
    for (int64_t c = 0; c < a->channels && !failed; c++) {
        double sum = total(&j, c, 0), low = a->mean[c] - j.centre[c], dot = total(&j, c, 1) - low * sum;
        double inverse = 1. / sqrt(a->variance[c] + a->eps), slope = inverse * (a->weight ? a->weight[c] : 1.);
        double along = a->fixed ? 0. : -slope * inverse * inverse * dot / (double)a->rows;
        a->grad_weight[c] = (float)(dot * inverse);
        a->grad_bias[c] = (float)sum;
        for (int64_t v = c; v < j.width; v += a->channels) {
            j.along[v] = (float)along;
            j.offset[v] = a->fixed ? 0.f : (float)(-slope * sum / (double)a->rows - along * low);
        }
    }
    j.a = &second, j.beside = NULL;
    if (!failed && a->y) failed = run(&j, input, threads);
    free(j.sums);
    return failed;
}
