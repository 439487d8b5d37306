/* plan_two_level: the inside of plan.h's plans of two levels; only plan.c includes it.
 */
#ifndef RING_PLAN_TWO_LEVEL_H
#define RING_PLAN_TWO_LEVEL_H

#include "ring/plan.h"

/* plan->steps of a plan whose host_ranks is set, and its step i. cost: constant. */
int two_level_steps(const struct plan *plan);
struct plan_step two_level_step(const struct plan *plan, int i);

#endif
