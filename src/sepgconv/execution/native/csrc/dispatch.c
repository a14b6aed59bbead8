/* What the library shows to the outside, and which build of the operations answers: the widest vectors of this machine. */
#include <stddef.h>
#include <string.h>

#include "native.h"

#define PUBLIC __attribute__((visibility("default")))
#ifndef SOURCE
#define SOURCE "unknown"
#endif

#define DECLARE(suffix) \
    int depthwise_forward_##suffix(const sepgconv_convolution *, int); \
    int depthwise_weight_##suffix(const sepgconv_convolution *, float *, int); \
    int norm_statistics_##suffix(const sepgconv_norm *, int); \
    int norm_result_##suffix(const sepgconv_norm *, int); \
    int norm_backward_##suffix(const sepgconv_norm *, int); \
    int pool_result_##suffix(const sepgconv_pool *, int); \
    int pool_backward_##suffix(const sepgconv_pool *, int); \
    int circular_##suffix(const sepgconv_circular *, int); \
    int circular_backward_##suffix(const sepgconv_circular *, int); \
    int banded_##suffix(const sepgconv_band *, int); \
    int banded_backward_##suffix(const sepgconv_band *, int); \
    int spectra_##suffix(const sepgconv_plane *, int); \
    int spectra_back_##suffix(const sepgconv_plane *, int);
#define BUILD(suffix) \
    {#suffix, depthwise_forward_##suffix, depthwise_weight_##suffix, \
     norm_statistics_##suffix, norm_result_##suffix, norm_backward_##suffix, \
     pool_result_##suffix, pool_backward_##suffix, circular_##suffix, circular_backward_##suffix, \
     banded_##suffix, banded_backward_##suffix, spectra_##suffix, spectra_back_##suffix}

DECLARE(base)
#ifdef X86
DECLARE(avx2)
DECLARE(avx512)
static const sepgconv_build builds[] = {BUILD(base), BUILD(avx2), BUILD(avx512)};
#else
static const sepgconv_build builds[] = {BUILD(base)};
#endif
#define COUNT (int)(sizeof builds / sizeof *builds)

static const sepgconv_build *chosen = NULL;

static int runs_here(const char *name) {
#ifdef X86
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(name, "avx2")) return avx2;
    if (!strcmp(name, "avx512"))
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#endif
    return !strcmp(name, "base");
}

static const sepgconv_build *build(void) {
    if (!chosen)
        for (int n = 0; n < COUNT; n++)
            if (runs_here(builds[n].name)) chosen = &builds[n];
    return chosen;
}

/* A hash of the sources, so that a stale library can be told. */
PUBLIC const char *sepgconv_source(void) { return SOURCE; }

/* The build in use, and another one: 0, or 1 if it is not here or does not run here. */
PUBLIC const char *sepgconv_vectors(void) { return build()->name; }
PUBLIC int sepgconv_use_vectors(const char *name) {
    for (int n = 0; n < COUNT; n++)
        if (!strcmp(builds[n].name, name) && runs_here(name)) {
            chosen = &builds[n];
            return 0;
        }
    return 1;
}

/* Whether blocks of memory hold the same bytes, pair by pair. */
PUBLIC int sepgconv_same(const void *const *a, const void *const *b, const int64_t *bytes, int64_t count) {
    for (int64_t n = 0; n < count; n++)
        if (memcmp(a[n], b[n], (size_t)bytes[n])) return 0;
    return 1;
}

PUBLIC int sepgconv_depthwise(const sepgconv_convolution *a, int threads) { return build()->depthwise(a, threads); }

PUBLIC int sepgconv_depthwise_weight(const sepgconv_convolution *a, float *gradient, int threads) {
    return build()->depthwise_weight(a, gradient, threads);
}

PUBLIC int sepgconv_norm_statistics(const sepgconv_norm *a, int threads) { return build()->norm_statistics(a, threads); }
PUBLIC int sepgconv_norm_result(const sepgconv_norm *a, int threads) { return build()->norm_result(a, threads); }
PUBLIC int sepgconv_norm_backward(const sepgconv_norm *a, int threads) { return build()->norm_backward(a, threads); }
PUBLIC int sepgconv_pool_result(const sepgconv_pool *a, int threads) { return build()->pool_result(a, threads); }
PUBLIC int sepgconv_pool_backward(const sepgconv_pool *a, int threads) { return build()->pool_backward(a, threads); }
PUBLIC int sepgconv_circular_product(const sepgconv_circular *a, int threads) { return build()->circular(a, threads); }
PUBLIC int sepgconv_circular_gradients(const sepgconv_circular *a, int threads) {
    return build()->circular_backward(a, threads);
}
PUBLIC int sepgconv_banded_product(const sepgconv_band *a, int threads) { return build()->banded(a, threads); }
PUBLIC int sepgconv_banded_gradients(const sepgconv_band *a, int threads) { return build()->banded_backward(a, threads); }
PUBLIC int sepgconv_spectra(const sepgconv_plane *a, int threads) { return build()->spectra(a, threads); }
PUBLIC int sepgconv_spectra_back(const sepgconv_plane *a, int threads) { return build()->spectra_back(a, threads); }

/* The gradient for x at the pixels of one phase is a convolution with stride 1 of the result's gradient with those taps
   that reach them, turned round: x = s·u + r meets the taps q + s·m with q = (r + pad) mod s at the results u + e − m,
   where e = (r + pad − q) / s. */
typedef struct {
    int64_t taps, pad, first, size; /* first: the tap that comes first when turned round */
} phase;

static phase phase_of(int64_t r, int64_t stride, int64_t taps, int64_t pad, int64_t length) {
    int64_t q = (r + pad) % stride, count = q < taps ? (taps - q + stride - 1) / stride : 0;
    return (phase){count, count - 1 - (r + pad - q) / stride, q + stride * (count - 1),
                   r < length ? (length - r + stride - 1) / stride : 0};
}

PUBLIC int sepgconv_depthwise_input(const sepgconv_convolution *a, float *gradient, int threads) {
    for (int64_t ry = 0; ry < a->stride; ry++)
        for (int64_t rx = 0; rx < a->stride; rx++) {
            phase y = phase_of(ry, a->stride, a->taps_y, a->pad_y, a->in_y);
            phase x = phase_of(rx, a->stride, a->taps_x, a->pad_x, a->in_x);
            int64_t reached = y.taps > 0 && x.taps > 0;
            sepgconv_convolution back = {
                .x = a->y,
                .weight = a->weight + (reached ? y.first * a->weight_y + x.first * a->weight_x : 0),
                .y = gradient + (ry * a->in_x + rx) * a->channels,
                .batch = a->batch, .channels = a->channels,
                .in_y = a->out_y, .in_x = a->out_x, .out_y = y.size, .out_x = x.size,
                .taps_y = reached ? y.taps : 0, .taps_x = reached ? x.taps : 0,
                .stride = 1, .pad_y = y.pad, .pad_x = x.pad,
                .weight_c = a->weight_c, .weight_y = -a->stride * a->weight_y, .weight_x = -a->stride * a->weight_x,
                .y_image = a->in_y * a->in_x * a->channels,
                .y_row = a->stride * a->in_x * a->channels, .y_pixel = a->stride * a->channels,
            };
            int failed = build()->depthwise(&back, threads);
            if (failed) return failed;
        }
    return 0;
}
