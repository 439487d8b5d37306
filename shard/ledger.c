/* ledger: see ledger.h. */
#include "shard/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCALARS_PER_STEP       3 /* a gather of one double each: valid tokens, loss, norm */
#define SCALARS_PER_VALIDATION 2 /* one gather of two doubles */

static void add_entry(struct ledger *ledger, const char *name, const char *what, uint64_t measured,
    const uint64_t *predicted)
{
    struct ledger_entry *entry = &ledger->entry[ledger->count++];
    snprintf(entry->name, sizeof entry->name, "%s%s", name, what);
    entry->measured = measured;
    entry->has_prediction = predicted != NULL;
    if (predicted == NULL) return;
    entry->predicted = *predicted;
    if (entry->predicted != entry->measured) ledger->ok = false;
}

/* ---- the wire ---- */

static void add_counters(struct ledger_traffic *traffic, const struct ring_comm *comm)
{
    if (comm == NULL) return;
    struct ring_counters counters = ring_comm_counters(comm);
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        traffic->sent[c] += counters.sent_bytes[c];
        traffic->received[c] += counters.received_bytes[c];
    }
}

struct ledger_traffic ledger_traffic(const struct grid *grid)
{
    struct ledger_traffic traffic = {0};
    add_counters(&traffic, grid->tensor_comm);
    memcpy(traffic.tensor, traffic.sent, sizeof traffic.tensor);
    add_counters(&traffic, grid->world);
    if (grid->group_comm != grid->world) add_counters(&traffic, grid->group_comm);
    add_counters(&traffic, grid->replicas_comm);
    add_counters(&traffic, grid->pipeline_comm);
    add_counters(&traffic, grid->pipeline_back_comm);
    add_counters(&traffic, grid->embedding_comm);
    return traffic;
}

/* What one all-gather of `count` doubles makes a rank send. */
static uint64_t predict_gather(size_t count, int nranks, int rank, const struct ring_comm *comm)
{
    struct ring_call call = {.collective = COLLECTIVE_ALL_GATHER,
        .dtype = DTYPE_INT32,
        .count = count * sizeof(double) / sizeof(int32_t)};
    return ring_predict_sent_bytes(&call, nranks, rank, comm);
}

void ledger_predict(uint64_t sent[COLLECTIVE_COUNT], const struct ledger_events *events,
    const struct activation_config *carries, const struct stage_config *config)
{
    const uint64_t times[MOMENT_COUNT] = {
        [MOMENT_FORWARD] = events->forwards,
        [MOMENT_TRAIN] = events->trains / (uint64_t)stage_place(config).micro_count,
        [MOMENT_STEP] = events->steps,
        [MOMENT_REDUCE] = events->reductions,
        [MOMENT_UPDATE] = events->updates,
    };
    struct stage_prediction predicted;
    uint64_t checkpoints[COLLECTIVE_COUNT] = {0};
    stage_predict(&predicted, config);
    activation_predict_sent(checkpoints, carries->elements, carries);
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        sent[c] = events->trains * checkpoints[c] + events->tensor_sent[c];
        for (int moment = 0; moment < MOMENT_COUNT; moment++)
            sent[c] += times[moment] * predicted.sent_bytes[moment][c];
    }
    const struct grid *grid = config->grid;
    int all = grid_nranks(grid), rank = grid_rank(grid, grid->pipeline, grid->data, grid->tensor);
    sent[COLLECTIVE_SEND] += events->pipeline_bytes;
    sent[COLLECTIVE_ALL_GATHER] +=
        (events->steps * SCALARS_PER_STEP + events->tokens_told) *
            predict_gather(1, all, rank, grid->world) +
        events->validations * predict_gather(SCALARS_PER_VALIDATION, all, rank, grid->world);
}

/* ---- */

/* What is held of the device's memory, and what is offloaded from it. */
static struct memory_account ledger_account(struct device *device)
{
    struct memory_account account = memory_account_read(device);
    struct memory_account beside = memory_account_read_beside(device);
    account.now[MEMORY_OFFLOADED] = beside.now[MEMORY_OFFLOADED];
    account.peak[MEMORY_OFFLOADED] = beside.peak[MEMORY_OFFLOADED];
    return account;
}

