/* observe: where the time of a run goes, for who asks: two profiles, of what computes and of the
 * ring's stream, from which the observer is told rows at the end, and spans of the steps that are
 * traced. And, where a device computes a stage of a pipeline, one of how long it waits.
 *
 *   compute   ├ step 2 ────────────────────────────┤├ step 3 …
 *   ring          ├ reduce block 5 ┤├ reduce block 4 ┤
 *
 * Invariant: without a question there is no profile, and nobody pays for one; with one the bits are
 * the same. Only where traced steps begin and end does everybody wait for all that is queued: so
 * that what belongs to them is what is seen.
 */
#include <string.h>

#include "shard/trainer.h"

#define TRACED_SPANS ((size_t)1 << 16) /* of a profile: 5 MiB */

static bool is_traced(const struct trainer *trainer)
{
    return trainer->config.trace_first > 0;
}

enum status observe_open(struct trainer *trainer)
{
    if (trainer->config.pipeline > 1) TRY(profile_open(&trainer->waits, trainer->device));
    if (!trainer->config.profile && !is_traced(trainer)) return STATUS_OK;
    TRY(profile_open(&trainer->profile, trainer->device));
    return profile_open(&trainer->ring_profile, trainer->device);
}

void observe_close(struct trainer *trainer)
{
    profile_close(trainer->profile);
    profile_close(trainer->ring_profile);
    profile_close(trainer->waits);
}

enum status observe_start(struct trainer *trainer)
{
    struct stream *stream = trainer->stage->computing.stream;
    if (stream != NULL) TRY(profile_start(stream, trainer->waits));
    TRY(profile_start(stream, trainer->profile));
    return profile_start(trainer->stage->stream, trainer->ring_profile);
}

/* ---- traced steps ---- */

static void add_comm(struct ring_comm *comm, const char *name, struct train_trace *trace)
{
    for (int i = 0; i < trace->comm_count; i++)
        if (trace->comm[i] == comm) comm = NULL; /* known by another name */
    trace->comm[trace->comm_count] = comm;
    trace->comm_name[trace->comm_count++] = name;
}

static enum status tell_trace(bool over, struct trainer *trainer)
{
    const struct grid *grid = &trainer->grid;
    struct train_trace trace = {
        .over = over,
        .step = trainer->step,
        .compute = trainer->profile,
        .ring = trainer->ring_profile,
    };
    add_comm(grid->world, "world", &trace);
    add_comm(grid->group_comm, "shard group", &trace);
    add_comm(grid->replicas_comm, "replicas", &trace);
    add_comm(grid->tensor_comm, "tensor group", &trace);
    add_comm(grid->pipeline_comm, "onward", &trace);
    add_comm(grid->pipeline_back_comm, "back", &trace);
    add_comm(grid->embedding_comm, "ends", &trace);
    TRY(stage_settle(trainer->stage));
    TRY(trainer_settle_passes(trainer));
    TRY(profile_keep(over ? 0 : TRACED_SPANS, trainer->profile));
    TRY(profile_keep(over ? 0 : TRACED_SPANS, trainer->ring_profile));
    TRY(profile_settle(trainer->profile));
    TRY(profile_settle(trainer->ring_profile));
    if (trainer->observer->trace != NULL)
        trainer->observer->trace(trainer->observer->context, &trace);
    return STATUS_OK;
}

enum status observe_begin_step(struct trainer *trainer)
{
    if (is_traced(trainer) && trainer->events.steps + 1 == trainer->config.trace_first)
        TRY(tell_trace(false, trainer));
    profile_begin(trainer->profile, "step #", (int)(trainer->step + 1));
    return STATUS_OK;
}

enum status observe_end_step(struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    bool is_end = trainer->step == config->stop_at, first = trainer->events.steps == 1;
    profile_end(trainer->profile, 0, 0);
    if (first && !is_end) {
        profile_clear(trainer->profile);
        profile_clear(trainer->ring_profile);
        profile_clear(trainer->waits);
    }
    uint64_t done = trainer->events.steps;
    if (!is_traced(trainer) || done < config->trace_first || done > config->trace_last)
        return STATUS_OK;
    return done == config->trace_last || is_end ? tell_trace(true, trainer) : STATUS_OK;
}

/* ---- what is no step ---- */

void observe_begin_beside(const char *name, struct trainer *trainer)
{
    profile_begin_whole(trainer->profile, name, 0);
    profile_begin_whole(trainer->ring_profile, name, 0);
    profile_begin_whole(trainer->waits, name, 0);
}

void observe_end_beside(struct trainer *trainer)
{
    profile_end(trainer->waits, 0, 0);
    profile_end(trainer->ring_profile, 0, 0);
    profile_end(trainer->profile, 0, 0);
}

/* ---- the end ---- */

enum status observe_waits(uint64_t *ns, struct trainer *trainer)
{
    int count;
    TRY(profile_settle(trainer->waits));
    const struct profile_row *rows = profile_rows(&count, trainer->waits);
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].name, PIPELINE_WAITS) == 0) *ns += (uint64_t)rows[i].ns;
    return STATUS_OK;
}

enum status observe_tell(struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    uint64_t steps = trainer->events.steps;
    if (!config->profile || steps == 0) return STATUS_OK;
    TRY(profile_settle(trainer->profile));
    TRY(profile_settle(trainer->ring_profile));
    double tokens = (double)config->accumulate * (double)trainer_sequences_per_batch(trainer) *
                    (double)config->seq;
    const struct train_profile told = {
        .steps = steps > 1 ? steps - 1 : 1,
        .compute = trainer->profile,
        .ring = trainer->ring_profile,
        .model_flops = tokens * model_flops_per_token(&trainer->params, config->seq),
    };
    if (trainer->observer->profile != NULL)
        trainer->observer->profile(trainer->observer->context, &told);
    return STATUS_OK;
}
