/* report: what `ringzero bench` prints, laid out as nccl-tests lays it out, and its JSON lines.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include "bench/job.h"
#include "bench/limit.h"
#include "bench/statistics.h"

/* One half of a row: out of place, or in place. */
struct measurement {
    double time_us;         /* below 0: this collective has no such half */
    double alg_bw, bus_bw;  /* 1e9 bytes per second */
    int64_t wrong;          /* elements, over all ranks; -1: not checked */
    struct statistics each; /* of single operations, where row.each */
};

struct row {
    size_t bytes, count;
    const char *type, *redop; /* redop "none" where nothing is reduced */
    int root;                 /* -1: none */
    int group;                /* operations issued as one; times are of one of them */
    struct measurement out_of_place, in_place;
    bool each;       /* operations were timed one by one */
    double of_limit; /* out of place: busbw ÷ limit */
    const char *reduce_dtype; /* in which it accumulates, and what that costs; NULL: nobody asked */
    uint64_t sent_bytes;      /* for one operation, by the rank that sends most */
    const char *memory;       /* "plain" or "own" */
};

/* Who takes part, the ring and its tunables, the limit. collective; rank 0 prints. */
MUST_CHECK enum status report_ranks(const struct limit *limit, struct job *job);
/* Rank 0 calls these. */
void report_columns(bool each, bool reduce_dtype);
void report_row(const struct row *row);
MUST_CHECK enum status report_row_json(const struct row *row, const struct limit *limit, FILE *file);

/* The row for a picture: size, busbw out of place and in place ("?": none), limit. */
void report_row_data(const struct row *row, const struct limit *limit, FILE *file);

/* "# Bytes WHERE …": measured beside predicted, of every rank (one line where all are the same).
 * collective; rank 0 prints. *equal says, on every rank, whether all ranks sent what was predicted
 * (I4). */
MUST_CHECK enum status report_bytes(bool *equal, const char *where, uint64_t measured, uint64_t predicted, struct job *job);

#endif
