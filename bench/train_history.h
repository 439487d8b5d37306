/* train_history: what a run was, kept on rank 0 while it trains, for its picture (--plot), its page
 * (--report) and llm.c's lines (--main-log).
 *
 * Memory is constant: a point is the mean of so many steps that HISTORY_POINTS of them hold the run;
 * when they are full, neighbours become one.
 */
#ifndef BENCH_TRAIN_HISTORY_H
#define BENCH_TRAIN_HISTORY_H

#include <stdio.h>

#include "bench/train_options.h"

#define HISTORY_POINTS 2048

/* The mean of steps first … last; a value that was not finite anywhere among them is not. */
struct history_point {
    uint64_t first, last;
    double loss, norm, lr, tokens_per_s, step_ms, wait_ms;
    uint64_t skipped;
};

struct history_validation {
    uint64_t step;
    double loss;
};

struct train_history {
    const struct train_options *options;
    FILE *main_log; /* NULL: none is wanted */
    bool started;
    struct train_start start; /* without params, which are in model and elements */
    struct model_config model;
    uint64_t elements;
    uint64_t per_point; /* steps */
    int points, validations;
    struct history_point point[HISTORY_POINTS];
    struct history_validation validation[HISTORY_POINTS];
    bool has_ledger;
    struct ledger ledger;
};

/* Opens what the options name, so that a place that cannot be written to is told before hours of
 * training. *history is NULL where they want nothing of it. errors: SYSTEM naming the option, the
 * file and the reason. */
MUST_CHECK enum status history_open(
    struct train_history **history, const struct train_options *options);

/* What train() tells; NULL is accepted. A run that starts again at an earlier step (after ranks were
 * lost) goes on from there. */
void history_start(struct train_history *history, const struct train_start *start);
void history_step(struct train_history *history, const struct train_report *report);
void history_ledger(struct train_history *history, const struct ledger *ledger);

/* Writes picture and page, also of a run that has failed, and frees. errors: SYSTEM. */
MUST_CHECK enum status history_close(struct train_history *history);

/* train_page.c: the page: HTML without anything from elsewhere. */
void history_write_page(FILE *page, const struct train_history *history);

#endif
