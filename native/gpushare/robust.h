/* A mutex in shared memory that survives the death of its holder. It has the normal type: error-checking types compare
 * thread ids, and threads of two PID namespaces may have the same id. */
#ifndef GPUSHARE_ROBUST_H
#define GPUSHARE_ROBUST_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

static inline bool robust_init(pthread_mutex_t *mutex) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    bool good = !pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED) &&
                !pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) && !pthread_mutex_init(mutex, &kind);
    pthread_mutexattr_destroy(&kind);
    return good;
}

enum robust { LOCKED, RECOVERED, BROKEN }; /* RECOVERED: locked, but the previous holder died while it held the lock */

static inline enum robust robust_lock(pthread_mutex_t *mutex) {
    int result = pthread_mutex_lock(mutex);
    if (result == 0) return LOCKED;
    return result == EOWNERDEAD && pthread_mutex_consistent(mutex) == 0 ? RECOVERED : BROKEN;
}

#endif
