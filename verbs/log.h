/* log: lines for people, on standard error. They tell; errors travel by status.
 *
 * A line is "rank/nranks LEVEL subsystem: text". The level comes from RINGZERO_LOG or log_set_level() (option --log):
 * warn (the default), info, trace.
 */
#ifndef VERBS_LOG_H
#define VERBS_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

enum log_level { LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_TRACE };

/* The level is the one mutable global of the project; set it before threads start. Returns 0, or -1 for an unknown name. */
int log_set_level_by_name(const char *name);
enum log_level log_level(void);

/* Names the calling thread's rank in its lines. A thread that works for a rank calls it once. */
void log_set_rank(int rank, int nranks);
/* The label that log_set_rank gave this thread; -1 and 0 before. */
void log_get_rank(int *rank, int *nranks);

void log_line(enum log_level level, const char *subsystem, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define LOG_AT(level, subsystem, ...)                                                                                  \
    do {                                                                                                               \
        if (log_level() >= (level)) log_line((level), (subsystem), __VA_ARGS__);                                       \
    } while (0)
#define LOG_WARN(subsystem, ...)  LOG_AT(LOG_LEVEL_WARN, subsystem, __VA_ARGS__)
#define LOG_INFO(subsystem, ...)  LOG_AT(LOG_LEVEL_INFO, subsystem, __VA_ARGS__)
#define LOG_TRACE(subsystem, ...) LOG_AT(LOG_LEVEL_TRACE, subsystem, __VA_ARGS__)

#ifdef __cplusplus
}
#endif
#endif
