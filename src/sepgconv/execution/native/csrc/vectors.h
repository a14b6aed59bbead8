/* Vectors as the compilers know them, without intrinsics, and names that differ between builds.

   Every operation is compiled once per vector width (the build passes -DSUFFIX=avx2 and the like) and chosen at run
   time in dispatch.c. Channels are worked on in blocks of sixteen, a cache line, whatever the width: the order of all
   sums is the same in every build, and only fused multiply-adds round differently from separate ones. */
#ifndef SEPGCONV_VECTORS_H
#define SEPGCONV_VECTORS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "native.h"

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4 /* SSE2, NEON */
#endif

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(x) JOIN(x, SUFFIX)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vec __attribute__((vector_size(4 * LANES)));

INLINE vec load(const float *p) { /* from anywhere */
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }

/* Past the cache, to an aligned place: saves reading what will be written over. Where that is not known, an ordinary
   store. Such stores are settled before another thread is told about them. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#if LANES == 16
INLINE void store_past_cache(float *p, vec v) { __builtin_ia32_movntps512(p, v); }
#elif LANES == 8
INLINE void store_past_cache(float *p, vec v) { __builtin_ia32_movntps256(p, v); }
#else
INLINE void store_past_cache(float *p, vec v) { __builtin_ia32_movntps(p, v); }
#endif
#elif defined(__clang__)
INLINE void store_past_cache(float *p, vec v) { __builtin_nontemporal_store(v, (vec *)p); }
#else
INLINE void store_past_cache(float *p, vec v) { store(p, v); }
#endif
#ifdef __x86_64__
INLINE void settle_stores(void) { __builtin_ia32_sfence(); }
#else
INLINE void settle_stores(void) {}
#endif

/* x in all lanes. Not 0 + x, which is an addition, and then a shuffle in the way of the products instead of a load. */
#if LANES == 16
INLINE vec splat(float x) { return (vec){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
#elif LANES == 8
INLINE vec splat(float x) { return (vec){x, x, x, x, x, x, x, x}; }
#else
INLINE vec splat(float x) { return (vec){x, x, x, x}; }
#endif

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
