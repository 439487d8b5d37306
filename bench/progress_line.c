/* progress_line: see progress_line.h. */
#include "bench/progress_line.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "verbs/clock.h"

#define BETWEEN_NS 200000000

void progress_line_tell(struct progress_line *line, const char *format, ...)
{
    int64_t now = clock_ns();
    if (now - line->told_ns < BETWEEN_NS || !isatty(STDERR_FILENO)) return;
    line->told_ns = now;
    va_list arguments;
    va_start(arguments, format);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
}

void progress_line_clear(struct progress_line *line)
{
    if (line->told_ns != 0) fputs("\r\033[K", stderr);
    line->told_ns = 0;
}
