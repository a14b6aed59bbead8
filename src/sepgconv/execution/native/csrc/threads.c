/* Tasks on threads. torch's own OpenMP runtime runs them if the loader has found it: no second pool of threads then
   spins beside it. Without one, and after a fork, in which a pool's threads are gone, threads are made for each call.

   Tasks are handed out one by one, so that a thread that another process has pushed aside is not waited for longer
   than one task takes. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "native.h"

#define MOST 256 /* threads */

typedef void openmp_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags); /* GOMP_parallel */

static openmp_parallel *pool;
static pthread_once_t once = PTHREAD_ONCE_INIT;

typedef struct {
    sepgconv_task task;
    const void *context;
    int64_t count, bytes;
    atomic_llong next;
    atomic_int without_memory, workers;
} work;

static void leave_pool(void) { pool = NULL; }
static void watch_forks(void) { pthread_atfork(NULL, NULL, leave_pool); }

__attribute__((visibility("default"))) void sepgconv_use_pool(openmp_parallel *parallel) {
    pthread_once(&once, watch_forks);
    pool = parallel;
}

static void take(void *data) {
    work *w = data;
    atomic_fetch_add(&w->workers, 1);
    float *scratch = aligned_alloc(64, ((size_t)w->bytes + 127) / 64 * 64);
    if (!scratch) {
        atomic_fetch_add(&w->without_memory, 1); /* the others may have some */
        return;
    }
    for (int64_t i; (i = atomic_fetch_add(&w->next, 1)) < w->count;) w->task(w->context, i, scratch);
    free(scratch);
}

static void *take_in_thread(void *data) {
    take(data);
    return NULL;
}

int sepgconv_run(sepgconv_task task, const void *context, int64_t count, int threads, int64_t bytes) {
    work w = {.task = task, .context = context, .count = count, .bytes = bytes};
    threads = threads > MOST ? MOST : threads;
    threads = threads > count ? (int)count : threads;
    if (threads < 2) {
        take(&w);
    } else if (pool) {
        pool(take, &w, (unsigned)threads, 0);
    } else {
        pthread_t others[MOST];
        int made = 0;
        while (made < threads - 1 && !pthread_create(&others[made], NULL, take_in_thread, &w)) made++;
        take(&w);
        while (made) pthread_join(others[--made], NULL);
    }
    return atomic_load(&w.without_memory) == atomic_load(&w.workers);
}
