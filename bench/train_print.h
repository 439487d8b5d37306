/* train_print: what `ringzero train` prints: on rank 0, for people on standard output, and as JSON.
 */
#ifndef BENCH_TRAIN_PRINT_H
#define BENCH_TRAIN_PRINT_H

#include "bench/job.h"
#include "bench/marks.h"
#include "bench/train_history.h"
#include "bench/train_options.h"
#include "bench/train_trace.h"

#define TRAIN_TIMES 1024

struct train_printer {
    const struct train_options *options;
    struct job *job;
    struct train_history *history; /* NULL: nobody wants it */
    uint64_t first_step, last_step;
    int64_t start_ns;   /* of the first step */
    int64_t printed_ns; /* the last line */
    bool scales;        /* there is a loss scale to show */
    double flops_per_token; /* of the model, forward and backward */
    double step_ms[TRAIN_TIMES]; /* of the newest steps, the first left out: it touches memory anew */
    uint64_t times;              /* put there, ever */
    struct marks marks;          /* of a profile */
    struct train_tracer tracer;
    char trace_title[256];
    enum status status;          /* of what is told of all ranks: the first failure, and its text */
    char text[STATUS_TEXT_BYTES];
};

/* What train() calls; the printer outlives it. */
struct train_observer train_printer_observer(struct train_printer *printer);

/* train_ledger.c: the object of a step's ledger without its braces, and the ledger at the end. */
void train_print_step_ledger(FILE *json, const struct ledger_step *step);
void train_print_ledger(const struct ledger *ledger, FILE *json);

/* train_profile.c: the table of all ranks. collective. errors: SYSTEM (memory), the bootstrap's. */
MUST_CHECK enum status train_print_profile(
    const struct train_profile *profile, const struct train_printer *printer);

#endif
