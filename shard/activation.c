/* activation: see activation.h.
 *
 * Who waits for whom, so that no buffer of the model is read too late or written too soon:
 *
 *   save (P_a+cpu)   copy waits for compute: x is there
 *                    compute waits for copy before the model writes into x's buffer again: at the
 *                    next save, or pass
 *   load             copy and ring wait for compute: what was in x's buffer has been used
 *                    ring waits for copy, compute for ring: x is whole
 */
#include "shard/activation.h"

#include <assert.h>
#include <stdlib.h>

#include "shard/arena.h"
#include "shard/computing.h"
#include "verbs/clock.h"
#include "verbs/log.h"

/* Of two neighbouring blocks the inputs take turns in two buffers of the model, and so do their
 * events. */
#define TURNS    2
#define NO_BLOCK (-1)

struct activation {
    struct activation_config config;
    struct arena arena;
    struct span *part; /* [pass_count · block_count], in the arena */
    struct span *x; /* the same: where act_save() saw the input, and it will be brought back to */
    size_t *counts; /* [nranks] of x: the parts' elements */
    struct stream *copy;         /* P_a+cpu */
    struct computing computing;
    struct event *copied[TURNS]; /* the part has left x, or is back in its place */
    struct event *whole[TURNS];  /* x is */
    int saving, loading;         /* passes */
    bool keeps;                  /* the forward in hand has a backward */
    int ahead;                   /* block whose fetch is queued, or NO_BLOCK */
};

/* ---- words ---- */

const char *activation_keep_name(enum activation_keep keep)
{
    static const char *const names[] = {[ACTIVATION_ALL] = "none",
        [ACTIVATION_INPUT] = "full",
        [ACTIVATION_PART] = "partitioned",
        [ACTIVATION_OFFLOADED] = "offload"};
    return names[keep];
}

bool activation_recomputes(enum activation_keep keep)
{
    return keep != ACTIVATION_ALL;
}

bool activation_is_carried(enum activation_keep keep)
{
    return keep == ACTIVATION_PART || keep == ACTIVATION_OFFLOADED;
}

/* ---- parts: pure ---- */

/* The first of n elements that belongs to a rank, as the ring cuts chunks. */
static size_t part_begin(size_t elements, int rank, const struct activation_config *config)
{
    return ring_chunk_begin(elements, config->nranks, rank);
}

static size_t part_count(size_t elements, int rank, const struct activation_config *config)
{
    return part_begin(elements, rank + 1, config) - part_begin(elements, rank, config);
}

/* Of a place in the arena: the largest part, so that all ranks hold the same. */
static size_t place_bytes(const struct activation_config *config)
{
    return part_count(config->elements, 0, config) * dtype_bytes(config->dtype);
}

static size_t place_count(const struct activation_config *config)
{
    return (size_t)config->pass_count * (size_t)config->block_count;
}

enum memory_tag activation_tag(const struct activation_config *config)
{
    return config->keep == ACTIVATION_OFFLOADED ? MEMORY_OFFLOADED : MEMORY_CHECKPOINTS;
}

uint64_t activation_predict_bytes(const struct activation_config *config)
{
    if (!activation_is_carried(config->keep)) return 0;
    return (uint64_t)place_count(config) * place_bytes(config);
}

void activation_predict_sent(
    uint64_t sent[COLLECTIVE_COUNT], size_t elements, const struct activation_config *config)
{
    if (config->nranks == 1 || !activation_is_carried(config->keep)) return;
    size_t *counts = calloc((size_t)config->nranks, sizeof *counts);
    if (counts == NULL) abort(); /* a few bytes */
    for (int r = 0; r < config->nranks; r++) counts[r] = part_count(elements, r, config);
    bool even = elements % (size_t)config->nranks == 0;
    const struct ring_call call = {.collective = COLLECTIVE_ALL_GATHER,
        .dtype = config->dtype,
        .count = counts[0],
        .counts = even ? NULL : counts,
        .on_device = config->device != NULL && device_kind(config->device) == MEMORY_CUDA};
    sent[COLLECTIVE_ALL_GATHER] +=
        (uint64_t)config->block_count *
        ring_predict_sent_bytes(&call, config->nranks, config->rank, config->comm);
    free(counts);
}

double activation_paper_bytes(const struct activation_config *config)
{
    double m = config->nranks, x = (double)(config->elements * dtype_bytes(config->dtype));
    return activation_is_carried(config->keep) ? config->block_count * x * (m - 1.0) / m : 0.0;
}

