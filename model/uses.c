/* uses: see uses.h. The order is that of the table at the head of model.c; tests compare the two call by call. */
#include "model/uses.h"

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

int model_sums(struct model_sum sums[MODEL_SUMS_MOST], enum pass_kind pass, int batch, int t,
    const struct params *params, const struct model_run *run)
{
    const struct model_span span = model_span(params);
    size_t rows = (size_t)batch * (size_t)t, vocab = (size_t)params->config.vocab;
    uint64_t blocks = (uint64_t)(span.end - span.begin), wide = 2 * blocks + span.first;
    if (pass == PASS_TRAIN) wide += (run->recompute ? 3 : 2) * blocks + span.last;
    int count = 0;
    sums[count++] = (struct model_sum){
        .count = rows * (size_t)params->config.channels, .times = wide, .activations = true};
    if (span.last && pass == PASS_SAMPLE)
        sums[count++] = (struct model_sum){.count = vocab, .times = 1, .on_host = true};
    if (!span.last || pass == PASS_SAMPLE) return count;
    sums[count++] = (struct model_sum){.count = rows, .times = 1, .max = true};
    sums[count++] = (struct model_sum){.count = 2 * rows, .times = 1}; /* Σ exp, target's logit */
    return count;
}
