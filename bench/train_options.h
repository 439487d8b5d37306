/* train_options: the options of `ringzero train`.
 */
#ifndef BENCH_TRAIN_OPTIONS_H
#define BENCH_TRAIN_OPTIONS_H

#include "bench/options.h"
#include "shard/shard.h"

struct train_options {
    struct options common;
    struct train_config config;
    const char *model;                         /* preset's name */
    int layers, heads, kv_heads, channels, hidden, vocab, max_t; /* override the preset; 0: not given */
    bool lr_given, gradient_dtype_given, reduce_dtype_given;
    bool shrinks; /* --on-death shrink */
    const char *plot, *report, *main_log; /* files to write; NULL: none */
    int threads; /* of matrix products, per rank; 0: cores / ranks */
};

/* Ends the process after --help, and with 2 after bad input. */
struct train_options train_options_parse(int argc, char **argv);

#endif
