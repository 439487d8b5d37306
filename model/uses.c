/* uses: see uses.h. The order is that of the table at the head of model.c; tests compare the two call by call. */
#include "model/uses.h"

#include "model/architecture.h"

struct list {
    const struct params *params;
    struct model_use *uses; /* NULL: only counted */
    int count;
};

static void put(struct list *list, int unit, enum unit_use use)
{
    if (list->params->unit_elements[unit] == 0) return;
    if (list->uses != NULL) list->uses[list->count] = (struct model_use){unit, use};
    list->count++;
}

static void put_forward(struct list *list, const struct model_span *span)
{
    const struct params *params = list->params;
    int rows = params->embedding_units;
    for (int u = 0; u < rows && span->first; u++) put(list, u, UNIT_FORWARD);
    put(list, params->positions_unit, UNIT_FORWARD);
    for (int l = span->begin; l < span->end; l++)
        put(list, params->first_block_unit + l, UNIT_FORWARD);
    put(list, params->final_norm_unit, UNIT_FORWARD);
    for (int u = 0; u < rows && span->last; u++) put(list, u, UNIT_FORWARD);
}

static void put_backward(struct list *list, const struct model_span *span)
{
    const struct params *params = list->params;
    int rows = params->embedding_units;
    for (int u = rows; u-- > 0 && span->last;) put(list, u, UNIT_BACKWARD);
    put(list, params->final_norm_unit, UNIT_BACKWARD);
    for (int l = span->end; l-- > span->begin;)
        put(list, params->first_block_unit + l, UNIT_BACKWARD);
    put(list, params->positions_unit, UNIT_BACKWARD_GRAD);
    for (int u = rows; u-- > 0 && span->first;) put(list, u, UNIT_BACKWARD_GRAD);
}

int model_uses(struct model_use *uses, const struct params *params, bool backward)
{
    const struct model_span span = model_span(params);
    struct list list = {params, uses, 0};
    put_forward(&list, &span);
    if (backward) put_backward(&list, &span);
    return list.count;
}

/* Of B·T·C elements: how often parts are summed, and how often own rows are gathered. */
static void count_wide(uint64_t *sums, uint64_t *gathers, bool train, const struct model_span *span,
    const struct model_run *run)
{
    uint64_t blocks = (uint64_t)(span->end - span->begin);
    *sums = 2 * blocks + span->first;
    *gathers = 2 * blocks + span->last;
    if (!train) return;
    *sums += (run->recompute ? 3 : 2) * blocks + span->last;
    *gathers += 4 * blocks + span->first; /* twice two: computed again, or norms' outputs again */
}

int model_tensor_calls(struct model_tensor_call calls[MODEL_TENSOR_CALLS_MOST], enum pass_kind pass,
    int batch, int t, const struct params *params, const struct model_run *run)
{
    const struct model_span span = model_span(params);
    size_t rows = (size_t)batch * (size_t)t, vocab = (size_t)params->config.vocab;
    size_t channels = (size_t)params->config.channels;
    size_t norm = architecture_table(params->config.architecture)->biases ? 2 * channels : channels;
    uint64_t blocks = (uint64_t)(span.end - span.begin), sums, gathers;
    struct model_tensor_call wide = {.count = rows * channels, .rows = rows, .activations = true};
    int count = 0;
    count_wide(&sums, &gathers, pass == PASS_TRAIN, &span, run);
    wide.hook = run->cut_rows ? MODEL_SCATTER_SUM : MODEL_SUM;
    wide.times = sums;
    calls[count++] = wide;
    wide.hook = MODEL_GATHER;
    wide.times = gathers;
    if (run->cut_rows) calls[count++] = wide;
    if (run->cut_rows && pass == PASS_TRAIN)
        calls[count++] = (struct model_tensor_call){.count = 2 * norm, .times = blocks};
    if (run->cut_rows && pass == PASS_TRAIN && span.last)
        calls[count++] = (struct model_tensor_call){.count = norm, .times = 1};
    if (span.last && pass == PASS_SAMPLE)
        calls[count++] = (struct model_tensor_call){.count = vocab, .times = 1, .on_host = true};
    if (!span.last || pass == PASS_SAMPLE) return count;
    calls[count++] = (struct model_tensor_call){.hook = MODEL_MAX, .count = rows, .times = 1};
    calls[count++] =
        (struct model_tensor_call){.count = 2 * rows, .times = 1}; /* Σ exp, target's logit */
    return count;
}
