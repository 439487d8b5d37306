/* progress_line: how far a long work has come: one line on a terminal, written over itself; nothing where
 * standard error is none.
 *
 *     progress_line_tell(&line, "%zu of %zu MB ", done, all);     as often as the caller likes
 *     progress_line_clear(&line);                                 before anything else is said there
 */
#ifndef BENCH_PROGRESS_LINE_H
#define BENCH_PROGRESS_LINE_H

#include <stdint.h>

struct progress_line {
    int64_t told_ns; /* 0: nothing stands there */
};

/* At most five times a second. threads: one at a time. */
void progress_line_tell(struct progress_line *line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void progress_line_clear(struct progress_line *line);

#endif
