/* plan_print: what `ringzero plan` has found out, for people and as JSON.
 */
#ifndef BENCH_PLAN_PRINT_H
#define BENCH_PLAN_PRINT_H

#include <stdbool.h>
#include <stdio.h>

#include "bench/plan_options.h"

#define PLAN_MOST_STAGES 4

/* One column. */
struct plan_column {
    int stage;
    struct forecast_config config;
    struct forecast forecast;
    bool fits; /* with --memory, as the two below */
    int largest_layers, largest_batch;
    int largest_batches[ACTIVATION_OFFLOADED + 1]; /* the same for each way to keep activations */
    double largest_sent_per_token; /* bytes, with that batch */
};

void plan_print_table(
    const struct plan_column *columns, int count, const struct plan_options *options);
void plan_print_json(
    FILE *json, const struct plan_column *column, const struct plan_options *options);

/* Bytes that rank 0 sends in a step, for each token that it computes. */
double plan_sent_per_token(const struct forecast *forecast, const struct forecast_config *config);

/* printf pads by bytes, people read letters: what a field of UTF-8 text needs beside its width. */
int plan_continuation_bytes(const char *text);

/* --paper; json may be NULL (plan_paper.c). */
void plan_print_paper(FILE *json);
/* Its second half: ZeRO-R (plan_residual.c). */
void plan_print_residual(FILE *json);

/* --fragmentation; json may be NULL (plan_fragmentation.c). errors: INVALID, SYSTEM. */
MUST_CHECK enum status plan_print_fragmentation(FILE *json, const struct plan_options *options);

#endif
