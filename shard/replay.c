/* replay: see replay.h. */
#include "shard/replay.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shard/heap.h"

/* ---- the trace ---- */

/* What is written down, and the shapes it is of. */
struct writer {
    struct replay_trace *trace;
    const struct params *params;
    uint64_t rows, channels; /* B·T, C */
    uint64_t qkv, fc, gelu;  /* columns of what these operations put out */
    int layer;
    int *gradient;   /* [param_count] ids; −1: not there yet */
    int *checkpoint; /* [layers] ids */
};

static void put(const struct replay_event *event, struct writer *writer)
{
    assert(writer->trace->count < writer->trace->most);
    writer->trace->event[writer->trace->count++] = *event;
}

static int take(const char *name, uint64_t elements, enum replay_life life, struct writer *writer)
{
    int id = writer->trace->ids++;
    const struct replay_event event = {.id = id,
        .bytes = elements * sizeof(float),
        .life = life,
        .name = name,
        .layer = writer->layer};
    put(&event, writer);
    return id;
}

/* (rows, columns) of scratch. */
static int scratch(const char *name, uint64_t columns, struct writer *writer)
{
    return take(name, columns * writer->rows, REPLAY_SCRATCH, writer);
}

static void give(int id, struct writer *writer)
{
    put(&(struct replay_event){.id = id, .layer = writer->layer}, writer);
}

/* A tensor's gradient, born with its first micro-batch. */
static void gradient(int param, struct writer *writer)
{
    const struct param *of = &writer->params->param[param];
    if (writer->gradient[param] < 0 && of->rows * of->cols > 0)
        writer->gradient[param] = take(of->name, of->rows * of->cols, REPLAY_GRADIENT, writer);
}

/* Those of a unit's tensors, or of one operation of a block: "fc" is fcw and, where there is one,
 * fcb. */
static void gradients(int unit, const char *operation, struct writer *writer)
{
    for (int i = 0; i < writer->params->param_count; i++) {
        const struct param *param = &writer->params->param[i];
        if (param->unit != unit) continue;
        const char *name = strrchr(param->name, '.');
        size_t length = operation == NULL ? 0 : strlen(operation);
        if (operation == NULL ||
            (strncmp(name + 1, operation, length) == 0 && strlen(name + 1) == length + 1))
            gradient(i, writer);
    }
}

/* A tensor of the first block: all have the same shapes. */
static const struct param *tensor(const char *name, const struct params *params)
{
    for (int i = 0; i < params->param_count; i++) {
        const char *last = strrchr(params->param[i].name, '.');
        if (last != NULL && strcmp(last + 1, name) == 0) return &params->param[i];
    }
    return NULL;
}

static void block_forward(struct writer *w)
{
    uint64_t heads = (uint64_t)w->params->config.heads;
    int ln1 = scratch("ln1", w->channels, w), qkv = scratch("qkv", w->qkv, w);
    give(ln1, w);
    int att = scratch("att", w->channels, w), lse = scratch("lse", heads, w);
    give(qkv, w), give(lse, w);
    int x2 = scratch("x2", w->channels, w);
    give(att, w);
    int ln2 = scratch("ln2", w->channels, w), fc = scratch("fc", w->fc, w);
    give(ln2, w);
    int gelu = scratch("gelu", w->gelu, w);
    give(fc, w);
    bool last = ++w->layer == w->params->config.layers;
    int out = take("x", w->rows * w->channels, last ? REPLAY_SCRATCH : REPLAY_CHECKPOINT, w);
    w->checkpoint[last ? 0 : w->layer] = last ? w->checkpoint[0] : out;
    give(gelu, w), give(x2, w);
    if (last) give(out, w); /* normed in place of it, for the head */
}

