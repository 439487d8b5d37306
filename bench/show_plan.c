/* show_plan: see show_plan.h. */
#include "bench/show_plan.h"

#include "ring/ring.h"

int show_host_ranks(const struct show_options *show) { return show->level_hosts > 0 ? show->common.ranks / show->level_hosts : 1; }

struct plan show_plan(const struct show_options *show, int rank)
{
    enum collective collective = show->collective;
    bool pair = collective == COLLECTIVE_SEND || collective == COLLECTIVE_RECV;
    if (!pair || rank == 0)
        return plan_make_two_level(collective, show->common.ranks, show_host_ranks(show), rank, show->root);
    collective = collective == COLLECTIVE_SEND ? COLLECTIVE_RECV : COLLECTIVE_SEND;
    struct plan plan = plan_make(collective, show->common.ranks, rank, 0);
    if (rank != show->root) plan.steps = 0;
    return plan;
}

int show_most_steps(const struct show_options *show)
{
    int most = 0;
    for (int rank = 0; rank < show->common.ranks; rank++) {
        struct plan plan = show_plan(show, rank);
        if (plan.steps > most) most = plan.steps;
    }
    return most;
}

struct plan_step show_step(const struct show_options *show, int rank, int i)
{
    struct plan plan = show_plan(show, rank);
    return i < plan.steps ? plan_step_at(&plan, i) : (struct plan_step){PRIMITIVE_NONE, -1, -1, 0, -1};
}

/* Elements of a chunk, when the call's count is `count`: the whole buffer's of an all-reduce, else a
 * chunk's. */
static size_t chunk_count(const struct plan *plan, size_t count, int chunk)
{
    if (plan->collective == COLLECTIVE_BARRIER) return 0;
    if (plan->collective != COLLECTIVE_ALL_REDUCE) return count;
    return ring_chunk_begin(count, plan->nranks, chunk + 1) - ring_chunk_begin(count, plan->nranks, chunk);
}

bool show_sums_are_wide(const struct show_options *show)
{
    return collective_is_reduction(show->collective) && dtype_bytes(show->dtype) == 2 &&
           show->reduce_dtype == REDUCE_DTYPE_FLOAT32 && show->common.ranks > 1;
}

size_t show_sent_bytes(const struct show_options *show, int rank)
{
    struct plan plan = show_plan(show, rank);
    size_t sent = 0, element = dtype_bytes(show->dtype), partial = show_sums_are_wide(show) ? sizeof(float) : element;
    for (int i = 0; i < plan.steps; i++) {
        struct plan_step step = plan_step_at(&plan, i);
        bool is_partial = primitive_sends_partial(step.primitive, plan.collective);
        if (step.to >= 0) sent += chunk_count(&plan, (size_t)show->count, step.chunk) * (is_partial ? partial : element);
    }
    return sent;
}
