/* train_trace: what was done when in some steps of a training run, by all ranks on one clock:
 *
 *   computes   steps, uses of units in them, operations and waits in those
 *   ring       its stream's gathers and reductions, unit by unit
 *   world …    each communicator, by channels: collectives, and in them steps and waits (trace.h)
 */
#ifndef BENCH_TRAIN_TRACE_H
#define BENCH_TRAIN_TRACE_H

#include "bench/job.h"
#include "ring/trace.h"
#include "shard/shard.h"

/* Zeroed at first. */
struct train_tracer {
    const char *file;  /* and file.svg */
    const char *title; /* of the picture */
    bool written;
    struct trace *rings[TRAIN_COMMS_MOST];
};

/* What train() tells. Once the steps are over, gathers everybody's and rank 0 writes the files, and
 * says so in a line. collective. errors: SYSTEM (memory, files), the bootstrap's. */
MUST_CHECK enum status train_tracer_told(
    const struct train_trace *told, struct train_tracer *tracer, struct job *job);

/* After train(), whatever it returned. */
void train_tracer_close(struct train_tracer *tracer, struct job *job);

#endif
