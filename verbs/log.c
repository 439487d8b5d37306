/* log: one write per line, so that lines of several processes do not mix. */
#include "verbs/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEVEL_UNSET (-1)

static int current_level = LEVEL_UNSET;
static _Thread_local int thread_rank = -1, thread_nranks = 0;
static const char *const level_names[] = {"warn", "info", "trace"};

int log_set_level_by_name(const char *name)
{
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, level_names[i]) != 0) continue;
        __atomic_store_n(&current_level, i, __ATOMIC_RELAXED);
        return 0;
    }
    return -1;
}

enum log_level log_level(void)
{
    int level = __atomic_load_n(&current_level, __ATOMIC_RELAXED);
    if (level != LEVEL_UNSET) return (enum log_level)level;
    const char *name = getenv("RINGZERO_LOG");
    if (name == NULL || log_set_level_by_name(name) != 0) log_set_level_by_name("warn");
    if (name != NULL && strcmp(name, level_names[__atomic_load_n(&current_level, __ATOMIC_RELAXED)]) != 0)
        LOG_WARN("log", "RINGZERO_LOG is \"%s\"; expected warn, info or trace: taking warn", name);
    return (enum log_level)__atomic_load_n(&current_level, __ATOMIC_RELAXED);
}

void log_set_rank(int rank, int nranks)
{
    thread_rank = rank;
    thread_nranks = nranks;
}

void log_get_rank(int *rank, int *nranks)
{
    *rank = thread_rank;
    *nranks = thread_nranks;
}

void log_line(enum log_level level, const char *subsystem, const char *format, ...)
{
    char line[2048];
    size_t used = 0;
    if (thread_rank >= 0)
        used = (size_t)snprintf(line, sizeof line, "%d/%d ", thread_rank, thread_nranks);
    used += (size_t)snprintf(line + used, sizeof line - used, "%s %s: ", level_names[level], subsystem);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    used += more > 0 ? (size_t)more : 0;
    if (used > sizeof line - 2) used = sizeof line - 2;
    line[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written; /* nothing useful can be said when standard error is gone */
}