/* dx of the block's output dies, dx of its input is born. Returns the latter. */
static int block_backward(int d_out, struct writer *w)
{
    uint64_t heads = (uint64_t)w->params->config.heads;
    int unit = w->params->first_block_unit + w->layer;
    int ln1 = scratch("ln1", w->channels, w), qkv = scratch("qkv", w->qkv, w),
        att = scratch("att", w->channels, w);
    int lse = scratch("lse", heads, w), x2 = scratch("x2", w->channels, w);
    int ln2 = scratch("ln2", w->channels, w), fc = scratch("fc", w->fc, w),
        gelu = scratch("gelu", w->gelu, w);
    int d_fc = scratch("dfc", w->fc, w);
    gradients(unit, "fcproj", w);
    give(gelu, w), give(fc, w);
    int d_ln2 = scratch("dln2", w->channels, w);
    gradients(unit, "fc", w);
    give(d_fc, w), give(ln2, w);
    int d_x2 = scratch("dx2", w->channels, w);
    gradients(unit, "ln2", w);
    give(d_ln2, w), give(d_out, w), give(x2, w);
    int d_att = scratch("datt", w->channels, w);
    gradients(unit, "attproj", w);
    int d_qkv = scratch("dqkv", w->qkv, w);
    give(d_att, w), give(att, w), give(qkv, w), give(lse, w);
    int d_ln1 = scratch("dln1", w->channels, w);
    gradients(unit, "qkv", w);
    give(d_qkv, w), give(ln1, w);
    int d_x = scratch("dx", w->channels, w);
    gradients(unit, "ln1", w);
    give(d_ln1, w), give(d_x2, w), give(w->checkpoint[w->layer], w);
    return d_x;
}

/* Logits of a unit's rows, for the loss, or for its gradient. */
static void head(bool backward, struct writer *w)
{
    for (int i = 0, units = w->params->embedding_units; i < units; i++) {
        int unit = backward ? units - 1 - i : i;
        uint64_t rows = w->params->unit_elements[unit] / w->channels;
        int logits = scratch("logits", rows, w);
        if (backward) gradients(unit, NULL, w);
        give(logits, w);
    }
}

static void micro_batch(struct writer *w)
{
    w->layer = 0;
    w->checkpoint[0] = take("x", w->rows * w->channels, REPLAY_CHECKPOINT, w);
    while (w->layer < w->params->config.layers) block_forward(w);
    w->layer = -1;
    int norm = scratch("norm", w->channels, w);
    head(false, w);
    int d_norm = scratch("dnorm", w->channels, w);
    head(true, w);
    int d_x = scratch("dx", w->channels, w);
    gradients(w->params->final_norm_unit, NULL, w);
    give(norm, w), give(d_norm, w);
    for (w->layer = w->params->config.layers - 1; w->layer >= 0; w->layer--)
        d_x = block_backward(d_x, w);
    gradients(w->params->positions_unit, NULL, w);
    give(d_x, w);
}

enum status replay_make(struct replay_trace *trace, const struct params *params, int batch, int t)
{
    enum { PASSES = 2, EVENTS_PER_BLOCK = 64, EVENTS_OF_A_PASS = 16, EVENTS_PER_UNIT = 4 };
    int layers = params->config.layers;
    int pass = EVENTS_PER_BLOCK * layers + EVENTS_PER_UNIT * params->unit_count + EVENTS_OF_A_PASS;
    *trace = (struct replay_trace){.most = PASSES * pass + params->param_count};
    trace->event = calloc((size_t)trace->most, sizeof *trace->event);
    struct writer writer = {.trace = trace,
        .params = params,
        .rows = (uint64_t)batch * (uint64_t)t,
        .channels = (uint64_t)params->config.channels,
        .qkv = tensor("qkvw", params)->rows,
        .fc = tensor("fcw", params)->rows,
        .gelu = tensor("fcprojw", params)->cols,
        .gradient = calloc((size_t)params->param_count, sizeof *writer.gradient),
        .checkpoint = calloc((size_t)layers, sizeof *writer.checkpoint)};
    enum status status = STATUS_OK;
    if (trace->event == NULL || writer.gradient == NULL || writer.checkpoint == NULL) {
        status = FAIL(STATUS_SYSTEM, "no memory for a trace of %d allocations", trace->most);
    } else {
        for (int i = 0; i < params->param_count; i++) writer.gradient[i] = -1;
        for (int a = 0; a < PASSES; a++) micro_batch(&writer);
    }
    free(writer.gradient);
    free(writer.checkpoint);
    return status;
}

