/* train_options: the options of `ringzero train`.
 */
#ifndef BENCH_TRAIN_OPTIONS_H
#define BENCH_TRAIN_OPTIONS_H

#include "bench/run_options.h"

struct train_options {
    struct options common;
    struct train_config config;
    struct run_options run;
    bool lr_given;
    bool shrinks; /* --on-death shrink */
    const char *plot, *report, *main_log, *trace; /* files to write; NULL: none */
    uint64_t trace_first, trace_last; /* 0: not given */
    int threads; /* of matrix products, per rank; 0: cores / ranks */
};

/* Ends the process after --help, and with 2 after bad input. */
struct train_options train_options_parse(int argc, char **argv);

#endif
