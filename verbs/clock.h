/* clock: monotonic nanoseconds, the one clock of deadlines and measurements. */
#ifndef VERBS_CLOCK_H
#define VERBS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t clock_ms_to_ns(int64_t ms) { return ms * 1000000; }

#endif
