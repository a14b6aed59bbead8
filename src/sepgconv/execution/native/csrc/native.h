/* What the files share: blocks of channels, the runner of tasks, and the operations' arguments. */
#ifndef SEPGCONV_NATIVE_H
#define SEPGCONV_NATIVE_H

#include <stdint.h>

#define BLOCK 16 /* channels worked on together: one cache line of floats */

/* Runs task(context, i, scratch) for all i < count on up to `threads` threads, each with `bytes` of scratch memory of
   its own, aligned to a cache line. Which thread does what is left to chance, so a task writes to places of its own.
   Returns 0, or 1 if there was no memory. */
typedef void (*sepgconv_task)(const void *context, int64_t i, float *scratch);
int sepgconv_run(sepgconv_task task, const void *context, int64_t count, int threads, int64_t bytes);

/* A depthwise convolution of rows (b, y, x, c) with kernels (c, ky, kx) of any strides, counted in floats. The result's
   pixels may lie apart: the gradient of a strided convolution is written one phase after the other. A negative padding
   cuts off. Where there are, a bias (c) is added, a ReLU taken if told to, then an addend that lies as the result does
   is added and another ReLU taken. */
typedef struct {
    const float *x, *weight, *bias, *addend;
    float *y;
    int64_t batch, channels, relu;
    int64_t in_y, in_x, out_y, out_x;
    int64_t taps_y, taps_x, stride, pad_y, pad_x;
    int64_t weight_c, weight_y, weight_x; /* strides of the kernel */
    int64_t y_image, y_row, y_pixel;      /* strides of the result */
} sepgconv_convolution;

typedef int sepgconv_forward(const sepgconv_convolution *, int threads);
/* The gradients of a convolution whose `y` is the result's gradient: for the kernel, contiguous (c, ky, kx), and for x. */
typedef int sepgconv_backward(const sepgconv_convolution *, float *gradient, int threads);

/* Batch norm of contiguous rows (rows, channels). Statistics write mean and variance, the others read them; the gradients
   need `grad`, the result's gradient, and may write `y`, that of x, over it. weight and bias may be missing. With an
   addend the result is relu(relu(norm) + addend); its gradients need that `result` and write the addend's gradient to
   `grad_addend`, which may be `grad`. `fixed` says that mean and variance do not depend on x. */
typedef struct {
    const float *x, *grad, *weight, *bias, *addend, *result;
    float *y, *grad_weight, *grad_bias, *grad_addend;
    double *mean, *variance;
    int64_t rows, channels, relu, fixed;
    double eps;
} sepgconv_norm;

typedef int sepgconv_norm_step(const sepgconv_norm *, int threads);

/* Max pooling of rows (b, y, x, c) with square windows. Results write `y` and, if there is a place for them, `places`
   in the windows; gradients read `grad` and `places` and write `y`, now of x's size. */
typedef struct {
    const float *x, *grad;
    float *y;
    uint8_t *places;
    int64_t batch, channels, in_y, in_x, out_y, out_x;
    int64_t size, stride, pad;
} sepgconv_pool;

typedef int sepgconv_pool_step(const sepgconv_pool *, int threads);

/* Products of rows (row, point, in) with a circulant table of matrices over 4, 8, 12, 16, 24 or 32 points, given with
   strides as two matrices (in, out) per pair of waves: a₀ and a_{n/2} for the first pair, whose waves do not mix, then a
   and b of [a −b; b a]. If `mirrored`, the points are 4, 8, 12 or 16 rotations and as many mirror images, every pair has
   a block (2·in, 2·out), and of the first two blocks the diagonal halves count and the rest is not read. Gradients read
   `grad` and `x` and write, if there is a place for them, `y`, now of x's size, and a contiguous `grad_weight`. */
typedef struct {
    const float *x, *grad, *weight;
    float *y, *grad_weight;
    int64_t rows, points, mirrored, in, out;
    int64_t weight_pair, weight_second, weight_in, weight_out; /* second: from a to b */
} sepgconv_circular;

typedef int sepgconv_circular_step(const sepgconv_circular *, int threads);

/* Products of rows (row, element, in) with matrices w(d), (tap, in, out) with strides, of the neighbours d = −n, …, n that
   an element sees: y(s) = Σ_d x(s + d)·w(d). Gradients read `grad` and `x` and write, if there is a place for them, `y`,
   now of x's size, and a contiguous `grad_weight`. */
typedef struct {
    const float *x, *grad, *weight;
    float *y, *grad_weight;
    int64_t rows, elements, neighbours, in, out;
    int64_t weight_tap, weight_in, weight_out;
} sepgconv_band;

typedef int sepgconv_band_step(const sepgconv_band *, int threads);

/* The spectra (frequency, b, c) of images (b, y, x, c), complex numbers side by side: frequencies are all period_y down
   times half of period_x and one across, both even and no less than y and x, beyond which images are zero. Of
   `conjugate` spectra the imaginary part is negative. Back, from `spectrum` to `pixels`, only the first y by x count. */
typedef struct {
    const float *image;
    float *spectrum, *pixels;
    int64_t batch, channels, y, x, period_y, period_x, conjugate;
} sepgconv_plane;

typedef int sepgconv_plane_step(const sepgconv_plane *, int threads);

/* One build of the operations. */
typedef struct {
    const char *name;
    sepgconv_forward *depthwise;
    sepgconv_backward *depthwise_weight;
    sepgconv_norm_step *norm_statistics, *norm_result, *norm_backward;
    sepgconv_pool_step *pool_result, *pool_backward;
    sepgconv_circular_step *circular, *circular_backward;
    sepgconv_band_step *banded, *banded_backward;
    sepgconv_plane_step *spectra, *spectra_back;
} sepgconv_build;

#endif
