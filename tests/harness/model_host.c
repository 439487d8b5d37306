/* model_host: see model_host.h. */
#include "tests/harness/model_host.h"

#include <stdio.h>
#include <stdlib.h>

struct model_host model_host_make(const struct model_config *config, uint64_t seed)
{
    struct model_host host;
    if (params_make(&host.params, config) != STATUS_OK) {
        fprintf(stderr, "model_host: %s\n", status_text());
        exit(1);
    }
    host.weights = calloc(host.params.elements, sizeof(float));
    host.gradients = calloc(host.params.elements, sizeof(float));
    host.unit_begin = calloc((size_t)host.params.unit_count, sizeof *host.unit_begin);
    if (host.weights == NULL || host.gradients == NULL || host.unit_begin == NULL) abort();
    size_t begin = 0;
    for (int u = 0; u < host.params.unit_count; u++) {
        host.unit_begin[u] = begin;
        params_initialize(host.weights + begin, &host.params, u, 0, host.params.unit_elements[u], seed);
        begin += host.params.unit_elements[u];
    }
    return host;
}

void model_host_free(struct model_host *host)
{
    params_free(&host->params);
    free(host->weights);
    free(host->gradients);
    free(host->unit_begin);
}

struct model_run model_host_run(int batch, int t)
{
    return (struct model_run){
        .batch = batch, .t = t, .weights = DTYPE_FLOAT32, .gradients = DTYPE_FLOAT32};
}

static enum status lend(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct model_host *host = context;
    size_t begin = host->unit_begin[unit], bytes = host->params.unit_elements[unit] * sizeof(float);
    view->weights = span_host(host->weights + begin, bytes);
    if (use != UNIT_FORWARD) view->gradients = span_host(host->gradients + begin, bytes);
    return STATUS_OK;
}

struct model_hooks model_host_hooks(struct model_host *host)
{
    return (struct model_hooks){.context = host, .enter = lend};
}