/* ---- opening ---- */

static enum status open_places(struct activation *store)
{
    const struct activation_config *config = &store->config;
    size_t places = place_count(config);
    enum memory_kind kind =
        config->keep == ACTIVATION_OFFLOADED ? MEMORY_HOST_PINNED : device_kind(config->device);
    store->part = calloc(places, sizeof *store->part);
    store->x = calloc(places, sizeof *store->x);
    store->counts = calloc((size_t)config->nranks, sizeof *store->counts);
    if (store->part == NULL || store->x == NULL || store->counts == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for the places of %zu checkpoints", places);
    TRY(arena_open(&store->arena, activation_predict_bytes(config), kind, activation_tag(config),
        config->device));
    for (size_t i = 0; i < places; i++)
        store->part[i] = arena_take(place_bytes(config), &store->arena);
    return STATUS_OK;
}

enum status activation_open(struct activation **out, const struct activation_config *config)
{
    *out = NULL;
    assert(activation_is_carried(config->keep) && config->block_count >= 0);
    assert(config->nranks == 1 || config->comm != NULL);
    assert(config->nranks == 1 || config->ring != NULL || config->compute == NULL);
    struct activation *store = calloc(1, sizeof *store);
    if (store == NULL) return FAIL(STATUS_SYSTEM, "no memory for a store of activations");
    enum status status;
    store->config = *config;
    store->ahead = NO_BLOCK;
    TRY_GOTO(open_places(store));
    if (config->keep == ACTIVATION_OFFLOADED)
        TRY_GOTO(stream_open(&store->copy, config->device, "checkpoints"));
    TRY_GOTO(computing_open(&store->computing, config->compute, config->device));
    store->computing.profile = config->profile;
    store->computing.row = "wait for checkpoints";
    for (int i = 0; i < TURNS; i++) {
        TRY_GOTO(event_open(&store->copied[i], config->device));
        TRY_GOTO(event_open(&store->whole[i], config->device));
    }
    *out = store;
    return STATUS_OK;
fail:
    activation_close(store);
    return status;
}

void activation_close(struct activation *store)
{
    if (store == NULL) return;
    struct device *device = store->config.device;
    struct stream *streams[] = {store->config.compute, store->config.ring};
    for (int i = 0; i < 2; i++) /* they may still look at events and memory */
        if (streams[i] != NULL && stream_synchronize(streams[i], device) != STATUS_OK)
            LOG_WARN("activation", "closed after a failure: %s", status_text());
    stream_close(store->copy, device);
    for (int i = 0; i < TURNS; i++) {
        event_close(store->copied[i], device);
        event_close(store->whole[i], device);
    }
    computing_close(&store->computing);
    arena_close(&store->arena, device);
    free(store->part);
    free(store->x);
    free(store->counts);
    free(store);
}

uint64_t activation_wait_ns(const struct activation *store)
{
    return store == NULL ? 0 : store->computing.wait_ns;
}

/* ---- order ---- */

static enum status settle(struct stream *stream, struct activation *store)
{
    return store->config.overlap ? STATUS_OK : computing_synchronize(stream, &store->computing);
}

enum status activation_synchronize(struct activation *store)
{
    if (store == NULL || store->copy == NULL) return STATUS_OK;
    return computing_synchronize(store->copy, &store->computing);
}

enum status activation_begin_forward(int pass, bool backward, struct activation *store)
{
    if (store == NULL) return STATUS_OK;
    assert(pass >= 0 && pass < store->config.pass_count);
    store->saving = pass;
    store->keeps = backward;
    /* The last save before this pass: the model writes into that buffer next. */
    for (int i = 0; i < TURNS && store->copy != NULL; i++)
        TRY(computing_waits(store->copied[i], &store->computing));
    return STATUS_OK;
}

void activation_begin_backward(int pass, struct activation *store)
{
    if (store == NULL) return;
    assert(pass >= 0 && pass < store->config.pass_count);
    store->loading = pass;
    store->ahead = NO_BLOCK;
}

/* ---- places ---- */

static size_t place_of(int pass, int block, const struct activation *store)
{
    const struct activation_config *config = &store->config;
    int index = block - config->first_block;
    assert(index >= 0 && index < config->block_count);
    return (size_t)pass * (size_t)config->block_count + (size_t)index;
}

/* This rank's part of x, where it lies in x. */
static struct span own_of(struct span x, const struct activation *store)
{
    const struct activation_config *config = &store->config;
    size_t element = dtype_bytes(config->dtype), elements = x.bytes / element;
    assert(elements <= config->elements);
    return span_part(x, part_begin(elements, config->rank, config) * element,
        part_count(elements, config->rank, config) * element);
}

/* ---- the hooks ---- */

enum status activation_save(void *context, int block, struct span x)
{
    struct activation *store = context;
    const struct activation_config *config = &store->config;
    if (!store->keeps) return STATUS_OK;
    size_t place = place_of(store->saving, block, store);
    struct span own = own_of(x, store);
    store->x[place] = x;
    if (store->copy == NULL)
        return span_copy(store->part[place], own, config->compute, config->device);
    if (block > config->first_block) TRY(computing_waits(store->copied[(block - 1) % TURNS], &store->computing));
    TRY(computing_goes_first(store->copy, &store->computing));
    TRY(span_copy(store->part[place], own, store->copy, config->device));
    TRY(event_record(store->copied[block % TURNS], store->copy, config->device));
    return settle(store->copy, store);
}

/* x = the parts of all ranks; this rank's is in its place already where it has been in host memory.
 * */
static enum status gather(int block, struct span x, struct activation *store)
{
    const struct activation_config *config = &store->config;
    struct span own = own_of(x, store);
    size_t elements = x.bytes / dtype_bytes(config->dtype);
    if (store->copy == NULL)
        own = span_part(store->part[place_of(store->loading, block, store)], 0, own.bytes);
    for (int r = 0; r < config->nranks; r++) store->counts[r] = part_count(elements, r, config);
    if (elements % (size_t)config->nranks == 0)
        return ring_all_gather(x, own, store->counts[0], config->dtype, config->comm, config->ring);
    return ring_all_gather_v(x, own, store->counts, config->dtype, config->comm, config->ring);
}

/* Queues what brings a block's input back, as far as it is queued at all. */
static enum status fetch(int block, struct span x, struct activation *store)
{
    const struct activation_config *config = &store->config;
    struct event *copied = store->copied[block % TURNS];
    if (store->copy != NULL) {
        struct span own = own_of(x, store);
        struct span part = store->part[place_of(store->loading, block, store)];
        TRY(computing_goes_first(store->copy, &store->computing));
        TRY(span_copy(own, span_part(part, 0, own.bytes), store->copy, config->device));
        TRY(event_record(copied, store->copy, config->device));
        TRY(settle(store->copy, store));
    }
    if (config->ring == NULL) return STATUS_OK;
    TRY(computing_goes_first(config->ring, &store->computing));
    if (store->copy != NULL) TRY(event_wait(copied, config->ring, config->device));
    TRY(gather(block, x, store));
    TRY(event_record(store->whole[block % TURNS], config->ring, config->device));
    return settle(config->ring, store);
}

/* The rest. What is computed from now on comes after it. */
static enum status finish(int block, struct span x, struct activation *store)
{
    const struct activation_config *config = &store->config;
    if (config->ring != NULL) return computing_waits(store->whole[block % TURNS], &store->computing);
    if (store->copy != NULL) TRY(computing_waits(store->copied[block % TURNS], &store->computing));
    if (config->nranks == 1) return STATUS_OK;
    int64_t begin_ns = clock_ns();
    profile_begin(config->profile, "gather checkpoints", 0);
    enum status status = gather(block, x, store);
    profile_end(config->profile, 0, (double)x.bytes);
    store->computing.wait_ns += (uint64_t)(clock_ns() - begin_ns);
    return status;
}

/* One rank that keeps its part on the device: a copy, and nothing to wait for. */
static enum status load_alone(int block, struct span x, struct activation *store)
{
    const struct activation_config *config = &store->config;
    struct span part = store->part[place_of(store->loading, block, store)];
    return span_copy(x, span_part(part, 0, x.bytes), config->compute, config->device);
}

enum status activation_load(void *context, int block, struct span x)
{
    struct activation *store = context;
    const struct activation_config *config = &store->config;
    if (config->nranks == 1 && store->copy == NULL) return load_alone(block, x, store);
    assert(store->x[place_of(store->loading, block, store)].ptr == x.ptr);
    if (store->ahead != block) TRY(fetch(block, x, store));
    if (config->overlap && block > config->first_block) {
        TRY(fetch(block - 1, store->x[place_of(store->loading, block - 1, store)], store));
        store->ahead = block - 1;
    }
    return finish(block, x, store);
}
