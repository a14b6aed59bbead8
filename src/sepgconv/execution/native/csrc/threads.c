/* Tasks on threads, handed out one by one, so that nobody is waited for longer than one task takes.

   If the loader has found torch's own OpenMP runtime, its pool runs them: no second pool of threads then spins beside
   it. Without one, and after a fork, in which a pool's threads are gone, threads are made for each call. A thread that
   starts only when all tasks are taken is not waited for, so what it looks at outlives the call. */
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
    atomic_int holders; /* threads that still look at this */
    pthread_mutex_t lock;
    pthread_cond_t finished;
    int64_t done; /* tasks, under the lock */
} work;

static void leave_pool(void) { pool = NULL; }
static void watch_forks(void) { pthread_atfork(NULL, NULL, leave_pool); }

__attribute__((visibility("default"))) void sepgconv_use_pool(openmp_parallel *parallel) {
    pthread_once(&once, watch_forks);
    pool = parallel;
}

/* Takes tasks until there are none. Without memory it takes none, and leaves them to the others. */
static void take(void *data) {
    work *w = data;
    int64_t i = 0, done = 0;
    if (atomic_load(&w->next) >= w->count) return;
    float *scratch = aligned_alloc(64, ((size_t)w->bytes + 127) / 64 * 64);
    for (; scratch && (i = atomic_fetch_add(&w->next, 1)) < w->count; done++) w->task(w->context, i, scratch);
    free(scratch);
    if (!done) return;
    pthread_mutex_lock(&w->lock);
    w->done += done;
    pthread_cond_signal(&w->finished);
    pthread_mutex_unlock(&w->lock);
}

static void let_go(work *w) {
    if (atomic_fetch_sub(&w->holders, 1) > 1) return;
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->finished);
    free(w);
}

static void *help(void *data) {
    take(data);
    let_go(data);
    return NULL;
}

static void make_helpers(work *w, int count) {
    pthread_attr_t detached;
    if (pthread_attr_init(&detached)) return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (pthread_t thread; count > 0; count--) {
        atomic_fetch_add(&w->holders, 1);
        if (!pthread_create(&thread, &detached, help, w)) continue;
        atomic_fetch_sub(&w->holders, 1);
        break;
    }
    pthread_attr_destroy(&detached);
}

int sepgconv_run(sepgconv_task task, const void *context, int64_t count, int threads, int64_t bytes) {
    work *w = malloc(sizeof *w);
    if (!w) return 1;
    *w = (work){.task = task, .context = context, .count = count, .bytes = bytes, .holders = 1};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->finished, NULL);
    threads = threads > MOST ? MOST : threads;
    threads = threads > count ? (int)count : threads;
    openmp_parallel *shared = pool;
    if (threads > 1 && shared) {
        shared(take, w, (unsigned)threads, 0);
    } else {
        if (threads > 1) make_helpers(w, threads - 1);
        take(w);
    }
    int64_t taken = atomic_exchange(&w->next, count); /* without memory some are left: from now on nobody takes them */
    taken = taken < count ? taken : count;
    pthread_mutex_lock(&w->lock);
    while (w->done < taken) pthread_cond_wait(&w->finished, &w->lock);
    pthread_mutex_unlock(&w->lock);
    int failed = taken < count;
    let_go(w);
    return failed;
}