void ledger_predict_held(uint64_t held[MEMORY_TAG_COUNT], const struct model_memory *memory,
    const struct activation_config *carries, const struct stage_config *config)
{
    stage_predict_held(held, config);
    held[MEMORY_ACTIVATIONS] = memory->activations;
    held[MEMORY_CHECKPOINTS] = memory->checkpoints;
    held[MEMORY_WORKSPACE] = memory->workspace;
    held[activation_tag(carries)] += activation_predict_bytes(carries);
}

/* What the tensor group sends: parts that are summed, and rows or checkpoints that are gathered,
 * of which a run has one or the other. */
static void add_tensor(struct ledger *ledger, const struct ledger_events *events,
    const struct ledger_traffic *start, const struct ledger_traffic *now,
    const struct activation_config *carries)
{
    uint64_t sums = ledger_tensor_sums(events->tensor_sent);
    uint64_t rows = events->tensor_sent[COLLECTIVE_ALL_GATHER];
    uint64_t gathers = now->tensor[COLLECTIVE_ALL_GATHER] - start->tensor[COLLECTIVE_ALL_GATHER];
    add_entry(ledger, "tensor_sum", "_sent",
        ledger_tensor_sums(now->tensor) - ledger_tensor_sums(start->tensor), &sums);
    if (rows > 0) add_entry(ledger, "tensor_gather", "_sent", gathers, &rows);
    if (carries->nranks == 1 || !activation_is_carried(carries->keep)) return;
    uint64_t checkpoints[COLLECTIVE_COUNT] = {0};
    activation_predict_sent(checkpoints, carries->elements, carries);
    checkpoints[COLLECTIVE_ALL_GATHER] *= events->trains;
    add_entry(ledger, "checkpoints", "_sent", gathers, &checkpoints[COLLECTIVE_ALL_GATHER]);
    ledger->checkpoint_paper_bytes = (double)events->trains * activation_paper_bytes(carries);
}

void ledger_read(struct ledger *ledger, const struct ledger_events *events,
    const struct ledger_traffic *start, const struct model_memory *memory,
    const struct activation_config *carries, const struct stage *stage)
{
    const struct stage_config *config = &stage->config;
    struct memory_account account = ledger_account(config->device);
    struct ledger_traffic now = ledger_traffic(config->grid);
    uint64_t held[MEMORY_TAG_COUNT], sent[COLLECTIVE_COUNT];
    ledger_predict_held(held, memory, carries, config);
    ledger_predict(sent, events, carries, config);
    *ledger = (struct ledger){.ok = true, .steps = events->steps};
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++)
        add_entry(ledger, memory_tag_name((enum memory_tag)tag), "_held", account.peak[tag],
            tag == MEMORY_COMMUNICATION ? NULL : &held[tag]); /* the ring's to choose */
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        const char *name = collective_name((enum collective)c);
        uint64_t measured = now.sent[c] - start->sent[c];
        uint64_t received = now.received[c] - start->received[c];
        if (sent[c] > 0 || measured > 0) add_entry(ledger, name, "_sent", measured, &sent[c]);
        if (received > 0) add_entry(ledger, name, "_received", received, NULL);
    }
    if (config->grid->tensor_count > 1) add_tensor(ledger, events, start, &now, carries);
    ledger->elements = config->params->elements;
    ledger->data_count = config->grid->data_count;
    ledger->volume = ledger_volume(events, config);
}

/* ---- the paper's count ---- */

/* How often a whole model's worth goes over the wire, by what it is. */
struct passes {
    double reductions;       /* gradients to their owners */
    double gradient_gathers; /* and from there to everybody: stage 0's all-reduce is both */
    double weight_gathers;
};

static struct passes passes_of(
    const struct ledger_events *events, const struct stage_config *config)
{
    struct stage_keeps keeps = stage_keeps(config);
    double reductions = (double)events->reductions, trains = (double)events->trains;
    if (keeps.optimizer == KEEP_ALL) return (struct passes){reductions, reductions, 0.0};
    if (keeps.weights == KEEP_ALL) return (struct passes){reductions, 0.0, (double)events->updates};
    return (struct passes){reductions, 0.0, 2.0 * trains + (double)events->forwards};
}

