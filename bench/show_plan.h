/* show_plan: what `ringzero show` draws: every rank's plan, and the bytes that follow from it. Pure.
 */
#ifndef BENCH_SHOW_PLAN_H
#define BENCH_SHOW_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "bench/show_options.h"
#include "ring/plan.h"

/* A rank's plan. Send and recv are drawn with both sides: rank 0 calls it, the root is its peer. */
struct plan show_plan(const struct show_options *show, int rank);
/* Ranks on each host where the plan has two levels; else 1. */
int show_host_ranks(const struct show_options *show);
/* Steps of the rank that has most. */
int show_most_steps(const struct show_options *show);
/* A rank that is done rests: PRIMITIVE_NONE. */
struct plan_step show_step(const struct show_options *show, int rank, int i);

/* Whether --reduce-dtype makes partial sums wider than the elements. */
bool show_sums_are_wide(const struct show_options *show);
/* By a rank; needs --count. */
size_t show_sent_bytes(const struct show_options *show, int rank);

#endif
