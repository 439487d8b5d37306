/* plan_options: the options of `ringzero plan`. Those that `ringzero train` has too are spelled and
 * meant alike.
 */
#ifndef BENCH_PLAN_OPTIONS_H
#define BENCH_PLAN_OPTIONS_H

#include "bench/options.h"
#include "shard/forecast.h"

#define PLAN_ALL_STAGES (-1)

struct plan_options {
    struct options common;
    struct forecast_config config;             /* but for the stage */
    int stage;                                 /* or PLAN_ALL_STAGES */
    const char *model;                         /* preset's name */
    int layers, heads, kv_heads, channels, hidden, vocab, max_t; /* override the preset; 0: not given */
    bool gradient_dtype_given, reduce_dtype_given;
    size_t memory_bytes; /* --memory; 0: not given */
    bool paper, fragmentation;
};

/* Ends the process after --help, and with 2 after bad input. */
struct plan_options plan_options_parse(int argc, char **argv);

/* The run in one stage. What only some stages can do is left out where all are asked for. */
struct forecast_config plan_options_of_stage(int stage, const struct plan_options *options);

#endif