static double passes_bytes(const struct passes *passes, const struct stage_config *config)
{
    double m = config->layout->nranks, g = config->replica_count;
    double gather = (m - 1.0) / m;                      /* inside the shard group */
    double reduce = gather + 2.0 * (g - 1.0) / (g * m); /* and the own shard over the groups */
    double gradients = passes->reductions * reduce + passes->gradient_gathers * gather;
    return (double)config->params->elements *
           (gradients * (double)dtype_bytes(config->gradient_dtype) +
               passes->weight_gathers * gather * (double)dtype_bytes(config->dtype));
}

static double passes_psi(const struct passes *passes)
{
    return passes->reductions + passes->gradient_gathers + passes->weight_gathers;
}

struct ledger_volume ledger_volume(
    const struct ledger_events *events, const struct stage_config *config)
{
    const struct ledger_events plain = {.trains = 1, .reductions = 1, .updates = 1};
    struct passes paper = passes_of(&plain, config), done = passes_of(events, config);
    double steps = (double)events->steps;
    return (struct ledger_volume){
        .paper_psi = passes_psi(&paper),
        .paper_bytes = passes_bytes(&paper, config) * steps,
        .done_psi = steps > 0.0 ? passes_psi(&done) / steps : 0.0,
        .done_bytes = passes_bytes(&done, config),
    };
}

/* ---- all ranks ---- */

enum status ledger_agree(struct ledger *ledger, struct bootstrap *bootstrap)
{
    int nranks = bootstrap_nranks(bootstrap);
    struct ledger_entry *first = calloc((size_t)nranks, sizeof *first); /* no name: none differs */
    if (first == NULL)
        return FAIL(STATUS_SYSTEM, "no memory to compare the ledgers of %d ranks", nranks);
    for (int i = ledger->count; i-- > 0;) {
        const struct ledger_entry *entry = &ledger->entry[i];
        if (entry->has_prediction && entry->measured != entry->predicted)
            first[bootstrap_rank(bootstrap)] = *entry;
    }
    enum status status = bootstrap_all_gather(first, sizeof *first, bootstrap);
    ledger->nranks = nranks;
    ledger->differing_ranks = 0;
    for (int r = nranks; r-- > 0 && status == STATUS_OK;) {
        if (first[r].name[0] == '\0') continue;
        ledger->differing_ranks++;
        ledger->first_rank = r;
        ledger->first = first[r];
    }
    free(first);
    return status;
}

/* ---- one step ---- */

void ledger_read_step(struct ledger_step *step, const struct ledger_events *before,
    const struct ledger_events *now, const struct ledger_traffic *start,
    const struct activation_config *carries, const struct stage *stage)
{
    struct memory_account account = ledger_account(stage->config.device);
    struct ledger_traffic end = ledger_traffic(stage->config.grid);
    struct ledger_events events = {
        .steps = now->steps - before->steps,
        .trains = now->trains - before->trains,
        .reductions = now->reductions - before->reductions,
        .updates = now->updates - before->updates,
        .forwards = now->forwards - before->forwards,
        .validations = now->validations - before->validations,
        .pipeline_bytes = now->pipeline_bytes - before->pipeline_bytes,
        .tokens_told = now->tokens_told - before->tokens_told,
    };
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) {
        step->now[tag] = account.now[tag];
        step->peak[tag] = account.peak[tag];
    }
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        step->sent[c] = end.sent[c] - start->sent[c];
        step->received[c] = end.received[c] - start->received[c];
        events.tensor_sent[c] = now->tensor_sent[c] - before->tensor_sent[c];
    }
    step->tensor_sums = ledger_tensor_sums(end.tensor) - ledger_tensor_sums(start->tensor);
    step->predicted_tensor_sums = ledger_tensor_sums(events.tensor_sent);
    ledger_predict(step->predicted_sent, &events, carries, &stage->config);
}
