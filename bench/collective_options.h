/* collective_options: the options of `ringzero bench`, and what sizes mean for each collective.
 */
#ifndef BENCH_COLLECTIVE_OPTIONS_H
#define BENCH_COLLECTIVE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "bench/options.h"
#include "ring/ring.h"

#define ALL_ROOTS (-1)

/* How an all-reduce is done; the first three also other collectives. */
enum algorithm {
    ALGORITHM_AUTO,      /* as RINGZERO_HIERARCHY says: by the rule of enum hierarchy */
    ALGORITHM_RING,      /* one ring of all ranks */
    ALGORITHM_TWO_LEVEL,
    ALGORITHM_NAIVE, /* Reduce to rank 0, then Broadcast from it: the textbooks' */
};

struct bench_options {
    struct options common;
    bool collective_given, min_given, max_given, redop_given, root_given;
    enum collective collective;
    size_t min_bytes, max_bytes; /* -b, -e */
    size_t factor;               /* -f; 1: sizes grow by step_bytes, -i */
    size_t step_bytes;
    int iterations, warmups, checks; /* -n, -w, -c */
    int group;                       /* -m: operations issued as one */
    bool dtypes[DTYPE_COUNT], redops[REDOP_COUNT];
    enum reduce_dtype reduce_dtype; /* --reduce-dtype, */
    bool reduce_dtype_given;        /* which adds columns */
    int root; /* -r, or ALL_ROOTS */
    bool each, blocking;       /* -I, -z */
    bool shrinks;              /* --on-death shrink */
    bool own_memory;           /* --memory own */
    enum algorithm algorithm;  /* --algo */
    const char *plot, *trace;  /* files, or NULL */
};

/* Both end the process with one line and 2 where the input is bad. check: what can only be judged,
 * or chosen, when the number of ranks is known. */
struct bench_options bench_options_parse(int argc, char **argv);
void bench_options_check(struct bench_options *bench, int nranks);

/* The size after this one; false when it would be beyond the last. */
bool bench_options_next(size_t *bytes, const struct bench_options *bench);

/* Whether a collective reduces; whether a side of its call is an array of all ranks' parts, of which count is one; whether it has
 * a root to choose; whether it can work in place. */
bool collective_reduces(enum collective collective);
bool collective_has_parts(enum collective collective);
bool collective_has_root(enum collective collective);
bool collective_works_in_place(enum collective collective);

/* Its name, for people: COLLECTIVE_SEND is measured as "send_recv". */
const char *collective_title(const struct bench_options *bench);

/* The count of a size, as in the call: rounded down to whole elements, of every rank where there
 * are parts. */
size_t count_of_bytes(size_t bytes, enum collective collective, enum dtype dtype, int nranks);

/* "int8", …, "half", "bfloat16", "float", "double": as nccl-tests calls them. */
const char *nccl_type_name(enum dtype dtype);
/* "sum", …, "avg", "mulsum". */
const char *nccl_op_name(enum redop redop);

#endif
