/* profile: where the time of what computes goes: spans of work by name, one inside another.
 *
 *     profile_begin(profile, "step", 0);
 *     profile_begin(profile, "attention forward", 0);
 *     …                                          what computes is called, or queued
 *     profile_end(profile, flops, bytes);
 *     profile_end(profile, 0, 0);
 *
 *   time    ├ step ────────────────────────────────────────────┤
 *             ├ block 3 forward ──────────────┤   ├ waiting ─┤
 *               ├ qkv ─┤├ attention ─┤├ fc ─┤
 *
 *   rows    step: what nothing inside it has    qkv    attention    fc    waiting
 *
 * Time is that of one thread, or of one stream: where there is a stream, begin and end leave marks
 * (timed events) in it, which are read later, so that nobody waits; what is called meanwhile
 * without being queued counts as far as the stream had nothing else to do.
 *
 * Invariant: rows add up. A span's row gets its time without that of the spans inside; a group's
 * own time is the row's around it; what is in a whole is not looked into.
 *
 * Every function accepts NULL and does nothing then: whoever is not asked pays one branch.
 * threads: one, that which calls or queues the work. cost: two readings of the clock a span, or two
 * events. Memory: a constant, and the spans that are kept.
 */
#ifndef VERBS_PROFILE_H
#define VERBS_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct profile;

#define PROFILE_NAME_BYTES 32
#define PROFILE_ROWS_MOST  128 /* further names share the last row, "other" */

/* Of all spans of a name. */
struct profile_row {
    char name[PROFILE_NAME_BYTES]; /* without " #" */
    uint64_t calls;
    int64_t ns; /* the spans' own */
    double flops, bytes;
};

/* A span that was kept. */
struct profile_span {
    int64_t begin_ns, end_ns;      /* clock_ns() */
    char name[PROFILE_NAME_BYTES]; /* with its number */
    double bytes;
    int depth; /* 0: the outermost */
};

/* Spans of before profile_start() are not looked at. errors: SYSTEM. */
MUST_CHECK enum status profile_open(struct profile **profile, struct device *device);
/* After the stream that it watched has been closed, or synchronized. */
void profile_close(struct profile *profile);

/* From now on, of this stream; NULL: of the caller's thread. Once, outside of spans. errors: SYSTEM,
 * CUDA. */
MUST_CHECK enum status profile_start(struct stream *stream, struct profile *profile);

/* name: a constant string, shorter than PROFILE_NAME_BYTES; a '#' in it stands for the number where
 * a span is kept, and is not in the row's name. flops, bytes: of the work inside, added to the row. */
void profile_begin(struct profile *profile, const char *name, int number);
void profile_begin_group(struct profile *profile, const char *name, int number);
void profile_begin_whole(struct profile *profile, const char *name, int number);
void profile_end(struct profile *profile, double flops, double bytes);

/* Rows begin anew here, outside of spans. */
void profile_clear(struct profile *profile);

/* Spans that begin from here on are kept, up to `most` of them; 0: no more are. errors: SYSTEM. */
MUST_CHECK enum status profile_keep(size_t most, struct profile *profile);

/* Reads all marks: waits until the stream has passed them. errors: what went wrong with one of them
 * since the start. */
MUST_CHECK enum status profile_settle(struct profile *profile);

/* What is known so far: everything after profile_settle(). Theirs until the next call. */
const struct profile_row *profile_rows(int *count, const struct profile *profile);
const struct profile_span *profile_spans(
    size_t *count, uint64_t *dropped, const struct profile *profile);

#ifdef __cplusplus
}
#endif
#endif
