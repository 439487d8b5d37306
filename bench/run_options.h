/* run_options: the options that say what a training run is: its model, how much it reads at once, how
 * ranks share it, in which dtypes. `ringzero train` runs it, `ringzero plan` tells what it would hold
 * and send; both take the options from here, so that they are spelled and meant alike.
 *
 * An argp child, as options_common is:
 *
 *     case ARGP_KEY_INIT: state->child_inputs[1] = &program->run; return 0;
 *     …
 *     program.run = run_options_default(&program.common, &program.config);
 *     options_parse(&argp, argc, argv, &program.common, &program);
 *     run_options_finish(&program.run);
 */
#ifndef BENCH_RUN_OPTIONS_H
#define BENCH_RUN_OPTIONS_H

#include "bench/options.h"
#include "shard/shard.h"

struct run_options {
    const struct options *common; /* these two until run_options_finish() */
    struct train_config *config;  /* is filled in */
    const char *model;            /* preset's name */
    int layers, heads, kv_heads, channels, hidden, vocab, max_t; /* override it; 0: not given */
    bool gradient_dtype_given, reduce_dtype_given;
};

extern const struct argp run_options_child;

struct run_options run_options_default(const struct options *common, struct train_config *config);

/* After parsing: the model, and what follows from other options where it was not given. Refuses a
 * model that there is not. */
void run_options_finish(struct run_options *run);

#endif
