/* timeline: spans of many ranks on one clock as files: FILE, Chrome trace events in JSON
 * (ui.perfetto.dev and chrome://tracing open it), and FILE.svg, a picture: ranks down, each with its
 * lanes, time across.
 *
 *   process = rank, thread = lane; an event a span, spans of a lane one inside another by depth
 */
#ifndef BENCH_TIMELINE_H
#define BENCH_TIMELINE_H

#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

#define TIMELINE_NAME_BYTES 32
#define TIMELINE_LANES_MOST 64

struct timeline_span {
    int64_t begin_ns, end_ns; /* of one clock for all ranks */
    uint64_t bytes;           /* moved; 0: none, or nobody knows */
    int32_t rank, lane, depth;
    char name[TIMELINE_NAME_BYTES]; /* a JSON string without escapes. Its words give the colour:
                                       forward, backward, reduce, gather, wait … */
};

struct timeline {
    const char *title;
    const char *remark; /* below it; NULL: none */
    int nranks;
    size_t count;
    const struct timeline_span *spans;
    const char *lanes[TIMELINE_LANES_MOST]; /* names; those that no span is in are left out */
    int64_t within_ns; /* to which clocks of hosts agree; 0: there is one clock */
};

/* errors: SYSTEM: a file could not be written, and why. */
MUST_CHECK enum status timeline_write(const char *file, const struct timeline *timeline);

#endif
