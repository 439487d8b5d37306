/* plan_options: the options of `ringzero plan`.
 */
#ifndef BENCH_PLAN_OPTIONS_H
#define BENCH_PLAN_OPTIONS_H

#include "bench/run_options.h"
#include "shard/forecast.h"

#define PLAN_ALL_STAGES (-1)

struct plan_options {
    struct options common;
    struct forecast_config config; /* but for the stage */
    int stage; /* or PLAN_ALL_STAGES */
    struct run_options run;
    size_t memory_bytes; /* --memory; 0: not given */
    bool paper, fragmentation;
};

/* Ends the process after --help, and with 2 after bad input. */
struct plan_options plan_options_parse(int argc, char **argv);

/* The run in one stage. What only some stages can do is left out where all are asked for. */
struct forecast_config plan_options_of_stage(int stage, const struct plan_options *options);

#endif