void replay_free(struct replay_trace *trace)
{
    free(trace->event);
    *trace = (struct replay_trace){0};
}

/* ---- replaying ---- */

/* Whether lives are taken from the heap: all, or scratch alone. */
static enum status run(
    struct replay_outcome *outcome, struct heap *heap, bool all, const struct replay_trace *trace)
{
    bool *taken = calloc((size_t)trace->ids, sizeof *taken);
    if (taken == NULL) return FAIL(STATUS_SYSTEM, "no memory to replay %d allocations", trace->ids);
    outcome->fits = true;
    for (int i = 0; i < trace->count && outcome->fits; i++) {
        const struct replay_event *event = &trace->event[i];
        if (event->bytes == 0) {
            if (taken[event->id]) heap_give(event->id, heap);
            continue;
        }
        if (!all && event->life != REPLAY_SCRATCH) continue;
        taken[event->id] = outcome->fits = heap_take(event->id, event->bytes, heap);
        if (heap->used_bytes > outcome->peak_bytes) outcome->peak_bytes = heap->used_bytes;
        if (outcome->fits) continue;
        outcome->failed = *event;
        outcome->free_bytes = heap->bytes - heap->used_bytes;
        outcome->largest_hole = heap_largest_hole(heap);
    }
    outcome->extent_bytes = heap->extent_bytes;
    free(taken);
    return STATUS_OK;
}

enum status replay_heap(
    struct replay_outcome *outcome, const struct replay_trace *trace, uint64_t memory)
{
    struct heap heap;
    *outcome = (struct replay_outcome){0};
    enum status status = heap_open(&heap, memory, trace->ids);
    if (status == STATUS_OK) status = run(outcome, &heap, true, trace);
    heap_close(&heap);
    return status;
}

/* The most that is alive at the same time of one life: what an arena of it has. */
static uint64_t peak_of(enum replay_life life, const struct replay_trace *trace, uint64_t *bytes)
{
    uint64_t now = 0, peak = 0;
    for (int i = 0; i < trace->count; i++) {
        const struct replay_event *event = &trace->event[i];
        if (event->bytes == 0) {
            now -= bytes[event->id];
            bytes[event->id] = 0;
        } else if (event->life == life) {
            bytes[event->id] = event->bytes;
            now += event->bytes;
        }
        peak = now > peak ? now : peak;
    }
    return peak;
}

/* Opened first, and for good: they never fail later. */
static enum status open_arenas(struct replay_outcome *outcome, const struct replay_trace *trace)
{
    static const enum replay_life lives[] = {REPLAY_CHECKPOINT, REPLAY_GRADIENT};
    for (int i = 0; i < 2; i++) {
        uint64_t *bytes = calloc((size_t)trace->ids, sizeof *bytes);
        if (bytes == NULL)
            return FAIL(STATUS_SYSTEM, "no memory to add up %d allocations", trace->ids);
        outcome->life_bytes[lives[i]] = peak_of(lives[i], trace, bytes);
        free(bytes);
    }
    return STATUS_OK;
}

enum status replay_arenas(
    struct replay_outcome *outcome, const struct replay_trace *trace, uint64_t memory)
{
    struct heap heap = {0};
    *outcome = (struct replay_outcome){0};
    TRY(open_arenas(outcome, trace));
    uint64_t kept = outcome->life_bytes[REPLAY_CHECKPOINT] + outcome->life_bytes[REPLAY_GRADIENT];
    if (kept > memory) { /* nor would any other way fit */
        outcome->free_bytes = outcome->largest_hole = memory;
        return STATUS_OK;
    }
    enum status status = heap_open(&heap, memory - kept, trace->ids);
    if (status == STATUS_OK) status = run(outcome, &heap, false, trace);
    outcome->life_bytes[REPLAY_SCRATCH] = outcome->extent_bytes;
    outcome->extent_bytes += kept;
    outcome->peak_bytes += kept;
    heap_close(&heap);
    return status;
}
